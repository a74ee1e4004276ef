//! Peers that lie, babble, hang and flood.

mod support;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use mica_control::Paths;
use mica_limits::{HostLink, PageQuota, Quota, SharedPage};
use mica_wire::host::frame::{FRAME_BYTES, Frame, Packet};
use mica_wire::host::message::{
    ClientMessage, DaemonMessage, Introduction, PROTOCOL_VERSION, Refusal, Role,
};
use mica_wire::host::socket::HostSocket;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use support::{MIB, Program, control, environment, eventually, spec, start, start_with};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// A hello with any number for its role.
fn hello(role: u64, version: u64, token: [u8; 16]) -> Frame {
    let hello = ClientMessage::hello(Role::Direct, token).frame(0);
    let mut bytes = *hello.as_bytes();
    bytes[8..16].copy_from_slice(&role.to_le_bytes());
    bytes[16..24].copy_from_slice(&version.to_le_bytes());
    Frame::from_bytes(bytes)
}

fn refused(socket: &HostSocket, why: Refusal) {
    let (answer, _) = socket.receive().unwrap();
    let Ok(DaemonMessage::Refused { reason, text }) = answer.read() else {
        panic!("{answer:?}");
    };
    assert_eq!(reason, why, "{text}");
    assert!(socket.receive().is_err(), "the connection must be closed");
}

#[test]
fn wrong_hellos_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let created = control(dir.path()).create(&spec("a", 64)).unwrap();
    let token = environment(&created).token;
    let connect = || HostSocket::connect(&Paths::under(dir.path()).host_socket()).unwrap();
    let version = PROTOCOL_VERSION;
    for (message, why) in [
        (hello(1, version + 1, token), Refusal::Version),
        (hello(99, version, token), Refusal::Protocol),
        // A role of a later version, which only its version can explain.
        (hello(99, version + 1, token), Refusal::Version),
        (hello(1, version, [7; 16]), Refusal::Token),
        // A program's token does not make a worker.
        (
            hello(Role::Worker as u64, version, token),
            Refusal::Permission,
        ),
        // A direct virtual GPU has no worker.
        (hello(Role::Program as u64, version, token), Refusal::State),
        (ClientMessage::AskMemory {}.frame(0), Refusal::Protocol),
    ] {
        let socket = connect();
        socket.send_frame(&message, &[]).unwrap();
        refused(&socket, why);
    }
    // A page that could be cut off under the daemon's feet.
    let socket = connect();
    let file = tempfile::tempfile().unwrap();
    file.set_len(4096).unwrap();
    socket
        .send_frame(&hello(1, version, token), &[file.as_fd()])
        .unwrap();
    refused(&socket, Refusal::Protocol);
    // What follows a good hello must make sense too: no message of the daemon's, no second hello, no bytes behind the
    // fields.
    let mut trailing = *ClientMessage::AskMemory {}.frame(0).as_bytes();
    trailing[FRAME_BYTES - 1] = 1;
    for message in [
        DaemonMessage::Shutdown {}.frame(0),
        hello(1, version, token),
        Frame::from_bytes(trailing),
    ] {
        let socket = connect();
        socket.send_frame(&hello(1, version, token), &[]).unwrap();
        welcomed(&socket);
        socket.send_frame(&message, &[]).unwrap();
        refused(&socket, Refusal::Protocol);
    }
}

fn welcomed(socket: &HostSocket) {
    let answer = socket.receive().unwrap().0.read();
    assert!(
        matches!(answer, Ok(DaemonMessage::Welcome { .. })),
        "{answer:?}"
    );
}

#[test]
fn a_program_gets_no_host_bytes_of_workers() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let created = control(dir.path()).create(&spec("a", 64)).unwrap();
    let socket = HostSocket::connect(&Paths::under(dir.path()).host_socket()).unwrap();
    let hello = ClientMessage::hello(Role::Direct, environment(&created).token);
    socket.send(&hello, &[]).unwrap();
    welcomed(&socket);
    let ask = ClientMessage::NeedHostBytes { bytes: 1 };
    socket.send_frame(&ask.frame(5), &[]).unwrap();
    let (answer, _) = socket.receive().unwrap();
    assert_eq!(answer.id(), 5);
    match answer.read() {
        Ok(DaemonMessage::NoCredit { why }) => assert!(why.contains("only a worker"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_claim_beyond_the_limit_gains_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    let created = control.create(&spec("a", 64)).unwrap();
    control.create(&spec("b", 64)).unwrap();
    let page = SharedPage::create().unwrap();
    page.memory
        .credit_bytes
        .store(u64::MAX, std::sync::atomic::Ordering::SeqCst);
    let socket = HostSocket::connect(&Paths::under(dir.path()).host_socket()).unwrap();
    let introduction = Introduction {
        role: Role::Direct,
        version: PROTOCOL_VERSION,
        claimed_bytes: u64::MAX,
        client_id: 0,
        token: environment(&created).token,
    };
    socket
        .send(&ClientMessage::Hello { introduction }, &[page.fd()])
        .unwrap();
    welcomed(&socket);
    for bytes in [1, 64 * MIB, u64::MAX] {
        let ask = ClientMessage::NeedCredit {
            bytes,
            have_bytes: 0,
            now: false,
        };
        socket.send_frame(&ask.frame(5), &[]).unwrap();
        let (answer, _) = socket.receive().unwrap();
        assert_eq!(answer.id(), 5);
        assert!(matches!(
            answer.read(),
            Ok(DaemonMessage::Credit { .. } | DaemonMessage::NoCredit { .. })
        ));
    }
    let info = control.get("a").unwrap();
    assert!(info.memory_used_bytes <= 64 * MIB);
    assert_eq!(control.get("b").unwrap().memory_used_bytes, 0);
    drop(socket);
    eventually("the liar is gone", || {
        control.get("a").unwrap().processes.is_empty()
    });
    assert_eq!(control.get("a").unwrap().memory_used_bytes, 0);
}

#[test]
fn random_bytes_on_both_sockets_disturb_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    let created = control.create(&spec("a", 64)).unwrap();
    let program = Program::join(&created);
    let quota = PageQuota::new(program.link.clone());
    let mut random = Random(0x1234_5678);
    let paths = Paths::under(dir.path());
    for round in 0..200 {
        let length = (random.next() % 600) as usize;
        let bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        let fd = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let address = SocketAddrUnix::new(paths.host_socket()).unwrap();
        rustix::net::connect(&fd, &address).unwrap();
        let _ = rustix::net::send(&fd, &bytes, SendFlags::NOSIGNAL);
        let token = match round % 2 {
            0 => environment(&created).token,
            _ => [0; 16],
        };
        let message = hello(random.next() % 8, random.next() % 4, token);
        let mut message = *message.as_bytes();
        message[0] = (random.next() % 40) as u8;
        message[24..32].copy_from_slice(&random.next().to_le_bytes());
        let socket = HostSocket::connect(&paths.host_socket()).unwrap();
        let _ = socket.send_frame(&Frame::from_bytes(message), &[]);
        let mut http = UnixStream::connect(paths.control_socket()).unwrap();
        let _ = http.write_all(&bytes);
        if round % 20 == 0 {
            quota.charge(MIB).unwrap();
            quota.release(MIB);
            assert_eq!(control.get("a").unwrap().name, "a");
        }
    }
    eventually("all are gone but the program", || {
        control.stats().unwrap().daemon.connections == 1
    });
}

#[test]
fn malformed_requests_are_refused_in_sentences() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let ask = |text: &str| {
        let mut stream = UnixStream::connect(Paths::under(dir.path()).control_socket()).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    let post = |body: &str| {
        ask(&format!(
            "POST /v1/vgpus HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    };
    for (body, word) in [
        ("{", "invalid"),
        ("{\"sahre_percent\": 3}", "sahre_percent"),
        ("{\"share_percent\": 0}", "between 1 and 100"),
        ("{\"share_percent\": -1}", "invalid"),
        ("{\"name\": \"../../etc\"}", "not a name"),
        ("{\"cap\": true}", "cap"),
        (
            "{\"memory_limit_bytes\": 18446744073709551615}",
            "no_memory",
        ),
        ("{\"gpu\": 77}", "no GPU 77"),
    ] {
        let answer = post(body);
        assert!(
            answer.starts_with("HTTP/1.1 4") && answer.contains(word),
            "{body}: {answer}"
        );
    }
    let huge = post(&format!("{{\"note\": \"{}\"}}", "x".repeat(200_000)));
    assert!(huge.starts_with("HTTP/1.1 4"), "{huge}");
    let unknown = ask("GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert!(unknown.contains("openapi.json"), "{unknown}");
}

#[test]
fn connections_beyond_the_limit_are_told_so_and_the_rest_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start_with(dir.path(), "[daemon]\nmax_connections = 20\n");
    let control = control(dir.path());
    let created = control.create(&spec("a", 64)).unwrap();
    let program = Program::join(&created);
    let path = Paths::under(dir.path()).host_socket();
    let mut half_open = Vec::new();
    let mut refused = None;
    eventually("one more is refused", || {
        // Who says nothing for some seconds has to go, so on a slow machine others take its place.
        let count = || control.stats().unwrap().daemon.connections;
        for _ in count()..20 {
            half_open.push(HostSocket::connect(&path).unwrap());
        }
        if count() != 20 {
            return false;
        }
        refused = HostLink::connect(environment(&created), Role::Direct).err();
        refused.is_some()
    });
    let refused = refused.unwrap();
    assert!(refused.to_string().contains("too many"), "{refused}");
    PageQuota::new(program.link.clone()).charge(MIB).unwrap();
    drop(half_open);
    eventually("room again", || {
        HostLink::connect(environment(&created), Role::Direct).is_ok()
    });
}
