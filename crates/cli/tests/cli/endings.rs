//! How programs end, and what `mica run` and `mica exec` say and return then.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use crate::home::{Home, eventually};

#[test]
fn codes_tell_the_programs_failure_from_micas() {
    let home = Home::new();
    home.ok("create a -m 64MiB");
    let broken = home.write("broken", "#!/no/such/interpreter\n");
    let made = Command::new("chmod").args(["+x", &broken]).status();
    assert!(made.unwrap().success());
    for start in ["run -m 64MiB --", "exec a --"] {
        let fails = |code, command: &str| home.fails(code, &format!("{start} {command}"));
        assert_eq!(
            fails(127, "no-such-program-here"),
            "mica: no-such-program-here: no such program\n"
        );
        assert_eq!(
            fails(127, "/no/such/program"),
            "mica: /no/such/program: no such program\n"
        );
        assert_eq!(
            fails(126, "/"),
            "mica: / cannot be run: it is not an executable file, or its folder allows no programs\n"
        );
        assert_eq!(
            fails(126, &broken),
            format!("mica: {broken} cannot be run: its interpreter or loader is missing\n")
        );
    }
    let said = home.fails(125, "run -m 64MiB --trace /no/such/folder/trace -- true");
    assert!(
        said.starts_with("mica: the trace cannot be written to /no/such/folder/trace: "),
        "{said}"
    );
    let said = home.fails(125, "exec nope -- true");
    assert!(said.contains("no virtual GPU named nope"), "{said}");
    let said = home.fails(125, "run -m 999TiB -- true");
    assert!(said.contains("999 TiB asked"), "{said}");
    assert_eq!(
        home.json("ls --json").as_array().unwrap().len(),
        1,
        "nothing is left"
    );
}

#[test]
fn the_signal_that_ended_a_program_is_named() {
    let home = Home::new();
    for (signal, code, said) in [
        ("SEGV", 139, "mica: ended by SIGSEGV\n"),
        ("KILL", 137, "mica: ended by SIGKILL\n"),
        // As in a shell: this was the person's own doing.
        ("INT", 130, ""),
    ] {
        let script = home.write("end.sh", &format!("kill -{signal} $$\n"));
        // Whatever runs in the background ignores an interrupt, and so would the shell.
        let command = format!("run -m 64MiB -- env --default-signal=INT sh {script}");
        let answer = home.mica(&command);
        assert_eq!((answer.code, answer.err.as_str()), (code, said));
    }
}

/// Runs a program that gets signals although this test may ignore them, as whatever runs in the background does.
const RUN: [&str; 6] = [
    "run",
    "-m",
    "64MiB",
    "--",
    "env",
    "--default-signal=INT,QUIT",
];

/// `mica run` of a shell that counts the signals it gets; it is ready when it has said so.
fn counting(home: &Home) -> (Child, BufReader<std::process::ChildStdout>) {
    let script = home.write(
        "counting.sh",
        "trap 'echo INT' INT; trap 'echo QUIT; exit 7' QUIT\n\
         echo ready; while :; do sleep 0.05; done\n",
    );
    let mut child = home
        .command(&[&RUN[..], &["sh", &script]].concat())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (child, lines)
}

#[test]
fn signals_sent_to_mica_alone_reach_the_program() {
    let home = Home::new();
    let (mut child, mut lines) = counting(&home);
    let id = child.id().to_string();
    let kill = |signal: &str| {
        let sent = Command::new("kill").args([signal, &id]).status().unwrap();
        assert!(sent.success());
    };
    // `mica` passes signals on from the moment that its program runs; the program may be a little earlier.
    eventually("a handler", || {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        u64::from_str_radix(caught.unwrap().trim(), 16).unwrap() & 0b110 == 0b110
    });
    let mut line = String::new();
    kill("-INT");
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "INT\n");
    kill("-QUIT");
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "QUIT\n");
    assert_eq!(child.wait().unwrap().code(), Some(7));
}

/// Runs a command on a terminal of its own, presses Ctrl-C when it is ready and Ctrl-\ a second later.
const TERMINAL: &str = "
import os, pty, sys, time
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
said = b''
def read_until(word):
    global said
    while word not in said:
        said += os.read(terminal, 4096)
read_until(b'ready')
time.sleep(0.5)
os.write(terminal, b'\\x03')
read_until(b'INT')
time.sleep(1)
os.write(terminal, b'\\x1c')
try:
    while True: said += os.read(terminal, 4096)
except OSError:
    pass
print(said.count(b'INT'), said.count(b'QUIT'), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";

#[test]
fn a_terminals_interrupt_arrives_once() {
    let home = Home::new();
    let script = home.write(
        "counting.sh",
        "stty -echo; trap 'echo INT' INT; trap 'echo QUIT; exit 7' QUIT\n\
         echo ready; while :; do sleep 0.05; done\n",
    );
    let mica = home.command(&[&RUN[..], &["sh", &script]].concat());
    let mut python = Command::new("python3");
    python.args(["-c", TERMINAL]).arg(mica.get_program());
    python.args(mica.get_args());
    for (name, value) in mica.get_envs() {
        match value {
            Some(value) => python.env(name, value),
            None => python.env_remove(name),
        };
    }
    let output = python.output().unwrap();
    let counted = String::from_utf8_lossy(&output.stdout);
    assert_eq!(counted.trim(), "1 1 7", "{output:?}");
}

#[test]
fn a_virtual_gpu_is_removed_under_a_program_by_force_only_and_named() {
    let home = Home::new();
    home.ok("create team -m 64MiB");
    // A program without a session is not ended with its virtual GPU.
    let served = format!("{} demo-tenant", env!("CARGO_BIN_EXE_mica"));
    for (program, code) in [(served.as_str(), 137), ("cat", 0)] {
        let words: Vec<&str> = ["exec", "team", "--"]
            .into_iter()
            .chain(program.split(' '))
            .collect();
        let mut running = home
            .command(&words)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let has_program = || {
            !home.json("show team --json")["processes"]
                .as_array()
                .unwrap()
                .is_empty()
        };
        eventually("it runs", || {
            home.ok("events team -n 9").contains(program) && (program == "cat" || has_program())
        });
        let refused = home.fails(1, "rm team");
        let why = match program {
            "cat" => "started in team, has not ended: cat",
            _ => "a process runs in team",
        };
        assert!(refused.contains(why), "{refused}");
        home.ok("rm team --force");
        drop(running.stdin.take());
        let mut said = String::new();
        let mut err = running.stderr.take().unwrap();
        err.read_to_string(&mut said).unwrap();
        assert_eq!(said, "mica: virtual GPU team was removed\n", "{program}");
        assert_eq!(running.wait().unwrap().code(), Some(code), "{program}");
        home.ok("create team -m 64MiB");
    }
}

#[test]
fn an_output_that_is_closed_or_full_ends_a_command_quietly() {
    let home = Home::new();
    home.ok("create a -m 64MiB");
    for line in [
        "ls",
        "stats --prometheus",
        "show a",
        "events",
        "--help",
        "completions bash",
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
        let words: Vec<&str> = line.split(' ').collect();
        let output = home.command(&words).stdout(full.unwrap()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            (output.status.code(), said.as_str()),
            (
                Some(1),
                "mica: the output cannot be written: No space left on device (os error 28)\n"
            ),
            "{line}"
        );
        let mut closed = home
            .command(&words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(closed.stdout.take());
        let output = closed.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{line}");
    }
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
    let output = home
        .command(&["show", "nope"])
        .stderr(full.unwrap())
        .output()
        .unwrap();
    assert_eq!(
        output.status.code(),
        Some(1),
        "an error that nobody can read is still one"
    );
}
