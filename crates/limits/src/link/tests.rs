//! A client and a daemon of a few lines: lost links and leases that change hands.

use super::*;

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};

use mica_wire::host::page::gate;

use crate::{Gate, PageQuota, Quota};

/// A daemon as far as one client needs it: listens, greets, is asked.
pub(crate) struct Host {
    _directory: tempfile::TempDir,
    listener: OwnedFd,
    environment: Environment,
    page: SharedPage,
}

impl Host {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("host.sock");
        let seqpacket = SocketType::SEQPACKET;
        let listener =
            socket_with(AddressFamily::UNIX, seqpacket, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
        listen(&listener, 8).unwrap();
        Self {
            listener,
            environment: Environment {
                socket,
                token: [7; 16],
            },
            page: SharedPage::create().unwrap(),
            _directory: directory,
        }
    }

    fn greet(&self) -> HostSocket {
        let peer = accept_with(&self.listener, SocketFlags::CLOEXEC).unwrap();
        let socket = HostSocket::from_fd(peer);
        let (hello, _) = socket.receive().unwrap();
        assert!(matches!(hello.read(), Ok(ClientMessage::Hello { .. })));
        let doorbell = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let fds = [self.page.fd(), doorbell.as_fd()];
        socket.send(&welcome(), &fds).unwrap();
        socket
    }

    pub(crate) fn connected(&self) -> (Arc<HostLink>, HostSocket) {
        std::thread::scope(|scope| {
            let greeting = scope.spawn(|| self.greet());
            let link = HostLink::connect(self.environment.clone(), Role::Direct).unwrap();
            (link, greeting.join().unwrap())
        })
    }
}

/// A welcome that says nothing.
fn welcome() -> DaemonMessage {
    DaemonMessage::Welcome {
        limit_bytes: 0,
        device_total_bytes: 0,
        client_id: 0,
        gpu_index: 0,
        vgpu: "".into(),
    }
}

#[test]
fn a_question_survives_a_daemon_that_is_replaced_at_once() {
    let host = Host::start();
    let (link, first) = host.connected();
    let asker = {
        let quota = PageQuota::new(link.clone());
        std::thread::spawn(move || quota.charge(100).is_ok())
    };
    let (question, _) = first.receive().unwrap();
    assert!(matches!(
        question.read(),
        Ok(ClientMessage::NeedCredit { .. })
    ));
    // The asker cannot look while the old daemon goes and the new one comes.
    let answers = lock(&link.answers);
    drop(first);
    link.down.store(true, Release);
    let (socket, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| host.greet());
        let resume = Some((&link.page, 0));
        let (socket, ..) = greet(&link.environment, Role::Direct, resume).unwrap();
        (socket, second.join().unwrap())
    });
    link.replace(socket);
    drop(answers);
    link.wake_askers();
    let reader = link.clone();
    std::thread::spawn(move || reader.serve(|_| {}, &AtomicBool::new(false)));
    let (question, _) = second.receive().unwrap();
    assert!(matches!(
        question.read(),
        Ok(ClientMessage::NeedCredit { .. })
    ));
    host.page.memory.credit_bytes.store(100, Release);
    let credit = DaemonMessage::Credit { bytes: 100 }.frame(question.id());
    second.send_frame(&credit, &[]).unwrap();
    assert!(asker.join().unwrap());
}

#[test]
fn a_lease_that_came_since_is_not_given_back_with_the_old_one() {
    let host = Host::start();
    let (link, _socket) = host.connected();
    let gate = Gate::new(link);
    let lease = &host.page.lease;
    let yielded = &host.page.counters.yielded;
    lease.lease_end_ns.store(u64::MAX, Release);
    lease.gate.store(gate::word(gate::LEASED, 5), Release);
    assert_eq!(gate.enter(&mut |_| true), Some(5));
    // Given back by one thread and granted again, while another still drains.
    gate.give_back(5);
    lease.gate.store(gate::word(gate::LEASED, 6), Release);
    gate.give_back(5);
    assert_eq!(gate.enter(&mut |_| true), Some(6));
    gate.give_back(6);
    gate.give_back(5);
    assert_eq!(yielded.load(Acquire), 6, "the later one stays given back");
    lease.gate.store(gate::word(gate::OPEN, 7), Release);
    assert_eq!(gate.enter(&mut |_| true), None);
}

/// Puts a file of the program where a descriptor is, as a program that closes everything and opens its own files does.
fn replace_by(file: &std::fs::File, number: i32) {
    use std::os::fd::AsRawFd;
    // SAFETY: what the number led to is Mica's, and Mica must notice.
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), number) }, number);
}

#[test]
fn a_program_that_takes_the_descriptors_keeps_its_files_and_the_link_comes_back() {
    use std::os::fd::AsRawFd;
    let host = Host::start();
    let (link, first) = host.connected();
    let reading = link.clone();
    std::thread::spawn(move || reading.serve(|_| {}, &AtomicBool::new(false)));
    let numbers = [
        lock(&link.doorbell).whatever_it_is().as_raw_fd(),
        lock(&link.socket).whatever_it_is().as_raw_fd(),
        link.page.fd().as_raw_fd(),
    ];
    let own = tempfile::tempfile().unwrap();
    link.page.counters.launches.store(77, Release);
    // The reader waits in the kernel by now, which nothing but time ends.
    std::thread::sleep(Duration::from_millis(100));
    for number in numbers {
        replace_by(&own, number);
    }
    link.ring();
    link.note(Severity::Info, "a sentence");
    // The daemon hears of the loss and the link comes again, with the same page in another file.
    let peer = accept_with(&host.listener, SocketFlags::CLOEXEC).unwrap();
    let second = HostSocket::from_fd(peer);
    let (hello, mut fds) = second.receive().unwrap();
    assert!(matches!(hello.read(), Ok(ClientMessage::Hello { .. })));
    assert!(first.receive().is_err(), "the first connection is over");
    let page = SharedPage::adopt(fds.remove(0)).unwrap();
    assert_eq!(page.counters.launches.load(Acquire), 77);
    let (bell, rung) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    second.send(&welcome(), &[bell.as_fd()]).unwrap();
    while link.is_down() {
        std::thread::yield_now();
    }
    link.page.counters.launches.store(78, Release);
    assert_eq!(
        page.counters.launches.load(Acquire),
        78,
        "both see one page"
    );
    while rustix::io::read(&rung, &mut [0; 8]).is_err() {
        link.ring();
    }
    // Another socket of the program under the number of the doorbell hears nothing either.
    let number = lock(&link.doorbell).whatever_it_is().as_raw_fd();
    let (theirs, silent) = std::os::unix::net::UnixDatagram::pair().unwrap();
    // SAFETY: as in `replace_by`.
    assert_eq!(unsafe { libc::dup2(theirs.as_raw_fd(), number) }, number);
    silent.set_nonblocking(true).unwrap();
    link.ring();
    assert!(silent.recv(&mut [0; 8]).is_err());
    link.close_in_child();
    for number in numbers {
        // SAFETY: only looks at the descriptor.
        let open = unsafe { libc::fcntl(number, libc::F_GETFD) };
        assert!(open >= 0, "the program's file is open");
    }
    assert_eq!(
        own.metadata().unwrap().len(),
        0,
        "nothing was written to it"
    );
}

#[test]
fn a_new_daemon_is_told_of_the_confinement_again() {
    let host = Host::start();
    let (link, first) = host.connected();
    link.confined(5, 2, "no namespace");
    link.confined(5, 0, "");
    let said = |socket: &HostSocket| {
        let (frame, _) = socket.receive().unwrap();
        match frame.read() {
            Ok(ClientMessage::Confined {
                applied,
                missing,
                why,
            }) => (applied, missing, String::from(why)),
            other => panic!("{other:?}"),
        }
    };
    let expected = [(5, 2, "no namespace".to_owned()), (5, 0, String::new())];
    assert_eq!([said(&first), said(&first)], expected);
    let serving = link.clone();
    std::thread::spawn(move || serving.serve(|_| {}, &AtomicBool::new(false)));
    drop(first);
    let second = accept_with(&host.listener, SocketFlags::CLOEXEC).unwrap();
    let second = HostSocket::from_fd(second);
    let (hello, _) = second.receive().unwrap();
    assert!(matches!(hello.read(), Ok(ClientMessage::Hello { .. })));
    second.send(&welcome(), &[]).unwrap();
    assert_eq!([said(&second), said(&second)], expected);
}

/// What a copy of this process made by `clone` alone, without fork handlers, answers; `None` if it never does.
fn in_a_copy(ask: impl Fn() -> bool) -> Option<bool> {
    // SAFETY: without flags it is a fork; the copy asks and ends without running any destructor.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    if pid == 0 {
        let code = i32::from(!ask());
        // SAFETY: ends the copy.
        unsafe { libc::_exit(code) };
    }
    let pid = pid as libc::pid_t;
    for _ in 0..200 {
        let mut status = 0;
        // SAFETY: the child is this test's own.
        if unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } == pid {
            return Some(libc::WEXITSTATUS(status) == 0);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // SAFETY: as above.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
    None
}

#[test]
fn a_copy_without_fork_handlers_is_refused_and_does_not_speak_for_its_parent() {
    let host = Host::start();
    let (link, socket) = host.connected();
    let refused = || {
        link.ring();
        link.note(Severity::Info, "from a copy");
        link.memory_view().is_none() && link.need_credit(Account::Device, 1, 0, true).is_err()
    };
    // Another thread may hold a lock of the allocator's at the moment of a copy.
    let answer = (0..3).find_map(|_| in_a_copy(refused));
    assert_eq!(answer, Some(true));
    rustix::io::ioctl_fionbio(&socket, true).unwrap();
    assert!(socket.receive().is_err(), "the daemon heard nothing");
}
