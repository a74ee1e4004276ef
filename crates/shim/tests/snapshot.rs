//! A C program under the shim is saved and restored in the middle of its training, by a real daemon with real workers: the bits
//! of its losses are those of a run that nobody interrupted.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use mica_control::Paths;
use mica_control::api::{Created, SnapshotFile, VgpuSpec};
use mica_control::client::ControlClient;
use mica_daemon::devices::NoDevices;
use mica_daemon::{Options, Running};
use mica_limits::{Environment, lend_file};
use mica_worker::WorkerConfig;

const STEPS: usize = 60;

/// Not a test of its own: the worker that the daemon starts for the test below.
#[test]
#[ignore = "no test: the test below starts a daemon, which runs this (--exact worker --ignored) as the worker of a virtual GPU"]
fn worker() {
    if Environment::read().is_some() {
        mica_worker::run(&WorkerConfig::from_environment().unwrap()).unwrap();
    }
}

fn start(dir: &Path) -> (Running, ControlClient) {
    let exe = std::env::current_exe().unwrap();
    let text = format!(
        "[software_gpu]\nmemory_bytes = {}\n[workers]\nconfine = false\n[daemon]\nworker_command = [{:?}, \"--exact\", \
         \"worker\", \"--ignored\"]\n",
        256 << 20,
        exe.display(),
    );
    let config = dir.join("mica.toml");
    std::fs::write(&config, text).unwrap();
    let paths = Paths::under(dir);
    let control = ControlClient::new(paths.control_socket());
    let running = Running::start(Options {
        paths,
        config_file: Some(config),
        on_demand: false,
        devices: Box::new(NoDevices),
    });
    (running.unwrap(), control)
}

/// The shim under the driver's name, and the program linked with it.
fn build(dir: &Path) -> PathBuf {
    let executable = std::env::current_exe().unwrap();
    let deps = executable.parent().unwrap();
    let built = [deps.to_path_buf(), deps.parent().unwrap().to_path_buf()]
        .map(|directory| directory.join("libmica_shim.so"))
        .into_iter()
        .filter(|path| path.exists())
        .max_by_key(|path| path.metadata().unwrap().modified().unwrap())
        .expect("cargo builds the library before its tests");
    let shim = dir.join("libcuda.so.1");
    std::fs::copy(built, &shim).unwrap();
    let program = dir.join("train");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/train.c");
    let built = Command::new("gcc")
        .args(["-O1", "-Wall", "-o"])
        .args([&program, &source, &shim])
        .status()
        .unwrap();
    assert!(built.success());
    program
}

fn run(dir: &Path, created: &Created) -> Child {
    Command::new(dir.join("train"))
        .arg(STEPS.to_string())
        .env_clear()
        .env("LD_LIBRARY_PATH", dir)
        .env("MICA_MODE", "isolated")
        .env("MICA_HOST_SOCKET", &created.host_socket)
        .env("MICA_TOKEN", &created.token)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn lent(created: &Created, number: u128, file: &File) -> (mica_limits::LentFile, SnapshotFile) {
    let environment = Environment {
        socket: created.host_socket.clone().into(),
        token: Environment::parse_token(&created.token).unwrap(),
    };
    let kept = lend_file(&environment, number.to_be_bytes(), file.as_fd()).unwrap();
    let file = format!("{number:032x}");
    (kept, SnapshotFile { file })
}

#[test]
fn losses_are_the_same_bit_by_bit_with_and_without_snapshots() {
    let dir = tempfile::tempdir().unwrap();
    build(dir.path());
    let (mut daemon, mut control) = start(dir.path());
    let swappable = |name: &str| VgpuSpec {
        name: Some(name.into()),
        memory_limit_bytes: Some(64 << 20),
        swap: Some(true),
        ..VgpuSpec::default()
    };
    let alone = control.create(&swappable("alone")).unwrap();
    let output = run(dir.path(), &alone).wait_with_output().unwrap();
    let expected = String::from_utf8(output.stdout).unwrap();
    assert!(expected.ends_with("ok\n"), "{expected}");
    let created = control.create(&swappable("saved")).unwrap();
    let mut program = run(dir.path(), &created);
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let mut seen = String::new();
    for step in 1..=STEPS {
        let line = lines.next().unwrap().unwrap();
        seen += &format!("{line}\n");
        if [3, 17, 18, 40].contains(&step) {
            let file = tempfile::tempfile().unwrap();
            let (kept, name) = lent(&created, step as u128, &file);
            control.snapshot("saved", &name).unwrap();
            drop(kept);
            if step == 17 {
                drop(daemon);
                (daemon, control) = start(dir.path());
            }
            let (_kept, name) = lent(&created, 1000 + step as u128, &file);
            control.restore("saved", &name).unwrap();
        }
    }
    assert_eq!(lines.next().unwrap().unwrap(), "ok");
    assert!(program.wait().unwrap().success());
    assert_eq!(seen + "ok\n", expected);
    drop(daemon);
}
