//! Isolated mode, end to end: a C program under the shim, a session, a worker, the software GPU.
//!
//! The daemon's part is played by this process: it hands each program a socket to a worker's session
//! that runs on threads here.

mod compute;

use std::io::{BufRead, BufReader, Lines, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use mica_limits::{LocalQuota, Quota};
use mica_tunnel::{RecordPort, SocketCarrier, far, near};
use mica_vgpu::{Vgpu, VgpuSpec};
use mica_wire::host::message::{ClientMessage, DaemonMessage};
use mica_wire::host::socket::HostSocket;
use mica_worker::{DeviceSource, OutputBuffer, SoftwareDevices, serve_session};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen,
    shutdown, socket_with, socketpair,
};

const LIMIT: u64 = 64 << 20;
const TOKEN: &str = "000102030405060708090a0b0c0d0e0f";

/// A virtual GPU of 64 MiB and whoever asks for a session with it.
struct Host {
    directory: tempfile::TempDir,
    quota: Arc<LocalQuota>,
    vgpu: Arc<Vgpu>,
    devices: SoftwareDevices,
    sessions: Mutex<Vec<OwnedFd>>,
    ended: (Mutex<usize>, std::sync::Condvar),
    /// Programs whose sessions nobody will serve.
    deaf: Mutex<usize>,
    /// Sessions pass through a tunnel, as if the worker were on another machine.
    is_afar: bool,
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

impl Host {
    fn start() -> Arc<Self> {
        Self::start_at(false)
    }

    fn start_at(is_afar: bool) -> Arc<Self> {
        let quota = Arc::new(LocalQuota::new(LIMIT));
        let devices = SoftwareDevices::new(0, None, None);
        let gpu = devices.open(Arc::default()).unwrap();
        let vgpu = Vgpu::new(gpu, quota.clone(), VgpuSpec::new("test", LIMIT));
        let host = Arc::new(Self {
            directory: tempfile::tempdir().unwrap(),
            quota,
            vgpu,
            devices,
            sessions: Mutex::default(),
            ended: Default::default(),
            deaf: Mutex::default(),
            is_afar,
        });
        let flags = SocketFlags::CLOEXEC;
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(host.socket()).unwrap()).unwrap();
        listen(&listener, 8).unwrap();
        let served = Arc::clone(&host);
        std::thread::spawn(move || {
            while let Ok(peer) = accept_with(&listener, SocketFlags::CLOEXEC) {
                served.welcome(peer);
            }
        });
        host
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("host.sock")
    }

    /// Answers a program's greeting with a session.
    fn welcome(self: &Arc<Self>, peer: OwnedFd) {
        let socket = HostSocket::from_fd(peer);
        let (hello, _) = socket.receive().unwrap();
        assert!(matches!(hello.read(), Ok(ClientMessage::Hello { .. })));
        let (theirs, ours) = pair();
        let welcome = DaemonMessage::Welcome {
            limit_bytes: LIMIT,
            device_total_bytes: LIMIT,
            client_id: 0,
            gpu_index: 0,
            vgpu: "test".into(),
        };
        socket.send(&welcome, &[theirs.as_fd()]).unwrap();
        let mut deaf = self.deaf.lock().unwrap();
        if *deaf > 0 {
            *deaf -= 1;
            return;
        }
        let mut sessions = self.sessions.lock().unwrap();
        sessions.push(ours.try_clone().unwrap());
        let ours = match self.is_afar {
            true => through_tunnel(ours),
            false => ours,
        };
        let host = Arc::clone(self);
        std::thread::spawn(move || {
            let output = Arc::new(OutputBuffer::default());
            let gpu = host.devices.open(Arc::clone(&output)).unwrap();
            let broken = serve_session(&host.vgpu, gpu, output, ours, None).unwrap();
            assert_eq!(broken, None, "the shim broke the session's rules");
            *host.ended.0.lock().unwrap() += 1;
            host.ended.1.notify_all();
        });
    }

    /// Ends all sessions as a dying worker would.
    fn cut(&self) {
        for session in self.sessions.lock().unwrap().drain(..) {
            let _ = shutdown(&session, Shutdown::Both);
        }
    }

    /// Waits until as many sessions are over: nothing of them is left.
    fn assert_clean(&self, sessions: usize) {
        let mut ended = self.ended.0.lock().unwrap();
        while *ended < sessions {
            ended = self.ended.1.wait(ended).unwrap();
        }
        // The device of a session ends with the last of its threads, a moment after the session.
        let begun = std::time::Instant::now();
        while self.quota.view().used_bytes != 0 && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(self.quota.view().used_bytes, 0);
    }

    fn program(&self, part: &str) -> Command {
        let built = built();
        let mut command = Command::new(&built.program);
        command
            .arg(part)
            .env_clear()
            .env("LD_LIBRARY_PATH", &built.directory)
            .env("MICA_MODE", "isolated")
            .env("MICA_HOST_SOCKET", self.socket())
            .env("MICA_LOG", self.directory.path().join("log"))
            .env("MICA_TOKEN", TOKEN);
        command
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

/// Both ends of a tunnel for a program; the worker's end of it.
fn through_tunnel(program: OwnedFd) -> OwnedFd {
    let (worker, far_end) = pair();
    let (near_wire, far_wire) = UnixStream::pair().unwrap();
    std::thread::spawn(move || {
        let worker = RecordPort::connect(far_end).unwrap();
        let carrier = Arc::new(SocketCarrier::new(far_wire));
        let _ = far::serve(worker, carrier, Default::default(), &Default::default());
    });
    std::thread::spawn(move || {
        let carrier = Arc::new(SocketCarrier::new(near_wire));
        let _ = near::serve(program, None, carrier, Default::default());
    });
    worker
}

struct Built {
    _owner: tempfile::TempDir,
    directory: PathBuf,
    program: PathBuf,
}

/// The shim under the driver's name, and the program linked with it.
fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let owner = tempfile::tempdir().unwrap();
        let directory = owner.path().to_path_buf();
        let shim = directory.join("libcuda.so.1");
        std::fs::copy(built_shim(), &shim).unwrap();
        let program = directory.join("program");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/isolated.c");
        let output = Command::new("gcc")
            .args(["-O1", "-Wall", "-o"])
            .arg(&program)
            .arg(source)
            .arg(&shim)
            .arg("-lpthread")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        Built {
            _owner: owner,
            directory,
            program,
        }
    })
}

/// The library beside this test's executable.
fn built_shim() -> PathBuf {
    let executable = std::env::current_exe().unwrap();
    let deps = executable.parent().unwrap();
    [deps.to_path_buf(), deps.parent().unwrap().to_path_buf()]
        .map(|directory| directory.join("libmica_shim.so"))
        .into_iter()
        .filter(|path| path.exists())
        .max_by_key(|path| path.metadata().unwrap().modified().unwrap())
        .expect("cargo builds the library before its tests")
}

/// Runs one part of the program; it must say "ok" and nothing else.
fn run(part: &str) -> Arc<Host> {
    run_with(part, |_, _| {})
}

fn run_with(part: &str, set: impl FnOnce(&Host, &mut Command)) -> Arc<Host> {
    let host = Host::start();
    assert_eq!(run_on(&host, part, set), "");
    host
}

/// What the program said on standard error.
fn run_on(host: &Host, part: &str, set: impl FnOnce(&Host, &mut Command)) -> String {
    let mut command = host.program(part);
    set(host, &mut command);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.trim(), "ok", "{:?}; {}", output.status, host.log());
    assert!(output.status.success());
    host.assert_clean(1);
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_kernel_runs_and_its_results_come_back() {
    run("basics");
}

#[test]
fn launches_records_and_small_copies_allocate_nothing() {
    run("no_allocations");
}

#[test]
fn contexts_are_stacked_and_reset() {
    run("contexts");
}

#[test]
fn errors_are_those_of_a_real_driver() {
    let host = run("errors");
    assert!(
        host.log()
            .contains("cuGraphicsMapResources is not supported")
    );
}

#[test]
fn null_pointers_are_refused_in_the_drivers_order() {
    run("nulls");
}

#[test]
fn streams_events_and_host_functions_keep_their_order() {
    run("streams");
}

#[test]
fn copies_with_attributes_read_their_source_when_they_say() {
    run("copy_attributes");
}

#[test]
fn streams_wait_for_words_in_memory() {
    run("stream_values");
}

#[test]
fn host_memory_is_used_in_place() {
    run("host_memory");
}

#[test]
fn memory_that_is_shared_is_said_to_be() {
    run("shared_memory");
}

#[test]
fn memory_that_is_copied_to_another_machine_is_not_said_to_be_shared() {
    let said = run_on(&Host::start_at(true), "copied_memory", |_, _| {});
    assert_eq!(said, "", "nothing was mapped");
}

/// A program that maps memory without asking is told once that it is copied: by the flag, by the device's address, by a kernel
/// that is given it, by a stream that waits for a word in it. That word arrives with the wait.
#[test]
fn a_program_that_maps_memory_of_another_machine_is_told_once() {
    for part in ["host_memory", "pinned_kernel", "stream_values"] {
        let said = run_on(&Host::start_at(true), part, |_, _| {});
        assert!(said.starts_with("mica: memory that is mapped"), "{said:?}");
        assert_eq!(said.lines().count(), 1, "{part}: {said}");
    }
}

#[test]
fn streams_are_captured_into_graphs() {
    run("graphs");
}

#[test]
fn functions_are_found_and_code_is_linked() {
    run("look_up");
}

#[test]
fn threads_have_streams_of_their_own() {
    run("threads");
}

#[test]
fn a_forked_child_is_told_that_nothing_is_initialized() {
    run("fork");
}

#[test]
fn a_program_may_leave_in_the_middle_of_a_kernel() {
    run("leave");
}

/// What a part of the program tells of what it left.
fn leaks_of(part: &str, tools: &str) -> String {
    let mut path = None;
    let host = run_with(part, |host, command| {
        let report = host.directory.path().join("report");
        std::fs::write(&report, "").unwrap();
        command.env("MICA_CHECK", tools);
        command.env("MICA_CHECK_REPORT", &report);
        path = Some(report);
    });
    let told = std::fs::read_to_string(path.unwrap()).unwrap();
    drop(host);
    told
}

#[test]
fn a_program_tells_what_it_has_not_destroyed_where_it_is_asked_to() {
    let told = leaks_of("left", "leakcheck,objects");
    let word = |line: &str, key: &str| {
        let (_, rest) = line.split_once(&format!("\"{key}\":"))?;
        let end = rest.find([',', '}'])?;
        Some(rest[..end].trim_matches('"').to_owned())
    };
    let objects: Vec<&str> = (told.lines())
        .filter(|line| line.contains("\"kind\":\"object\""))
        .collect();
    let mut left: Vec<String> = (objects.iter())
        .map(|line| word(line, "what").unwrap())
        .collect();
    left.sort_unstable();
    // A stream and a module are those that every part of the program begins with.
    let expected = [
        "event",
        "executable graph",
        "graph",
        "module",
        "module",
        "stream",
        "stream",
    ];
    assert_eq!(left, expected, "{told}");
    for object in objects {
        assert!(word(object, "made_ms").is_some(), "{object}");
        let of = |line: &&str| ["address", "what"].map(|key| word(line, key));
        let made =
            |line: &&str| line.contains("\"record\":\"allocation\"") && of(line) == of(&object);
        let made = told.lines().find(made).expect("who made it");
        assert!(!made.contains("\"frames\":[]"), "{made}");
    }
    let last = told.lines().last();
    assert_eq!(last, Some("{\"record\":\"ended\",\"faulted\":false}"));
    // `mica check` looks for memory alone.
    assert!(!leaks_of("left", "leakcheck").contains("\"object\""));
}

#[test]
fn a_program_tells_what_it_has_not_freed_when_it_ends() {
    let told = leaks_of("leave", "leakcheck");
    let leaks: Vec<&str> = told
        .lines()
        .filter(|line| line.contains("\"leak\""))
        .collect();
    assert_eq!(leaks.len(), 1, "{told}");
    assert!(leaks[0].contains("\"bytes\":4,"), "{told}");
    assert!(leaks[0].contains("\"what\":\"device memory\""), "{told}");
    let last = told.lines().last();
    assert_eq!(last, Some("{\"record\":\"ended\",\"faulted\":false}"));
}

#[test]
fn copies_of_all_sizes_keep_their_order() {
    run("copies");
}

#[test]
fn a_thread_that_is_cancelled_leaves_calls_in_order() {
    // A trace writes to a file in every call, where the C library ends cancelled threads.
    run_with("cancelled_thread", |host, command| {
        command.env("MICA_TRACE", host.directory.path().join("trace"));
    });
}

#[test]
fn exact_bounds_are_checked_where_they_are_asked_for() {
    run("exact_bounds");
    let host = run_with("exact_bounds", |_, command| {
        command.env("MICA_MEMCHECK", "1");
    });
    let log = host.log();
    assert!(
        log.contains("invalid write") && log.contains("kernel wild"),
        "{log}"
    );
}

#[test]
fn a_program_killed_in_the_middle_of_a_copy_leaves_nothing() {
    for _ in 0..3 {
        let host = Host::start();
        let (mut child, _lines) = until_ready(&host, "copying");
        assert!(host.quota.view().used_bytes >= 16 << 20);
        child.kill().unwrap();
        child.wait().unwrap();
        host.assert_clean(1);
    }
}

#[test]
fn a_cancelled_kernel_is_an_error_that_the_program_sees() {
    let host = Host::start();
    let (mut child, mut lines) = until_ready(&host, "cancelled");
    // The kernel may not have begun yet.
    while host.vgpu.cancel().kernels == 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(lines.next().unwrap().unwrap(), "ok", "{}", host.log());
    assert!(child.wait().unwrap().success());
    host.assert_clean(1);
}

#[test]
fn a_worker_that_ends_as_a_program_comes_is_replaced() {
    let host = Host::start();
    // As when an idle worker has decided to end: the socket closes before anybody answers on it.
    *host.deaf.lock().unwrap() = 3;
    let output = host.program("basics").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.trim(), "ok", "{:?}; {}", output.status, host.log());
    assert_eq!(*host.deaf.lock().unwrap(), 0);
    host.assert_clean(1);
}

/// Starts a part of the program and waits for its word.
fn until_ready(host: &Host, part: &str) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = host.program(part).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert_eq!(first, "ready", "{}", host.log());
    (child, lines)
}

#[test]
fn a_lost_worker_gives_errors_and_no_hang() {
    let host = Host::start();
    let mut command = host.program("orphan");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    host.cut();
    host.assert_clean(1);
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "ok");
    assert!(child.wait().unwrap().success());
}
