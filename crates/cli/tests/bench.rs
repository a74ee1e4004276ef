//! `mica bench gpu` on the software GPU: every row comes out, and nothing is judged without a native side.
//!
//! The libraries that programs load lie beside the command; `cargo xtask test` builds them first.

use std::process::{Command, Output, Stdio};

struct Home(tempfile::TempDir);

impl Home {
    fn mica(&self, words: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_mica"))
            .args(words)
            .env("MICA_RUNTIME_DIR", self.0.path().join("run"))
            .env("MICA_CONFIG", self.0.path().join("mica.toml"))
            .env_remove("MICA_STATE_DIR")
            .env_remove("MICA_HOST_SOCKET")
            .env_remove("MICA_TOKEN")
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    fn new() -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        let config = "[software_gpu]\noffer = \"always\"\nmemory_bytes = 2147483648\n";
        std::fs::write(home.0.path().join("mica.toml"), config).unwrap();
        home
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.mica(&["daemon", "--stop"]);
    }
}

#[test]
fn every_row_of_isolated_mode_has_a_figure_on_the_software_gpu() {
    let home = Home::new();
    let words = "bench gpu --gpu software --only isolated --seconds 0.2 --json";
    let output = home.mica(&words.split(' ').collect::<Vec<_>>());
    assert!(output.status.success(), "{output:?}");
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<&str> = rows
        .iter()
        .map(|row| row["what"].as_str().unwrap())
        .collect();
    for name in [
        "first kernel",
        "launch call, 200 after a wait",
        "launch in batches of 100,000",
        "launch + wait",
        "event query",
        "event record + query until reached",
        "graph of 300 kernels + wait",
        "cuMemAlloc + free 1 MiB",
        "cuMemAllocAsync + free 1 MiB",
        "pinned copy from the device, 256 MiB",
        "pageable copy to the device, 4 KiB",
        "stream create + destroy",
    ] {
        let name = format!("isolated speed: {name}");
        assert!(names.contains(&name.as_str()), "no {name} in {names:?}");
    }
    for row in &rows {
        let numbers = &row["numbers"];
        let isolated = numbers["isolated"].as_f64().unwrap();
        assert!(isolated > 0.0 && isolated.is_finite(), "{row}");
        let absent = [
            &numbers["native"],
            &numbers["direct"],
            &numbers["ratio"],
            &row["reached"],
        ];
        assert!(absent.iter().all(|value| value.is_null()), "{row}");
        assert_eq!(row["native"], "-");
    }
    let goal = rows
        .iter()
        .find(|row| row["what"] == "isolated speed: event query");
    assert_eq!(goal.unwrap()["goal"], "≤ 0.1 µs");
}

#[test]
fn a_choice_of_rows_that_names_none_measures_nothing() {
    let home = Home::new();
    let output = home.mica(&[
        "bench", "gpu", "--gpu", "software", "--only", "bursty", "--json",
    ]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"[]\n");
    assert!(!home.0.path().join("run").exists(), "no daemon was started");
}

#[test]
fn other_benchmarks_have_no_choice_of_a_gpu() {
    let output = Home::new().mica(&["bench", "vgpu", "--gpu", "software"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("--gpu is for `mica bench gpu`"), "{said}");
}
