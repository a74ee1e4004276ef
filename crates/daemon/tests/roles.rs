//! Roles follow the mode, workers are those that the daemon started, and a grant belongs to one process.

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;

use mica_control::Paths;
use mica_control::api::Created;
use mica_limits::{Environment, HostLink, LinkError, PageQuota, Quota, SharedPage};
use mica_wire::host::message::{
    ClientMessage, DaemonMessage, Introduction, PROTOCOL_VERSION, Role,
};
use mica_wire::host::socket::HostSocket;
use support::{MIB, Program, control, environment, eventually, spec, start, start_software};

fn refusal(environment: Environment, role: Role) -> String {
    match HostLink::connect(environment, role) {
        Err(LinkError::Refused(text)) => text,
        other => panic!("{role:?} was not refused: {other:?}"),
    }
}

/// The worker token as a process of the daemon's own user can read it.
fn worker_token(dir: &Path) -> [u8; 16] {
    let text = std::fs::read(Paths::under(dir).state_file()).unwrap();
    let state: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let token = state["vgpus"][0]["worker_token"].as_array().unwrap();
    std::array::from_fn(|at| token[at].as_u64().unwrap() as u8)
}

#[test]
fn no_program_joins_an_isolated_virtual_gpu_as_direct_or_as_its_worker() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start_software(dir.path(), "");
    let control = control(dir.path());
    let created = control.create(&spec("a", 64)).unwrap();
    let refused = refusal(environment(&created), Role::Direct);
    assert!(refused.contains("isolated"), "{refused}");
    // Whoever has read the worker's token is not its worker yet.
    let stolen = Environment {
        token: worker_token(dir.path()),
        ..environment(&created)
    };
    let refused = refusal(stolen.clone(), Role::Worker);
    assert!(refused.contains("token is not for"), "{refused}");
    // Nor by the workers' own door.
    let refused = refusal(at_the_workers_door(dir.path(), stolen), Role::Worker);
    assert!(refused.contains("not a worker"), "{refused}");
    let program = at_the_workers_door(dir.path(), environment(&created));
    let refused = refusal(program, Role::Program);
    assert!(refused.contains("token is not for"), "{refused}");
    let info = control.get("a").unwrap();
    assert!(info.processes.is_empty(), "{info:?}");
    let refused = |event: &&mica_control::api::Event| event.kind == "process_refused";
    assert_eq!(
        control
            .past_events()
            .unwrap()
            .iter()
            .filter(refused)
            .count(),
        4
    );
}

/// The same, through the socket that only workers are to use.
fn at_the_workers_door(dir: &Path, environment: Environment) -> Environment {
    Environment {
        socket: Paths::under(dir).worker_socket(),
        ..environment
    }
}

#[test]
fn a_direct_virtual_gpu_has_no_worker() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let created = control(dir.path()).create(&spec("a", 64)).unwrap();
    let stolen = Environment {
        token: worker_token(dir.path()),
        ..environment(&created)
    };
    let refused = refusal(at_the_workers_door(dir.path(), stolen), Role::Worker);
    assert!(refused.contains("has no worker"), "{refused}");
}

#[test]
fn any_value_in_a_page_is_shown_and_ends_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    let created = control.create(&spec("a", 64)).unwrap();
    for _ in 0..2 {
        let liars = [Program::join(&created), Program::join(&created)];
        for liar in &liars {
            let page = liar.link.page();
            page.memory.denied.store(u64::MAX, SeqCst);
            page.traffic.to_device_bytes.store(u64::MAX, SeqCst);
            for counter in [
                &page.counters.launches,
                &page.counters.gate_wait_ns,
                &page.counters.gpu_time_ns,
            ] {
                counter.store(u64::MAX, SeqCst);
            }
        }
        // A second later the monitor has looked at the pages too.
        eventually("the monitor has looked", || {
            let history = control.history("a").unwrap();
            history
                .samples
                .iter()
                .any(|sample| sample.launches == u32::MAX)
        });
        let info = control.get("a").unwrap();
        assert_eq!(info.launches_total, u64::MAX);
        assert_eq!(info.alloc_denied_total, u64::MAX);
        assert_eq!(
            info.gpu_seconds, 0.0,
            "a program's own figure is not believed"
        );
    }
}

const HOLDER: &str = "MICA_TEST_HOLDER_MIB";

/// Not a test of its own: a program that takes memory, says its number and waits for its end.
#[test]
#[ignore = "no test: the test below runs this (--exact holder --ignored) as a program"]
fn holder() {
    let Ok(mib) = std::env::var(HOLDER) else {
        return;
    };
    let link = HostLink::connect(Environment::read().unwrap().unwrap(), Role::Direct).unwrap();
    let serving = link.clone();
    std::thread::spawn(move || serving.serve(|_| {}, &Default::default()));
    let quota = PageQuota::new(link.clone());
    quota.charge(mib.parse::<u64>().unwrap() * MIB).unwrap();
    println!("number {}", link.welcome().client_id);
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// A program that ends with the test, also where it was stopped.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program that holds so much; its number.
fn hold(created: &Created, mib: u64) -> (Holder, u64) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "holder", "--ignored", "--nocapture"])
        .env(HOLDER, mib.to_string())
        .env(Environment::SOCKET, &created.host_socket)
        .env(Environment::TOKEN, &created.token)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut numbers = lines.map_while(Result::ok).filter_map(|line| {
        let number = line.split("number ").nth(1)?;
        number.parse().ok()
    });
    let number = numbers.next().unwrap();
    (Holder(child), number)
}

fn signal(holder: &Holder, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(&holder.0);
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn what_one_process_was_granted_is_not_given_to_another_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let first = start(dir.path());
    let control = control(dir.path());
    let created = control.create(&spec("a", 64)).unwrap();
    let (victim, number) = hold(&created, 40);
    // The victim is too slow to come back first.
    signal(&victim, rustix::process::Signal::STOP);
    drop(first);
    let _second = start(dir.path());
    let page = SharedPage::create().unwrap();
    let socket = HostSocket::connect(&Paths::under(dir.path()).host_socket()).unwrap();
    let introduction = Introduction {
        role: Role::Direct,
        version: PROTOCOL_VERSION,
        claimed_bytes: 40 * MIB,
        client_id: number,
        token: environment(&created).token,
    };
    let claim = ClientMessage::Hello { introduction };
    socket.send(&claim, &[page.fd()]).unwrap();
    let answer = socket.receive().unwrap().0.read();
    assert!(
        matches!(answer, Ok(DaemonMessage::Welcome { .. })),
        "{answer:?}"
    );
    let granted = page.commands.granted_bytes.load(SeqCst);
    assert!(
        granted <= 24 * MIB,
        "{granted} bytes beside the 40 MiB in use"
    );
    let told = control.past_events().unwrap();
    assert!(
        told.iter().any(|event| event.kind == "false_claim"),
        "{told:?}"
    );
    signal(&victim, rustix::process::Signal::CONT);
    eventually("the victim has its own back", || {
        let processes = control.get("a").unwrap().processes;
        let of_victim = processes.iter().find(|p| p.pid == victim.0.id());
        of_victim.is_some_and(|p| p.memory_charged_bytes == 40 * MIB)
    });
    assert!(control.get("a").unwrap().memory_used_bytes <= 64 * MIB);
}
