//! What people type, and what the words are made into.

use crate::home::Home;

#[test]
fn help_names_every_command_and_hides_what_is_not_for_people() {
    let home = Home::new();
    let help = home.ok("--help");
    for word in [
        "run",
        "exec",
        "create",
        "ls",
        "show",
        "resize",
        "rm",
        "suspend",
        "resume",
        "cancel",
        "gpus",
        "stats",
        "events",
        "doctor",
        "demo",
        "bench",
        "daemon",
        "ptx",
        "config",
        "completions",
    ] {
        let listed = help.lines().any(|line| line.trim_start().starts_with(word));
        assert!(listed, "{word} is not in\n{help}");
    }
    for hidden in ["demo-tenant", "shim-load", "worker", "man "] {
        assert!(
            !help.contains(&format!("  {hidden}")),
            "{hidden} is in\n{help}"
        );
    }
    assert!(home.ok("--version").starts_with("mica "));
    assert!(
        home.ok("run --help")
            .contains("mica run --memory 8GiB --share 30 -- python train.py")
    );
    assert!(
        !home.path().join("run").exists(),
        "asking for help starts no daemon"
    );
}

#[test]
fn wrong_words_are_usage_errors_that_say_what_to_write() {
    let home = Home::new();
    assert!(home.fails(2, "ls --jsn").contains("'--json'"));
    assert!(
        home.fails(2, "lst")
            .contains("unrecognized subcommand 'lst'")
    );
    let size = home.fails(2, "create a -m 8GB");
    assert!(
        size.contains("write 8GiB: sizes are powers of 1024"),
        "{size}"
    );
    let share = home.fails(2, "create a -s 101");
    assert!(share.contains("not from 1 to 100 percent"), "{share}");
    assert!(
        home.fails(2, "resize a").contains("--memory"),
        "nothing to change"
    );
    assert!(home.fails(2, "run").contains("<CMD>"));
    let below = home.fails(2, "run -m -5 -- true");
    assert!(below.contains("\"-5\" is no size; write 8GiB"), "{below}");
    let below = home.fails(2, "run -s -5 -- true");
    assert!(
        below.contains("\"-5\" is no whole number of percent"),
        "{below}"
    );
    assert!(
        !home.path().join("run").exists(),
        "wrong words start no daemon"
    );
}

#[test]
fn a_place_that_sockets_cannot_be_in_is_named_at_once() {
    let home = Home::new();
    let file = home.write("file", "");
    let long = format!("{}/{}", home.path().display(), "x".repeat(100));
    for (place, why) in [(file, "cannot be made"), (long, "is too long for sockets")] {
        let mut command = home.command(&["ls"]);
        let answer = command.env("MICA_RUNTIME_DIR", &place).output().unwrap();
        let said = String::from_utf8_lossy(&answer.stderr).into_owned();
        assert_eq!(answer.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("{place}: {why}")), "{said}");
    }
}

#[test]
fn completions_and_manual_pages_come_from_the_same_words() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish"] {
        let text = home.ok(&format!("completions {shell}"));
        assert!(text.contains("resize"), "{shell}");
    }
    let folder = home.path().join("man");
    home.ok(&format!("man {}", folder.display()));
    for page in ["mica.1", "mica-run.1", "mica-resize.1"] {
        let text = std::fs::read_to_string(folder.join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}");
    }
}

#[test]
fn a_mistyped_option_of_run_is_no_program() {
    let home = Home::new();
    for line in ["run --memroy 1GiB -- true", "exec --trcae f a -- true"] {
        let option = line.split(' ').nth(1).unwrap();
        let said = home.fails(2, line);
        assert!(
            said.contains(&format!("unexpected argument '{option}'")),
            "{said}"
        );
    }
}
