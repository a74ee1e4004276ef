//! Test suites under the address sanitizer: the worker's and the software device's.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Night, Row, progress};
use crate::bounded::{self, Outcome};
use crate::command::{cargo, target};
use crate::executables::{self, counts};

/// The tests of a package.
pub(super) struct Suite {
    pub(super) name: &'static str,
    package: &'static str,
    /// Tests that the sanitizer itself makes fail.
    without: &'static [&'static str],
}

pub(super) const SUITES: &[Suite] = &[
    Suite {
        name: "device",
        package: "mica-backend-software",
        without: &[],
    },
    Suite {
        name: "worker",
        package: "mica-worker",
        without: &[],
    },
];

/// The device recovers from faults of kernels by a SIGSEGV handler of its own. Memory that lives as long as the process
/// is no error.
const OPTIONS: &str =
    "allow_user_segv_handler=1:handle_segv=0:handle_sigbus=0:handle_sigfpe=0:detect_leaks=0";
/// Longest that one test program of a suite runs.
const LIMIT: Duration = Duration::from_secs(1200);

/// Builds a suite with the sanitizer and runs all of its programs.
pub(super) fn run(night: &Night, suite: &Suite) -> Result<Row> {
    let mut build = cargo(&["test", "-p", suite.package]);
    // With a target named, only what runs there is instrumented, and no compiler plugin.
    build.args(["--target", &night.toolchain.triple]);
    build.arg("--target-dir").arg(target().join("asan"));
    build.env("RUSTFLAGS", "-Zsanitizer=address");
    build.env("CARGO_INCREMENTAL", "0");
    let title = format!("{} with the address sanitizer", suite.package);
    let programs = executables::build(&title, night.toolchain.prepare(&mut build))?;
    let start = Instant::now();
    let (mut tests, mut findings) = (0, Vec::new());
    for program in programs {
        let name = format!("{}-{}", suite.name, program.target);
        let log = night.log(&name)?;
        let mut command = program.command();
        command
            .env("ASAN_OPTIONS", OPTIONS)
            .env("TMPDIR", &night.scratch.0);
        for test in suite.without {
            command.args(["--skip", test]);
        }
        let tick = progress::each_minute(&name, &log, "test ");
        let outcome = bounded::run(&mut command, &log, LIMIT, tick)?;
        let output = std::fs::read(&log)?;
        tests += counts(&String::from_utf8_lossy(&output)).0;
        let reason = match outcome {
            Outcome::Ended(status) if status.success() => continue,
            Outcome::Ended(status) => status.to_string(),
            Outcome::OutOfTime => "did not end in time".to_string(),
            Outcome::Interrupted => break,
        };
        let folder = night.folder(&format!("findings/{}", suite.name))?;
        let kept = folder.join(format!("{}.log", program.target));
        std::fs::copy(&log, &kept).with_context(|| format!("{}", kept.display()))?;
        findings.push(format!("{reason}, see {}", kept.display()));
    }
    Ok(Row {
        name: suite.name,
        tried: format!("{tests} tests"),
        time: start.elapsed(),
        findings,
    })
}
