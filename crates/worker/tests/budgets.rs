//! Hostile programs that make a worker hold what no limit counted, on the software GPU through real sessions.
//! Beside them an honest session goes on.

mod common;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use mica_limits::LocalQuota;
use mica_vgpu::{Vgpu, VgpuSpec};
use mica_wire::session::client::SessionClient;
use mica_wire::session::*;
use mica_worker::{DeviceSource, OutputBuffer, SoftwareDevices, serve_session};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

const LIMIT: u64 = 64 << 20;
const OUT_OF_MEMORY: u32 = 2;

/// Adds 1 to a word.
const KERNEL: &[u8] = b".version 7.0\n.target sm_75\n.address_size 64\n
.visible .entry bump(.param .u64 p)\n{
    .reg .u64 %a; .reg .u32 %v;
    ld.param.u64 %a, [p]; ld.global.u32 %v, [%a]; add.u32 %v, %v, 1; st.global.u32 [%a], %v; ret;
}\n\0";

struct Worker {
    vgpu: Arc<Vgpu>,
    devices: SoftwareDevices,
}

struct Program {
    client: Arc<SessionClient>,
    context: u64,
    stream: u64,
    served: JoinHandle<Option<String>>,
}

impl Worker {
    fn new(change: impl FnOnce(&mut VgpuSpec)) -> Self {
        let devices = SoftwareDevices::new(0, Some(256 << 20), None);
        let first = devices.open(Arc::default()).unwrap();
        let mut spec = VgpuSpec::new("test", LIMIT);
        change(&mut spec);
        let vgpu = Vgpu::new(first, Arc::new(LocalQuota::new(LIMIT)), spec);
        Self { vgpu, devices }
    }

    fn program(&self) -> Program {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (ours, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        let output = Arc::new(OutputBuffer::default());
        let gpu = self.devices.open(Arc::clone(&output)).unwrap();
        let vgpu = Arc::clone(&self.vgpu);
        let serve = move || serve_session(&vgpu, gpu, output, theirs, None).unwrap();
        let served = std::thread::spawn(serve);
        let client = Arc::new(SessionClient::connect(ours, "test").unwrap());
        let new = client.call(&ContextCreate { flags: 0 }).unwrap();
        Program {
            client,
            context: new.context,
            stream: new.default_stream,
            served,
        }
    }

    /// An honest program computes.
    fn honest(&self) {
        let program = self.program();
        let module = program.load(KERNEL).unwrap().module;
        let address = program.alloc(4096);
        for _ in 0..100 {
            program.launch(program.stream, module, address);
        }
        let mut word = [0; 4];
        program
            .client
            .read(program.stream, address, &mut word)
            .unwrap();
        assert_eq!(u32::from_le_bytes(word), 100);
        assert_eq!(program.end(), None);
    }
}

impl Program {
    fn load(&self, image: &[u8]) -> Result<LoadedModule, SessionError> {
        self.client.module_load(self.context, image, false)
    }

    fn alloc(&self, bytes: u64) -> u64 {
        let context = self.context;
        self.client
            .call(&MemoryAlloc { context, bytes })
            .unwrap()
            .value
    }

    fn launch(&self, stream: u64, module: u64, address: u64) {
        let launch = Launch {
            stream,
            module,
            kernel: 0,
            grid: [1; 3],
            block: [1; 3],
            dynamic_shared: 0,
            cooperative: false,
        };
        self.client.launch(&launch, &address.to_le_bytes()).unwrap();
    }

    fn own_stream(&self) -> u64 {
        let request = StreamCreate {
            context: self.context,
            non_blocking: true,
            priority: 0,
        };
        self.client.call(&request).unwrap().value
    }

    fn end(self) -> Option<String> {
        drop(self.client);
        self.served.join().unwrap()
    }
}

fn code<T: std::fmt::Debug>(result: Result<T, SessionError>) -> u32 {
    result.unwrap_err().cuda_code()
}

#[test]
fn a_host_function_may_wait_for_a_copy_on_another_stream() {
    let worker = Worker::new(|_| {});
    let program = worker.program();
    let (first, second) = (program.own_stream(), program.own_stream());
    let module = program.load(KERNEL).unwrap().module;
    let address = program.alloc(1 << 20);
    for bytes in [8, 200_000] {
        let callback = bytes as u64;
        program
            .client
            .post(
                &StreamCallback {
                    stream: first,
                    callback,
                },
                &[],
            )
            .unwrap();
        let notice = program.client.next_notice(Duration::from_secs(60)).unwrap();
        assert_eq!(notice, Some(callback));
        // The function runs now. Work before the copy makes the worker hold its bytes for later.
        for _ in 0..50 {
            program.launch(second, module, address);
        }
        program
            .client
            .write(second, address, &vec![7; bytes])
            .unwrap();
        let (client, (sender, done)) = (Arc::clone(&program.client), std::sync::mpsc::channel());
        std::thread::spawn(move || sender.send(client.call(&StreamSynchronize { stream: second })));
        let waited = done.recv_timeout(Duration::from_secs(20));
        waited
            .unwrap_or_else(|_| panic!("a copy of {bytes} bytes waits for the host function"))
            .unwrap();
        program
            .client
            .post(&CallbackDone { callback }, &[])
            .unwrap();
        program
            .client
            .call(&StreamSynchronize { stream: first })
            .unwrap();
    }
    assert_eq!(program.end(), None);
}

#[test]
fn bytes_sent_ahead_count_against_the_budget() {
    let worker = Worker::new(|spec| spec.host_bytes = 32 << 20);
    let hostile = worker.program();
    let part = vec![b' '; 16 << 10];
    for n in 0..4000 {
        let blob = 1000 + n % 4;
        hostile.client.post(&BlobPart { blob }, &part).unwrap();
    }
    let load = |blob| ModuleLoad {
        context: hostile.context,
        blob,
        memcheck: false,
    };
    let answers = [1000, 1001, 1002, 1003].map(|blob| code(hostile.client.call(&load(blob))));
    // 64 MB in all; one of four may fit when the others are refused.
    let refused = answers.iter().filter(|code| **code == OUT_OF_MEMORY);
    assert!(refused.count() >= 3, "{answers:?}");
    worker.honest();
    // What is left of them is nothing.
    hostile.load(KERNEL).unwrap();
    assert_eq!(hostile.end(), None);
}

#[test]
fn the_parameters_of_graphs_count_against_the_budget() {
    let worker = Worker::new(|spec| spec.host_bytes = 64 << 20);
    let hostile = worker.program();
    let write = Write {
        stream: 0,
        address: 0,
    };
    let body = [write.encode().as_slice(), &vec![1; 1 << 20]].concat();
    let node = GraphNode {
        after: Vec::new(),
        call: Write::NUMBER,
        body,
    };
    let mut bytes = Vec::new();
    vec![node].put(&mut bytes);
    let mut graphs = 0;
    let refused = loop {
        let blob = 7;
        for part in bytes.chunks(16 << 10) {
            hostile.client.post(&BlobPart { blob }, part).unwrap();
        }
        let context = hostile.context;
        match hostile.client.call(&GraphInstantiate {
            context,
            blob,
            template: 0,
            node_priorities: false,
        }) {
            Ok(_) => graphs += 1,
            Err(refused) => break refused,
        }
        assert!(graphs < 200, "nobody counts them");
    };
    assert_eq!(refused.cuda_code(), OUT_OF_MEMORY, "{refused}");
    assert!(graphs > 10, "{graphs}");
    worker.honest();
    assert_eq!(hostile.end(), None);
}

fn memfd(bytes: u64) -> OwnedFd {
    let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, bytes).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    fd
}

/// Registers as a program does that has not read the library.
fn register(program: &Program, fd: &OwnedFd, tag: u64, bytes: u64) -> Result<Number, SessionError> {
    use mica_wire::session::transport::ClientTransport;
    let transport = program.client.transport();
    transport.send_descriptor(tag, fd.as_fd()).unwrap();
    program.client.call(&HostRegister {
        context: program.context,
        tag,
        bytes,
        offset: 0,
        charge: false,
        wanted: 0,
        offered: false,
    })
}

#[test]
fn host_memory_without_pages_and_more_than_the_limit_is_refused() {
    let worker = Worker::new(|spec| spec.registered_bytes = 24 << 20);
    let hostile = worker.program();
    let sparse = memfd(64 << 30);
    assert_eq!(
        code(register(&hostile, &sparse, 1000, 64 << 30)),
        OUT_OF_MEMORY
    );
    let small = memfd(16 << 20);
    assert_eq!(
        code(register(&hostile, &small, 1001, 16 << 20)),
        OUT_OF_MEMORY
    );
    back(&small, 0, 16 << 20);
    register(&hostile, &small, 1002, 16 << 20).unwrap();
    let more = register(&hostile, &small, 1003, 16 << 20);
    assert_eq!(code(more), OUT_OF_MEMORY, "twice is too much");
    // The library gives memory its pages first.
    hostile
        .client
        .host_alloc(hostile.context, 4 << 20, false)
        .unwrap();
    worker.honest();
    assert_eq!(hostile.end(), None);
}

/// Bytes of memory that this process has.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn a_queue_behind_an_unanswered_callback_is_bounded() {
    let worker = Worker::new(|_| {});
    let hostile = worker.program();
    let (stream, callback) = (hostile.own_stream(), 1);
    let address = hostile.alloc(1 << 20);
    hostile
        .client
        .post(&StreamCallback { stream, callback }, &[])
        .unwrap();
    let before = resident();
    let data = vec![1; 8 << 10];
    for _ in 0..30_000 {
        hostile.client.write(stream, address, &data).unwrap();
    }
    hostile.client.call(&Ping {}).unwrap();
    let grown = resident().saturating_sub(before);
    assert!(grown < 160 << 20, "{grown} bytes for 240 MB of writes");
    let late = hostile.client.take_late(0).unwrap().unwrap();
    assert_eq!(late.code, OUT_OF_MEMORY, "{}", late.message);
    worker.honest();
    hostile
        .client
        .post(&CallbackDone { callback }, &[])
        .unwrap();
    while hostile.client.take_late(0).unwrap().is_some() {}
    hostile.client.call(&StreamSynchronize { stream }).unwrap();
    hostile.client.write(stream, address, &data).unwrap();
    hostile.client.call(&StreamSynchronize { stream }).unwrap();
    assert_eq!(hostile.end(), None);
}

#[test]
fn rows_of_no_bytes_hold_up_nobody() {
    let worker = Worker::new(|_| {});
    let hostile = worker.program();
    let (stream, address) = (hostile.stream, hostile.alloc(4096));
    let place = CopyPlace::Device(address);
    let mut area = CopyBox::linear(place, place, 0);
    (area.height, area.depth) = (1 << 62, 1);
    hostile.client.post(&Copy { stream, area }, &[]).unwrap();
    let fill = Fill {
        stream,
        address,
        pitch: 0,
        value: 0,
        element_bytes: 1,
        width: 0,
        height: 1 << 62,
    };
    hostile.client.post(&fill, &[]).unwrap();
    let (client, (sender, answered)) = (Arc::clone(&hostile.client), std::sync::mpsc::channel());
    std::thread::spawn(move || sender.send(client.call(&Ping {}).is_ok()));
    let answered = answered.recv_timeout(Duration::from_secs(20));
    assert_eq!(answered, Ok(true), "the worker counts rows");
    assert_eq!(hostile.end(), None);
}
