//! The daemon's log as programs read it: one JSON object a line, or lines with the journal's priorities.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::home::Home;

/// A daemon that the test started, which ends with it.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The log of a daemon in which a program with a forged line in its name has run.
fn log_in(format: &str) -> String {
    let home = Home::new();
    let config = home.path().join("mica.toml");
    let text = format!("[daemon]\nlog_format = \"{format}\"\n");
    std::fs::write(&config, text).unwrap();
    let file = home.path().join("log");
    let log = std::fs::File::create(&file).unwrap();
    let mut command = home.command(&["daemon", "--config", config.to_str().unwrap()]);
    let _daemon = Daemon(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
    let began = Instant::now();
    while !home.path().join("run/control.sock").exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "no daemon");
        std::thread::sleep(Duration::from_millis(20));
    }
    let forged = "\n<0>kernel: forged\n{\"level\":\"ERROR\"}";
    let words = ["run", "--name", "a", "-m", "1MiB", "--", "echo", forged];
    assert!(home.command(&words).output().unwrap().status.success());
    loop {
        let text = std::fs::read_to_string(&file).unwrap();
        if text.contains("a was removed") {
            return text;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn json_logs_are_one_object_a_line() {
    let text = log_in("json");
    let lines = text.lines().map(serde_json::from_str::<serde_json::Value>);
    let lines: Vec<serde_json::Value> = lines.map(|l| l.expect(&text)).collect();
    let created = lines.iter().find(|line| line["kind"] == "vgpu_created");
    let created = created.unwrap_or_else(|| panic!("{text}"));
    assert_eq!(
        (created["level"].as_str(), created["vgpu"].as_str()),
        (Some("INFO"), Some("a"))
    );
    assert!(created["timestamp"].is_string() && created["message"] == "a was created");
    assert!(text.contains("forged"), "the program's words are told");
    assert!(lines.iter().all(|line| line["level"] != "ERROR"), "{text}");
}

#[test]
fn logs_for_the_journal_begin_with_a_priority_and_nobody_forges_one() {
    let text = log_in("journald");
    for line in text.lines() {
        let priority = line.get(..3);
        assert!(
            matches!(priority, Some("<3>" | "<4>" | "<6>" | "<7>")),
            "{text}"
        );
    }
    assert!(text.contains("a was created") && text.contains("forged"));
}
