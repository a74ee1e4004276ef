//! A program's session in an ivshmem file, as a virtual machine has it: the program sleeps on a bell and wakes its worker by a stream,
//! because no futex reaches another machine. The worker's device is made of vectors, or the software GPU.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mica_gpu::Gpu;
use mica_guest::bells::{self, ProgramLife};
use mica_limits::{LocalQuota, Quota};
use mica_vgpu::test_gpu::TestGpu;
use mica_vgpu::{Vgpu, VgpuSpec};
use mica_wire::session::client::{IvshmemPort, SessionClient};
use mica_wire::session::*;
use mica_worker::{DeviceSource, OutputBuffer, SoftwareDevices, serve_session};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

const IVSHMEM_BYTES: u64 = 64 << 20;
const MODULE: &[u8] = b"fill 8 4 4\nadd 8 4 4\nfault\nblock\nglobal counter 64\n";

struct Bench {
    gpu: Arc<dyn Gpu>,
    quota: Arc<LocalQuota>,
    vgpu: Arc<Vgpu>,
}

/// A program in a machine, and what serves it.
struct Machine {
    client: SessionClient,
    ivshmem: OwnedFd,
    wire: UnixStream,
    /// What the host knows of the program at the end of the session.
    life: Receiver<ProgramLife>,
    threads: Vec<JoinHandle<Result<(), String>>>,
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn bench_on(gpu: Arc<dyn Gpu>) -> Bench {
    let limit = 256 << 20;
    let quota = Arc::new(LocalQuota::new(limit));
    let spec = VgpuSpec::new("test", limit);
    let vgpu = Vgpu::new(Arc::clone(&gpu), quota.clone(), spec);
    Bench { gpu, quota, vgpu }
}

fn bench() -> Bench {
    bench_on(Arc::new(TestGpu::new(1 << 32)))
}

impl Bench {
    fn start(&self) -> Machine {
        let ivshmem = create_sealed("ivshmem", IVSHMEM_BYTES).unwrap();
        let ((program, agent_end), (worker, relay_end)) = (pair(), pair());
        let (near, far) = UnixStream::pair().unwrap();
        let wire = near.try_clone().unwrap();
        let (vgpu, gpu) = (self.vgpu.clone(), self.gpu.clone());
        let output = Arc::new(OutputBuffer::default());
        let (tell, told) = std::sync::mpsc::channel();
        let (tell_life, life) = std::sync::mpsc::channel();
        let (there, here) = (ivshmem.try_clone().unwrap(), ivshmem.try_clone().unwrap());
        let threads = vec![
            std::thread::spawn(move || {
                let served = serve_session(&vgpu, gpu, output, worker, None);
                match served.map_err(|error| error.to_string())? {
                    Some(violation) => Err(violation),
                    None => Ok(()),
                }
            }),
            std::thread::spawn(move || {
                let port = IvshmemPort::connect(relay_end, there).unwrap();
                tell.send(port.has_windows()).unwrap();
                let served = bells::serve_worker(&port, &far.into());
                let life = served.map_err(|error| error.to_string())?;
                tell_life.send(life).unwrap();
                Ok(())
            }),
            std::thread::spawn(move || {
                let facts = (IVSHMEM_BYTES, told.recv().unwrap());
                let served =
                    bells::serve_program(agent_end, None, here.as_fd(), facts, &near.into());
                served.map_err(|error| error.to_string())
            }),
        ];
        Machine {
            client: SessionClient::connect(program, "test").unwrap(),
            ivshmem,
            wire,
            life,
            threads,
        }
    }
}

impl Machine {
    /// What the worker, the relay and the agent say once the program has gone.
    fn end(self) -> Vec<Result<(), String>> {
        self.end_with_life().0
    }

    /// The same, and what the host knows of the program.
    fn end_with_life(self) -> (Vec<Result<(), String>>, Option<ProgramLife>) {
        drop(self.client);
        let said = (self.threads.into_iter())
            .map(|thread| thread.join().unwrap())
            .collect();
        (said, self.life.try_recv().ok())
    }
}

fn fill_params(address: u64, count: u32, value: u32) -> Vec<u8> {
    let mut bytes = address.to_le_bytes().to_vec();
    bytes.extend(count.to_le_bytes());
    bytes.extend(value.to_le_bytes());
    bytes
}

fn launch(module: u64, kernel: u32, stream: u64) -> Launch {
    Launch {
        stream,
        module,
        kernel,
        grid: [1; 3],
        block: [1; 3],
        dynamic_shared: 0,
        cooperative: false,
    }
}

#[test]
fn a_program_computes_copies_and_pins_in_an_ivshmem_file() {
    let b = bench();
    let machine = b.start();
    let client = &machine.client;
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let (context, stream) = (new.context, new.default_stream);
    let module = client.module_load(context, MODULE, false).unwrap().module;
    let bytes = 3 << 20;
    let address = client.call(&MemoryAlloc { context, bytes }).unwrap().value;
    let data: Vec<u8> = (0..bytes).map(|at| ((at * 7) >> 3) as u8).collect();
    client.write(stream, address, &data).unwrap();
    let mut back = vec![0; data.len()];
    client.read(stream, address, &mut back).unwrap();
    assert!(back == data);
    for value in 0..2000_u32 {
        let params = fill_params(address, 4, value);
        client.launch(&launch(module, 0, stream), &params).unwrap();
    }
    client.synchronize(stream).unwrap();
    let mut words = [0; 16];
    client.read(stream, address, &mut words).unwrap();
    assert_eq!(words[..4], 1999_u32.to_le_bytes());

    // Pinned memory lies in the ivshmem file: the device's copy needs no copy of ours.
    let pinned = client.host_alloc(context, 8192, false).unwrap();
    // SAFETY: memory of so many bytes, which nobody else touches now.
    unsafe { std::ptr::write_bytes(pinned.as_ptr(), 0x5a, 8192) };
    let area = CopyBox::linear(
        CopyPlace::Device(address),
        CopyPlace::Device(pinned.device()),
        8192,
    );
    client.post(&Copy { stream, area }, &[]).unwrap();
    client.read(stream, address, &mut words).unwrap();
    assert_eq!(words, [0x5a; 16]);
    client.host_free(context, pinned).unwrap();
    let full = client
        .host_alloc(context, IVSHMEM_BYTES, false)
        .unwrap_err();
    assert_eq!(full.cuda_code(), 2, "{full}");
    let file = create_sealed("mine", 8192).unwrap();
    let refused = client.host_register(context, &file, 0, 8192, false);
    assert_eq!(refused.unwrap_err().cuda_code(), 801);
    let (said, life) = machine.end_with_life();
    assert_eq!(said, [Ok(()), Ok(()), Ok(())]);
    assert_eq!(life, Some(ProgramLife::Over));
    assert_eq!(b.quota.view().used_bytes, 0);
}

/// A bell that is lost costs the worker's or the program's longest sleep: seconds, if it were each time.
#[test]
fn sleepers_on_both_sides_are_woken() {
    let b = bench();
    let machine = b.start();
    let client = &machine.client;
    let began = Instant::now();
    let rounds = 20;
    for _ in 0..rounds {
        std::thread::sleep(Duration::from_millis(20));
        client.call(&MemoryInfo {}).unwrap();
    }
    assert!(
        began.elapsed() < Duration::from_secs(rounds / 2),
        "{:?}",
        began.elapsed()
    );
    // Many threads at once, more than there are processors.
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..50 {
                    client.call(&MemoryInfo {}).unwrap();
                }
            });
        }
    });
    machine.end();
}

#[test]
fn the_software_gpu_has_its_windows_in_the_ivshmem_file() {
    let devices = SoftwareDevices::new(0, Some(256 << 20), None);
    let gpu = devices.open(Arc::new(OutputBuffer::default())).unwrap();
    let b = bench_on(gpu);
    let machine = b.start();
    let client = &machine.client;
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let (context, stream) = (new.context, new.default_stream);
    let bytes = 4 << 20;
    let address = client.call(&MemoryAlloc { context, bytes }).unwrap().value;
    let data: Vec<u8> = (0..bytes).map(|at| ((at * 13) >> 4) as u8).collect();
    client.write_now(stream, address, &data).unwrap();
    let mut back = vec![0; data.len()];
    client.read(stream, address, &mut back).unwrap();
    assert!(back == data);
    assert_eq!(
        client.window_bytes(),
        (bytes, bytes),
        "copies go through windows"
    );
    // More than the ivshmem file has room for still goes, through staging.
    let large = IVSHMEM_BYTES;
    let other = (client.call(&MemoryAlloc {
        context,
        bytes: large,
    }))
    .unwrap()
    .value;
    let data = vec![7; large as usize];
    client.write_now(stream, other, &data).unwrap();
    let mut back = vec![0; data.len()];
    client.read(stream, other, &mut back).unwrap();
    assert!(back == data);
    assert_eq!(client.window_bytes(), (bytes, bytes));
    // Freed memory leaves the ivshmem file.
    client.call(&MemoryFree { context, address }).unwrap();
    client
        .call(&MemoryFree {
            context,
            address: other,
        })
        .unwrap();
    let window_at = IvshmemLayout::new(IVSHMEM_BYTES, true).windows.start;
    let mapped = Mapping::new(machine.ivshmem.try_clone().unwrap(), window_at, 4096).unwrap();
    let mut first = [1; 64];
    mapped.read(0, &mut first);
    assert_eq!(first, [0; 64]);
    machine.end();
}

#[test]
fn a_stream_that_is_cut_is_an_error_of_the_program_and_frees_everything() {
    let b = bench();
    let machine = b.start();
    let client = &machine.client;
    let context = client.call(&ContextCreate { flags: 0 }).unwrap().context;
    client
        .call(&MemoryAlloc {
            context,
            bytes: 1 << 20,
        })
        .unwrap();
    machine.wire.shutdown(std::net::Shutdown::Both).unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    let error = loop {
        match client.call(&MemoryInfo {}) {
            Err(error) => break error,
            Ok(_) => assert!(Instant::now() < end, "the session goes on"),
        }
    };
    assert_eq!(error.cuda_code(), 46, "{error}");
    let (_, life) = machine.end_with_life();
    assert_eq!(life, Some(ProgramLife::Unknown));
    assert_eq!(b.quota.view().used_bytes, 0);
}

#[test]
fn a_stream_that_says_nonsense_ends_the_session() {
    let b = bench();
    let machine = b.start();
    std::io::Write::write_all(&mut &machine.wire, b"?").unwrap();
    let said = machine.end();
    assert!(
        said[1]
            .as_ref()
            .is_err_and(|why| why.contains("says nothing")),
        "{said:?}"
    );
}

#[test]
fn host_memory_that_is_not_in_the_heap_is_refused() {
    let b = bench();
    let machine = b.start();
    let client = &machine.client;
    let context = client.call(&ContextCreate { flags: 0 }).unwrap().context;
    for (offset, bytes) in [
        (0, 4096),
        (AREA_AT, 4096),
        (HEAP_AT - 4096, 8192),
        (HEAP_AT + 1, 4096),
        (IVSHMEM_BYTES - 4096, 8192),
        (u64::MAX - 4095, 4096),
        // In the heap, but nobody has written to it: its pages would be the worker's.
        (HEAP_AT, 4096),
    ] {
        let request = HostRegister {
            context,
            tag: HostRegister::IN_IVSHMEM,
            bytes,
            offset,
            charge: false,
            wanted: 0,
            offered: false,
        };
        let answer = client.call(&request);
        assert!(answer.is_err(), "{offset:#x}+{bytes:#x}");
    }
    machine.end();
}
