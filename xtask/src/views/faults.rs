//! Each alert fired once by a real fault, and cleared by what an administrator would do.
//!
//! Faults that only a card can have come from a stand-in for NVML: a file says what the driver reports.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::prometheus::{Door, Prometheus};
use super::stage::{Stage, TENANTS};
use crate::command::root;

/// Tenants with too little memory, and one that waits.
pub(super) fn of_tenants(prometheus: &Prometheus, stage: &mut Stage) -> Result<()> {
    prometheus.alert("MicaMemoryAlmostFull", false)?;
    let used = stage.json(&["show", "embeddings", "--json"])?["memory_used_bytes"]
        .as_u64()
        .unwrap_or(0);
    let tight = format!("{}KiB", (used as f64 / 0.95 / 1024.0) as u64);
    stage.run(&["resize", "embeddings", "--memory", &tight])?;
    prometheus.alert("MicaMemoryAlmostFull", true)?;
    stage.run(&["resize", "embeddings", "--memory", "512MiB"])?;
    prometheus.alert("MicaMemoryAlmostFull", false)?;

    // A program that wants more than its limit; it and its virtual GPU are gone before the second scrape.
    prometheus.alert("MicaAllocationsRefused", false)?;
    let mica = stage.mica().display().to_string();
    let greedy = load("latency", 1000, 1, 3, 400);
    let words = [
        "run", "--name", "greedy", "-m", "64MiB", "--", &mica, "load", &greedy,
    ];
    let refused = stage.run(&words);
    ensure!(refused.is_err(), "400 MiB of 64 were not refused");
    stage.run(&["create", "kept", "-m", "64MiB"])?;
    let words = ["exec", "kept", "--", &mica, "load", &greedy];
    ensure!(stage.run(&words).is_err(), "400 MiB of 64 were not refused");
    prometheus.alert("MicaAllocationsRefused", true)?;
    stage.run(&["rm", "kept"])?;
    prometheus.alert("MicaAllocationsRefused", false)?;
    starving(prometheus, stage)
}

/// One that wants its guaranteed share and waits most of the time, until the others are suspended.
fn starving(prometheus: &Prometheus, stage: &mut Stage) -> Result<()> {
    let others: Vec<&str> = TENANTS.iter().map(|tenant| tenant.name).collect();
    let mica = stage.mica().display().to_string();
    let load = load("latency", 3000, 1, 600, 0);
    let words = [
        "run",
        "--name",
        "starved",
        "-m",
        "64MiB",
        "-s",
        "12",
        "--priority",
        "low",
        "--",
        &mica,
        "load",
        &load,
    ];
    stage.begin(&words)?;
    prometheus.alert("MicaStarving", true)?;
    for name in &others {
        // One of them may have been cancelled by an earlier check.
        let _ = stage.run(&["suspend", name]);
    }
    prometheus.alert("MicaStarving", false)?;
    for name in &others {
        let _ = stage.run(&["resume", name]);
    }
    stage.run(&["rm", "starved", "--force"]).map(drop)
}

/// A daemon that is killed, and one that is replaced.
pub(super) fn of_the_daemon(prometheus: &Prometheus, stage: &mut Stage) -> Result<()> {
    prometheus.alert("MicaDown", false)?;
    prometheus.alert("MicaDaemonRestarted", false)?;
    stage.kill_daemon()?;
    prometheus.alert("MicaDown", true)?;
    stage.start_daemon()?;
    prometheus.alert("MicaDown", false)?;
    prometheus.alert("MicaDaemonRestarted", true)?;
    prometheus.alert("MicaDaemonRestarted", false)
}

/// A card that stops, a program that strays from its limits, memory that nobody was charged for.
pub(super) fn of_the_card(prometheus: &Prometheus, card: &mut Card) -> Result<()> {
    // A fault of a program, after which the card goes on.
    for name in ["MicaXid", "MicaGpuUnusable"] {
        prometheus.alert(name, false)?;
    }
    card.tells(31, 0, 0, 0)?;
    prometheus.alert("MicaXid", true)?;
    card.tells(0, 0, 0, 0)?;
    prometheus.alert("MicaXid", false)?;
    prometheus.alert("MicaGpuUnusable", false)?;
    card.tells(79, 0, 0, 0)?;
    prometheus.alert("MicaGpuUnusable", true)?;
    // The card was reset and its daemon restarted.
    card.tells(0, 0, 0, 0)?;
    card.stage.restart_daemon()?;
    prometheus.alert("MicaGpuUnusable", false)?;

    prometheus.alert("MicaLimitDegraded", false)?;
    let words = [
        "run", "--name", "strays", "--gpu", "0", "-m", "8GiB", "--", "sleep", "900",
    ];
    let run = card.stage.begin(&words)?;
    let stray = child_of(run)?;
    card.tells(0, 0, stray, 1 << 30)?;
    prometheus.alert("MicaLimitDegraded", true)?;
    card.tells(0, 0, 0, 0)?;
    prometheus.alert("MicaLimitDegraded", false)?;
    card.stage.run(&["rm", "strays", "--force"])?;

    for name in ["MicaLedgerMismatch", "MicaDriverOverhead"] {
        prometheus.alert(name, false)?;
    }
    let holder = card.holder.display().to_string();
    let words = "run --name swells --gpu 0 --mode isolated -m 24GiB --";
    let words: Vec<&str> = words.split(' ').chain([holder.as_str()]).collect();
    card.stage.begin(&words)?;
    let worker = card.worker_of("swells")?;
    card.tells(0, 0, worker, 20 << 30)?;
    for name in ["MicaLedgerMismatch", "MicaDriverOverhead"] {
        prometheus.alert(name, true)?;
    }
    card.tells(0, 0, worker, 1 << 20)?;
    for name in ["MicaLedgerMismatch", "MicaDriverOverhead"] {
        prometheus.alert(name, false)?;
    }
    Ok(())
}

fn load(pattern: &str, iterations: u32, depth: u32, seconds: u32, hold_mib: u32) -> String {
    json!({
        "pattern": pattern, "iterations": iterations, "depth": depth,
        "start_unix_ms": 0, "seconds": seconds, "hold_mib": hold_mib,
    })
    .to_string()
}

/// A program that has a context and holds some memory.
const HOLDER: &str = r#"
#include <dlfcn.h>
#include <unistd.h>
int main(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context = 0;
    if (!driver) return 1;
    int (*init)(unsigned) = dlsym(driver, "cuInit");
    int (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*current)(void *) = dlsym(driver, "cuCtxSetCurrent");
    int (*alloc)(unsigned long long *, unsigned long) = dlsym(driver, "cuMemAlloc_v2");
    unsigned long long address;
    if (init(0) || retain(&context, 0) || current(context) || alloc(&address, 1 << 20)) return 2;
    sleep(900);
    return 0;
}
"#;

/// A daemon on a host whose driver says what a file says.
pub(super) struct Card {
    stage: Stage,
    file: PathBuf,
    holder: PathBuf,
}

impl Card {
    pub(super) fn start(mica: &Path, folder: &Path, door: &Door) -> Result<Self> {
        let file = folder.join("driver");
        std::fs::write(&file, "0 0 0 0")?;
        let nvml = folder.join("libnvidia-ml.so.1");
        let steered = format!("-DSTEERED=\"{}\"", file.display());
        compile(
            "fake_nvml.c",
            &nvml,
            &["-DUNIT=(1ull<<30)", "-DCUDA=13000", &steered],
        )?;
        let cuda = folder.join("libcuda.so.1");
        compile("fake_cuda.c", &cuda, &["-std=gnu11"])?;
        let (source, holder) = (folder.join("holder.c"), folder.join("holder"));
        std::fs::write(&source, HOLDER)?;
        let mut cc = Command::new("cc");
        cc.arg("-w").arg(&source).arg("-o").arg(&holder).arg("-ldl");
        ensure!(cc.status().context("cc")?.success(), "cc builds no program");
        // The stand-in for the driver is not where a worker may look.
        let worker = format!(
            "[workers]\nwithout = [\"user\", \"files\", \"landlock\"]\n[daemon]\nworker_command = [\"env\", \"FAKE_KERNEL_US=50\", \"MICA_LIBCUDA={}\", \"{}\", \"worker\"]\n{}",
            cuda.display(),
            mica.display(),
            door.section()
        );
        let environment = vec![("MICA_LIBNVML", nvml), ("MICA_LIBCUDA", cuda)];
        let stage = Stage::start_with(mica, &folder.join("stage"), &worker, environment)?;
        Ok(Self {
            stage,
            file,
            holder,
        })
    }

    /// What the driver reports from now on: a fault of GPU 1, its compute mode, a process on GPU 0 and its bytes.
    fn tells(&self, xid: u64, mode: u64, pid: u64, bytes: u64) -> Result<()> {
        let part = self.file.with_extension("part");
        std::fs::write(&part, format!("{xid} {mode} {pid} {bytes}"))?;
        Ok(std::fs::rename(part, &self.file)?)
    }

    /// The process of a virtual GPU that uses the card.
    fn worker_of(&self, name: &str) -> Result<u64> {
        let pid = || {
            let shown = self.stage.json(&["show", name, "--json"]).ok()?;
            shown["processes"][0]["worker_pid"].as_u64()
        };
        eventually(pid).with_context(|| format!("no worker serves {name}"))
    }
}

/// The first child of a process.
fn child_of(pid: u32) -> Result<u64> {
    let child = || {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        children.split(' ').next()?.parse().ok()
    };
    eventually(child).with_context(|| format!("process {pid} has no child"))
}

fn eventually<T>(mut get: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..600 {
        if let Some(found) = get() {
            return Some(found);
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    None
}

fn compile(source: &str, library: &Path, options: &[&str]) -> Result<()> {
    let built = Command::new("cc")
        .args(["-w", "-shared", "-fPIC"])
        .args(options)
        .arg("-o")
        .arg(library)
        .arg(root().join("crates/backend-cuda/tests").join(source))
        .status()
        .context("cc")?;
    ensure!(built.success(), "cc does not build {source}");
    Ok(())
}
