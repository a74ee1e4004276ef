//! `top`, `smi`, `why`, `stats --since` and `report`, as people and scripts use them.

use std::time::{Duration, Instant};

use crate::home::Home;

/// Repeats a command until it prints this.
fn until(home: &Home, line: &str, wanted: &str) -> String {
    let began = Instant::now();
    loop {
        let said = home.ok(line);
        if said.contains(wanted) {
            return said;
        }
        let waited = began.elapsed();
        assert!(
            waited < Duration::from_secs(60),
            "mica {line}: no {wanted:?} in\n{said}"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn scripts_that_know_nvidia_smi_get_what_they_parse() {
    let home = Home::new();
    home.ok("create a -m 64MiB -s 30 --cap");
    let list = home.ok("smi -L");
    assert!(list.starts_with("GPU 0: "), "{list}");
    assert!(
        list.contains("  vGPU a: 64 MiB, 30 % cap (ready)"),
        "{list}"
    );
    let values =
        home.ok("smi --query-vgpu=name,memory.limit,share,cap --format=csv,noheader,nounits");
    assert_eq!(values, "a, 64, 30, yes\n");
    let titled = home.ok("smi --query-gpu=index,memory.reserved --format=csv");
    assert_eq!(titled, "index, memory.reserved [MiB]\n0, 64 MiB\n");
    let picture = home.ok("smi");
    assert!(picture.contains("MICA-SMI") && picture.contains("No running processes found"));
    let wrong = home.fails(2, "smi --query-gpu=indx --format=csv");
    assert!(
        wrong.contains("did you mean index?") && wrong.contains("memory.total"),
        "{wrong}"
    );
    let unformatted = home.fails(2, "smi --query-gpu=index");
    assert!(unformatted.contains("--format=csv"), "{unformatted}");
}

#[test]
fn what_was_measured_is_listed_and_charged() {
    let home = Home::new();
    home.ok("create a -m 64MiB -s 30");
    until(&home, "stats a --since 1h", "a  ");
    for row in home.ok("stats --since 1h").lines() {
        assert!(row.chars().count() <= 80, "{row}");
    }
    let none = home.ok("stats b --since 1h");
    assert!(
        none.starts_with("nothing of b was measured since"),
        "{none}"
    );
    let report = home.ok("report --by vgpu --since 1h");
    assert!(
        report.contains("VGPU") && report.contains("IDLE"),
        "{report}"
    );
    let csv = home.ok("report --by vgpu --csv");
    let row = csv.lines().nth(1).unwrap();
    assert!(
        row.starts_with("a,") && row.split(',').count() == 14,
        "{csv}"
    );
    let json = home.ok("report --month --json");
    assert!(json.contains("\"gpu_hours\""), "{json}");
    // What was removed is still charged.
    home.ok("rm a");
    assert!(home.ok("report --by vgpu --csv").contains("\na,"));
    let wrong = home.fails(2, "report --since yesterday");
    assert!(wrong.contains("is not a time"), "{wrong}");
    for ahead in ["report --since 2099-01-01", "stats --since 2099-01-01"] {
        let said = home.fails(1, ahead);
        assert!(
            said.contains("2099-01-01 00:00:00 is yet to come"),
            "{said}"
        );
    }
    let empty = home.fails(1, "report --since 1h --until 2h");
    assert!(empty.contains("--until must be later"), "{empty}");
    // What is no longer there has no present figures.
    let gone = home.fails(1, "stats a");
    assert!(gone.contains("no virtual GPU named a"), "{gone}");
}

#[test]
fn why_and_one_picture_of_top_are_text() {
    let home = Home::new();
    home.ok("create a -m 64MiB -s 30");
    let why = home.ok("why a");
    assert!(why.starts_with("a: no program uses it\n"), "{why}");
    assert!(why.contains("mica exec a -- CMD"), "{why}");
    let json = home.ok("why a --json");
    assert!(json.contains("\"cause\": \"no_program\""), "{json}");
    home.ok("suspend a");
    assert!(home.ok("why a").contains("mica resume a"));
    let nobody = home.fails(1, "why b");
    assert!(nobody.contains("no virtual GPU named b"), "{nobody}");
    let unnamed = home.command(&["why", ""]).output().unwrap();
    let said = String::from_utf8_lossy(&unnamed.stderr).into_owned();
    assert_eq!(unnamed.status.code(), Some(2), "{said}");
    assert!(said.contains("a value is required for '<NAME>'"), "{said}");
    let top = home.ok("top");
    assert!(top.contains("NAME") && top.contains("suspended"), "{top}");
    assert!(top.contains("GPU 0"), "{top}");
}
