//! What the shells offer when a key is pressed.

use std::process::Command;

use crate::home::Home;

/// The values that `mica` offers for these words, of which the last is being typed.
fn offered(home: &Home, line: &str) -> Vec<String> {
    let words: Vec<&str> = ["__complete", "--"]
        .into_iter()
        .chain(line.split(' '))
        .collect();
    let output = home.command(&words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .map(|line| line.split('\t').next().unwrap().to_owned())
        .collect()
}

#[test]
fn names_of_virtual_gpus_and_gpus_are_known() {
    let home = Home::new();
    assert_eq!(offered(&home, "show "), [""; 0]);
    assert!(!home.path().join("run").exists(), "no key starts a daemon");
    home.ok("create team-a -m 64MiB");
    home.ok("create other -m 64MiB");
    for command in [
        "show", "exec", "resize", "rm", "suspend", "resume", "cancel", "doctor", "events",
    ] {
        assert_eq!(
            offered(&home, &format!("{command} ")),
            ["other", "team-a"],
            "{command}"
        );
    }
    assert_eq!(offered(&home, "show te"), ["team-a"]);
    assert_eq!(
        offered(&home, "create te"),
        [""; 0],
        "a new name is made up"
    );
    assert_eq!(offered(&home, "run --gpu "), ["0", "nvidia", "software"]);
    assert_eq!(offered(&home, "run --priority "), ["high", "normal", "low"]);
    assert_eq!(offered(&home, "config "), ["@files"]);
    assert_eq!(offered(&home, "run --tra"), ["--trace"]);
}

#[test]
fn internals_are_hidden_and_programs_left_alone() {
    let home = Home::new();
    let commands = offered(&home, "");
    assert!(commands.contains(&"run".to_owned()) && commands.contains(&"events".to_owned()));
    for hidden in [
        "worker",
        "demo-tenant",
        "shim-load",
        "limit-probe",
        "load",
        "man",
        "__complete",
    ] {
        assert!(!commands.contains(&hidden.to_owned()), "{commands:?}");
        assert!(!offered(&home, hidden).contains(&hidden.to_owned()));
    }
    assert_eq!(
        offered(&home, "run -m 8GiB -- python --mem"),
        ["@program 4"]
    );
    assert_eq!(offered(&home, "exec a ls --js"), ["@program 2"]);
}

/// Presses the key in bash and prints what is offered.
const PRESS: &str = r#"
source <(mica completions bash)
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_mica
printf '%s\n' "${COMPREPLY[@]}"
"#;

#[test]
fn bash_offers_what_mica_says() {
    let home = Home::new();
    home.ok("create team-a -m 64MiB");
    let mica = std::path::Path::new(env!("CARGO_BIN_EXE_mica"));
    let press = |words: &[&str]| -> String {
        let path = format!("{}:/usr/bin:/bin", mica.parent().unwrap().display());
        let output = Command::new("bash")
            .args(["--norc", "-c", PRESS, "bash"])
            .args(words)
            .env("PATH", path)
            .env("MICA_RUNTIME_DIR", home.path().join("run"))
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned()
    };
    assert_eq!(press(&["mica", "show", "t"]), "team-a");
    assert_eq!(press(&["mica", "susp"]), "suspend");
    let programs = press(&["mica", "run", "--", "mic"]);
    assert!(programs.lines().any(|name| name == "mica"), "{programs}");
    assert_eq!(
        press(&["mica", "run", "--", "ls", "--js"]),
        "",
        "a program's own option"
    );
    for shell in ["zsh", "fish"] {
        assert!(
            home.ok(&format!("completions {shell}"))
                .contains("__complete")
        );
    }
}
