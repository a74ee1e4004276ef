//! Odd files as host memory, and shared files that a program tries to take away: refused, or without effect
//! on the worker. A file that could be cut short under a mapping would end the worker with a signal.

mod common;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use common::{Bench, bench};
use mica_wire::session::client::SessionClient;
use mica_wire::session::transport::ClientTransport;
use mica_wire::session::*;
use rustix::fs::{
    FallocateFlags, MemfdFlags, OFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate,
    memfd_create,
};
use rustix::io::Errno;

const BYTES: u64 = 8192;

fn memory(bytes: u64, flags: MemfdFlags, seals: SealFlags) -> Option<OwnedFd> {
    let fd = memfd_create("odd", flags | MemfdFlags::CLOEXEC).ok()?;
    ftruncate(&fd, bytes).ok()?;
    if flags.contains(MemfdFlags::ALLOW_SEALING) {
        fcntl_add_seals(&fd, seals).unwrap();
    }
    Some(fd)
}

fn sealed(seals: SealFlags) -> OwnedFd {
    memory(BYTES, MemfdFlags::ALLOW_SEALING, seals).unwrap()
}

/// Files that are no host memory, and why one might think they were.
fn odd_files() -> Vec<(&'static str, OwnedFd)> {
    let open = |path: &str| OwnedFd::from(File::open(path).unwrap());
    let both = |path: &str| {
        let file = File::options().read(true).write(true).open(path);
        OwnedFd::from(file.unwrap())
    };
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, vec![1; BYTES as usize]).unwrap();
    let whole = sealed(SealFlags::SHRINK | SealFlags::GROW);
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&whole));
    let path_only = rustix::fs::open(&path, OFlags::PATH, rustix::fs::Mode::empty());
    let mut files = vec![
        ("zeros", both("/dev/zero")),
        ("nothing", both("/dev/null")),
        ("a text of the system", open("/proc/self/maps")),
        ("a folder", open("/")),
        ("the end of a pipe", reader),
        ("the other end", writer),
        ("a file on disk", both(path.to_str().unwrap())),
        ("a path", path_only.unwrap()),
        (
            "not sealed",
            memory(BYTES, MemfdFlags::empty(), SealFlags::empty()).unwrap(),
        ),
        ("sealed against growing alone", sealed(SealFlags::GROW)),
        (
            "not to be written",
            sealed(SealFlags::SHRINK | SealFlags::WRITE),
        ),
        (
            "not to be written from now on",
            sealed(SealFlags::SHRINK | SealFlags::FUTURE_WRITE),
        ),
        ("opened for reading", open(&link)),
        (
            "empty",
            memory(0, MemfdFlags::ALLOW_SEALING, SealFlags::SHRINK).unwrap(),
        ),
        (
            "too short",
            memory(4096, MemfdFlags::ALLOW_SEALING, SealFlags::SHRINK).unwrap(),
        ),
        (
            "an event",
            rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap(),
        ),
    ];
    let huge = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    if let Some(fd) = memory(2 << 20, huge, SealFlags::SHRINK) {
        files.push(("of huge pages, which may be missing", fd));
    }
    files
}

fn connected(b: &Bench) -> (Arc<SessionClient>, u64, common::Served) {
    let (client, served) = b.client();
    let context = client.call(&ContextCreate { flags: 0 }).unwrap().context;
    (client, context, served)
}

#[test]
fn odd_files_are_refused_and_the_session_goes_on() {
    let b = bench(64 << 20);
    let (client, context, served) = connected(&b);
    for (what, fd) in odd_files() {
        let answer = client.host_register(context, &fd, 0, BYTES, false);
        let refused = matches!(answer, Err(SessionError::Refused { code: 1, .. }));
        assert!(refused, "{what}: {answer:?}");
    }
    let good = sealed(SealFlags::SHRINK);
    for (offset, bytes) in [
        (1, 4096),
        (4096, BYTES),
        (u64::MAX, 2),
        (0, 0),
        (0, u64::MAX),
    ] {
        let answer = client.host_register(context, &good, offset, bytes, false);
        assert!(answer.is_err(), "{offset}+{bytes}");
    }
    let address = client.host_register(context, &good, 4096, 4096, false);
    assert!(address.is_ok(), "{address:?}");
    drop(client);
    assert_eq!(served.join().unwrap(), None);
    b.assert_clean();
}

#[test]
fn descriptors_that_nobody_announced_fill_nothing() {
    let b = bench(64 << 20);
    let (client, context, served) = connected(&b);
    let good = sealed(SealFlags::SHRINK);
    let before = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut tag = 1 << 40;
    for _ in 0..20 {
        // As many as the socket holds, then one that is taken: the others come in before it.
        for _ in 0..8 {
            tag += 1;
            client
                .transport()
                .send_descriptor(tag, good.as_fd())
                .unwrap();
        }
        let address = client
            .host_register(context, &good, 0, BYTES, false)
            .unwrap();
        client.call(&HostUnregister { context, address }).unwrap();
    }
    let after = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(after <= before + 70, "{before} descriptors became {after}");
    drop(client);
    assert_eq!(served.join().unwrap(), None);
    b.assert_clean();
}

/// Tries everything that would take memory away from under the worker.
fn take_away(fd: BorrowedFd<'_>, bytes: u64) {
    assert_eq!(ftruncate(fd, 0), Err(Errno::PERM));
    assert_eq!(ftruncate(fd, bytes / 2), Err(Errno::PERM));
    assert_eq!(fcntl_add_seals(fd, SealFlags::WRITE), Err(Errno::PERM));
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(fd, hole, 0, bytes).unwrap();
}

#[test]
fn a_program_that_empties_shared_files_fools_only_itself() {
    let b = bench(64 << 20);
    let (client, context, served) = connected(&b);
    let shared = create_sealed("mine", BYTES).unwrap();
    client
        .host_register(context, &shared, 0, BYTES, false)
        .unwrap();
    take_away(shared.as_fd(), BYTES);
    let area = client.transport().area().unwrap();
    let bytes = rustix::fs::fstat(area.fd()).unwrap().st_size as u64;
    take_away(area.fd(), bytes);
    // The ring's positions are gone with the rest: what the program sends now makes no sense.
    let mut ended = false;
    for _ in 0..4 {
        ended |= client.post(&StreamDestroy { stream: 1 }, &[]).is_err();
    }
    drop(client);
    let reason = served.join().expect("the worker panicked");
    assert!(reason.is_some() || !ended, "{reason:?}");
    b.assert_clean();
    let (client, _, served) = connected(&b);
    client.call(&Ping {}).unwrap();
    drop(client);
    assert_eq!(served.join().unwrap(), None);
}
