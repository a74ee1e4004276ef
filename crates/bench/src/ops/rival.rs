//! The other side of `mica bench ops`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};

use super::cases::{Case, Kind};

const SCRIPT: &str = include_str!("rival.py");
const LOOP: &str = include_str!("attention.c");

/// Seconds on a card by name of case, as far as there is something to compare with.
pub(super) fn measure(cases: &[Case]) -> Result<BTreeMap<String, f64>> {
    if cases.is_empty() {
        return Ok(BTreeMap::new());
    }
    match by_python(cases) {
        Ok(found) => Ok(found),
        Err(why) => {
            errln!("PyTorch is not compared with: {why:#}");
            Ok(BTreeMap::new())
        }
    }
}

/// Rivals on the processor, each asked for one round at a time.
pub(super) struct Rivals {
    folder: tempfile::TempDir,
    numpy: Option<Numpy>,
}

/// A Python that multiplies when it is asked.
struct Numpy {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Rivals {
    pub(super) fn new() -> Result<Self> {
        let numpy = Numpy::start();
        if let Err(why) = &numpy {
            errln!("NumPy is not compared with: {why:#}");
        }
        Ok(Self {
            folder: tempfile::tempdir()?,
            numpy: numpy.ok(),
        })
    }

    /// Seconds of one round; `None` where there is nothing to compare with.
    pub(super) fn turn(&mut self, case: &Case) -> Option<f64> {
        let round = match case.kind {
            Kind::Attention => by_loop(case, self.folder.path()),
            Kind::Gemm => self.numpy.as_mut()?.round(case),
            _ => return None,
        };
        round
            .inspect_err(|why| errln!("{} is not compared: {why:#}", case.name))
            .ok()
    }
}

impl Numpy {
    fn start() -> Result<Self> {
        let python = python();
        let mut child = outside(&python)
            .args(["-c", SCRIPT, "rounds"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{python} cannot be started"))?;
        let questions = child.stdin.take().context("no input")?;
        let output = child.stdout.take().context("no output")?;
        let mut numpy = Self {
            child,
            questions,
            answers: BufReader::new(output),
        };
        let what = numpy.line()?;
        errln!("compared with {what}");
        Ok(numpy)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        anyhow::ensure!(!line.is_empty(), "it ended");
        Ok(line.trim().to_owned())
    }

    fn round(&mut self, case: &Case) -> Result<f64> {
        let mut question = serde_json::to_vec(case)?;
        question.push(b'\n');
        self.questions.write_all(&question)?;
        Ok(self.line()?.parse()?)
    }
}

impl Drop for Numpy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `MICA_BENCH_PYTHON`, or the `python3` of the path.
fn python() -> String {
    std::env::var("MICA_BENCH_PYTHON").unwrap_or_else(|_| "python3".into())
}

/// A program outside of Mica: nothing of the virtual GPU's environment reaches it.
fn outside(program: &str) -> Command {
    let mut command = Command::new(program);
    for name in [
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "MICA_TOKEN",
        "MICA_HOST_SOCKET",
    ] {
        command.env_remove(name);
    }
    command
}

fn by_python(cases: &[Case]) -> Result<BTreeMap<String, f64>> {
    let python = python();
    let mut child = outside(&python)
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{python} cannot be started"))?;
    let question = serde_json::to_vec(cases)?;
    if let Some(mut input) = child.stdin.take() {
        // A program that ended already says why on its standard error.
        let _ = input.write_all(&question);
    }
    let output = child.wait_with_output()?;
    let words = String::from_utf8_lossy(&output.stderr);
    let last = words.lines().last().unwrap_or("it said nothing");
    anyhow::ensure!(output.status.success(), "{last}");
    words.lines().for_each(|line| errln!("{line}"));
    let mut answer: BTreeMap<String, serde_json::Value> = serde_json::from_slice(&output.stdout)?;
    if let Some(what) = answer.remove("") {
        errln!("compared with {}", what.as_str().unwrap_or_default());
    }
    let numbers = answer.into_iter();
    Ok(numbers
        .filter_map(|(name, time)| Some((name, time.as_f64()?)))
        .collect())
}

fn by_loop(case: &Case, folder: &Path) -> Result<f64> {
    let program = folder.join("attention");
    if !program.exists() {
        let source = folder.join("attention.c");
        std::fs::write(&source, LOOP)?;
        let status = outside("gcc")
            .args(["-O3", "-march=native", "-ffast-math", "-fopenmp", "-o"])
            .arg(&program)
            .arg(&source)
            .arg("-lm")
            .status()
            .context("gcc cannot be started")?;
        anyhow::ensure!(status.success(), "gcc failed");
    }
    let [batch, heads, rows, size] = case.shape[..] else {
        anyhow::bail!("it has no four sizes");
    };
    let numbers = [batch * heads, rows, size, usize::from(case.causal)];
    let output = outside(&program.to_string_lossy())
        .args(numbers.map(|number| number.to_string()))
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let first = text
        .split_whitespace()
        .next()
        .context("the loop said nothing")?;
    Ok(first.parse()?)
}
