//! `cargo xtask chaos`: kills at random, for long. The test itself is the command's own; CI runs a few
//! rounds of it.

use anyhow::{Result, bail};

use crate::command::{self, cargo};

/// Runs so many rounds; the seed repeats a run's choices.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let (mut rounds, mut seed) = ("1000", None);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match (*word, words.next()) {
            ("--rounds", Some(number)) => rounds = number,
            ("--seed", Some(number)) => seed = Some(*number),
            _ => bail!("chaos takes --rounds N and --seed S"),
        }
    }
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
    command::run("release build", &mut cargo(&build))?;
    let test = [
        "test",
        "--release",
        "-p",
        "mica-cli",
        "--test",
        "chaos",
        "--",
        "--nocapture",
    ];
    let mut test = cargo(&test);
    test.env("MICA_CHAOS_ROUNDS", rounds);
    if let Some(seed) = seed {
        test.env("MICA_CHAOS_SEED", seed);
    }
    command::run("chaos", &mut test)
}
