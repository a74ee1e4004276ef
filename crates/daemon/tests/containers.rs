//! Processes in containers: the socket decides which virtual GPU they are in, and a container's end frees its own.

mod support;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use mica_control::api::{ContainerSocket, ContainerSocketSpec, Mode, VgpuSpec};
use mica_control::client::ControlError;
use mica_limits::{Environment, HostLink, LinkError};
use mica_wire::host::message::Role;
use support::{MIB, Program, control, environment, eventually, spec, start};

const SOCKET: &str = "MICA_TEST_CONTAINERS_SOCKET";

fn socket_of(dir: &Path, vgpu: &str) -> ContainerSocket {
    let spec = ContainerSocketSpec {
        vgpu: Some(vgpu.into()),
        ..ContainerSocketSpec::default()
    };
    control(dir).container_socket(&spec).unwrap()
}

fn socket_for_new(dir: &Path, name: &str, memory_mib: u64) -> ContainerSocket {
    let new = VgpuSpec {
        mode: Some(Mode::Direct),
        ..support::spec(name, memory_mib)
    };
    let spec = ContainerSocketSpec {
        new: Some(new),
        ..ContainerSocketSpec::default()
    };
    control(dir).container_socket(&spec).unwrap()
}

fn through(socket: &ContainerSocket, token: [u8; 16]) -> Environment {
    Environment {
        socket: PathBuf::from(&socket.folder).join("host.sock"),
        token,
    }
}

fn refusal(environment: Environment, role: Role) -> String {
    match HostLink::connect(environment, role) {
        Err(LinkError::Refused(why)) => why,
        other => panic!("{role:?}: {other:?}"),
    }
}

#[test]
fn the_socket_decides_and_not_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    control.create(&spec("a", 64)).unwrap();
    let other = control.create(&spec("b", 64)).unwrap();
    let socket = socket_of(dir.path(), "a");
    assert_eq!((socket.name.as_str(), socket.makes_new), ("a", false));
    for token in [Environment::NO_TOKEN, environment(&other).token] {
        let link = HostLink::connect(through(&socket, token), Role::Direct).unwrap();
        assert_eq!(link.welcome().vgpu, "a");
    }
    // No token at the usual socket opens nothing.
    let without = Environment {
        token: Environment::NO_TOKEN,
        ..environment(&other)
    };
    assert!(refusal(without, Role::Direct).contains("no virtual GPU has this token"));
    let worker = refusal(through(&socket, Environment::NO_TOKEN), Role::Worker);
    assert!(
        worker.contains("a worker does not come through"),
        "{worker}"
    );
    assert_eq!(socket_of(dir.path(), "a"), socket, "asking twice makes one");
}

#[test]
fn a_socket_stays_where_it_is_whatever_becomes_of_its_virtual_gpu_and_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    control(dir.path()).create(&spec("a", 64)).unwrap();
    let socket = socket_of(dir.path(), "a");
    let here = || through(&socket, Environment::NO_TOKEN);
    control(dir.path()).remove("a", false).unwrap();
    let gone = refusal(here(), Role::Direct);
    assert!(gone.contains("no virtual GPU named a now"), "{gone}");
    drop(daemon);
    let _daemon = start(dir.path());
    assert_eq!(control(dir.path()).container_sockets().unwrap().len(), 1);
    control(dir.path()).create(&spec("a", 32)).unwrap();
    let link = HostLink::connect(here(), Role::Direct).unwrap();
    assert_eq!(link.welcome().limit_bytes, 32 * MIB);
    control(dir.path())
        .remove_container_socket("a", false)
        .unwrap();
    assert!(!Path::new(&socket.folder).exists());
    let again = control(dir.path()).remove_container_socket("a", false);
    assert!(matches!(again, Err(ControlError::Refused(e)) if e.reason == "not_found"));
}

#[test]
fn wrong_wishes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let reason = |spec: ContainerSocketSpec| match control(dir.path()).container_socket(&spec) {
        Err(ControlError::Refused(refused)) => refused.reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(reason(ContainerSocketSpec::default()), "invalid");
    let missing = ContainerSocketSpec {
        vgpu: Some("nobody".into()),
        ..ContainerSocketSpec::default()
    };
    assert_eq!(reason(missing), "not_found");
    for (name, memory_mib) in [("../a", 64), ("", 64), ("tiny", 0)] {
        let new = ContainerSocketSpec {
            new: Some(spec(name, memory_mib)),
            ..ContainerSocketSpec::default()
        };
        assert_eq!(reason(new), "invalid", "{name}");
    }
}

/// Not a test of its own: a program in a container.
#[test]
#[ignore = "no test: tests below run this (--exact program_in_a_container --ignored) in a namespace"]
fn program_in_a_container() {
    let Some(socket) = std::env::var_os(SOCKET) else {
        return;
    };
    let environment = Environment {
        socket: socket.into(),
        token: Environment::NO_TOKEN,
    };
    let link = HostLink::connect(environment, Role::Direct).unwrap();
    println!("joined {}", link.welcome().vgpu);
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// A program in a process namespace of its own, and what it said; `None` where none can be made.
fn contained(socket: &ContainerSocket, levels: usize) -> Option<(Child, String)> {
    let unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork"];
    let mut words = Vec::new();
    for _ in 0..levels {
        words.extend(unshare);
        words.push("--kill-child");
    }
    let mut child = Command::new(words[0])
        .args(&words[1..])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "program_in_a_container", "--ignored"])
        .arg("--nocapture")
        .env(SOCKET, Path::new(&socket.folder).join("host.sock"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let said = BufReader::new(child.stdout.take().unwrap());
    let mut lines = said.lines().map_while(Result::ok);
    let joined = lines.find_map(|line| Some(line.split_once("joined ")?.1.to_owned()));
    match joined {
        Some(name) => Some((child, name)),
        None => {
            eprintln!("skipped: no process namespace can be made here");
            let _ = child.wait();
            None
        }
    }
}

#[test]
fn each_container_has_a_virtual_gpu_of_its_own_that_ends_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let socket = socket_for_new(dir.path(), "64MiB-20", 64);
    assert!(socket.makes_new);
    let outside = refusal(through(&socket, Environment::NO_TOKEN), Role::Direct);
    assert!(outside.contains("in no container"), "{outside}");
    let Some((mut one, first)) = contained(&socket, 1) else {
        return;
    };
    let (mut two, second) = contained(&socket, 1).unwrap();
    assert_ne!(first, second);
    let vgpus = control(dir.path()).list().unwrap();
    assert_eq!(vgpus.len(), 2);
    for vgpu in &vgpus {
        assert_eq!(vgpu.memory_limit_bytes, 64 * MIB);
        assert!(vgpu.ephemeral && vgpu.made_for.is_some(), "{vgpu:?}");
        assert_eq!(vgpu.processes.len(), 1, "{vgpu:?}");
        let made_for = vgpu.made_for.as_ref().unwrap();
        assert_eq!(vgpu.processes[0].container.as_ref(), Some(&made_for.name));
        assert_eq!(vgpu.containers(), [vgpu.name.as_str()]);
    }
    for child in [&mut one, &mut two] {
        drop(child.stdin.take());
        child.wait().unwrap();
    }
    eventually("both are freed", || {
        control(dir.path()).list().unwrap().is_empty()
    });
}

#[test]
fn namespaces_inside_a_container_are_the_same_container() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let socket = socket_for_new(dir.path(), "64MiB", 64);
    // The program is two namespaces deep: `unshare` in the outer one stays until the program ends.
    let Some((mut child, name)) = contained(&socket, 2) else {
        return;
    };
    let vgpu = control(dir.path()).get(&name).unwrap();
    let pid = vgpu.processes[0].pid;
    let inner = std::fs::read_link(format!("/proc/{pid}/ns/pid")).unwrap();
    let inner = inner.display().to_string();
    assert!(!inner.contains(name.rsplit('-').next().unwrap()), "{inner}");
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("it is freed", || {
        control(dir.path()).list().unwrap().is_empty()
    });
}

#[test]
fn connections_of_a_container_are_not_those_of_a_user() {
    let dir = tempfile::tempdir().unwrap();
    let more = "[daemon]\nmax_connections_per_user = 8\n";
    let _daemon = support::start_with(dir.path(), more);
    let created = control(dir.path()).create(&spec("a", 64)).unwrap();
    let socket = socket_of(dir.path(), "a");
    let mut links = Vec::new();
    let refused = loop {
        match HostLink::connect(through(&socket, Environment::NO_TOKEN), Role::Monitor) {
            Ok(link) => links.push(link),
            Err(LinkError::Busy(why)) => break why,
            Err(other) => panic!("{other}"),
        }
        assert!(links.len() <= 8);
    };
    assert!(refused.contains("too many connections"), "{refused}");
    // The same user comes through the usual socket all the same.
    drop(Program::join(&created));
}
