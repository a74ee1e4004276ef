//! Monitoring tools in a virtual GPU: with a real NVML behind the shim, on the software GPU, outside,
//! and without a daemon.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use mica_limits::Environment;
use mica_wire::host::frame::{Packet, TEXT_BYTES};
use mica_wire::host::message::{ClientMessage, DaemonMessage, Role};
use mica_wire::host::socket::HostSocket;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, socket_with,
};

const TOKEN: [u8; 16] = [7; 16];

/// The library under test, beside this test's own program.
fn shim() -> PathBuf {
    let program = std::env::current_exe().expect("the test knows its own program");
    let library = program.with_file_name("libmica_nvml_shim.so");
    assert!(library.exists(), "{library:?} is built with the tests");
    library
}

fn compile(directory: &Path, source: &str, name: &str, more: &[&str]) -> PathBuf {
    let output = directory.join(name);
    let status = Command::new("cc")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(source))
        .args(["-w", "-std=gnu11", "-o"])
        .arg(&output)
        .args(more)
        .arg("-ldl")
        .status()
        .expect("a C compiler is installed, as Rust links with one");
    assert!(status.success());
    output
}

/// A daemon that describes one virtual GPU to whoever shows the token.
fn serve(socket: &Path, description: String) {
    let fd = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .expect("a socket");
    bind(&fd, &SocketAddrUnix::new(socket).expect("a short path")).expect("a fresh path");
    listen(&fd, 8).expect("a bound socket");
    std::thread::spawn(move || {
        while let Ok(client) = accept(fd.as_fd()) {
            let description = description.clone();
            std::thread::spawn(move || talk(client, &description));
        }
    });
}

fn talk(client: OwnedFd, description: &str) {
    let socket = HostSocket::from_fd(client);
    while let Ok((message, _fds)) = socket.receive() {
        match message.read().expect("a message") {
            ClientMessage::Hello { introduction } => {
                assert_eq!(
                    (introduction.role, introduction.token),
                    (Role::Monitor, TOKEN)
                );
                let welcome = DaemonMessage::Welcome {
                    limit_bytes: 0,
                    device_total_bytes: 0,
                    client_id: 0,
                    gpu_index: 0,
                    vgpu: "blue".into(),
                };
                socket.send(&welcome, &[]).expect("the tool waits");
            }
            ClientMessage::AskStats {} => {
                let mut rest = description.len();
                for piece in description.as_bytes().chunks(TEXT_BYTES) {
                    rest -= piece.len();
                    let answer = DaemonMessage::Stats {
                        piece: piece.to_vec(),
                        rest_bytes: rest as u64,
                    };
                    let answer = answer.frame(message.id());
                    socket.send_frame(&answer, &[]).expect("the tool waits");
                }
            }
            other => panic!("a tool that only looks sent {other:?}"),
        }
    }
}

fn description(kind: &str) -> String {
    let filler = "x".repeat(500);
    format!(
        r#"{{"name":"blue","note":"{filler}","gpu":1,"gpu_kind":"{kind}","memory_limit_bytes":1000,
        "memory_used_bytes":300,"share_measured_percent":41.7,"processes":[
        {{"pid":70,"name":"python","memory_used_bytes":200,"utilization_percent":30.2}},
        {{"pid":71,"name":"worker","memory_used_bytes":100,"utilization_percent":11.5}}]}}"#
    )
}

fn run(tool: &Path, environment: &[(&str, &str)]) -> String {
    let output = Command::new(tool)
        .arg(shim())
        .env_remove(Environment::SOCKET)
        .env_remove(Environment::TOKEN)
        .envs(environment.iter().copied())
        .output()
        .expect("the tool runs");
    assert!(output.status.success(), "{output:?}");
    assert!(
        output.stderr.is_empty(),
        "the library is silent: {output:?}"
    );
    String::from_utf8(output.stdout).expect("text")
}

struct Setup {
    directory: tempfile::TempDir,
    tool: PathBuf,
    real: PathBuf,
    token: String,
}

fn setup() -> Setup {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let tool = compile(directory.path(), "tests/tool.c", "tool", &[]);
    let flags = ["-shared", "-fPIC"];
    let source = "../backend-cuda/tests/fake_nvml.c";
    let real = compile(directory.path(), source, "libreal.so", &flags);
    Setup {
        directory,
        tool,
        real,
        token: Environment::token_hex(&TOKEN),
    }
}

impl Setup {
    fn path(&self, name: &str) -> String {
        let path = self.directory.path().join(name);
        path.to_str().expect("a plain path").to_owned()
    }

    fn run(&self, socket: &str, real: &str) -> String {
        self.run_with(socket, real, "")
    }

    fn run_with(&self, socket: &str, real: &str, preload: &str) -> String {
        run(
            &self.tool,
            &[
                (Environment::SOCKET, socket),
                (Environment::TOKEN, &self.token),
                ("MICA_LIBNVML", real),
                ("LD_PRELOAD", preload),
            ],
        )
    }
}

const SHARED: &str = "\
index 0 0
memory 0 1000 300 700
memory v2 0 1000 300 700
utilization 0 42
processes asked 7 2
processes 0 70:200 71:100
graphics 0 0
samples 0 70:30 71:12
load asked 0 1
load 0 1 42 of type 1
load 0 1 0 of type 1
";

#[test]
fn a_tool_on_a_real_gpu_sees_the_virtual_one() {
    let setup = setup();
    let socket = setup.path("daemon");
    serve(Path::new(&socket), description("nvidia"));
    let real = setup.real.to_str().expect("a plain path");
    let expected = format!(
        "before init 1
init 0
count 0 1
handle 0
next handle 2
name 0 Test GPU
short name 0
uuid 0 GPU-00001001
by uuid 0 1
{SHARED}domains 42 0
accounting 3
temperature 13
by a wrong handle 2 2 2 without room 2 2
set mode 4
words Not Found
shutdown 0
after it 1 1 1 1
"
    );
    assert_eq!(setup.run(&socket, real), expected);
    // First in the process, the shim also gets what the real library asks of itself.
    let shim = shim();
    let preload = shim.to_str().expect("a plain path");
    assert_eq!(setup.run_with(&socket, real, preload), expected);
    // The daemon may name the GPU by its UUID.
    let named = description("nvidia").replace(r#""gpu":1"#, r#""gpu":7,"gpu_uuid":"GPU-00001001""#);
    let socket = setup.path("second");
    serve(Path::new(&socket), named);
    assert_eq!(setup.run_with(&socket, real, preload), expected);
}

#[test]
fn a_tool_on_the_software_gpu_is_answered_without_any_driver() {
    let setup = setup();
    let socket = setup.path("daemon");
    serve(Path::new(&socket), description("software"));
    let output = setup.run(&socket, "/nonexistent/libnvidia-ml.so.1");
    let uuid = output.lines().find(|line| line.starts_with("uuid"));
    let uuid = uuid.expect("there is one").to_owned();
    assert!(uuid.starts_with("uuid 0 GPU-") && uuid.len() == "uuid 0 GPU-".len() + 36);
    let expected = format!(
        "before init 1
init 0
count 0 1
handle 0
next handle 2
name 0 Mica Software GPU
short name 7
{uuid}
by uuid 0 1
{SHARED}accounting 3
temperature 3
by a wrong handle 2 2 2 without room 2 2
set mode 3
words Not Found
shutdown 0
after it 1 1 1 1
"
    );
    assert_eq!(output, expected);
}

#[test]
fn outside_a_virtual_gpu_the_real_library_answers() {
    let setup = setup();
    let real = setup.real.to_str().expect("a plain path");
    let output = run(&setup.tool, &[("MICA_LIBNVML", real)]);
    assert!(output.contains("\ncount 0 2\n"), "{output}");
    assert!(output.contains("\nuuid 0 GPU-00001000\n"), "{output}");
    assert!(output.contains("\nmemory 0 100 40 60\n"), "{output}");
    assert!(output.contains("\nset mode 0\n"), "{output}");
}

#[test]
fn without_a_daemon_nothing_is_shown() {
    let setup = setup();
    let real = setup.real.to_str().expect("a plain path");
    let output = setup.run(&setup.path("nobody"), real);
    assert_eq!(output, "before init 1\ninit 999\n");
    // Nor where the way to it is spoilt.
    let spoilt = [
        (Environment::SOCKET, "/nonexistent"),
        (Environment::TOKEN, "short"),
        ("MICA_LIBNVML", real),
    ];
    assert_eq!(run(&setup.tool, &spoilt), "before init 1\ninit 999\n");
}
