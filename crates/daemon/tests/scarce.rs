//! A daemon that runs out of disk, descriptors or threads, and peers that stop in the middle.

mod support;

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mica_control::Paths;
use mica_control::api::{Mode, VgpuSpec};
use mica_limits::{PageQuota, Quota, open_session};
use mica_wire::host::frame::Packet;
use mica_wire::host::message::{ClientMessage, DaemonMessage, Role};
use mica_wire::host::socket::HostSocket;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use support::process::DaemonProcess;
use support::{MIB, Program, control, environment, eventually, spec, start};

/// Not a test of its own: the daemon of the tests below.
#[test]
#[ignore = "no test: tests below run this (--exact daemon_with_a_card --ignored) as their daemon"]
fn daemon_with_a_card() {
    support::process::serve();
}

/// A file system of a few pages, gone with this guard.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// `None`, with the reason printed, where this process may not mount one.
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k,mode=755", "tmpfs"])
            .arg(dir.path())
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(dir)),
            other => {
                eprintln!("skipped: no file system can be mounted: {other:?}");
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

#[test]
fn a_full_disk_ends_nothing_and_what_was_saved_stays() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let daemon = start(disk.path());
    let control = control(disk.path());
    let created = control.create(&spec("first", 64)).unwrap();
    let program = Program::join(&created);
    let quota = PageQuota::new(program.link.clone());
    let state = Paths::under(disk.path()).state_file();
    let saved = std::fs::read(&state).unwrap();
    let ballast = disk.path().join("ballast");
    assert!(
        std::fs::write(&ballast, [1; 128 << 10]).is_err(),
        "the disk is full"
    );
    // New names, new processes and new grants work as ever, and what cannot be kept is said.
    control.create(&spec("second", 64)).unwrap();
    let others: Vec<Program> = (0..80).map(|_| Program::join(&created)).collect();
    quota.charge(40 * MIB).unwrap();
    let refused = PageQuota::new(others[79].link.clone()).charge(30 * MIB);
    assert!(refused.is_err(), "the limit holds");
    // A successor would know all of them.
    let journal = std::fs::read(Paths::under(disk.path()).runtime_dir.join("grants")).unwrap();
    let known = journal
        .chunks(64)
        .filter(|slot| slot.iter().any(|b| *b != 0));
    assert_eq!(known.count(), 81);
    let told = control.past_events().unwrap();
    let said = told.iter().find(|event| event.kind == "state_not_saved");
    assert!(
        said.is_some_and(|event| event.message.contains("No space")),
        "{told:?}"
    );
    assert_eq!(
        std::fs::read(&state).unwrap(),
        saved,
        "the old state is whole"
    );
    std::fs::remove_file(&ballast).unwrap();
    control.create(&spec("third", 64)).unwrap();
    let text = String::from_utf8(std::fs::read(&state).unwrap()).unwrap();
    assert!(text.contains("second") && text.contains("third"), "{text}");
    drop((others, program, daemon));
}

fn open_descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count()
}

#[test]
fn descriptors_that_nobody_asked_for_are_closed() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::start(dir.path(), "");
    let created = control(dir.path()).create(&spec("a", 64)).unwrap();
    let program = Program::join(&created);
    let socket = HostSocket::connect(&Paths::under(dir.path()).host_socket()).unwrap();
    let hello = ClientMessage::hello(Role::Monitor, environment(&created).token);
    socket.send(&hello, &[]).unwrap();
    socket.receive().unwrap();
    let before = open_descriptors(daemon.id());
    let file = std::fs::File::open("/dev/null").unwrap();
    for count in [1, 4, 5, 100, 253].into_iter().cycle().take(200) {
        let many: Vec<BorrowedFd<'_>> = vec![file.as_fd(); count];
        let mut space = vec![std::mem::MaybeUninit::uninit(); 4096];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        let message = ClientMessage::AskMemory {}.frame(0);
        let bytes = [std::io::IoSlice::new(message.as_bytes())];
        sendmsg(&socket, &bytes, &mut control, SendFlags::NOSIGNAL).unwrap();
        let (answer, _) = socket.receive().unwrap();
        assert!(matches!(answer.read(), Ok(DaemonMessage::Memory { .. })));
    }
    // The daemon's other threads open files for a moment.
    eventually("the daemon has closed them", || {
        open_descriptors(daemon.id()) <= before + 2
    });
    PageQuota::new(program.link.clone()).charge(MIB).unwrap();
}

#[test]
fn a_daemon_without_descriptors_serves_those_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::with_descriptors(dir.path(), "", Some(64));
    let created = control(dir.path()).create(&spec("a", 64)).unwrap();
    let program = Program::join(&created);
    let quota = PageQuota::new(program.link.clone());
    let path = Paths::under(dir.path()).host_socket();
    let flood: Vec<HostSocket> = (0..200)
        .map(|_| HostSocket::connect(&path).unwrap())
        .collect();
    eventually("no descriptor is left", || {
        open_descriptors(daemon.id()) >= 63
    });
    for _ in 0..50 {
        quota.charge(MIB).unwrap();
        quota.release(MIB);
    }
    assert!(!program.link.is_down());
    drop(flood);
    eventually("others are served again", || {
        control(dir.path()).get("a").is_ok()
    });
    let late = Program::join(&created);
    PageQuota::new(late.link.clone()).charge(MIB).unwrap();
}

#[test]
fn half_a_handshake_is_given_up_and_holds_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    let created = control.create(&spec("a", 64)).unwrap();
    let program = Program::join(&created);
    let quota = PageQuota::new(program.link.clone());
    let connect = || HostSocket::connect(&Paths::under(dir.path()).host_socket()).unwrap();
    let silent: Vec<HostSocket> = (0..50).map(|_| connect()).collect();
    let half = connect();
    let hello = ClientMessage::hello(Role::Direct, [0; 16]).frame(0);
    let part = &hello.as_bytes()[..100];
    rustix::net::send(&half, part, SendFlags::NOSIGNAL).unwrap();
    let answer = half.receive().unwrap().0.read();
    assert!(matches!(answer, Ok(DaemonMessage::Refused { .. })));
    // Those that say nothing are hung up on after some seconds; a program is served meanwhile.
    eventually("all are gone but the program", || {
        quota.charge(MIB).unwrap();
        quota.release(MIB);
        std::thread::sleep(Duration::from_millis(20));
        control.stats().unwrap().daemon.connections == 1
    });
    assert!(silent.iter().all(|socket| socket.receive().is_err()));
}

/// Processes whose parent is this one, zombies included.
fn children_of(parent: u32) -> Vec<u32> {
    let is_child = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        after_name.split_whitespace().nth(1) == Some(&parent.to_string())
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(is_child).collect()
}

#[test]
fn a_worker_that_no_thread_can_watch_is_not_started() {
    const SOMEBODY: u32 = 61_234;
    let dir = tempfile::tempdir().unwrap();
    let root = rustix::process::geteuid().is_root();
    if !root || std::os::unix::fs::chown(dir.path(), Some(SOMEBODY), Some(SOMEBODY)).is_err() {
        eprintln!(
            "skipped: root's processes have no limit of threads, and only root can be somebody else"
        );
        return;
    }
    let more = "[daemon]\nworker_command = [\"sleep\", \"5\"]\n";
    let daemon = DaemonProcess::as_user(SOMEBODY, dir.path(), more);
    let isolated = VgpuSpec {
        mode: Some(Mode::Isolated),
        ..spec("a", 64)
    };
    let created = control(dir.path()).create(&isolated).unwrap();
    // As that user: root may lack the right to change the limits of others.
    let limit_threads = |most: usize| {
        let mut command = Command::new("prlimit");
        command.args([
            "--pid",
            &daemon.id().to_string(),
            &format!("--nproc={most}:"),
        ]);
        let done = command.uid(SOMEBODY).gid(SOMEBODY).status();
        assert!(done.unwrap().success());
    };
    let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.id()));
    // Room for a thread or for a process, not for both.
    limit_threads(threads.unwrap().count() + 1);
    let refused = open_session(&environment(&created)).unwrap_err();
    assert!(
        refused.to_string().contains("no worker can be started"),
        "{refused}"
    );
    let children = children_of(daemon.id());
    assert!(children.is_empty(), "nobody would wait for its end");
    limit_threads(1000);
    open_session(&environment(&created)).unwrap();
    assert_eq!(children_of(daemon.id()).len(), 1);
}
