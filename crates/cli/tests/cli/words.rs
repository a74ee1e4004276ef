//! What people type, and what the words are made into.

use crate::home::{Answer, Home};

#[test]
fn help_names_every_command_and_hides_what_is_not_for_people() {
    let home = Home::new();
    let help = home.ok("--help");
    for word in [
        "run",
        "exec",
        "check",
        "cov",
        "profile",
        "create",
        "ls",
        "show",
        "resize",
        "rm",
        "suspend",
        "resume",
        "cancel",
        "memory",
        "gpus",
        "stats",
        "events",
        "doctor",
        "demo",
        "cdi",
        "vm",
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
fn mica_alone_says_what_to_type_first_on_one_screen() {
    let home = Home::new();
    let answer: Answer = home.command(&[]).output().unwrap().into();
    assert_eq!((answer.code, &*answer.out), (2, ""), "{answer:?}");
    let first = answer.err;
    assert!(
        first.contains("mica run -m 8GiB -s 30 -- python train.py"),
        "{first}"
    );
    assert!(
        first.contains("`mica --help` lists all commands"),
        "{first}"
    );
    assert!(first.lines().count() < 24, "{first}");
    let widest = first.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(80), "{first}");
    assert!(!home.path().join("run").exists(), "it starts no daemon");
}

#[test]
fn a_program_or_an_option_in_the_place_of_a_command_is_answered_with_mica_run() {
    let home = Home::new();
    let program = home.fails(2, "./program");
    assert!(
        program.contains("`mica run -- ./program` runs"),
        "{program}"
    );
    let on_path = home.fails(2, "sha256sum");
    assert!(
        on_path.contains("`mica run -- sha256sum` runs"),
        "{on_path}"
    );
    let option = home.fails(2, "-m 8");
    assert!(
        option.contains("options follow a command: mica run -m 8GiB -- ./program"),
        "{option}"
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
    // Any other code could be the program's.
    for (words, code, tip) in [
        ("run", 125, "mica run -- ./program"),
        ("exec a", 125, "mica exec NAME -- ./program"),
        ("show", 2, "`mica ls` lists virtual GPUs by name"),
        ("--verison", 2, "'--version'"),
    ] {
        let refused = home.fails(code, words);
        assert!(refused.contains(tip), "{refused}");
    }
    let unknown = home.fails(125, "run -p high -- true");
    assert!(!unknown.contains("as a value"), "{unknown}");
    let below = home.fails(125, "run -m -5 -- true");
    assert!(
        below.contains("\"-5\" is not a size: write 8GiB"),
        "{below}"
    );
    let below = home.fails(125, "run -s -5 -- true");
    assert!(
        below.contains("\"-5\" is not from 1 to 100 percent"),
        "{below}"
    );
    let bare = home.fails(2, "create a -m 8");
    assert!(
        bare.contains("\"8\" is a number of bytes; did you mean 8GiB?"),
        "{bare}"
    );
    // What only sounds alike is no hint.
    let regions = home.fails(2, "vm serve a --regions 2 --socket b");
    assert!(
        regions.contains("--ivshmem N") && !regions.contains("--version"),
        "{regions}"
    );
    let unknown = home.fails(2, "vm attach a --persons");
    assert!(!unknown.contains("--version"), "{unknown}");
    for (size, why) in [("1KiB", "holds nothing"), ("1TiB", "write at most 256GiB")] {
        let refused = home.fails(2, &format!("serve --keep-uploads {size}"));
        assert!(refused.contains(why), "{refused}");
    }
    for (address, why) in [
        ("nonsense:port", "its port is not a number"),
        (":9731", "it has no host"),
        ("192.0.2.1:9731", "this machine has no such address"),
    ] {
        let refused = home.fails(1, &format!("serve --listen {address}"));
        assert!(refused.contains(why), "{refused}");
    }
    assert!(
        !home.path().join("run").exists(),
        "wrong words start no daemon"
    );
}

#[test]
fn a_number_that_is_none_is_answered_with_what_to_write() {
    let home = Home::new();
    for (line, said) in [
        (
            "run --seed x -- true",
            "invalid value 'x' for '--seed <N>': write a whole number, such as 4",
        ),
        (
            "run --wait soon -- true",
            "invalid value 'soon' for '--wait <SECONDS>': write a number, such as 30 or 0.5",
        ),
        (
            "run --cores 0 -- true",
            "invalid value '0' for '--cores <N>': write a whole number from 1 to 1024",
        ),
        (
            "run --capability 7.5 -- true",
            "[possible values: 8.0, 9.0]",
        ),
        (
            "run --seed 99999999999999999999999 -- true",
            "the number is too large",
        ),
    ] {
        let answer = home.fails(125, line);
        assert!(answer.contains(said), "mica {line}: {answer}");
    }
    let last = home.fails(2, "events -n many");
    assert_eq!(
        last,
        "error: invalid value 'many' for '--last <N>': write a whole number, such as 4\n\n\
         For more information, try '--help'.\n"
    );
}

#[test]
fn words_from_elsewhere_lead_to_a_command_and_never_to_a_hidden_one() {
    let home = Home::new();
    for (word, tip) in [
        ("version", "`mica --version`"),
        ("monitor", "`mica top`"),
        ("limits", "`mica resize NAME"),
        ("web", "`mica dashboard`"),
        ("attach", "`mica exec NAME -- CMD`"),
    ] {
        let said = home.fails(2, word);
        assert!(
            said.contains(tip) && !said.contains("similar"),
            "mica {word}: {said}"
        );
    }
    for word in ["librarie", "limit-prob", "worke"] {
        let said = home.fails(2, word);
        let shown = format!("error: unrecognized subcommand '{word}'\n\nUsage: mica <COMMAND>\n");
        assert!(said.starts_with(&shown), "mica {word}: {said}");
    }
}

#[test]
fn an_empty_name_is_a_wrong_word() {
    let home = Home::new();
    for command in [
        &["why", ""][..],
        &["show", ""],
        &["rm", ""],
        &["exec", "", "true"],
        &["stats", ""],
        &["vm", "attach", ""],
        &["region", "rm", ""],
    ] {
        let answer = home.command(command).output().unwrap();
        let said = String::from_utf8_lossy(&answer.stderr);
        let code = if command[0] == "exec" { 125 } else { 2 };
        assert_eq!(answer.status.code(), Some(code), "{command:?}: {said}");
        assert!(
            said.contains("a value is required for"),
            "{command:?}: {said}"
        );
    }
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
fn manual_pages_come_from_the_same_words() {
    let home = Home::new();
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
        let said = home.fails(125, line);
        assert!(
            said.contains(&format!("unexpected argument '{option}'")),
            "{said}"
        );
    }
}

#[test]
fn commands_of_other_tools_are_answered_with_our_own() {
    let home = Home::new();
    for (word, tip) in [
        ("htop", "`mica top`"),
        ("logs", "`mica events`"),
        ("status", "`mica doctor`"),
    ] {
        let said = home.fails(2, word);
        assert!(
            said.contains(&format!("unrecognized subcommand '{word}'")),
            "{said}"
        );
        assert!(said.contains(tip), "{said}");
        assert!(!said.contains("similar"), "{said}");
    }
    let force = home.fails(2, "rm -f a");
    assert!(force.contains("write --force"), "{force}");
    assert!(!home.path().join("run").exists(), "no daemon was started");
}

/// Every option letter means one thing, and every option takes the same in all commands.
/// The commands that the help lists.
fn commands(home: &Home) -> Vec<String> {
    home.ok("--help")
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  "))
        // A further line of a description is indented more.
        .filter(|line| !line.starts_with(' '))
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .filter(|command| command != "help")
        .collect()
}

#[test]
fn help_fits_a_terminal_of_80_columns() {
    let home = Home::new();
    for command in std::iter::once(String::new()).chain(commands(&home)) {
        for line in home.ok(format!("{command} --help").trim()).lines() {
            assert!(line.chars().count() <= 80, "{command}: {line}");
        }
    }
}

#[test]
fn the_same_flag_means_the_same_everywhere() {
    let home = Home::new();
    let mut known = std::collections::HashMap::new();
    for command in commands(&home) {
        let help = home.ok(&format!("{command} -h"));
        // Sentences below the options name flags too.
        let options = help.lines().skip_while(|line| *line != "Options:");
        for line in options.take_while(|line| !line.is_empty()) {
            let line = line.trim();
            if !line.starts_with('-') {
                continue;
            }
            // "-m, --memory <SIZE>  Most memory"
            let end = line.find("  ").unwrap_or(line.len());
            let words: Vec<&str> = line[..end]
                .split([',', ' '])
                .filter(|w| !w.is_empty())
                .collect();
            for flag in words.iter().filter(|word| word.starts_with('-')) {
                let before = known.insert((*flag).to_owned(), words.join(" "));
                let same = before.is_none_or(|before| before == words.join(" "));
                assert!(same, "{flag} of {command} is {words:?}");
            }
        }
    }
    assert!(known.len() > 20, "{known:?}");
}
