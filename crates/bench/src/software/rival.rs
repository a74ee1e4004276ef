//! What the software GPU is compared with: programs compiled on the spot, asked by name.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};

const COMMON: &str = include_str!("../../kernels/bench_common.h");
const GCC: &str = include_str!("../../kernels/bench_gcc.c");
const POCL: &str = include_str!("../../kernels/bench_pocl.c");
const MORE: &str = include_str!("../../kernels/more_gcc.h");
const LARGER: &str = include_str!("../../kernels/larger_gcc.h");

/// A run: how long, and what came out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) ns: f64,
    pub(super) checksum: f64,
}

/// A compiled program that waits for names of kernels.
pub(super) struct Rival {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// What it runs on, as far as it says.
    pub(super) label: String,
}

impl Rival {
    /// `gcc -O3 -march=native -fopenmp`; `Ok(Err)` says why there is none.
    pub(super) fn gcc(folder: &Path) -> Result<Result<Self, String>> {
        let flags = ["-O3", "-march=native", "-fopenmp"];
        match compile(folder, "gcc", GCC, &flags, &["-lmvec", "-lm"])? {
            Ok(program) => Self::start(&program, false).map(Ok),
            Err(why) => Ok(Err(why)),
        }
    }

    /// The installed OpenCL, where that is PoCL or another CPU device.
    pub(super) fn opencl(folder: &Path) -> Result<Result<Self, String>> {
        let libraries = ["-l:libOpenCL.so.1", "-lm"];
        match compile(folder, "opencl", POCL, &["-O2"], &libraries)? {
            Ok(program) => Ok(Self::start(&program, true).map_err(|error| format!("{error:#}"))),
            Err(_) => Ok(Err("libOpenCL.so.1 is not installed".into())),
        }
    }

    fn start(program: &Path, has_label: bool) -> Result<Self> {
        let mut child = Command::new(program)
            // Threads that spin between questions would take time from the other side.
            .env("OMP_WAIT_POLICY", "passive")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("{} cannot be started", program.display()))?;
        let (Some(questions), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("{} has no pipes", program.display());
        };
        let mut rival = Self {
            child,
            questions,
            answers: BufReader::new(output),
            label: String::new(),
        };
        if has_label {
            rival.label = rival.line().context("it offers no CPU device")?;
        }
        Ok(rival)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!("the comparison ended: {}", self.child.wait()?);
        }
        Ok(line.trim().to_owned())
    }

    /// Runs a kernel.
    pub(super) fn run(&mut self, kernel: &str) -> Result<Run> {
        self.questions
            .write_all(format!("{kernel}\n").as_bytes())
            .context("the comparison is gone")?;
        let line = self.line()?;
        let mut numbers = line.split(' ').map(str::parse::<f64>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(ns)), Some(Ok(checksum))) => Ok(Run { ns, checksum }),
            _ => bail!("no time and checksum: {line:?}"),
        }
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Compiles a source; the inner error says why it could not be.
fn compile(
    folder: &Path,
    name: &str,
    source: &str,
    flags: &[&str],
    libraries: &[&str],
) -> Result<Result<std::path::PathBuf, String>> {
    let file = folder.join(format!("{name}.c"));
    std::fs::write(&file, source)?;
    std::fs::write(folder.join("bench_common.h"), COMMON)?;
    std::fs::write(folder.join("more_gcc.h"), MORE)?;
    std::fs::write(folder.join("larger_gcc.h"), LARGER)?;
    let program = folder.join(name);
    let output = Command::new("gcc")
        .args(flags)
        .arg(&file)
        .arg("-o")
        .arg(&program)
        .args(libraries)
        .stdin(Stdio::null())
        .output();
    match output {
        Err(error) => Ok(Err(format!("gcc cannot be run: {error}"))),
        Ok(output) if output.status.success() => Ok(Ok(program)),
        Ok(output) => {
            let words = String::from_utf8_lossy(&output.stderr);
            let first = words.lines().find(|line| line.contains("error"));
            Ok(Err(first.unwrap_or("gcc failed").to_owned()))
        }
    }
}
