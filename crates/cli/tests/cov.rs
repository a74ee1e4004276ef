//! `mica cov` through a real daemon and real workers: what is written is exactly what the program's kernels reached.
//!
//! The program is this file itself, started again, which does what Mica's library in a program does.

mod home;

use std::path::Path;
use std::process::{Command, Output};

use home::Home;
use mica_limits::{Environment, open_session, write_profile};
use mica_wire::session::client::SessionClient;
use mica_wire::session::*;

const PTX: &str = include_str!("../../../tests/coverage/half.ptx");
/// Names the launches of the program, such as `half:3 also:9`; without it this is no program.
const LAUNCHES: &str = "COV_TEST_LAUNCHES";

/// Runs `mica` with these words in front of a program that makes these launches, once for each element.
fn mica(home: &Home, words: &str, processes: &[&str]) -> Output {
    let own = std::env::current_exe().unwrap();
    let one = |launches: &&str| {
        let own = own.display();
        format!("{LAUNCHES}='{launches}' {own} --exact this_is_the_program --ignored >/dev/null")
    };
    let script: Vec<String> = processes.iter().map(one).collect();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mica"));
    command.args(words.split(' '));
    if !processes.is_empty() {
        command.args(["--", "sh", "-c", &script.join(" && ")]);
    }
    command
        .current_dir(home.path())
        .env("MICA_RUNTIME_DIR", home.path().join("run"))
        .env("MICA_LIB_DIR", home.path())
        .env_remove("MICA_STATE_DIR")
        .env_remove("MICA_CONFIG")
        .env_remove("MICA_HOST_SOCKET")
        .env_remove("MICA_TOKEN")
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn read(home: &Home, name: &str) -> String {
    std::fs::read_to_string(home.path().join(name)).unwrap()
}

#[test]
#[ignore = "no test: the tests below run this (--exact this_is_the_program --ignored) as a program of a virtual GPU"]
fn this_is_the_program() {
    let Ok(launches) = std::env::var(LAUNCHES) else {
        return;
    };
    let environment = Environment::read().unwrap().unwrap();
    let (_, socket) = open_session(&environment).unwrap();
    let client = SessionClient::connect(socket, "covered").unwrap();
    let new = client.call(&ContextCreate { flags: 0 }).unwrap();
    let (context, stream) = (new.context, new.default_stream);
    let module = client.module_load(context, PTX.as_bytes(), false).unwrap();
    let bytes = 4096;
    let out = client.call(&MemoryAlloc { context, bytes }).unwrap().value;
    for launch in launches.split_whitespace() {
        let (name, n) = launch.split_once(':').unwrap();
        let kernel = module.kernels.iter().position(|k| k.name == name).unwrap() as u32;
        let mut params = out.to_le_bytes().to_vec();
        params.extend(n.parse::<i32>().unwrap().to_le_bytes());
        let launch = Launch {
            stream,
            module: module.module,
            kernel,
            grid: [2, 1, 1],
            block: [32, 1, 1],
            dynamic_shared: 0,
            cooperative: false,
        };
        client.launch(&launch, &params).unwrap();
    }
    client.call(&StreamSynchronize { stream }).unwrap();
    for (kind, lines) in client.take_output().unwrap() {
        assert_eq!(kind, 3);
        write_profile(&lines);
    }
}

/// The lines of a tracefile that say which lines were reached.
fn counts(tracefile: &str) -> Vec<&str> {
    let kept = |line: &&str| line.starts_with("DA:") || line.starts_with("LH:");
    tracefile.lines().filter(kept).collect()
}

fn expected(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/coverage");
    std::fs::read_to_string(folder.join(name)).unwrap()
}

#[test]
fn a_tracefile_says_what_all_processes_reached() {
    let home = Home::new();
    let all = [
        "half:3",
        "half:9 _Z6shapedIiEvPT_i:9",
        "half:9 _Z6shapedIiEvPT_i:-1",
    ];
    let output = mica(&home, "cov -m 64MiB --lcov all.info", &all);
    assert!(output.status.success(), "{output:?}");
    let written = read(&home, "all.info");
    assert_eq!(counts(&written), counts(&expected("processes.lcov")));
    for line in [
        "SF:half.cu",
        "FN:5,twice(int)",
        "FNDA:2,twice(int)",
        "FNDA:3,half",
        "FNDA:0,never",
        "FNDA:2,shaped<int>(int*, int)",
        "FNDA:0,shaped<double>(double*, int)",
    ] {
        assert!(written.lines().any(|l| l == line), "{line}: {written}");
    }
    let told = said(&output);
    assert!(
        told.contains(
            "15 of 23 lines were reached, 65.2 %; 2 of 5 kernels were launched by 3 processes"
        ),
        "{told}"
    );
    assert!(told.contains("25-27,29,31-33,38"), "{told}");
    let row = |name: &str| {
        let line = told.lines().find(|l| l.starts_with(name));
        line.unwrap_or_else(|| panic!("{name}: {told}")).to_owned()
    };
    assert!(row("never ").ends_with("never launched"));
    assert!(row("half ").ends_with(" 3"));

    // The same in three runs that are added up.
    let first = mica(&home, "cov -m 64MiB --lcov sum.info", &all[..1]);
    assert!(first.status.success(), "{first:?}");
    for one in &all[1..] {
        let words = "cov -m 64MiB --append sum.info --lcov sum.info";
        let next = mica(&home, words, &[one]);
        assert!(next.status.success(), "{next:?}");
    }
    assert_eq!(read(&home, "sum.info"), written);
    // And by adding up alone.
    let added = mica(&home, "cov -a all.info -a sum.info --lcov twice.info", &[]);
    assert!(added.status.success(), "{added:?}");
    assert!(read(&home, "twice.info").contains("FNDA:6,half\n"));
}

#[test]
fn too_little_fails_and_json_says_how_much() {
    let home = Home::new();
    let words = "cov -m 64MiB --json --fail-under 90";
    let output = mica(&home, words, &["half:3"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = said(&output);
    assert!(told.contains("and --fail-under asks for 90 %"), "{told}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["lines"]["found"], 23, "{report}");
    assert_eq!(report["processes"], 1);
    let kernels = report["kernels"].as_array().unwrap();
    let half = kernels.iter().find(|k| k["kernel"] == "half").unwrap();
    assert_eq!(half["launches"], 1, "{report}");
    let enough = mica(&home, "cov -m 64MiB --fail-under 20", &["half:3"]);
    assert_eq!(enough.status.code(), Some(0), "{enough:?}");
    // The program's own code comes first.
    let mut failing = Command::new(env!("CARGO_BIN_EXE_mica"));
    failing.args(["cov", "-m", "64MiB", "--fail-under", "90", "--", "false"]);
    failing.env("MICA_RUNTIME_DIR", home.path().join("run"));
    failing.env("MICA_LIB_DIR", home.path());
    let failing = failing.output().unwrap();
    assert_eq!(failing.status.code(), Some(1));
    let told = said(&failing);
    assert!(
        told.contains("the program launched no kernel that ended"),
        "{told}"
    );
    assert!(!told.contains("fail-under"), "{told}");
}

#[test]
fn what_cannot_work_is_said_before_the_program_runs() {
    let home = Home::new();
    for (words, wanted) in [
        (
            "cov --mode direct",
            "mica cov runs on the software GPU: in direct mode",
        ),
        (
            "cov --gpu 7",
            "mica cov needs the software GPU (--gpu software), not GPU 7",
        ),
        (
            "cov --lcov /nowhere/x.info",
            "/nowhere/x.info cannot be written",
        ),
        ("cov -a missing.info", "missing.info cannot be read"),
        (
            "run --seed 1 --gpu 7",
            "--seed needs the software GPU (--gpu software), not GPU 7",
        ),
        (
            "run --cores 2 --mode direct",
            "--cores needs the software GPU, which has no direct mode",
        ),
        (
            "run --seed 1 --on host",
            "--seed is for the software GPU of this machine: it cannot be used with --on",
        ),
    ] {
        let output = mica(&home, words, &["half:3"]);
        let told = said(&output);
        assert!(
            !output.status.success() && told.contains(wanted),
            "{words}: {told}"
        );
        assert!(!told.contains("launched"), "{words}: {told}");
    }
    std::fs::write(home.path().join("bad.info"), "SF:a\nDA:x\n").unwrap();
    let told = said(&mica(&home, "cov -a bad.info", &[]));
    assert!(
        told.contains("bad.info is not a tracefile: line 2 makes no sense"),
        "{told}"
    );
    let told = said(&mica(&home, "cov", &[]));
    assert!(told.contains("required"), "{told}");
}

/// A program can write into the file of records: nothing of it is believed that makes no sense, and memory stays bounded.
#[test]
fn what_a_program_writes_itself_is_counted_and_left_out() {
    let home = Home::new();
    let script = "f=$MICA_PROFILE; echo nonsense >> $f; \
        echo '{\"record\":\"reached\",\"name\":\"x\",\"lines\":[[\"a.cu\",[1]]]}' >> $f; \
        head -c 3000000 /dev/zero >> $f; echo >> $f";
    let mut command = Command::new(env!("CARGO_BIN_EXE_mica"));
    command.args([
        "cov", "-m", "64MiB", "--lcov", "x.info", "--", "sh", "-c", script,
    ]);
    command.current_dir(home.path());
    command.env("MICA_RUNTIME_DIR", home.path().join("run"));
    command.env("MICA_LIB_DIR", home.path());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let told = said(&output);
    assert!(
        told.contains("lines of what was recorded make no sense"),
        "{told}"
    );
    assert_eq!(read(&home, "x.info"), "");
}
