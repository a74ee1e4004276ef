//! Clients of the control API that open too much, say too little, or do not listen.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use mica_control::Paths;
use mica_control::client::ControlClient;
use mica_limits::{PageQuota, Quota};
use mica_wire::host::message::Severity;
use mica_wire::host::socket::HostSocket;
use support::process::DaemonProcess;
use support::{MIB, Program, control, eventually, spec, start_with};

/// Short, but not so short that whoever asks in earnest on a busy machine is hung up on.
const PATIENCE: &str = "[daemon]\nrequest_seconds = 5\n";

/// Not a test of its own: the daemon of the tests below.
#[test]
#[ignore = "no test: tests below run this (--exact daemon_with_a_card --ignored) as their daemon"]
fn daemon_with_a_card() {
    support::process::serve();
}

/// A daemon in a process of its own, so that what it uses can be seen.
struct Daemon {
    process: DaemonProcess,
    folder: tempfile::TempDir,
}

impl Daemon {
    fn start(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let process = DaemonProcess::start(folder.path(), config);
        Self { process, folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn control(&self) -> ControlClient {
        control(self.path())
    }

    fn resident_mib(&self) -> u64 {
        let file = format!("/proc/{}/status", self.process.id());
        let status = std::fs::read_to_string(file).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let kib: u64 = line
            .unwrap()
            .split_whitespace()
            .nth(1)
            .unwrap()
            .parse()
            .unwrap();
        kib >> 10
    }
}

fn raw(dir: &Path) -> UnixStream {
    UnixStream::connect(Paths::under(dir).control_socket()).unwrap()
}

/// What comes until the other side hangs up, as it must.
fn rest(mut stream: UnixStream) -> String {
    stream
        .set_read_timeout(Some(Duration::from_secs(120)))
        .unwrap();
    let mut bytes = Vec::new();
    if let Err(end) = stream.read_to_end(&mut bytes) {
        assert_ne!(end.kind(), ErrorKind::WouldBlock, "it never hung up");
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// As many as this process may open, up to ten thousand.
fn many() -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    let most = limit.maximum.unwrap_or(u64::MAX).min(10_500);
    usize::try_from(most).unwrap().saturating_sub(500)
}

#[test]
fn ten_thousand_connections_are_refused_with_a_reason_and_cost_little() {
    let many = many() / 2;
    // Fewer than there will be, also where this process may open few.
    let limit = (many / 4).min(512);
    assert!(limit > 8, "this process may not open enough files");
    let daemon = Daemon::start(&format!(
        "[daemon]\nmax_control_connections = {limit}\nmax_connections = {limit}\nrequest_seconds = 600\n"
    ));
    let created = daemon.control().create(&spec("a", 64)).unwrap();
    let program = Program::join(&created);
    let quota = PageQuota::new(program.link.clone());
    let before = daemon.resident_mib();
    let flood: Vec<UnixStream> = (0..many).map(|_| raw(daemon.path())).collect();
    let host = Paths::under(daemon.path()).host_socket();
    let other: Vec<HostSocket> = (0..many)
        .map(|_| HostSocket::connect(&host).unwrap())
        .collect();
    // Who was there before is served as ever.
    for _ in 0..100 {
        quota.charge(MIB).unwrap();
        quota.release(MIB);
    }
    let last = rest(flood.last().unwrap().try_clone().unwrap());
    assert!(last.starts_with("HTTP/1.1 503"), "{last}");
    assert!(last.contains("connections"), "{last}");
    let grown = daemon.resident_mib().saturating_sub(before);
    assert!(grown < 64, "{grown} MiB more");
    drop((flood, other));
    eventually("it recovers", || daemon.control().get("a").is_ok());
    eventually("and forgets them", || {
        let stats = daemon.control().stats();
        stats.is_ok_and(|stats| stats.daemon.connections == 1)
    });
}

#[test]
fn whoever_does_not_finish_a_request_is_hung_up_on() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start_with(dir.path(), PATIENCE);
    let begun = [
        "",
        "GET /v1/stats HT",
        "GET /v1/stats HTTP/1.1\r\nhost: m\r\nx: ",
        "POST /v1/vgpus HTTP/1.1\r\nhost: m\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{",
    ];
    let streams: Vec<UnixStream> = begun
        .iter()
        .map(|text| {
            let mut stream = raw(dir.path());
            stream.write_all(text.as_bytes()).unwrap();
            stream
        })
        .collect();
    assert!(control(dir.path()).stats().is_ok(), "others do not wait");
    for (text, stream) in begun.iter().zip(streams) {
        let answer = rest(stream);
        let refused = answer.starts_with("HTTP/1.1 4");
        assert!(refused || answer.is_empty(), "{text:?}: {answer}");
    }
}

#[test]
fn whoever_does_not_read_is_hung_up_on_and_costs_little() {
    let daemon = Daemon::start(PATIENCE);
    let before = daemon.resident_mib();
    let ask = "GET /openapi.json HTTP/1.1\r\nhost: m\r\n\r\n".repeat(2000);
    let deaf: Vec<UnixStream> = (0..64)
        .map(|_| {
            let mut stream = raw(daemon.path());
            stream.set_nonblocking(true).unwrap();
            // Ends when nothing more is taken, or the other side has had enough.
            let _ = stream.write(ask.as_bytes());
            stream
        })
        .collect();
    let mut followers: Vec<UnixStream> = (0..64)
        .map(|_| {
            let mut stream = raw(daemon.path());
            stream
                .write_all(b"GET /v1/events HTTP/1.1\r\nhost: m\r\n\r\n")
                .unwrap();
            stream
        })
        .collect();
    for round in 0..300 {
        let name = format!("v{round}");
        daemon.control().create(&spec(&name, 1)).unwrap();
        daemon.control().remove(&name, true).unwrap();
    }
    let grown = daemon.resident_mib().saturating_sub(before);
    assert!(grown < 64, "{grown} MiB more");
    for stream in deaf {
        stream.set_nonblocking(false).unwrap();
        let answer = rest(stream);
        assert!(!answer.is_empty(), "it was answered as far as it read");
    }
    let mut first = [0; 15];
    followers[0].read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    assert!(daemon.control().gpus().is_ok());
}

#[test]
fn large_heads_and_bodies_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start_with(dir.path(), "");
    let ask = |text: String| {
        let mut stream = raw(dir.path());
        let _ = stream.write_all(text.as_bytes());
        rest(stream)
    };
    let head = format!(
        "GET /v1/stats HTTP/1.1\r\nhost: m\r\nx: {}\r\n\r\n",
        "y".repeat(1 << 20)
    );
    let answer = ask(head);
    assert!(
        answer.starts_with("HTTP/1.1 431") || answer.is_empty(),
        "{answer}"
    );
    let many = "x: y\r\n".repeat(500);
    let answer = ask(format!("GET /v1/stats HTTP/1.1\r\nhost: m\r\n{many}\r\n"));
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    let length = "content-type: application/json\r\ncontent-length: 999999999999\r\n";
    let answer = ask(format!(
        "POST /v1/vgpus HTTP/1.1\r\nhost: m\r\n{length}\r\n{{"
    ));
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    assert!(control(dir.path()).stats().is_ok());
}

#[test]
fn a_flood_of_notes_displaces_no_other_virtual_gpus_events() {
    const NOTES: usize = 20_000;
    let folder = tempfile::tempdir().unwrap();
    let _daemon = start_with(folder.path(), "");
    let control = control(folder.path());
    control.create(&spec("quiet", 64)).unwrap();
    let noisy = Program::join(&control.create(&spec("noisy", 64)).unwrap());
    for number in 0..NOTES {
        noisy.link.note(Severity::Error, &format!("note {number}"));
    }
    // Answered in order: the notes have been read by then.
    PageQuota::new(noisy.link.clone()).view();
    let events = control.past_events().unwrap();
    let of = |name| (events.iter()).filter(move |event| event.vgpu.as_deref() == Some(name));
    assert_eq!(of("quiet").count(), 1, "its creation");
    let notes = of("noisy").filter(|event| event.kind == "note").count();
    assert!(notes < NOTES / 10, "{notes} notes were kept");
    // The next note that is kept tells of those that were not.
    eventually("a note is kept again", || {
        noisy.link.note(Severity::Error, "late");
        let last = control.past_events().unwrap().pop().unwrap();
        last.message.contains("events like it were left out")
    });
}
