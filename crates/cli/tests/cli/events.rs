//! What `mica events` prints.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::home::Home;

/// `2026-01-31 14:30:59`.
fn begins_with_date(line: &str) -> bool {
    let shape: String = line
        .chars()
        .take(19)
        .map(|c| if c.is_ascii_digit() { '0' } else { c })
        .collect();
    shape == "0000-00-00 00:00:00"
}

#[test]
fn programs_are_told_of_from_their_start_to_their_exit_code() {
    let home = Home::new();
    assert_eq!(home.mica("run --name job -m 64MiB -- false").code, 1);
    let text = home.ok("events job");
    assert!(text.lines().all(begins_with_date), "{text}");
    let words: Vec<&str> = text.lines().map(|line| line[19..].trim_start()).collect();
    let pid = words[1].split(' ').nth_back(2).unwrap();
    assert_eq!(
        words,
        [
            "job         job was created",
            &format!("job         process {pid} started: false"),
            &format!("job         warning: process {pid} exited with code 1: false"),
            "job         job was removed",
        ]
    );
    let ended = home.ok("events job --json");
    let ended: serde_json::Value = serde_json::from_str(ended.lines().nth(2).unwrap()).unwrap();
    assert_eq!(ended["kind"], "program_ended");
    assert_eq!(ended["pid"].to_string(), pid);
}

#[test]
fn events_are_chosen_by_name_number_and_time() {
    let home = Home::new();
    for name in ["a", "b", "c"] {
        home.ok(&format!("create {name} -m 64MiB"));
    }
    let names = |line: &str| -> Vec<String> {
        let text = home.ok(line);
        let name = |line: &str| line.split_whitespace().nth(2).unwrap().to_owned();
        text.lines().map(name).collect()
    };
    assert_eq!(names("events"), ["a", "b", "c"]);
    assert_eq!(names("events b"), ["b"]);
    assert_eq!(names("events -n 2"), ["b", "c"]);
    assert_eq!(names("events --last 0"), [""; 0]);
    assert_eq!(names("events --since 1h -n 1"), ["c"]);
    assert_eq!(names("events --since 2099-01-01"), [""; 0]);
    assert_eq!(names("events --since 2020-01-01T00:00 a"), ["a"]);
    let said = home.fails(2, "events --since yesterday");
    assert!(
        said.contains("\"yesterday\" is not a time: write"),
        "{said}"
    );
    // What changes nothing is no event.
    home.ok("resume a");
    assert_eq!(names("events a"), ["a"]);
    home.ok("suspend a");
    home.ok("suspend a");
    assert_eq!(names("events a"), ["a", "a"]);
    // A virtual GPU that is gone has still a past.
    home.ok("rm b");
    assert_eq!(names("events b"), ["b", "b"]);
}

#[test]
fn followed_events_are_of_the_name_that_was_given() {
    let home = Home::new();
    home.ok("create a -m 64MiB");
    let mut follow = home
        .command(&["events", "-f", "b"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    home.ok("suspend a");
    home.ok("create b -m 64MiB");
    let line = lines.next().unwrap().unwrap();
    follow.kill().unwrap();
    follow.wait().unwrap();
    assert!(line.ends_with("b was created"), "{line}");
}

#[test]
fn who_follows_events_is_told_that_the_daemon_has_ended() {
    let home = Home::new();
    home.ok("create a -m 64MiB");
    let mut follow = home
        .command(&["events", "-f"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().ends_with("a was created"));
    home.ok("suspend a");
    assert!(lines.next().unwrap().is_ok(), "it follows");
    home.ok("daemon --stop");
    let ended = follow.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("the daemon has ended"), "{said}");
}

#[test]
fn the_doctors_tests_are_no_events_of_the_tenant() {
    let home = Home::new();
    home.ok("create a -m 64MiB -s 30");
    let words = home.ok("doctor");
    assert!(words.contains("a: limit tested"), "{words}");
    let after = home.ok("events a");
    assert_eq!(after.lines().count(), 1, "{after}");
    assert!(after.ends_with("a was created\n"), "{after}");
    assert_eq!(home.json("show a --json")["alloc_denied_total"], 0);
}
