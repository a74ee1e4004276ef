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
        assert_eq!(hello.kind(), Some(Kind::Hello));
        let doorbell = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let welcome = Message::new(Kind::Welcome);
        let fds = [self.page.fd(), doorbell.as_fd()];
        socket.send(&welcome, &fds).unwrap();
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

#[test]
fn a_question_survives_a_daemon_that_is_replaced_at_once() {
    let host = Host::start();
    let (link, first) = host.connected();
    let asker = {
        let quota = PageQuota::new(link.clone());
        std::thread::spawn(move || quota.charge(100).is_ok())
    };
    let (question, _) = first.receive().unwrap();
    assert_eq!(question.kind(), Some(Kind::NeedCredit));
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
    assert_eq!(question.kind(), Some(Kind::NeedCredit));
    host.page.memory.credit_bytes.store(100, Release);
    let mut credit = Message::new(Kind::Credit);
    (credit.id, credit.a) = (question.id, 100);
    second.send(&credit, &[]).unwrap();
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
