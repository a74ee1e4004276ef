//! A machine that stands still: the host ends its session meanwhile and empties the ivshmem file. When the machine goes on, the program's
//! first call fails, whatever it is, and nothing that is read of the emptied ivshmem file is taken for an answer.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use mica_gpu::Gpu;
use mica_guest::bells::ProgramLife;
use mica_guest::{bells, clear_unused_ivshmem, prepare_ivshmem};
use mica_limits::{LocalQuota, Quota};
use mica_vgpu::test_gpu::TestGpu;
use mica_vgpu::{Vgpu, VgpuSpec};
use mica_wire::host::socket::HostSocket;
use mica_wire::session::client::{IvshmemPort, RingTransport, SessionClient};
use mica_wire::session::server::Greeting;
use mica_wire::session::transport::{ClientTransport, ServerTransport};
use mica_wire::session::*;
use mica_worker::{DeviceSource, OutputBuffer, SoftwareDevices, serve_session};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

const IVSHMEM_BYTES: u64 = 64 << 20;
const MODULE: &[u8] = b"fill 8 4 4\n";
const UNAVAILABLE: u32 = 46;

/// An ivshmem file, removed when dropped.
struct IvshmemFile(PathBuf);

impl IvshmemFile {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/mica-test-{}-{name}", std::process::id()));
        prepare_ivshmem(&path, IVSHMEM_BYTES, None).unwrap();
        Self(path)
    }

    fn open(&self) -> OwnedFd {
        let mut options = std::fs::File::options();
        let file = options.read(true).write(true).open(&self.0);
        file.unwrap().into()
    }

    /// What the relay does when the worker has let go of the ivshmem file.
    fn empty(&self) {
        assert_eq!(clear_unused_ivshmem(std::slice::from_ref(&self.0)), 1);
    }
}

impl Drop for IvshmemFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// What an agent does for a program, once; after that it stands still.
struct StillAgent {
    _program: HostSocket,
    _bell: BellWord,
    _stream: UnixStream,
}

impl StillAgent {
    fn greet(program: OwnedFd, ivshmem: OwnedFd, has_windows: bool, stream: UnixStream) -> Self {
        let bell = BellWord::create().unwrap();
        let fds = [ivshmem.as_fd(), bell.fd(), stream.as_fd()];
        let greeting = Greeting::receive(program).unwrap();
        let program = greeting.pass_on(IVSHMEM_BYTES, has_windows, fds).unwrap();
        Self {
            _program: program,
            _bell: bell,
            _stream: stream,
        }
    }
}

/// A worker and a relay on the host, whose end of the stream is `far`; whether the session has windows is told.
struct Host {
    quota: Arc<LocalQuota>,
    threads: Vec<JoinHandle<()>>,
    has_windows: Receiver<bool>,
}

impl Host {
    /// `ends_well`: the machine closes the stream, it does not fall silent.
    fn start(ivshmem: &IvshmemFile, gpu: Arc<dyn Gpu>, far: UnixStream, ends_well: bool) -> Self {
        let quota = Arc::new(LocalQuota::new(256 << 20));
        let spec = VgpuSpec::new("test", 256 << 20);
        let vgpu = Vgpu::new(Arc::clone(&gpu), quota.clone(), spec);
        let (worker, relay_end) = pair();
        let (tell, has_windows) = channel();
        let there = ivshmem.open();
        let threads = vec![
            std::thread::spawn(move || {
                let output = Arc::new(OutputBuffer::default());
                serve_session(&vgpu, gpu, output, worker, None).unwrap();
            }),
            std::thread::spawn(move || {
                let port = IvshmemPort::connect(relay_end, there).unwrap();
                tell.send(port.has_windows()).unwrap();
                match bells::serve_worker(&port, &far.into()) {
                    Ok(life) => assert!(ends_well && life == ProgramLife::Unknown),
                    Err(why) => assert!(!ends_well && why.to_string().contains("lost"), "{why}"),
                }
            }),
        ];
        Self {
            quota,
            threads,
            has_windows,
        }
    }

    /// Waits until the host has given the session up.
    fn until_given_up(&mut self, ivshmem: &IvshmemFile) {
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
        assert_eq!(self.quota.view().used_bytes, 0);
        ivshmem.empty();
    }
}

struct Paused {
    client: SessionClient,
    ivshmem: IvshmemFile,
    agent: StillAgent,
    host: Host,
}

fn start(name: &str, gpu: Arc<dyn Gpu>) -> Paused {
    let ivshmem = IvshmemFile::new(name);
    let (program, agent_end) = pair();
    let (near, far) = UnixStream::pair().unwrap();
    let host = Host::start(&ivshmem, gpu, far, false);
    let has_windows = host.has_windows.recv().unwrap();
    let here = ivshmem.open();
    let agent = std::thread::spawn(move || StillAgent::greet(agent_end, here, has_windows, near));
    Paused {
        client: SessionClient::connect(program, "test").unwrap(),
        agent: agent.join().unwrap(),
        ivshmem,
        host,
    }
}

impl Paused {
    /// Waits until the host has given the session up; the agent says nothing, and hears nothing of it.
    fn until_given_up(&mut self) {
        self.host.until_given_up(&self.ivshmem);
    }
}

fn fill(module: u64, stream: u64) -> Launch {
    Launch {
        stream,
        module,
        kernel: 0,
        grid: [1; 3],
        block: [1; 3],
        dynamic_shared: 0,
        cooperative: false,
    }
}

#[test]
fn the_first_posted_call_after_a_pause_fails() {
    let mut machine = start("posted", Arc::new(TestGpu::new(1 << 32)));
    let client = &machine.client;
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let (context, stream) = (new.context, new.default_stream);
    let module = client.module_load(context, MODULE, false).unwrap().module;
    let bytes = 4096;
    let address = client.call(&MemoryAlloc { context, bytes }).unwrap().value;
    let mut params = address.to_le_bytes().to_vec();
    params.extend([4, 0, 0, 0, 7, 0, 0, 0]);
    client.launch(&fill(module, stream), &params).unwrap();
    client.synchronize(stream).unwrap();
    let pinned = client.host_alloc(context, 4096, false).unwrap();
    // SAFETY: memory of so many bytes, which nobody else touches.
    unsafe { std::ptr::write_bytes(pinned.as_ptr(), 0x5a, 4096) };
    machine.until_given_up();

    let client = &machine.client;
    let error = client.launch(&fill(module, stream), &params).unwrap_err();
    assert_eq!(error.cuda_code(), UNAVAILABLE, "{error}");
    assert!(error.to_string().contains("host has ended"), "{error}");
    let error = client.write(stream, address, &[1; 64]).unwrap_err();
    assert_eq!(error.cuda_code(), UNAVAILABLE, "{error}");
    // SAFETY: as above. What the program has in its own memory is still there.
    assert_eq!(unsafe { pinned.as_ptr().add(4095).read() }, 0x5a);
    // Nothing waits for an answer that nobody gives, and the error stays.
    let error = client.synchronize(stream).unwrap_err();
    assert_eq!(error.cuda_code(), UNAVAILABLE, "{error}");
    let error = client.call(&MemoryInfo {}).unwrap_err();
    assert_eq!(error.cuda_code(), UNAVAILABLE, "{error}");
    // Also after the ivshmem file was emptied once more, as after each stream of the machine.
    machine.ivshmem.empty();
    let error = client.launch(&fill(module, stream), &params).unwrap_err();
    assert_eq!(error.cuda_code(), UNAVAILABLE, "{error}");
    drop(machine.agent);
}

/// Copies through windows ask nobody: the emptied window holds zeros.
#[test]
fn emptied_windows_are_not_read_after_a_pause() {
    let devices = SoftwareDevices::new(0, Some(256 << 20), None);
    let gpu = devices.open(Arc::new(OutputBuffer::default())).unwrap();
    let mut machine = start("windows", gpu);
    let client = &machine.client;
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let (context, stream) = (new.context, new.default_stream);
    let bytes = 4 << 20;
    let address = client.call(&MemoryAlloc { context, bytes }).unwrap().value;
    let data = vec![0x5a; bytes as usize];
    client.write_now(stream, address, &data).unwrap();
    let mut back = vec![0; data.len()];
    client.read(stream, address, &mut back).unwrap();
    assert_eq!(
        client.window_bytes(),
        (bytes, bytes),
        "copies use the window"
    );
    machine.until_given_up();

    let client = &machine.client;
    let error = client.synchronize(stream).unwrap_err();
    assert_eq!(error.cuda_code(), UNAVAILABLE, "{error}");
    let error = client.read(stream, address, &mut back).unwrap_err();
    assert_eq!(error.cuda_code(), UNAVAILABLE, "{error}");
    let error = client.write_now(stream, address, &data).unwrap_err();
    assert_eq!(error.cuda_code(), UNAVAILABLE, "{error}");
    drop(machine.agent);
}

/// A thread that stands still while it waits for an answer finds zeros in its reply slot: another number of answers than before, and
/// code 0.
#[test]
fn an_emptied_reply_slot_holds_no_answer() {
    let ivshmem = IvshmemFile::new("slot");
    let ((program, agent_end), (worker, relay_end)) = (pair(), pair());
    let (near, _far) = UnixStream::pair().unwrap();
    let (there, here) = (ivshmem.open(), ivshmem.open());
    let relay = std::thread::spawn(move || IvshmemPort::connect(relay_end, there).unwrap());
    let greeting = Greeting::receive(worker).unwrap();
    let layout = IvshmemLayout::new(IVSHMEM_BYTES, false);
    let port = greeting.welcome_in_ivshmem(layout).unwrap();
    let relay = relay.join().unwrap();
    let agent = std::thread::spawn(move || StillAgent::greet(agent_end, here, false, near));
    let transport = RingTransport::connect(program).unwrap();
    let agent = agent.join().unwrap();

    let mut reader = port.reader();
    let mut body = Vec::new();
    let mut next = || loop {
        if let Some(header) = reader.next(&mut body).unwrap() {
            break header.reply_slot().unwrap();
        }
        std::thread::yield_now();
    };
    std::thread::scope(|scope| {
        let call = || transport.call(ContextSynchronize::NUMBER, None, &[], &[]);
        let first = scope.spawn(call);
        port.answer(next(), 0, Vec::new());
        assert_eq!(first.join().unwrap(), Ok((0, Vec::new())));
        let second = scope.spawn(call);
        next();
        relay.mark_ended("the host has ended it");
        ivshmem.empty();
        let error = second.join().unwrap().unwrap_err();
        assert_eq!(error.cuda_code(), UNAVAILABLE, "{error}");
    });
    drop(agent);
}

/// A stream that is cut while the host cannot say anything, as where its processes were killed: the agent says it.
#[test]
fn the_agent_says_that_the_host_is_gone() {
    let ivshmem = IvshmemFile::new("agent");
    let ((program, agent_end), (near, far)) = (pair(), UnixStream::pair().unwrap());
    let here = ivshmem.open();
    let agent = std::thread::spawn(move || {
        let facts = (IVSHMEM_BYTES, false);
        bells::serve_program(agent_end, None, here.as_fd(), facts, &near.into())
    });
    let transport = RingTransport::connect(program).unwrap();
    let post = || transport.post(MemoryInfo::NUMBER, None, &[], &[]);
    post().unwrap();
    drop(far);
    assert!(agent.join().unwrap().is_err());
    let error = post().unwrap_err();
    assert_eq!(error.cuda_code(), UNAVAILABLE, "{error}");
}

/// A machine goes on from a snapshot, or on another host that has its memory: the device's memory is as it was, a session without any word
/// that it has ended, and nobody serves it or answers at the stream. The agent notices, and the program does not wait for ever.
#[test]
fn a_machine_that_is_restored_learns_that_nobody_serves_its_sessions() {
    let ivshmem = IvshmemFile::new("restored");
    let (program, agent_end) = pair();
    let ((near, wire), (other_wire, far)) =
        (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let carry = |from: &UnixStream, to: &UnixStream| {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut from, &mut to))
    };
    let _carried = [carry(&wire, &other_wire), carry(&other_wire, &wire)];
    let gpu = Arc::new(TestGpu::new(1 << 32));
    let mut host = Host::start(&ivshmem, gpu, far, true);
    let facts = (IVSHMEM_BYTES, host.has_windows.recv().unwrap());
    let here = ivshmem.open();
    let agent = std::thread::spawn(move || {
        bells::serve_program(agent_end, None, here.as_fd(), facts, &near.into())
    });
    let client = SessionClient::connect(program, "test").unwrap();
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    client.synchronize(new.default_stream).unwrap();

    let saved = std::fs::read(&ivshmem.0).unwrap();
    // The machine ends; what it had is freed.
    other_wire.shutdown(std::net::Shutdown::Both).unwrap();
    host.until_given_up(&ivshmem);
    // It goes on as it was saved. Its stream leads to nobody.
    let device = std::fs::File::from(ivshmem.open());
    std::os::unix::fs::FileExt::write_all_at(&device, &saved, 0).unwrap();
    let error = client.synchronize(new.default_stream).unwrap_err();
    assert_eq!(error.cuda_code(), UNAVAILABLE, "{error}");
    let error = client.call(&MemoryInfo {}).unwrap_err();
    assert_eq!(error.cuda_code(), UNAVAILABLE, "{error}");
    assert!(agent.join().unwrap().is_err());
    // The next session gets an ivshmem file like any other.
    ivshmem.empty();
    drop(wire);
}
