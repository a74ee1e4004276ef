//! What a worker can do once it is confined: nothing outside. The worker of these tests is hostile
//! (`examples/hostile_worker.rs`): it makes the system calls that lead out, and each must be refused.

#[path = "../../daemon/tests/support/mod.rs"]
mod support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use mica_control::api::{ConfinementInfo, GpuKind, Mode, VgpuSpec};
use mica_limits::open_session;
use support::{control, environment, spec, start_software, start_with};

const NOBODY: u32 = 65534;

/// The hostile worker, which cargo builds beside the tests.
fn probe() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let target = tests.parent().and_then(Path::parent).unwrap();
    let probe = target.join("examples/hostile_worker");
    assert!(
        probe.exists(),
        "{} is not built: cargo build -p mica-worker --examples",
        probe.display()
    );
    probe
}

/// What the hostile worker could do, what it could not, and what confined it.
struct Outcome {
    permitted: Vec<String>,
    refused: Vec<String>,
    confinement: ConfinementInfo,
}

/// Has the hostile worker try everything, as the worker of a software GPU or of a card.
fn try_everything(dir: &Path, kind: GpuKind) -> Outcome {
    let pid = std::process::id();
    // A daemon may have been started by something that left files open.
    let script = format!(
        "exec 9</etc; export PROBE_DAEMON_PID={pid} PROBE_INHERITED=9; exec '{}'",
        probe().display()
    );
    let command = format!("[daemon]\nworker_command = [\"sh\", \"-c\", {script:?}]\n");
    let _daemon = match kind {
        GpuKind::Software => start_software(dir, &command),
        GpuKind::Nvidia => start_with(dir, &command),
    };
    let control = control(dir);
    let isolated = VgpuSpec {
        mode: Some(Mode::Isolated),
        ..spec("t", 64)
    };
    let created = control.create(&isolated).unwrap();
    let _session = open_session(&environment(&created)).unwrap();
    let (mut permitted, mut refused) = (Vec::new(), Vec::new());
    for event in control.events(Some(0)).unwrap() {
        let text = event.unwrap().message;
        match text
            .strip_prefix("probe: ")
            .map(|text| text.split_once(' '))
        {
            Some(Some(("PERMITTED", what))) => permitted.push(what.to_owned()),
            Some(Some(("refused", what))) => refused.push(what.to_owned()),
            Some(Some(("UNABLE", _))) => panic!("{text}"),
            Some(_) => break,
            None => assert!(!text.contains("ended before"), "{text}"),
        }
    }
    let shown = control.get("t").unwrap();
    let mut workers = shown.processes.into_iter().filter_map(|p| p.confinement);
    Outcome {
        permitted,
        refused,
        confinement: workers.next().unwrap(),
    }
}

fn check_nothing_gets_out(kind: GpuKind) {
    let dir = tempfile::tempdir().unwrap();
    let outcome = try_everything(dir.path(), kind);
    let attempts = outcome.refused.len() + outcome.permitted.len();
    assert!(attempts > 100, "only {attempts} attempts were made");
    // The driver of a card reads settings of the kernel and names its threads; what is there is the worker's own.
    let drivers = [
        "open /proc/sys",
        "open /proc/self/comm",
        "open /proc/self/mem",
    ];
    let expected = |what: &String| {
        kind == GpuKind::Nvidia && drivers.iter().any(|begin| what.starts_with(begin))
    };
    let permitted: Vec<_> = outcome.permitted.iter().filter(|w| !expected(w)).collect();
    assert!(permitted.is_empty(), "a worker may: {permitted:#?}");
    for layer in [
        "user",
        "files",
        "processes",
        "network",
        "ipc",
        "capabilities",
        "no_new_privileges",
        "seccomp",
    ] {
        let applied = outcome.confinement.applied.iter().any(|a| a == layer);
        assert!(
            applied,
            "{layer} is not in force: {:#?}",
            outcome.confinement
        );
    }
}

#[test]
fn a_confined_worker_of_the_software_gpu_reaches_nothing_outside() {
    check_nothing_gets_out(GpuKind::Software);
}

#[test]
fn a_confined_worker_of_a_card_reaches_nothing_outside() {
    check_nothing_gets_out(GpuKind::Nvidia);
}

/// Not a test of its own: those below run it in processes of their own.
#[test]
#[ignore = "no test: the tests below run this (--exact as_this_user --ignored), as nobody and with a umask that hides everything"]
fn as_this_user() {
    check_nothing_gets_out(GpuKind::Software);
    check_nothing_gets_out(GpuKind::Nvidia);
}

#[test]
fn a_confined_worker_of_an_unprivileged_daemon_reaches_nothing_outside() {
    if !rustix::process::geteuid().is_root() {
        // The first tests are this one then.
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    // The checkout may lie where nobody else may read.
    let folder = dir.path().join("bin");
    std::fs::create_dir_all(folder.join("examples")).unwrap();
    std::fs::create_dir_all(folder.join("deps")).unwrap();
    let tests = folder.join("deps/jail");
    copy_program(&std::env::current_exe().unwrap(), &tests);
    copy_program(&probe(), &folder.join("examples/hostile_worker"));
    let output = Command::new(&tests)
        .args(["--exact", "as_this_user", "--ignored", "--nocapture"])
        .env("TMPDIR", dir.path())
        .env("HOME", dir.path())
        .env_remove("XDG_RUNTIME_DIR")
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

/// The service has such a umask: folders must have the rights that workers, which are other users, need.
#[test]
fn a_worker_is_served_where_the_umask_hides_all_from_others() {
    let tests = std::env::current_exe().unwrap();
    let output = Command::new("sh")
        .args(["-c", "umask 077; exec \"$0\" \"$@\""])
        .arg(&tests)
        .args(["--exact", "as_this_user", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

/// Copies a program that will be started. A child process writes the copy: a descriptor that this process opened for
/// writing could be inherited by a child that another test is starting, and a file open for writing cannot be executed.
fn copy_program(program: &Path, copy: &Path) {
    let status = Command::new("cp").arg(program).arg(copy).status().unwrap();
    assert!(status.success(), "{}", copy.display());
}
