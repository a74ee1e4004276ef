//! Programs that run in virtual GPUs.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use mica_limits::{Environment, open_session};

use crate::home::{Answer, Home, eventually};

#[test]
fn run_returns_the_programs_own_code() {
    let home = Home::new();
    assert_eq!(home.mica("run -m 64MiB -- true").code, 0);
    assert_eq!(home.mica("run -m 64MiB -- false").code, 1);
    let script = home.write(
        "seven.sh",
        "#!/bin/sh\necho $MICA_VGPU $MICA_MODE; exit 7\n",
    );
    let answer = home.mica(&format!("run -m 64MiB --name seventh -- sh {script}"));
    assert_eq!(
        (answer.code, answer.out.as_str()),
        (7, "seventh isolated\n")
    );
    let killed = home.write("killed.sh", "kill -9 $$\n");
    assert_eq!(home.mica(&format!("run -m 64MiB -- sh {killed}")).code, 137);
    assert_eq!(
        home.json("ls --json"),
        serde_json::json!([]),
        "nothing is left"
    );
}

#[test]
fn leaks_are_looked_for_without_changing_the_programs_end() {
    let home = Home::new();
    let none = home.mica("run -m 64MiB --leaks -- false");
    let words = "mica: leaks: the program allocated no memory and made no objects\n";
    assert_eq!((none.code, none.err.as_str()), (1, words));
    assert_eq!(home.mica("create stays -m 64MiB").code, 0);
    let again = home.mica("exec --leaks stays -- true");
    assert_eq!((again.code, again.err.as_str()), (0, words));
    let missing = home.mica("run -m 64MiB --leaks -- /no/such/program");
    assert!(
        missing.code != 0 && !missing.err.contains("leaks"),
        "{}",
        missing.err
    );
}

#[test]
fn what_was_left_is_listed_and_can_be_an_exit_code() {
    let home = Home::new();
    // What the library in a program writes for a stream that is left.
    let records = "{\"record\":\"allocation\",\"address\":16,\"bytes\":0,\"what\":\"stream\",\"frames\":[[\"/bin/p\",18]]}
{\"record\":\"finding\",\"tool\":\"leakcheck\",\"kind\":\"object\",\"severity\":\"error\",\"message\":\"a stream was never destroyed\",\"parties\":[],\"count\":1,\"allocation\":{\"address\":16,\"bytes\":0,\"state\":\"live\",\"distance\":0,\"what\":\"stream\",\"made_ms\":1500}}
{\"record\":\"ended\",\"faulted\":false}";
    let leaving = |name: &str, code: u32| {
        let text = format!("cat >>$MICA_CHECK_REPORT <<'END'\n{records}\nEND\nexit {code}\n");
        home.write(name, &text)
    };
    let (well, badly) = (leaving("well.sh", 0), leaving("badly.sh", 3));
    let list = home.path().join("leaks.json");
    let list = list.display();
    let options = format!("run -m 64MiB --leaks --leaks-exitcode 9 --leaks-json {list}");
    let left = home.mica(&format!("{options} -- sh {well}"));
    let words = "mica: leaks: 1 object was not destroyed\n  stream, made after 1.5 s at\n      /bin/p+0x12\n";
    assert_eq!((left.code, left.err.as_str()), (9, words));
    let text = std::fs::read_to_string(home.path().join("leaks.json")).unwrap();
    let written: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&written["verdict"], &written["made"], &written["bytes"]),
        (&"leaks".into(), &1.into(), &0.into())
    );
    let stream = serde_json::json!([{ "kind": "object", "what": "stream", "address": 16, "bytes": 0, "made_seconds": 1.5,
        "stack": ["/bin/p+0x12"] }]);
    assert_eq!(written["leaks"], stream);
    // A program's own failure stays its own, and one that leaves nothing ends as it ends.
    assert_eq!(home.mica(&format!("{options} -- sh {badly}")).code, 3);
    assert_eq!(home.mica(&format!("{options} -- true")).code, 0);
    assert!(
        std::fs::read_to_string(home.path().join("leaks.json"))
            .unwrap()
            .contains("\"clean\"")
    );
    // Without the list there is nothing to write or to judge, and a file that cannot be written is told before the program runs.
    let alone = home.mica("run -m 64MiB --leaks-exitcode 9 -- true");
    assert!(alone.code == 2 || alone.code == 125, "{alone:?}");
    assert!(alone.err.contains("--leaks"), "{}", alone.err);
    let nowhere = home.mica("run -m 64MiB --leaks --leaks-json /no/such/list -- echo ran");
    assert!(nowhere.code != 0 && nowhere.out.is_empty(), "{nowhere:?}");
    assert!(
        nowhere.err.contains("/no/such/list cannot be written"),
        "{}",
        nowhere.err
    );
}

#[test]
fn arguments_are_the_programs_own_whatever_bytes_they_have() {
    let home = Home::new();
    let mut command = home.command(&["run", "-m", "64MiB", "--", "printf", "%s"]);
    let output = command.arg(OsStr::from_bytes(b"a\xffb")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"a\xffb");
}

#[test]
fn one_that_failed_for_want_of_memory_is_explained() {
    let home = Home::new();
    let script = |name: &str, code: u32| {
        let ask = "{\"allocate\":{\"bytes\":67108865}}";
        home.write(
            name,
            &format!("echo '{ask}' | {TENANT} demo-tenant >/dev/null; exit {code}\n"),
        )
    };
    let (failing, going_on) = (script("failing.sh", 7), script("going_on.sh", 0));
    let answer = home.mica(&format!("run -m 64MiB --name want -- sh {failing}"));
    assert_eq!(answer.code, 7);
    let words = "mica: memory was refused: 64.0 MiB more do not fit: 0 B of 64 MiB are in use";
    assert!(answer.err.starts_with(words), "{answer:?}");
    let answer = home.mica(&format!("run -m 64MiB --name want -- sh {going_on}"));
    assert_eq!((answer.code, answer.err.as_str()), (0, ""));
}

#[test]
fn exec_runs_in_a_virtual_gpu_that_stays() {
    let home = Home::new();
    home.ok("create a -m 64MiB -s 30");
    let answer = home.mica("exec a -- printenv MICA_VGPU");
    assert_eq!((answer.code, answer.out.as_str()), (0, "a\n"));
    assert_eq!(home.mica("exec a -- false").code, 1);
    assert_eq!(home.json("ls --json").as_array().unwrap().len(), 1);
}

#[test]
fn sixteen_programs_start_at_once_without_a_daemon() {
    let home = Home::new();
    let children: Vec<_> = (0..16)
        .map(|_| {
            home.command(&["run", "-m", "16MiB", "--", "true"])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in children {
        let answer = Answer::from(child.wait_with_output().unwrap());
        assert_eq!(answer.code, 0, "{answer:?}");
    }
    assert_eq!(home.json("ls --json"), serde_json::json!([]));
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() {
    let home = Home::new();
    let temporary = home.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let mut demo = home
        .command(&["demo", "--json"])
        .env("TMPDIR", &temporary)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let folder = || {
        let mut entries = std::fs::read_dir(&temporary).unwrap();
        entries.next().map(|entry| entry.unwrap().path())
    };
    eventually("its daemon listens", || {
        folder().is_some_and(|folder| UnixStream::connect(folder.join("control.sock")).is_ok())
    });
    let socket = folder().unwrap().join("control.sock");
    let status = Command::new("kill")
        .args(["-INT", &demo.id().to_string()])
        .status();
    assert!(status.unwrap().success());
    assert_eq!(demo.wait().unwrap().code(), Some(130));
    assert!(UnixStream::connect(socket).is_err(), "its daemon is gone");
    assert_eq!(folder(), None, "and its folder");
    assert!(
        !home.path().join("run").exists(),
        "the user's daemon was not even asked"
    );
}

/// A program with a session, which ends when nobody asks it anything.
const TENANT: &str = env!("CARGO_BIN_EXE_mica");

#[test]
fn what_a_program_had_can_be_had_again_as_soon_as_mica_run_returns() {
    let home = Home::new();
    for round in 0..12 {
        let answer = home.mica(&format!("run -m 64MiB -s 100 -- {TENANT} demo-tenant"));
        assert_eq!(answer.code, 0, "round {round}: {answer:?}");
    }
}

#[test]
fn gpu_time_is_what_processors_spent_and_not_the_time_that_passed() {
    let home = Home::new();
    home.ok("create a -m 64MiB -s 50");
    let mut tenant = home
        .command(&["exec", "a", "--", TENANT, "demo-tenant"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut questions = tenant.stdin.take().unwrap();
    questions
        .write_all(b"{\"work\":{\"data_bytes\":4096}}\n")
        .unwrap();
    let processors = std::thread::available_parallelism().unwrap().get();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = Ends(&stop);
        // Several for each processor, so that its kernels mostly wait for one.
        for _ in 0..4 * processors {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let mut seconds = 0.0;
        let mut worker = 0;
        eventually("it has used the GPU", || {
            let shown = home.json("show a --json");
            let processes = shown["processes"].as_array().unwrap();
            let its_worker = processes.iter().find_map(|p| p["worker_pid"].as_u64());
            worker = its_worker.unwrap_or(0);
            seconds = shown["gpu_seconds"].as_f64().unwrap();
            seconds > 0.2
        });
        let spent = processor_seconds(worker);
        let used = seconds * processors as f64;
        assert!(used <= spent * 1.02 + 0.03, "{used} of {spent} seconds");
    });
    drop(questions);
    tenant.wait().unwrap();
}

/// Copies a program that will be started. A child process writes the copy: a descriptor that this process opened for
/// writing could be inherited by a child that another test is starting, and a file open for writing cannot be executed.
fn copy_program(program: &Path, copy: &Path) {
    let status = Command::new("cp").arg(program).arg(copy).status().unwrap();
    assert!(status.success(), "{}", copy.display());
}

/// Ends busy threads, whether or not the test goes well.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Processor time of a process, in the hundredths of a second that the system shows.
fn processor_seconds(pid: u64) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = &stat[stat.rfind(')').unwrap() + 1..];
    let ticks = after_name.split_whitespace().skip(11).take(2);
    ticks.map(|n| n.parse::<f64>().unwrap() / 100.0).sum()
}

#[test]
fn workers_start_although_the_file_of_the_running_daemon_was_replaced() {
    let home = Home::new();
    let installed = home.path().join("mica");
    copy_program(Path::new(env!("CARGO_BIN_EXE_mica")), &installed);
    let words = ["create", "a", "-m", "64MiB", "--gpu", "software"];
    let made = home.command_of(&installed, &words).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    // As an upgrade does it: the daemon's own file has no name any more.
    std::fs::remove_file(&installed).unwrap();
    let given = home.ok("exec a -- env");
    let variable = |wanted: &str| {
        let value = |line: &str| Some(line.strip_prefix(wanted)?.strip_prefix('=')?.to_owned());
        given.lines().find_map(value).unwrap()
    };
    let environment = Environment {
        socket: variable(Environment::SOCKET).into(),
        token: Environment::parse_token(&variable(Environment::TOKEN)).unwrap(),
    };
    open_session(&environment).unwrap();
}

/// A program that computes without end in a virtual GPU, until it is dropped.
struct Working(std::process::Child);

impl Working {
    fn exec(home: &Home, name: &str) -> Self {
        let mut child = home
            .command(&["exec", name, "--", TENANT, "demo-tenant"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let questions = child.stdin.as_mut().unwrap();
        let work = b"{\"work\":{\"data_bytes\":4194304}}\n";
        questions.write_all(work).unwrap();
        Self(child)
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn figures_belong_to_the_program_and_not_to_its_worker() {
    let home = Home::new();
    home.ok("create a -m 64MiB -s 50");
    let working = Working::exec(&home, "a");
    let mut shown = serde_json::Value::Null;
    eventually("it works", || {
        shown = home.json("show a --json");
        shown["processes"][0]["launches_total"].as_u64() > Some(10)
    });
    assert_eq!(shown["processes"].as_array().unwrap().len(), 1, "{shown}");
    let program = &shown["processes"][0];
    let children = format!("/proc/{0}/task/{0}/children", working.0.id());
    let child = std::fs::read_to_string(children).unwrap();
    let pid: Option<u64> = child.trim().parse().ok();
    assert_eq!(program["pid"].as_u64(), pid, "{shown}");
    let command = format!("{TENANT} demo-tenant");
    assert_eq!(program["command"], command);
    assert!(
        program["memory_used_bytes"].as_u64() >= Some(4 << 20),
        "{shown}"
    );
    assert_ne!(program["worker_pid"], program["pid"]);
    let card = home.ok("show a");
    assert!(
        card.contains(&format!("process {}\n", child.trim())),
        "{card}"
    );
    // A new daemon knows whose worker comes back.
    home.ok("daemon --stop");
    eventually("the program is known again", || {
        let shown = home.json("show a --json");
        let program = &shown["processes"][0];
        program["pid"].as_u64() == pid && program["memory_used_bytes"].as_u64() > Some(0)
    });
}

#[test]
fn cancel_says_how_many_kernels_it_ended() {
    let home = Home::new();
    home.ok("create a -m 64MiB");
    assert_eq!(home.ok("cancel a"), "no kernel runs in a\n");
    let _working = Working::exec(&home, "a");
    // A cancel while the program still copies ends its context, and no kernel comes after that.
    eventually("it works", || {
        let shown = home.json("show a --json");
        shown["processes"][0]["launches_total"].as_u64() > Some(10)
    });
    let mut said = String::new();
    eventually("a kernel is cancelled", || {
        said = home.ok("cancel a");
        !said.starts_with("no kernel")
    });
    let words: Vec<&str> = said.trim_end().splitn(3, ' ').collect();
    assert_eq!(words[0], "cancelled", "{said}");
    assert!(words[1].parse::<u64>().unwrap() >= 1, "{said}");
    assert!(
        words[2].starts_with("kernel") && words[2].ends_with(" in a"),
        "{said}"
    );
    assert_eq!(home.json("cancel a --json")["kernels"], 0);
    let events = home.ok("events a");
    assert!(events.contains(said.trim_end()), "{events}");
}
