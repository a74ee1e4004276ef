//! Words of hostile programs on the way to a terminal.

use std::path::Path;

use mica_control::api::VgpuSpec;
use mica_control::client::ControlClient;
use mica_limits::Environment;
use mica_wire::host::message::{ClientMessage, DaemonMessage, Role, Severity, Topic};
use mica_wire::host::printable::is_hidden;
use mica_wire::host::socket::HostSocket;

use crate::home::{Home, eventually};

/// Clears the screen in two ways, forges a line, and turns what follows around.
const HOSTILE: &str = "\x1b[2J\u{9b}2J evil\n00:00:00  all is well \u{202e}txt.exe\u{2066}";

fn is_clean(text: &str) -> bool {
    !text.chars().any(|c| is_hidden(c) && c != '\n')
}

/// Leaves a note as any process with the token can.
fn note(home: &Home, name: &str, text: &str) {
    let given = home.ok(&format!("exec {name} -- env"));
    let variable = |wanted: &str| {
        let mut lines = given.lines();
        let value = lines.find_map(|line| line.strip_prefix(wanted)?.strip_prefix('='));
        value.unwrap().to_owned()
    };
    let socket = HostSocket::connect(Path::new(&variable(Environment::SOCKET))).unwrap();
    let token = Environment::parse_token(&variable(Environment::TOKEN)).unwrap();
    let hello = ClientMessage::hello(Role::Monitor, token);
    socket.send(&hello, &[]).unwrap();
    let answer = socket.receive().unwrap().0.read();
    assert!(matches!(answer, Ok(DaemonMessage::Welcome { .. })));
    let note = ClientMessage::Note {
        severity: Severity::Info,
        topic: Topic::General,
        text: text.into(),
    };
    socket.send(&note, &[]).unwrap();
}

#[test]
fn words_of_programs_cannot_act_on_a_terminal_or_forge_a_log() {
    let home = Home::new();
    home.ok("gpus");
    let control = ControlClient::new(home.path().join("run/control.sock"));
    let spec = VgpuSpec {
        name: Some("a".into()),
        memory_limit_bytes: Some(64 << 20),
        note: Some(HOSTILE.into()),
        ..VgpuSpec::default()
    };
    control.create(&spec).unwrap();
    note(&home, "a", HOSTILE);
    eventually("the note is told", || home.ok("events").contains("evil"));
    for line in [
        "events",
        "events --json",
        "ls -o wide",
        "ls --json",
        "show a",
        "show a --json",
        "stats",
        "stats --json",
        "stats --prometheus",
        "doctor a",
    ] {
        let text = home.ok(line);
        assert!(is_clean(&text), "mica {line}: {text:?}");
        assert!(!text.contains("\n00:00:00  all is well"), "{line}: {text}");
    }
    let log = std::fs::read_to_string(home.path().join("run/daemon.log")).unwrap();
    assert!(log.contains("evil"), "{log}");
    assert!(is_clean(&log), "{log:?}");
    assert!(!log.contains("\n00:00:00"), "{log}");
    // What was given stays what it is for programs that read it.
    let shown = home.json("show a --json");
    assert_eq!(shown["note"].as_str(), Some(HOSTILE));
}

#[test]
fn a_hostile_name_of_a_program_is_written_out() {
    let home = Home::new();
    let run = ["run", "-m", "64MiB", "--", "/nowhere/\x1b[2Jx\u{202e}"];
    let output = home.command(&run).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(text.contains("\\u{1b}[2Jx\\u{202e}"), "{text:?}");
    assert!(is_clean(&text), "{text:?}");
}
