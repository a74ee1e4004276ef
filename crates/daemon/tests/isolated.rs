//! Programs that are served by a worker process.

mod support;

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;

use mica_control::api::{Mode, ProgramReport, VgpuSpec};
use mica_limits::{Environment, HostLink, PageQuota, Quota, open_session};
use mica_wire::host::message::{DaemonMessage, Role};
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
            let DaemonMessage::Session {
                session: number,
                pid,
                ..
            } = message
            else {
                return;
            };
            let session = HostSocket::from_fd(fds.remove(0));
            std::thread::spawn(move || {
                while let Ok((question, _)) = session.receive() {
                    if let Ok(DaemonMessage::Cancel { .. }) = question.read() {
                        std::process::abort();
                    }
                    let answer = DaemonMessage::Session {
                        session: u64::from(std::process::id()) << 32 | number,
                        pid,
                        uid: 0,
                    };
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

/// What the worker above answers.
struct Served {
    worker: u64,
    number: u64,
    program: u32,
}

fn ask(session: &HostSocket) -> Option<Served> {
    session.send(&DaemonMessage::Shutdown {}, &[]).ok()?;
    match session.receive().ok()?.0.read() {
        Ok(DaemonMessage::Session { session, pid, .. }) => Some(Served {
            worker: session >> 32,
            number: session & u64::from(u32::MAX),
            program: pid,
        }),
        other => panic!("{other:?}"),
    }
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
fn the_program_of_an_ephemeral_virtual_gpu_finds_a_worker_that_was_started_ahead() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start_with(dir.path(), &worker_config());
    let control = control(dir.path());
    let ephemeral = VgpuSpec {
        ephemeral: true,
        ..isolated("a")
    };
    let created = control.create(&ephemeral).unwrap();
    eventually("a worker holds memory, and no program is there", || {
        control.get("a").unwrap().memory_used_bytes == MIB
    });
    assert!(control.get("a").unwrap().processes.is_empty());
    let program = session(open_session(&environment(&created)).unwrap().1);
    let served = ask(&program).unwrap();
    let processes = control.get("a").unwrap().processes;
    let [shown] = processes.as_slice() else {
        panic!("a program and its worker are one entry: {processes:?}");
    };
    assert_eq!((shown.pid, &*shown.role), (std::process::id(), "program"));
    assert_eq!(shown.worker_pid, Some(served.worker as u32));
    let used_bytes = control.get("a").unwrap().memory_used_bytes;
    assert_eq!(used_bytes, MIB, "there is no second worker");
    drop(program);
    let pid = rustix::process::Pid::from_raw(served.worker as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
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
    assert_eq!(first.worker, second.worker, "one worker process");
    assert_ne!(first.number, second.number, "two sessions");
    assert_eq!(
        first.program,
        std::process::id(),
        "the daemon says who the program is"
    );
    let neighbour = ask(&stranger).unwrap().worker;
    assert_ne!(
        first.worker, neighbour,
        "a worker of its own per virtual GPU"
    );
    eventually("the worker's memory is charged", || {
        control.get("a").unwrap().memory_used_bytes == MIB
    });
    let processes = control.get("a").unwrap().processes;
    let [shown] = processes.as_slice() else {
        panic!("a program and its worker are one entry: {processes:?}");
    };
    assert_eq!((shown.pid, &*shown.role), (std::process::id(), "program"));
    assert_eq!(shown.worker_pid, Some(first.worker as u32));
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
    one.send(&DaemonMessage::Cancel { request: 0 }, &[])
        .unwrap();
    assert!(one.receive().is_err());
    assert!(
        ask(&two).is_none(),
        "the other session of that worker is over too"
    );
    assert_eq!(ask(&stranger).unwrap().worker, neighbour, "others go on");
    eventually("its memory is back", || {
        control.get("a").unwrap().memory_used_bytes == 0
    });
    let again = join(&created);
    let answer = ask(&again).unwrap();
    assert_ne!(
        answer.worker, first.worker,
        "usable again at once, with a new worker"
    );
    // Workers outlive their daemon, and removing by force would end this process, which is a program.
    for (name, pid) in [("a", answer.worker), ("b", neighbour)] {
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
