//! Processes that cannot be told apart by the usual means: of a namespace that the daemon cannot see, and of other users who
//! listen where a daemon should.

mod support;

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use mica_control::client::{ControlClient, ControlError};
use mica_limits::{HostLink, LinkError};
use mica_wire::host::message::Role;
use support::process::{DaemonProcess, copy_of_this_program};
use support::{control, environment, eventually, spec};

const SOCKET: &str = "MICA_TEST_STRANGERS_SOCKET";
const NOBODY: u32 = 65534;

/// Not a test of its own: the daemon of a test below.
#[test]
#[ignore = "no test: a test below runs this (--exact daemon_with_a_card --ignored) as its daemon"]
fn daemon_with_a_card() {
    support::process::serve();
}

#[test]
fn a_program_whose_process_the_daemon_cannot_see_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_daemon) = DaemonProcess::in_namespace(dir.path()) else {
        eprintln!("skipped: no process namespace can be made here");
        return;
    };
    let created = control(dir.path()).create(&spec("a", 64)).unwrap();
    for role in [Role::Direct, Role::Program, Role::Monitor] {
        match HostLink::connect(environment(&created), role) {
            Err(LinkError::Refused(why)) => {
                assert!(why.contains("process namespace"), "{why}");
            }
            other => panic!("{role:?}: {other:?}"),
        }
    }
    let alive = control(dir.path()).get("a").unwrap();
    assert!(alive.processes.is_empty(), "{alive:?}");
}

/// Not a test of its own: listens as another user, and tells whether anybody says anything.
#[test]
#[ignore = "no test: a test below runs this (--exact listener --ignored) as another user"]
fn listener() {
    let Some(socket) = std::env::var_os(SOCKET) else {
        return;
    };
    let listener = UnixListener::bind(&socket).unwrap();
    std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o777)).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let heard = stream.read(&mut [0; 64]).unwrap();
    std::process::exit(i32::from(heard > 0));
}

#[test]
fn another_user_who_listens_at_the_daemons_socket_is_told_nothing() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be two users");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let socket = dir.path().join("control.sock");
    // The test's program may lie where another user cannot go.
    let program = dir.path().join("program");
    copy_of_this_program(&program);
    let start = || {
        Command::new(&program)
            .args(["--exact", "listener", "--ignored"])
            .env(SOCKET, &socket)
            .uid(NOBODY)
            .gid(NOBODY)
            .current_dir("/")
            .stdout(Stdio::null())
            .spawn()
    };
    // A child that another test has just forked holds the fresh copy open until it runs its own program.
    let mut started = None;
    eventually("the copy can be run", || {
        started = start().ok();
        started.is_some()
    });
    let mut stranger = started.unwrap();
    eventually("it listens", || {
        let mode = socket.metadata().map(|m| m.permissions().mode() & 0o777);
        mode.ok() == Some(0o777)
    });
    let refused = ControlClient::new(&socket).shutdown().unwrap_err();
    assert!(
        matches!(refused, ControlError::Stranger { uid: NOBODY, .. }),
        "{refused:?}"
    );
    assert!(refused.to_string().contains("65534"), "{refused}");
    assert!(stranger.wait().unwrap().success(), "it heard nothing");
}
