//! Sixty-four programs that start in the same moment.

use std::process::{Child, Stdio};

use crate::world::{Home, eventually};

const PROGRAMS: usize = 64;

/// Starts them all, each in a virtual GPU of its own, and waits for the last; every one must have
/// computed right results.
fn start_all(home: &Home) {
    let load =
        r#"{"pattern":"verify","iterations":100,"depth":1,"start_unix_ms":0,"seconds":0.001}"#;
    let words = ["run", "-m", "16MiB", "--", home.mica(), "load", load];
    let start = |_| -> Child {
        let mut command = home.command(&words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let children: Vec<Child> = (0..PROGRAMS).map(start).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(printed.contains("step 1"), "{printed}");
    }
    eventually("the end of all virtual GPUs", || {
        let left = home.command(&["ls", "--json"]).output().unwrap();
        match String::from_utf8_lossy(&left.stdout).trim() {
            "[]" => Ok(()),
            left => Err(left.to_owned()),
        }
    });
}

#[test]
fn sixty_four_programs_start_at_once_with_and_without_a_daemon() {
    let home = Home::new();
    // The first one of them starts the daemon, for all.
    start_all(&home);
    start_all(&home);
    let stopped = home.command(&["daemon", "--stop"]).output().unwrap();
    assert!(stopped.status.success(), "{stopped:?}");
    home.wait_for_the_end();
}
