//! What listings show: no wider than a terminal, without escape codes, and shares for what they are.

use crate::home::Home;

#[test]
fn a_share_that_nobody_asked_for_is_marked_in_every_listing() {
    let home = Home::new();
    let asked = home.ok("create asked -m 64MiB -s 30");
    assert!(!asked.contains("not reserved"), "{asked}");
    let owed = home.ok("create owed -m 64MiB");
    assert!(
        owed.contains("70 % of GPU 0 (software), not reserved"),
        "{owed}"
    );
    for line in ["ls", "ls -o wide", "stats"] {
        let table = home.ok(line);
        let row = |name: &str| table.lines().find(|row| row.starts_with(name)).unwrap();
        assert!(row("owed").contains("70 % not reserved"), "{line}: {table}");
        assert!(!row("asked").contains("not reserved"), "{line}: {table}");
    }
    assert!(
        home.ok("show owed")
            .contains("\n  share       70 % not reserved, uses 0.0 %\n")
    );
    assert!(
        home.ok("show asked")
            .contains("\n  share       30 %, uses 0.0 %\n")
    );
    assert!(
        home.ok("resize owed -m 32MiB")
            .ends_with("share 70 % not reserved\n")
    );
    assert!(
        home.ok("suspend owed")
            .ends_with("share 70 % not reserved\n")
    );
    assert!(
        home.ok("events owed")
            .contains("70 % of the GPU (not reserved)")
    );
    for line in ["ls --json", "stats --json"] {
        let json = home.json(line);
        let vgpus = json.get("vgpus").unwrap_or(&json).as_array().unwrap();
        let reserved: Vec<_> = vgpus
            .iter()
            .map(|v| (&v["name"], &v["share_reserved"]))
            .collect();
        assert_eq!(
            reserved,
            [
                (&"asked".into(), &true.into()),
                (&"owed".into(), &false.into())
            ]
        );
    }
    assert_eq!(home.json("show owed --json")["share_reserved"], false);
    let metrics = home.ok("stats --prometheus");
    let mut reserved = metrics.lines().filter(|line| {
        line.starts_with("mica_vgpu_share_reserved{vgpu=\"owed\",") && line.ends_with(" 0")
    });
    assert!(reserved.next().is_some(), "{metrics}");
}

#[test]
fn smi_marks_shares_too_and_one_name_is_listed_alone() {
    let home = Home::new();
    home.ok("create asked -m 64MiB -s 30");
    home.ok("create owed -m 32MiB");
    assert!(
        home.ok("smi -L")
            .contains("  vGPU owed: 32 MiB, 70 % not reserved (ready)\n")
    );
    let picture = home.ok("smi");
    assert!(picture.contains("/ ~70%"), "{picture}");
    assert!(picture.contains("~ not reserved |"), "{picture}");
    let only = home.ok("stats owed");
    assert!(
        only.contains("\nowed ") && !only.contains("asked"),
        "{only}"
    );
    let nothing = home.mica("events nobody");
    assert_eq!(
        (nothing.code, nothing.out.as_str(), nothing.err.as_str()),
        (0, "", "mica: no events of nobody\n")
    );
}

#[test]
fn listings_differ_and_fit_eighty_columns() {
    let home = Home::new();
    home.ok("create team-a -m 64MiB -s 33.3 --cap --priority high");
    home.ok("create a-second-team -m 64MiB");
    for line in ["ls", "stats", "show team-a", "gpus"] {
        let text = home.ok(line);
        for row in text.lines() {
            assert!(row.chars().count() <= 80, "mica {line}: {row}");
        }
    }
    let titles = |line: &str| home.ok(line).lines().next().unwrap().to_owned();
    assert_eq!(
        titles("ls").split_whitespace().collect::<Vec<_>>(),
        ["NAME", "STATE", "GPU", "MEMORY", "SHARE", "PROGRAMS"]
    );
    assert_eq!(
        titles("stats").split_whitespace().collect::<Vec<_>>(),
        [
            "NAME", "USES", "SHARE", "MEMORY", "GPU", "TIME", "WAITED", "LAUNCHES"
        ]
    );
    let card = home.ok("show team-a");
    for line in [
        "team-a",
        "  state       ready",
        "  GPU         0 (software, isolated)",
        "  memory      0 B of 64 MiB in use, peak 0 B",
        "  share       33.3 % cap, uses 0.0 %",
        "  priority    high",
        "no programs",
    ] {
        assert!(
            card.lines().any(|l| l == line),
            "{line:?} is not in\n{card}"
        );
    }
}

#[test]
fn files_and_pipes_get_no_escape_codes() {
    let home = Home::new();
    home.ok("create a -m 64MiB");
    for line in [
        "--help",
        "run --help",
        "ls",
        "ls -o wide",
        "stats",
        "show a",
        "gpus",
        "events",
        "doctor",
        "top",
        "ls --jsn",
        "show nope",
        "config",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let output = home.command(&words).output().unwrap();
        for stream in [&output.stdout, &output.stderr] {
            assert!(!stream.contains(&0x1b), "mica {line}: {output:?}");
        }
    }
}

/// Runs a command on a terminal of its own and prints what it wrote.
const TERMINAL: &str = "
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
try:
    while True: os.write(1, os.read(terminal, 4096))
except OSError:
    pass
";

#[test]
fn a_terminal_has_colours_unless_somebody_asked_for_none() {
    let home = Home::new();
    let doctor = |no_color: &str| {
        let mica = home.command(&["doctor"]);
        let mut python = std::process::Command::new("python3");
        python
            .args(["-c", TERMINAL])
            .arg(mica.get_program())
            .arg("doctor");
        let set = mica
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?)));
        python
            .envs(set)
            .env("TERM", "xterm")
            .env("NO_COLOR", no_color);
        python.output().unwrap().stdout
    };
    assert!(doctor("").contains(&0x1b));
    let plain = doctor("1");
    assert!(!plain.is_empty() && !plain.contains(&0x1b), "{plain:?}");
}
