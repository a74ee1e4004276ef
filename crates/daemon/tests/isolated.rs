//! Programs that are served by a worker process.

mod support;

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;

use mica_daemon::api::{Mode, ProgramReport, VgpuSpec};
use mica_limits::{Environment, HostLink, PageQuota, Quota, open_session};
use mica_wire::host::message::{Kind, Message, Role};
use mica_wire::host::socket::HostSocket;
use support::{MIB, control, environment, eventually, spec, start_with};

/// Not a test of its own: the worker that the daemon starts for the tests below. It answers every message
/// of a session with its process number and the session's, and dies of a `Cancel`.
#[test]
#[ignore = "no test: each test below starts a daemon, which runs this (--exact worker --ignored) as the worker of a virtual GPU"]
fn worker() {
    let Some(environment) = Environment::read() else {
        return;
    };
    let link = HostLink::connect(environment.unwrap(), Role::Worker).unwrap();
    let quota = PageQuota::new(link.clone());
    let serving = link.clone();
    let stop = AtomicBool::new(false);
    std::thread::spawn(move || quota.charge(MIB).unwrap());
    // A real worker waits for the next daemon; this one must not outlive its test.
    std::thread::spawn(move || {
        while !link.is_down() {
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        std::process::exit(0);
    });
    serving.serve(
        |(message, mut fds)| {
            if message.kind() != Some(Kind::Session) {
                return;
            }
            let session = HostSocket::from_fd(fds.remove(0));
            std::thread::spawn(move || {
                while let Ok((question, _)) = session.receive() {
                    if question.kind() == Some(Kind::Cancel) {
                        std::process::abort();
                    }
                    let mut answer = Message::new(Kind::Stats);
                    answer.a = std::process::id().into();
                    answer.b = message.a;
                    answer.c = message.b;
                    let _ = session.send(&answer, &[]);
                }
            });
        },
        &stop,
    );
}

fn worker_config() -> String {
    let exe = std::env::current_exe().unwrap();
    format!(
        "[daemon]\nworker_command = [{:?}, \"--exact\", \"worker\", \"--ignored\", \"--nocapture\"]\n",
        exe.display()
    )
}

fn ask(session: &HostSocket) -> Option<Message> {
    session.send(&Message::new(Kind::Note), &[]).ok()?;
    session.receive().ok().map(|(message, _)| message)
}

fn isolated(name: &str) -> VgpuSpec {
    VgpuSpec {
        mode: Some(Mode::Isolated),
        ..spec(name, 64)
    }
}

fn session(fd: OwnedFd) -> HostSocket {
    HostSocket::from_fd(fd)
}

#[test]
fn one_worker_serves_all_programs_and_its_death_ends_its_sessions_only() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start_with(dir.path(), &worker_config());
    let control = control(dir.path());
    let created = control.create(&isolated("a")).unwrap();
    let other = control.create(&isolated("b")).unwrap();
    let join = |created| session(open_session(&environment(created)).unwrap().1);
    let (one, two, stranger) = (join(&created), join(&created), join(&other));
    let (first, second) = (ask(&one).unwrap(), ask(&two).unwrap());
    assert_eq!(first.a, second.a, "one worker process");
    assert_ne!(first.b, second.b, "two sessions");
    assert_eq!(
        first.c,
        u64::from(std::process::id()),
        "the daemon says who the program is"
    );
    let neighbour = ask(&stranger).unwrap().a;
    assert_ne!(first.a, neighbour, "a worker of its own per virtual GPU");
    eventually("the worker's memory is charged", || {
        control.get("a").unwrap().memory_used_bytes == MIB
    });
    let processes = control.get("a").unwrap().processes;
    let [shown] = processes.as_slice() else {
        panic!("a program and its worker are one entry: {processes:?}");
    };
    assert_eq!((shown.pid, &*shown.role), (std::process::id(), "program"));
    assert_eq!(shown.worker_pid, Some(first.a as u32));
    assert_eq!(
        shown.memory_used_bytes, MIB,
        "what its worker holds is the program's"
    );
    assert_eq!(shown.command, "", "nobody has told it");
    let report = ProgramReport {
        token: created.token.clone(),
        pid: std::process::id(),
        command: "train\n me".into(),
        end: None,
    };
    control.report("a", &report).unwrap();
    let shown = control.get("a").unwrap().processes.remove(0);
    assert_eq!(shown.command, "train\\n me");
    one.send(&Message::new(Kind::Cancel), &[]).unwrap();
    assert!(one.receive().is_err());
    assert!(
        ask(&two).is_none(),
        "the other session of that worker is over too"
    );
    assert_eq!(ask(&stranger).unwrap().a, neighbour, "others go on");
    eventually("its memory is back", || {
        control.get("a").unwrap().memory_used_bytes == 0
    });
    let again = join(&created);
    let answer = ask(&again).unwrap();
    assert_ne!(answer.a, first.a, "usable again at once, with a new worker");
    // Workers outlive their daemon, and removing by force would end this process, which is a program.
    for (name, pid) in [("a", answer.a), ("b", neighbour)] {
        let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        eventually("the worker is gone", || {
            let processes = control.get(name).unwrap().processes;
            !processes.iter().any(|p| p.worker().is_some())
        });
    }
}

#[test]
fn a_worker_that_cannot_start_ends_the_session_and_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start_with(dir.path(), "[daemon]\nworker_command = [\"/bin/false\"]\n");
    let control = control(dir.path());
    let created = control.create(&isolated("a")).unwrap();
    let program = session(open_session(&environment(&created)).unwrap().1);
    assert!(ask(&program).is_none());
    eventually("it is reported", || {
        let events = control.past_events().unwrap();
        events
            .iter()
            .any(|e| e.kind == "worker_died" && e.vgpu.as_deref() == Some("a"))
    });
}
