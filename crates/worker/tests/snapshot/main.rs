//! Snapshots, end to end: a real daemon, its workers on a software GPU, and a program that trains and never notices.

mod card;
mod greedy;
mod hostile;
mod short;
#[path = "../common/stand_in.rs"]
mod stand_in;
#[path = "../../../daemon/tests/support/mod.rs"]
mod support;
mod training;

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;
use std::time::Duration;

use mica_control::Paths;
use mica_control::api::{Created, SnapshotFile, VgpuSpec, VgpuState};
use mica_control::client::ControlClient;
use mica_daemon::devices::NoDevices;
use mica_daemon::{Options, Running};
use mica_limits::{Environment, LentFile, connect_session, lend_file};
use mica_snapshot::Snapshot;
use mica_wire::session::client::SessionClient;
use mica_wire::session::{
    ContextCreate, ContextDestroy, GraphDestroy, HostUnregister, SessionError,
};
use mica_worker::WorkerConfig;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use support::{MIB, control, environment, eventually, spec};
use training::{Training, losses_without_snapshot};

/// Not a test of its own: the worker that the daemon starts for the tests below.
#[test]
#[ignore = "no test: each test below starts a daemon, which runs this (--exact worker --ignored) as the worker of a virtual GPU"]
fn worker() {
    if Environment::read().is_some() {
        mica_worker::run(&WorkerConfig::from_environment().unwrap()).unwrap();
    }
}

fn start(dir: &Path) -> (Running, ControlClient) {
    start_with(dir, "worker")
}

/// Starts a daemon whose workers are this file's function of that name.
fn start_with(dir: &Path, worker: &str) -> (Running, ControlClient) {
    let exe = std::env::current_exe().unwrap();
    let text = format!(
        "[software_gpu]\ncount = 2\nmemory_bytes = {}\n[workers]\nconfine = false\n[daemon]\nworker_command = [{:?}, \"--exact\", \
         {worker:?}, \"--ignored\"]\n",
        256 * MIB,
        exe.display(),
    );
    let config = dir.join("mica.toml");
    std::fs::write(&config, text).unwrap();
    let running = Running::start(Options {
        paths: Paths::under(dir),
        config_file: Some(config),
        on_demand: false,
        devices: Box::new(NoDevices),
    });
    (running.unwrap(), control(dir))
}

fn swappable(name: &str) -> VgpuSpec {
    VgpuSpec {
        swap: Some(true),
        ..spec(name, 64)
    }
}

/// A file that was lent to the daemon.
fn lent(created: &Created, file: &File) -> (LentFile, SnapshotFile) {
    static NAMES: AtomicU64 = AtomicU64::new(1);
    let number = u128::from(NAMES.fetch_add(1, SeqCst)) << 64 | u128::from(std::process::id());
    let name = number.to_be_bytes();
    let kept = lend_file(&environment(created), name, file.as_fd()).unwrap();
    let file = format!("{number:032x}");
    (kept, SnapshotFile { file })
}

fn snapshot(control: &ControlClient, created: &Created) -> Result<File, String> {
    let file = tempfile::tempfile().unwrap();
    let (_kept, name) = lent(created, &file);
    let saved = control.snapshot(&created.name, &name);
    let info = saved.map_err(|error| error.to_string())?;
    assert_eq!(info.state, VgpuState::Snapshotted);
    Ok(file)
}

fn restore(control: &ControlClient, created: &Created, file: &File) -> Result<(), String> {
    let (_kept, name) = lent(created, file);
    let restored = control.restore(&created.name, &name);
    restored.map(drop).map_err(|error| error.to_string())
}

/// A program that trains on a thread, counting its steps, until it has done so many.
fn train(
    created: &Created,
    steps: u64,
) -> (Arc<AtomicU64>, JoinHandle<Result<Vec<u32>, SessionError>>) {
    let done = Arc::new(AtomicU64::new(0));
    let (count, environment) = (Arc::clone(&done), environment(created));
    let thread = std::thread::spawn(move || {
        let client = connect_session(&environment, "test");
        let client = client.map_err(|error| SessionError::Ended(error.to_string()))?;
        let mut training = Training::begin(Arc::new(client))?;
        (0..steps)
            .map(|_| {
                count.fetch_add(1, SeqCst);
                training.step()
            })
            .collect()
    });
    (done, thread)
}

#[test]
fn a_training_goes_on_bit_by_bit_after_its_worker_and_the_daemon_have_ended() {
    const STEPS: u64 = 60;
    let expected = losses_without_snapshot(STEPS);
    let dir = tempfile::tempdir().unwrap();
    let (mut daemon, mut control) = start(dir.path());
    let created = control.create(&swappable("train")).unwrap();
    let (done, thread) = train(&created, STEPS);
    for (round, at) in [1, 7, 20, 45].into_iter().enumerate() {
        eventually("so many steps", || done.load(SeqCst) >= at);
        let file = snapshot(&control, &created).unwrap();
        let memory = control.get("train").unwrap().memory_used_bytes;
        assert_eq!(memory, 0, "nothing is on the GPU");
        let before = done.load(SeqCst);
        if round % 2 == 1 {
            drop(daemon);
            (daemon, control) = start(dir.path());
            let info = control.get("train").unwrap();
            assert_eq!(info.state, VgpuState::Snapshotted);
        }
        std::thread::sleep(Duration::from_millis(150));
        assert!(
            done.load(SeqCst) <= before + 1 && !thread.is_finished(),
            "the program waits"
        );
        let manifest = Snapshot::open(&file).unwrap().manifest().clone();
        assert_eq!((manifest.vgpu.as_str(), manifest.contexts), ("train", 1));
        restore(&control, &created, &file).unwrap();
        let text = restore(&control, &created, &file).unwrap_err();
        assert!(text.contains("no program waits"), "{text}");
    }
    assert_eq!(thread.join().unwrap().unwrap(), expected);
    let events = control.past_events().unwrap();
    let kinds: Vec<_> = events.iter().map(|event| &*event.kind).collect();
    assert!(kinds.contains(&"vgpu_restored"), "{kinds:?}");
    assert!(
        !kinds.contains(&"worker_ended") && !kinds.contains(&"process_refused"),
        "{kinds:?}"
    );
    drop(daemon);
}

/// Descriptors of this process for memory of this name.
fn descriptors_of(name: &str) -> usize {
    let listed = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = listed
        .flatten()
        .map(|entry| std::fs::read_link(entry.path()));
    let is_it = |target: &std::path::PathBuf| target.to_string_lossy().contains(name);
    targets.flatten().filter(is_it).count()
}

#[test]
fn files_that_are_kept_for_another_worker_go_with_their_context() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start(dir.path());
    let created = control.create(&swappable("files")).unwrap();
    let client = connect_session(&environment(&created), "test").unwrap();
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
    for name in ["freed-by-address", "ended-with-context"] {
        let context = client.call(&ContextCreate { flags: 0 }).unwrap().context;
        let file = memfd_create(name, flags).unwrap();
        ftruncate(&file, 8192).unwrap();
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        let registered = client.host_register(context, &file, 0, 8192, true);
        let address = registered.unwrap();
        drop(file);
        assert_eq!(descriptors_of(name), 1, "{name} is kept");
        if name == "freed-by-address" {
            client.call(&HostUnregister { context, address }).unwrap();
            assert_eq!(descriptors_of(name), 0, "{name}");
        }
        client.call(&ContextDestroy { context }).unwrap();
        assert_eq!(descriptors_of(name), 0, "{name}");
    }
}

#[test]
fn all_that_a_program_can_name_is_there_again() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start(dir.path());
    let created = control.create(&swappable("all")).unwrap();
    let client = Arc::new(connect_session(&environment(&created), "test").unwrap());
    let everything = training::Everything::begin(&client).unwrap();
    let file = snapshot(&control, &created).unwrap();
    std::thread::scope(|scope| {
        let check = scope.spawn(|| everything.check(&client));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!check.is_finished(), "a call waits");
        restore(&control, &created, &file).unwrap();
        check.join().unwrap().unwrap();
    });
    // It can be saved again, and what was freed since is not in it.
    everything.free(&client).unwrap();
    let file = snapshot(&control, &created).unwrap();
    let manifest = Snapshot::open(&file).unwrap().manifest().clone();
    assert_eq!((manifest.allocations, manifest.modules), (0, 0));
}

#[test]
fn what_cannot_be_saved_is_refused_by_name_and_the_program_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start(dir.path());
    let fixed = control.create(&spec("fixed", 8)).unwrap();
    let refused = |created: &Created| snapshot(&control, created).unwrap_err();
    assert!(
        refused(&fixed).contains("not swappable"),
        "{}",
        refused(&fixed)
    );
    let created = control.create(&swappable("a")).unwrap();
    assert!(
        refused(&created).contains("no program uses a"),
        "{}",
        refused(&created)
    );
    let client = connect_session(&environment(&created), "test").unwrap();
    let context = client.call(&ContextCreate { flags: 0 }).unwrap().context;
    let graph = training::a_graph(&client, context).unwrap();
    let text = refused(&created);
    assert!(text.contains("cuGraphInstantiate"), "{text}");
    client.post(&GraphDestroy { graph }, &[]).unwrap();
    control.suspend("a").unwrap();
    assert!(
        refused(&created).contains("suspended"),
        "{}",
        refused(&created)
    );
    control.resume("a").unwrap();
    // A program that could not find another worker: here, one of another machine's.
    let other = control.create(&swappable("b")).unwrap();
    let (_, socket) = mica_limits::open_session(&environment(&other)).unwrap();
    let far = SessionClient::connect(socket, "test").unwrap();
    far.call(&ContextCreate { flags: 0 }).unwrap();
    assert!(
        refused(&other).contains("another machine"),
        "{}",
        refused(&other)
    );
    // What was refused has changed nothing.
    let file = snapshot(&control, &created).unwrap();
    restore(&control, &created, &file).unwrap();
    client.call(&ContextCreate { flags: 0 }).unwrap();
}

#[test]
fn a_file_that_is_damaged_or_not_the_last_one_is_refused_and_the_right_one_still_works() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start(dir.path());
    let created = control.create(&swappable("a")).unwrap();
    let (done, thread) = train(&created, 30);
    eventually("some steps", || done.load(SeqCst) >= 3);
    let first = snapshot(&control, &created).unwrap();
    restore(&control, &created, &first).unwrap();
    eventually("more steps", || done.load(SeqCst) >= 6);
    let second = snapshot(&control, &created).unwrap();
    let text = restore(&control, &created, &first).unwrap_err();
    assert!(text.contains("another snapshot"), "{text}");
    let text = snapshot(&control, &created).unwrap_err();
    assert!(text.contains("in a snapshot already"), "{text}");
    for damage in training::damages(&second) {
        let text = restore(&control, &created, &damage).unwrap_err();
        assert!(text.contains("was not restored"), "{text}");
        assert_eq!(control.get("a").unwrap().state, VgpuState::Snapshotted);
    }
    restore(&control, &created, &second).unwrap();
    assert_eq!(thread.join().unwrap().unwrap(), losses_without_snapshot(30));
}

#[test]
fn nobody_else_gets_in_while_a_program_waits() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start(dir.path());
    let created = control.create(&swappable("a")).unwrap();
    let client = connect_session(&environment(&created), "test").unwrap();
    client.call(&ContextCreate { flags: 0 }).unwrap();
    let file = snapshot(&control, &created).unwrap();
    let text = connect_session(&environment(&created), "other")
        .unwrap_err()
        .to_string();
    assert!(text.contains("in a snapshot"), "{text}");
    // Another virtual GPU's file is not for this one.
    let other = control.create(&swappable("b")).unwrap();
    let text = restore(&control, &other, &file).unwrap_err();
    assert!(text.contains("no program waits in b"), "{text}");
    restore(&control, &created, &file).unwrap();
    client.call(&ContextCreate { flags: 0 }).unwrap();
}
