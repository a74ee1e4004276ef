//! Runs the conformance suite on a real GPU, each case in a process of its own: a fault ends CUDA for
//! the whole process, and a case that hangs must not take the others with it.
//!
//!     cargo run --release -p mica-backend-cuda --features conformance --example conformance
//!
//! `--case NAME` runs one case here; `--seconds N` is how long a case may take, `--jobs N` how many run at once.

use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use mica_backend_cuda::{CudaDriver, CudaGpu};
use mica_gpu::conformance::{Fixture, Problem, Ptx, cases};

/// The suite's kernels on NVIDIA's driver, where a fault ends the whole process's use of the device.
struct Nvidia;

impl Fixture for Nvidia {
    fn kernels(&self) -> Vec<u8> {
        Ptx.kernels()
    }
    fn large_params(&self) -> Vec<u8> {
        Ptx.large_params()
    }
    fn contains_faults(&self) -> bool {
        false
    }
}

fn option(name: &str) -> Option<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1)
}

/// Runs one case and says how it went.
fn one(name: &str) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let case = cases().into_iter().find(|case| case.name == name);
    let case = case.ok_or_else(|| format!("there is no case {name}"))?;
    let gpu = CudaGpu::open(CudaDriver::load()?, 0)?;
    Ok(match case.run(&gpu, &Nvidia) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Problem::Skipped(why)) => {
            println!("{why}");
            ExitCode::from(77)
        }
        Err(Problem::Wrong(why)) => {
            println!("{why}");
            ExitCode::FAILURE
        }
    })
}

/// Runs one case in another process; what it said, and how it ended.
fn apart(name: &str, limit: Duration) -> std::io::Result<(String, &'static str)> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--case", name])
        // Kernels that the driver loads at their first launch wait there for streams that a case holds, as natively.
        .env("CUDA_MODULE_LOADING", "EAGER")
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()?;
    let begun = Instant::now();
    let ended = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if begun.elapsed() > limit => {
                child.kill()?;
                child.wait()?;
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let mut said = String::new();
    if let Some(mut output) = child.stdout.take() {
        std::io::Read::read_to_string(&mut output, &mut said)?;
    }
    let verdict = match ended.map(|status| status.code()) {
        Some(Some(0)) => "ok",
        Some(Some(77)) => "skip",
        Some(Some(_)) => "WRONG",
        Some(None) => "DIED",
        None => "HUNG",
    };
    Ok((said.trim().to_owned(), verdict))
}

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    if let Some(name) = option("--case") {
        return one(&name);
    }
    let seconds = option("--seconds").map_or(Ok(20), |text| text.parse())?;
    let jobs: usize = option("--jobs").map_or(Ok(1), |text| text.parse())?;
    let all = cases();
    let next = AtomicUsize::new(0);
    let results: Vec<_> = all.iter().map(|_| OnceLock::new()).collect();
    std::thread::scope(|threads| {
        for _ in 0..jobs.max(1) {
            threads.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    let (Some(case), Some(result)) = (all.get(number), results.get(number)) else {
                        return;
                    };
                    let _ = result.set(apart(case.name, Duration::from_secs(seconds)));
                }
            });
        }
    });
    let mut bad = 0;
    for (case, result) in all.iter().zip(&results) {
        let (said, verdict) = match result.get() {
            Some(Ok((said, verdict))) => (said.clone(), *verdict),
            Some(Err(error)) => (error.to_string(), "FAILED"),
            None => (String::new(), "LOST"),
        };
        println!("{verdict:<5} {} {said}", case.name);
        bad += usize::from(!matches!(verdict, "ok" | "skip"));
    }
    println!("{} cases, {bad} bad", all.len());
    Ok(ExitCode::from(u8::from(bad > 0)))
}
