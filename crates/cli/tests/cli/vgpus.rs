//! Virtual GPUs and the configuration they live under.

use crate::home::{Answer, Home};

#[test]
fn a_virtual_gpu_is_made_listed_shown_resized_and_removed() {
    let home = Home::new();
    let created = home.json("create team-a -m 64MiB -s 30 --json");
    assert_eq!(created["name"], "team-a");
    assert_eq!(created["memory_limit_bytes"], 64 << 20);
    assert_eq!(created["share_percent"], 30);
    assert_eq!(created["state"], "ready");
    assert_eq!(created["share_reserved"], true);

    let list = home.json("ls --json");
    assert_eq!(list.as_array().unwrap().len(), 1);
    for key in [
        "name",
        "state",
        "memory_limit_bytes",
        "memory_used_bytes",
        "memory_peak_bytes",
        "share_percent",
        "share_measured_percent",
        "gpu_seconds",
        "processes",
    ] {
        assert!(!list[0][key].is_null(), "{key} is missing in {list}");
    }
    let table = home.ok("ls");
    let titles = table.lines().next().unwrap();
    assert!(
        titles.starts_with("NAME") && titles.contains("SHARE"),
        "{table}"
    );
    assert!(
        table.lines().nth(1).unwrap().starts_with("team-a"),
        "{table}"
    );
    assert!(!table.contains('\x1b'), "no colours in a pipe");

    let resized = home.json("resize team-a -m 96MiB -s 40 --json");
    assert_eq!(resized["memory_limit_bytes"], 96 << 20);
    let shown = home.json("show team-a --json");
    assert_eq!(shown["memory_limit_bytes"], 96 << 20);
    assert_eq!(shown["share_percent"], 40);

    assert_eq!(home.ok("rm team-a"), "team-a removed\n");
    assert_eq!(home.json("ls --json"), serde_json::json!([]));
}

#[test]
fn refusals_say_why_and_what_to_do() {
    let home = Home::new();
    home.ok("create a -m 64MiB -s 60");
    let twice = home.fails(1, "create a -m 64MiB");
    assert_eq!(
        twice,
        "mica: a virtual GPU named a exists\n  hint: choose another name, or remove it\n"
    );
    let share = home.fails(1, "create b -m 64MiB -s 60");
    assert!(share.contains("40 %") || share.contains("60 %"), "{share}");
    let large = home.fails(1, "resize a -m 1000TiB");
    assert!(large.contains("at most"), "{large}");
    for line in [
        "show nope",
        "rm nope",
        "exec nope -- true",
        "doctor nope",
        "suspend nope",
    ] {
        let code = if line.starts_with("exec") { 125 } else { 1 };
        let said = home.fails(code, line);
        assert!(
            said.contains("there is no virtual GPU named nope"),
            "{line}: {said}"
        );
        assert!(said.contains("`mica ls`"), "{line}: {said}");
    }
    let mode = home.fails(1, "create c --mode direct --gpu software");
    assert!(mode.contains("always isolated"), "{mode}");
    assert_eq!(
        home.fails(1, "create c --gpu 7"),
        "mica: there is no GPU 7\n  hint: this host has only GPU 0 (software)\n"
    );
}

#[test]
fn a_wrong_configuration_is_refused_with_its_line() {
    let home = Home::new();
    let example = home.ok("config");
    let good = home.write("good.toml", &example);
    assert_eq!(
        home.ok(&format!("config --check {good}")),
        format!("{good}: valid\n")
    );
    let unknown = home.write("unknown.toml", "[daemon]\nidle_exit_secs = 3\n");
    let said = home.fails(1, &format!("config --check {unknown}"));
    assert!(
        said.contains("line 2: unknown field `idle_exit_secs`"),
        "{said}"
    );
    let range = home.write("range.toml", "[sharing]\nlease_us = 0\n");
    let said = home.fails(1, &format!("config --check {range}"));
    assert!(
        said.contains("line 2: sharing.lease_us: 0 is not between"),
        "{said}"
    );
    let missing = home.fails(1, "config --check /nowhere/mica.toml");
    assert!(
        missing.contains("/nowhere/mica.toml cannot be read"),
        "{missing}"
    );
}

#[test]
fn a_daemon_that_cannot_start_on_demand_says_why() {
    let home = Home::new();
    let wrong = home.write("wrong.toml", "[daemon]\nidle_exit_secs = 3\n");
    let mut create = home.command(&["create", "a", "-m", "64MiB"]);
    let answer = Answer::from(create.env("MICA_CONFIG", wrong).output().unwrap());
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(
        answer
            .err
            .contains("line 2: unknown field `idle_exit_secs`"),
        "{answer:?}"
    );
    assert!(!answer.err.contains("did not answer"), "{answer:?}");
}

#[test]
fn shares_may_be_fractions_and_limits_parts_of_the_gpu() {
    let home = Home::new();
    let third = home.json("create third -m 64MiB -s 33.3 --json");
    assert_eq!(third["share_percent"], 33.3);
    let gpu = &home.json("gpus --json")[0];
    let total = gpu["memory_total_bytes"].as_u64().unwrap();
    let half = home.json("create half -m 50% -s 66.7 --json");
    let limit = half["memory_limit_bytes"].as_u64().unwrap();
    assert_eq!(limit, total / 2);
    assert_eq!(home.json("gpus --json")[0]["share_reserved_percent"], 100);
    let quarter = home.json("resize half -m 25% --json");
    assert_eq!(quarter["memory_limit_bytes"], total / 4);
    // A cap is a flag here as it is when a virtual GPU is made.
    assert_eq!(home.json("resize half --cap --json")["cap"], true);
    assert_eq!(
        home.ok("resize third -s 12.5"),
        "third: ready, limit 64 MiB, share 12.5 %\n"
    );
    assert_eq!(home.json("resize half --no-cap --json")["cap"], false);
}

#[test]
fn a_machine_that_nobody_knows_is_not_detached() {
    let home = Home::new();
    let unknown = home.fails(1, "vm detach mica-test-nobody");
    assert!(
        unknown.contains("neither a virtual GPU nor shared memory"),
        "{unknown}"
    );
    home.ok("create mica-test-known -m 16MiB --mode isolated");
    let known = home.ok("vm detach mica-test-known");
    assert!(known.contains("0 shared-memory devices removed"), "{known}");
}
