//! Host memory that the workers of one virtual GPU hold for its programs has one limit, whichever worker holds it.

mod support;

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use mica_control::api::{Created, Mode, VgpuSpec};
use mica_limits::{Environment, HostLink, PageQuota, Push, Quota, open_session, vgpu_host_bytes};
use mica_wire::host::message::{ClientMessage, DaemonMessage, Role, Severity, Topic};
use mica_wire::host::socket::HostSocket;
use support::process::DaemonProcess;
use support::{MIB, control, eventually, spec};

/// Not a test of its own: the daemon of the test below.
#[test]
#[ignore = "no test: the test below runs this (--exact daemon_with_a_card --ignored) as its daemon"]
fn daemon_with_a_card() {
    support::process::serve();
}

/// Not a test of its own: a worker that takes and releases host bytes as its program says, and ends with it.
#[test]
#[ignore = "no test: the daemon of the test below runs this (--exact worker --ignored) as a worker"]
fn worker() {
    let Some(environment) = Environment::read() else {
        return;
    };
    let link = HostLink::connect(environment.unwrap(), Role::Worker).unwrap();
    let quota = Arc::new(PageQuota::of_host(link.clone()));
    let serve = |(message, mut fds): Push| {
        let DaemonMessage::Session { .. } = message else {
            return;
        };
        let (session, quota) = (HostSocket::from_fd(fds.remove(0)), quota.clone());
        std::thread::spawn(move || {
            while let Ok((order, _)) = session.receive() {
                let Ok(ClientMessage::Note { text, .. }) = order.read() else {
                    panic!("{order:?}");
                };
                let bytes: i64 = text.parse().unwrap();
                let done = match bytes {
                    0.. => quota.charge(bytes.unsigned_abs()),
                    _ => {
                        quota.release(bytes.unsigned_abs());
                        Ok(())
                    }
                };
                let answer = match done {
                    Ok(()) => DaemonMessage::Credit { bytes: 0 },
                    Err(denied) => DaemonMessage::NoCredit {
                        why: denied.reason.into(),
                    },
                };
                session.send(&answer, &[]).unwrap();
            }
            std::process::exit(0);
        });
    };
    link.serve(serve, &AtomicBool::new(false));
}

/// Not a test of its own: a program that passes what it reads on to its worker.
#[test]
#[ignore = "no test: the test below runs this (--exact program --ignored) as a program"]
fn program() {
    let Some(environment) = Environment::read() else {
        return;
    };
    let session = HostSocket::from_fd(open_session(&environment.unwrap()).unwrap().1);
    for line in std::io::stdin().lines() {
        let order = ClientMessage::Note {
            severity: Severity::Info,
            topic: Topic::General,
            text: line.unwrap().into(),
        };
        session.send(&order, &[]).unwrap();
        match session.receive().unwrap().0.read() {
            Ok(DaemonMessage::NoCredit { why }) => println!("answer refused {why}"),
            _ => println!("answer done"),
        }
    }
}

/// A program in a process, and so with a worker, of its own.
struct Program {
    child: Child,
    words: Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(created: &Created) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "program", "--ignored", "--nocapture"])
            .env(Environment::SOCKET, &created.host_socket)
            .env(Environment::TOKEN, &created.token)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let words = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, words }
    }

    /// Has its worker take so many bytes, or release them; the reason where that is refused.
    fn order(&mut self, bytes: i64) -> Result<(), String> {
        let stdin = self.child.stdin.as_mut().unwrap();
        writeln!(stdin, "{bytes}").unwrap();
        loop {
            let line = self.words.next().unwrap().unwrap();
            if let Some((_, answer)) = line.split_once("answer ") {
                return match answer.strip_prefix("refused ") {
                    Some(reason) => Err(reason.to_owned()),
                    None => Ok(()),
                };
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn all_workers_of_a_virtual_gpu_have_one_limit_of_host_memory_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let exe = std::env::current_exe().unwrap();
    let worker = format!("{exe:?}, \"--exact\", \"worker\", \"--ignored\", \"--nocapture\"");
    let more = format!("[daemon]\nworker_command = [{worker}]\n[workers]\nconfine = false\n");
    let first = DaemonProcess::start(dir.path(), &more);
    let control = control(dir.path());
    let created = control.create(&VgpuSpec {
        mode: Some(Mode::Isolated),
        ..spec("a", 64)
    });
    let created = created.unwrap();
    let (mut one, mut two) = (Program::start(&created), Program::start(&created));
    let limit = vgpu_host_bytes(64 * MIB) as i64;
    let half = limit / 2;
    one.order(half).unwrap();
    // What the first worker has and does not use is recalled for the second one.
    two.order(limit - half).unwrap();
    let refused = two.order(1).unwrap_err();
    assert!(refused.contains("host memory"), "{refused}");
    assert!(one.order(1).is_err());
    one.order(-1000).unwrap();
    two.order(1000).unwrap();
    drop(first); // SIGKILL
    let _second = DaemonProcess::start(dir.path(), &more);
    eventually("both workers return", || {
        // A daemon that was killed before it wrote down whom a worker serves leaves the worker to be shown by itself.
        let processes = control.get("a").unwrap().processes;
        let workers = processes
            .iter()
            .filter(|p| p.role == "worker" || p.worker_pid.is_some());
        workers.count() == 2
    });
    assert!(two.order(1).is_err(), "a new daemon knows what is held");
    two.order(-1000).unwrap();
    one.order(1000).unwrap();
    assert!(one.order(1).is_err());
    drop(one);
    eventually("what a dead worker held is free", || {
        two.order(half).is_ok()
    });
    assert!(two.order(1).is_err(), "the whole limit and no more");
}
