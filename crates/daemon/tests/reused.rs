//! A connection that outlives the process that made it, and a stranger that gets the number of that process.

mod support;

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use mica_control::Paths;
use mica_control::api::Created;
use mica_wire::host::message::{ClientMessage, DaemonMessage, Role};
use mica_wire::host::socket::HostSocket;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use support::{control, environment, eventually, spec, start_software};

const DAEMON: &str = "MICA_TEST_DAEMON_SOCKET";

/// Not a test of its own: connects to the daemon, passes the connection on through its standard input, and ends.
#[test]
#[ignore = "no test: the test below runs this (--exact connect_and_pass_on --ignored) in a process of its own"]
fn connect_and_pass_on() {
    let Some(daemon) = std::env::var_os(DAEMON) else {
        return;
    };
    let parent = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let connection = HostSocket::connect(daemon.as_ref()).unwrap();
    let parent = HostSocket::from_fd(parent);
    let message = ClientMessage::AskMemory {};
    parent.send(&message, &[connection.as_fd()]).unwrap();
    // Until the parent has seen that the daemon has accepted.
    parent.receive().unwrap();
}

/// A connection to the daemon, and the number of the process that made it and has ended.
fn orphaned_connection(dir: &std::path::Path) -> (HostSocket, u32) {
    let pair = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    );
    let (ours, theirs): (OwnedFd, OwnedFd) = pair.unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "connect_and_pass_on", "--ignored"])
        .env(DAEMON, Paths::under(dir).host_socket())
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let ours = HostSocket::from_fd(ours);
    let (_, mut fds) = ours.receive().unwrap();
    let connection = HostSocket::from_fd(fds.remove(0));
    let control = control(dir);
    eventually("the daemon accepts", || {
        control.stats().unwrap().daemon.connections > 0
    });
    ours.send(&ClientMessage::AskMemory {}, &[]).unwrap();
    assert!(child.wait().unwrap().success());
    (connection, child.id())
}

/// Starts a process with this number; `None` where the system does not let the test choose.
fn process_with_number(pid: u32) -> Option<Child> {
    for _ in 0..1000 {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).ok()?;
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        if child.id() == pid {
            return Some(child);
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    panic!("process number {pid} was never free");
}

fn hello(created: &Created) -> ClientMessage {
    ClientMessage::hello(Role::Program, environment(created).token)
}

#[test]
fn a_stranger_with_a_reused_number_is_no_program_and_is_not_killed() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start_software(dir.path(), "");
    let control = control(dir.path());
    let created = control.create(&spec("a", 64)).unwrap();
    let (connection, pid) = orphaned_connection(dir.path());
    let Some(mut stranger) = process_with_number(pid) else {
        eprintln!("skipped: this user may not choose process numbers");
        return;
    };
    connection.send(&hello(&created), &[]).unwrap();
    let (answer, _) = connection.receive().unwrap();
    control.remove("a", true).unwrap();
    let ended = stranger.try_wait().unwrap();
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    assert_eq!(ended, None, "the daemon killed a stranger");
    let Ok(DaemonMessage::Refused { text, .. }) = answer.read() else {
        panic!("{answer:?}");
    };
    assert!(text.contains("has ended"), "{text}");
}
