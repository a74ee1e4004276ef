//! A tool in a virtual GPU of a real daemon.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use mica_control::Paths;
use mica_control::api::VgpuSpec;
use mica_control::client::ControlClient;
use mica_daemon::devices::NoDevices;
use mica_daemon::{Options, Running};
use mica_limits::{Environment, HostLink, PageQuota, Quota, open_session};
use mica_wire::host::message::Role;

const MIB: u64 = 1 << 20;

fn compile_tool(directory: &Path) -> PathBuf {
    let tool = directory.join("tool");
    let status = Command::new("cc")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tool.c"))
        .args(["-w", "-std=gnu11", "-o"])
        .arg(&tool)
        .arg("-ldl")
        .status()
        .expect("a C compiler is installed, as Rust links with one");
    assert!(status.success());
    tool
}

/// Not a test of its own: the worker of the virtual GPU, with 150 MiB.
#[test]
#[ignore = "no test: the daemon of the test below runs this (--exact worker --ignored) as a worker"]
fn worker() {
    let Some(environment) = Environment::read() else {
        return;
    };
    let link = HostLink::connect(environment.expect("a token"), Role::Worker);
    let link = link.expect("the daemon started this worker");
    let (quota, watched) = (PageQuota::new(link.clone()), link.clone());
    std::thread::spawn(move || {
        quota.charge(150 * MIB).expect("there is room");
        // A real worker waits for the next daemon; this one must not outlive its test.
        while !watched.is_down() {
            std::thread::sleep(Duration::from_millis(50));
        }
        std::process::exit(0);
    });
    link.serve(|_| {}, &AtomicBool::new(false));
}

#[test]
fn a_tool_sees_what_the_daemon_has_granted() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let config = directory.path().join("mica.toml");
    let exe = std::env::current_exe().expect("the test knows its own program");
    let text = format!(
        "[software_gpu]\nmemory_bytes = {}\n[daemon]\nworker_command = [{:?}, \"--exact\", \"worker\", \"--ignored\"]\n",
        1024 * MIB,
        exe.display(),
    );
    std::fs::write(&config, text).expect("a fresh directory");
    let _daemon = Running::start(Options {
        paths: Paths::under(directory.path()),
        config_file: Some(config),
        on_demand: false,
        devices: Box::new(NoDevices),
    })
    .expect("a daemon");
    let control = ControlClient::new(Paths::under(directory.path()).control_socket());
    let spec = VgpuSpec {
        name: Some("blue".into()),
        memory_limit_bytes: Some(200 * MIB),
        ..VgpuSpec::default()
    };
    let created = control.create(&spec).expect("a virtual GPU");

    // A program in it, which is this test; its worker has 150 MiB.
    let mut token = [0; 16];
    for (byte, pair) in token.iter_mut().zip(created.token.as_bytes().chunks(2)) {
        let pair = std::str::from_utf8(pair).expect("hexadecimal");
        *byte = u8::from_str_radix(pair, 16).expect("hexadecimal");
    }
    let environment = Environment {
        socket: created.host_socket.clone().into(),
        token,
    };
    let _session = open_session(&environment).expect("it is let in");
    let until = Instant::now() + Duration::from_secs(120);
    let info = || control.get("blue").expect("it exists");
    while info().memory_used_bytes != 150 * MIB {
        assert!(Instant::now() < until, "the worker never came");
        std::thread::sleep(Duration::from_millis(5));
    }
    let own = std::process::id();

    let program = std::env::current_exe().expect("the test knows its own program");
    let output = Command::new(compile_tool(directory.path()))
        .arg(program.with_file_name("libmica_nvml_shim.so"))
        .env(Environment::SOCKET, &created.host_socket)
        .env(Environment::TOKEN, &created.token)
        .output()
        .expect("the tool runs");
    assert!(output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let (total, used, free) = (200 * MIB, 150 * MIB, 50 * MIB);
    for line in [
        "name 0 Mica Software GPU".to_owned(),
        format!("memory 0 {total} {used} {free}"),
        format!("memory v2 0 {total} {used} {free}"),
        format!("processes 0 {own}:{used}"),
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
}
