//! Kernels that take long to compile: the end of their session, a cancel and a suspension do not wait for them.

use std::fmt::Write;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mica_limits::LocalQuota;
use mica_vgpu::{Vgpu, VgpuSpec};
use mica_wire::session::client::SessionClient;
use mica_wire::session::*;
use mica_worker::{DeviceSource, OutputBuffer, SoftwareDevices, serve_session};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

const LIMIT: u64 = 64 << 20;
const STORES: u32 = 20_000;
/// What an end may take beside the largest step that cannot be stopped: threads must get a processor.
const SLACK: Duration = Duration::from_millis(100);

/// Stores 1 in each word of an array. No two numbers give the same text, so nothing is found compiled.
fn image(number: u32) -> Vec<u8> {
    let mut text = format!(
        "// {number}\n.version 7.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 p)\n{{\n\
         .reg .u64 %a; .reg .u32 %v;\nld.param.u64 %a, [p]; mov.u32 %v, 1;\n"
    );
    for at in 0..STORES {
        writeln!(text, "st.global.u32 [%a+{}], %v;", 4 * at).unwrap();
    }
    (text + "ret;\n}\n\0").into_bytes()
}

struct Worker {
    vgpu: Arc<Vgpu>,
    devices: SoftwareDevices,
}

struct Program {
    client: SessionClient,
    stream: u64,
    module: u64,
    address: u64,
    served: JoinHandle<Option<String>>,
}

impl Worker {
    fn new() -> Self {
        // SAFETY: set before any thread of the test's own runs.
        unsafe { std::env::set_var("MICA_KERNEL_CACHE", "off") };
        let devices = SoftwareDevices::new(0, Some(256 << 20), None);
        let first = devices.open(Arc::default()).unwrap();
        let spec = VgpuSpec::new("test", LIMIT);
        let vgpu = Vgpu::new(first, Arc::new(LocalQuota::new(LIMIT)), spec);
        Self { vgpu, devices }
    }

    fn program(&self, number: u32) -> Program {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (ours, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        let output = Arc::new(OutputBuffer::default());
        let gpu = self.devices.open(Arc::clone(&output)).unwrap();
        let vgpu = Arc::clone(&self.vgpu);
        let serve = move || serve_session(&vgpu, gpu, output, theirs, None).unwrap();
        let served = std::thread::spawn(serve);
        let client = SessionClient::connect(ours, "test").unwrap();
        let new = client.call(&ContextCreate { flags: 0 }).unwrap();
        let loaded = client.module_load(new.context, &image(number), false);
        let (context, bytes) = (new.context, 4 * u64::from(STORES));
        Program {
            stream: new.default_stream,
            module: loaded.unwrap().module,
            address: client.call(&MemoryAlloc { context, bytes }).unwrap().value,
            client,
            served,
        }
    }
}

impl Program {
    fn launch(&self) {
        let launch = Launch {
            stream: self.stream,
            module: self.module,
            kernel: 0,
            grid: [1; 3],
            block: [1; 3],
            dynamic_shared: 0,
            cooperative: false,
        };
        let params = self.address.to_le_bytes();
        self.client.launch(&launch, &params).unwrap();
    }

    /// The last word of the array, once all is done.
    fn last(&self) -> Result<u32, SessionError> {
        let mut word = [0; 4];
        let at = self.address + 4 * u64::from(STORES - 1);
        self.client.read(self.stream, at, &mut word)?;
        Ok(u32::from_le_bytes(word))
    }

    fn end(self) -> Duration {
        let began = Instant::now();
        drop(self.client);
        assert_eq!(self.served.join().unwrap(), None);
        began.elapsed()
    }
}

/// How long the whole compilation takes here.
fn whole(worker: &Worker) -> Duration {
    let program = worker.program(0);
    let began = Instant::now();
    program.launch();
    assert_eq!(program.last().unwrap(), 1);
    let took = began.elapsed();
    program.end();
    took
}

#[test]
fn the_end_of_a_session_does_not_wait_for_its_compilations() {
    let worker = Worker::new();
    let whole = whole(&worker);
    let mut ends = Vec::new();
    for number in [1, 4, 8] {
        let program = worker.program(number);
        // Several at once, of which each would take longer for the others.
        let others: Vec<_> = (0..2).map(|n| worker.program(100 * number + n)).collect();
        program.launch();
        others.iter().for_each(Program::launch);
        std::thread::sleep(whole * number / 10);
        ends.push(program.end());
        others.into_iter().for_each(|other| ends.push(other.end()));
    }
    let most = ends.iter().max().copied().unwrap_or_default();
    println!("whole {whole:?}, most of {} ends {most:?}", ends.len());
    assert!(most < whole + SLACK, "{ends:?}");
    let first = ends[0];
    assert!(first < whole / 2 + SLACK, "{first:?} of {whole:?}");
}

#[test]
fn a_cancel_from_outside_does_not_wait_for_a_compilation() {
    let worker = Worker::new();
    let whole = whole(&worker);
    let program = worker.program(1);
    program.launch();
    std::thread::sleep(whole / 10);
    let began = Instant::now();
    assert_eq!(worker.vgpu.cancel().kernels, 1);
    assert!(program.last().is_err(), "the launch was not cancelled");
    let took = began.elapsed();
    println!("whole {whole:?}, cancelled after {took:?}");
    assert!(took < whole / 4 + SLACK, "{took:?} of {whole:?}");
    // Another session compiles the same module and runs it.
    let again = worker.program(1);
    again.launch();
    assert_eq!(again.last().unwrap(), 1);
}

#[test]
fn a_suspended_compilation_goes_on_after_the_resumption() {
    let worker = Worker::new();
    let whole = whole(&worker);
    let program = worker.program(1);
    program.launch();
    std::thread::sleep(whole / 10);
    worker.vgpu.suspend().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    worker.vgpu.resume().unwrap();
    assert_eq!(program.last().unwrap(), 1);
    // A session that ends while it is suspended ends all the same.
    let program = worker.program(2);
    program.launch();
    std::thread::sleep(whole / 10);
    worker.vgpu.suspend().unwrap();
    let took = program.end();
    assert!(took < whole + SLACK, "{took:?} of {whole:?}");
}
