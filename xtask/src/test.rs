//! `cargo xtask test`: what CI checks.

use anyhow::Result;

use crate::alone;
use crate::clients;
use crate::command::{self, cargo};
use crate::docs::{self, Compiler};
use crate::licences;
use crate::python;
use crate::suite::{self, Breadth};
use crate::support;

/// How much to check.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All of it.
    Everything,
    /// No CUDA programs, so no CUDA compiler is needed.
    WithoutPrograms,
}

/// Runs the checks, cheapest first.
pub(crate) fn run(extent: Extent) -> Result<()> {
    support::check()?;
    licences::check()?;
    command::run("formatting", &mut cargo(&["fmt", "--all", "--check"]))?;
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    command::run("lints", &mut cargo(&clippy))?;
    otel()?;
    let mut documentation = cargo(&["doc", "--workspace", "--no-deps", "--quiet"]);
    documentation.env("RUSTDOCFLAGS", "-D warnings");
    command::run("documentation of the crates", &mut documentation)?;
    // Tests load the shims and start the command as files, so those are built first.
    command::run("build", &mut cargo(&["build", "--workspace"]))?;
    command::run("tests", &mut cargo(&["test", "--workspace", "--quiet"]))?;
    python::test()?;
    match extent {
        Extent::Everything => {
            suite::run("", Breadth::Some)?;
            alone::check()?;
            clients::run("", clients::Extent::Quick)?;
            docs::test("", Compiler::Use)
        }
        Extent::WithoutPrograms => docs::test("", Compiler::Without),
    }
}

/// The daemon with the export to OpenTelemetry collectors, which is off by default.
fn otel() -> Result<()> {
    // With the command among the packages, what both use is built with the features it has everywhere else, and once.
    let packages = ["-p", "mica-cli", "-p", "mica-daemon"];
    let daemon = [&packages[..], &["--features", "mica-daemon/otel"]].concat();
    let words = [&["clippy"], &daemon[..], &["--", "-D", "warnings"]].concat();
    command::run("lints of the feature otel", &mut cargo(&words))?;
    let words = [
        &["test", "--quiet"],
        &daemon[..],
        &["--lib", "--test", "otel", "otel"],
    ]
    .concat();
    command::run("tests of the feature otel", &mut cargo(&words))
}
