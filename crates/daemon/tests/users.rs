//! A daemon that serves all users: anyone may connect, credentials decide.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use mica_control::Paths;
use mica_control::api::{AccountBy, Subject, Timeline, VgpuState};
use mica_control::client::{ControlClient, Span};
use mica_daemon::{Options, Running};
use mica_limits::{Environment, HostLink};
use mica_wire::host::message::Role;
use support::process::copy_of_this_program;
use support::{Card, Program, control, environment, eventually, spec};

const CHILD: &str = "MICA_TEST_AS_NOBODY";
const NOBODY: u32 = 65534;

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn start(dir: &Path, shared: bool) -> Running {
    let config = dir.join("mica.toml");
    std::fs::write(&config, "[software_gpu]\nmemory_bytes = 1073741824\n").unwrap();
    Running::start(Options {
        paths: Paths {
            shared,
            ..Paths::under(dir)
        },
        config_file: Some(config),
        on_demand: false,
        devices: Box::new(Card),
    })
    .unwrap()
}

#[test]
fn only_a_shared_daemon_lets_others_in() {
    // Workers of root's daemon are other users, and must get through to their socket.
    let private = if rustix::process::geteuid().is_root() {
        0o711
    } else {
        0o700
    };
    for (shared, directory, socket) in [(false, private, 0o600), (true, 0o755, 0o666)] {
        let dir = tempfile::tempdir().unwrap();
        let _daemon = start(dir.path(), shared);
        let paths = Paths::under(dir.path());
        assert_eq!(mode(&paths.runtime_dir), directory);
        assert_eq!(mode(&paths.state_dir), 0o700);
        assert_eq!(mode(&paths.host_socket()), socket);
        assert_eq!(mode(&paths.control_socket()), socket);
    }
}

/// Not a test by itself: what another user does, run by the test below.
#[test]
fn child_of_another_user() {
    let Some(socket) = std::env::var_os(CHILD) else {
        return;
    };
    let control = ControlClient::new(socket);
    let theirs = Environment::read().unwrap().unwrap();
    // Somebody else's does not seem to exist, and its token is no use to another user.
    assert_eq!(
        control.get("roots").unwrap_err().reason(),
        Some("not_found")
    );
    assert!(control.list().unwrap().is_empty());
    assert!(control.remove("roots", true).is_err());
    assert_eq!(control.shutdown().unwrap_err().reason(), Some("permission"));
    let refused = HostLink::connect(theirs, Role::Direct).unwrap_err();
    assert!(refused.to_string().contains("may not use"), "{refused}");
    let own = control.create(&spec("own", 64)).unwrap();
    let _program = Program::join(&own);
    assert_eq!(control.get("own").unwrap().owner_uid, NOBODY);
    // A name that another user has given is as free as any other.
    let same = control.create(&spec("roots", 64)).unwrap();
    assert_eq!(same.name, format!("roots@{NOBODY}"));
    assert_eq!(control.get("roots").unwrap().owner_uid, NOBODY);
    let again = control.create(&spec("roots", 64)).unwrap_err();
    assert_eq!(again.reason(), Some("exists"));
    control.suspend("roots").unwrap();
    assert!(control.doctor(Some("roots")).is_ok());
    // What has no room is refused without others' names.
    let full = control.create(&spec("large", 1 << 20)).unwrap_err();
    assert!(!full.to_string().contains("hidden"), "{full}");
    control.remove("roots", true).unwrap();
    let gone = control.get("roots").unwrap_err();
    assert_eq!(gone.reason(), Some("not_found"));
    // What happened in it can still be read, and nothing of what happened in another user's of that name.
    let told = control.past_events_of(Some("roots")).unwrap();
    let is_own = |name: &Option<String>| *name == Some(format!("roots@{NOBODY}"));
    assert!(told.iter().all(|event| is_own(&event.vgpu)), "{told:?}");
    assert_eq!(told.last().unwrap().kind, "vgpu_removed");
    // Nor what was measured of others; GPUs are everybody's.
    let measured = control.timelines(&Span::default(), None).unwrap().timelines;
    assert!(measured.iter().any(|line| line.subject == Subject::Gpu));
    let is_own = |line: &Timeline| line.owner_uid.is_none_or(|uid| uid == NOBODY);
    assert!(measured.iter().all(is_own), "{measured:?}");
    let usage = control.usage(&Span::default(), AccountBy::Vgpu).unwrap();
    assert!(
        usage
            .accounts
            .iter()
            .all(|account| account.key.ends_with("@65534")),
        "{usage:?}"
    );
    let all = control.past_events().unwrap();
    assert!(
        all.iter()
            .all(|event| event.vgpu.as_deref() != Some("hidden"))
    );
}

#[test]
fn another_user_has_their_own_and_nobody_elses() {
    let setpriv = Path::new("/usr/bin/setpriv");
    if mica_control::uid() != 0 || !setpriv.exists() {
        eprintln!("skipped: needs root and setpriv");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open.clone()).unwrap();
    let _daemon = start(dir.path(), true);
    let created = control(dir.path()).create(&spec("roots", 64)).unwrap();
    control(dir.path()).create(&spec("hidden", 128)).unwrap();
    assert_eq!(
        environment(&created).socket,
        Paths::under(dir.path()).host_socket()
    );
    eventually("the other user's is measured", || {
        let measured = control(dir.path()).timelines(&Span::default(), None);
        measured
            .unwrap()
            .timelines
            .iter()
            .any(|line| line.name == "hidden")
    });
    // The build folder may be closed to others.
    let program = dir.path().join("child");
    copy_of_this_program(&program);
    std::fs::set_permissions(&program, open).unwrap();
    let user = NOBODY.to_string();
    let output = Command::new(setpriv)
        .args(["--reuid", &user, "--regid", &user, "--clear-groups"])
        .arg(&program)
        .args(["--exact", "child_of_another_user", "--nocapture"])
        .env(CHILD, Paths::under(dir.path()).control_socket())
        .env(Environment::SOCKET, &created.host_socket)
        .env(Environment::TOKEN, &created.token)
        .current_dir("/")
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    // Root sees both, and root's own was not touched.
    let root = control(dir.path());
    assert_eq!(
        root.get(&format!("own@{NOBODY}")).unwrap().owner_uid,
        NOBODY
    );
    assert_ne!(root.get("roots").unwrap().state, VgpuState::Suspended);
}
