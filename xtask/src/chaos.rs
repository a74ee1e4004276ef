//! `cargo xtask chaos`: kills at random, for long; with `--swap`, at every step of an exchange of swappable virtual GPUs.
//! The tests themselves are the command's and the worker's own; CI runs a few rounds of them.

use anyhow::{Context as _, Result, bail};

use crate::command::{self, cargo};

/// Runs so many rounds; the seed repeats a run's choices.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let (mut rounds, mut seed, mut swap) = ("1000", None, false);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let usage = "chaos takes --rounds N, --seed S and --swap";
        match *word {
            "--swap" => swap = true,
            "--rounds" => rounds = words.next().context(usage)?,
            "--seed" => seed = Some(*words.next().context(usage)?),
            _ => bail!(usage),
        }
    }
    let (package, test) = match swap {
        true => ("mica-worker", "swap"),
        false => ("mica-cli", "chaos"),
    };
    // The command's test runs the command and its libraries.
    let build = [
        "build",
        "--release",
        "-p",
        "mica-cli",
        "-p",
        "mica-shim",
        "-p",
        "mica-nvml-shim",
    ];
    if !swap {
        command::run("release build", &mut cargo(&build))?;
    }
    let words = ["test", "--release", "-p", package, "--test", test];
    let mut test = cargo(&words);
    test.args(["--", "--nocapture", "--test-threads", "1"]);
    if swap {
        test.arg("chaos::");
    }
    test.env("MICA_CHAOS_ROUNDS", rounds);
    if let Some(seed) = seed {
        test.env("MICA_CHAOS_SEED", seed);
    }
    command::run("chaos", &mut test)
}
