//! What the confinement of workers costs: their start and their memory, with and without.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use mica_control::api::ProcessInfo;

use super::report::{Line, Report};
use super::resident_bytes_of;
use super::software::median;
use crate::demo::private_daemon::{PrivateDaemon, TenantProcess};
use crate::demo::tenant::Ask;
use mica_command::refusal::explain;

/// Workers started on each side, after one that is not counted.
const STARTS: usize = 15;
/// Most that a confined start may take longer.
const MOST_OVER_MS: f64 = 20.0;

/// One daemon, and what its workers took.
struct Side {
    daemon: PrivateDaemon,
    confine: bool,
    starts_ms: Vec<f64>,
    /// Of a worker and, where it is confined, of the process around it.
    resident_mb: Vec<f64>,
    layers: usize,
}

impl Side {
    fn new(confine: bool) -> Result<Self> {
        let workers = format!("[workers]\nconfine = {confine}\n");
        Ok(Self {
            daemon: PrivateDaemon::set_up_with(1 << 30, &workers)?,
            confine,
            starts_ms: Vec::new(),
            resident_mb: Vec::new(),
            layers: 0,
        })
    }

    /// Starts a worker by a first session of a new virtual GPU, and ends it.
    fn start(&mut self, round: usize) -> Result<()> {
        let name = format!("start-{round}");
        let created = self.daemon.vgpu(&name, 64 << 20, 50)?;
        let began = Instant::now();
        // A process of its own: the removal of a virtual GPU kills the programs in it.
        let mut program = TenantProcess::start(&created)?;
        program.ask(Ask::Sample)?;
        // Answered by the worker, not by what the handshake brought along.
        program.answer()?;
        let took_ms = began.elapsed().as_secs_f64() * 1e3;
        let worker = self.worker(&name)?;
        self.layers = worker.confinement.map_or(0, |c| c.applied.len());
        let pid = worker.worker_pid.unwrap_or(worker.pid);
        let resident_mb = self.resident_mb(pid)?;
        drop(program);
        self.daemon.client.remove(&name, true).map_err(explain)?;
        // The first start reads files that later ones find in memory.
        if round > 0 {
            self.starts_ms.push(took_ms);
            self.resident_mb.push(resident_mb);
        }
        Ok(())
    }

    fn worker(&self, name: &str) -> Result<ProcessInfo> {
        let vgpus = self.daemon.client.list().map_err(explain)?;
        let processes = vgpus.into_iter().filter(|vgpu| vgpu.name == name);
        let mut processes = processes.flat_map(|vgpu| vgpu.processes);
        let worker = processes.find(|process| process.worker().is_some());
        worker.with_context(|| format!("the daemon knows no worker of {name}"))
    }

    /// A worker in a process namespace of its own is the child of a process that waits for its end.
    fn resident_mb(&self, worker: u32) -> Result<f64> {
        let parent = parent_of(worker)?;
        let mut bytes = resident_bytes_of(worker)?;
        if parent != self.daemon.daemon_pid() {
            bytes += resident_bytes_of(parent)?;
        }
        Ok(bytes as f64 / 1e6)
    }
}

pub(super) fn run(report: &mut Report) -> Result<()> {
    let mut sides = [Side::new(false)?, Side::new(true)?];
    for round in 0..=STARTS {
        // Neither side is always the one that comes after the other's end.
        if round % 2 == 1 {
            sides.reverse();
        }
        for side in &mut sides {
            side.start(round)?;
        }
    }
    sides.sort_by_key(|side| side.confine);
    let [open, confined] = sides;
    ensure!(open.layers == 0, "a worker that is not to be confined is");
    if confined.layers == 0 {
        errln!("the confinement of workers is not measured: none of its layers works here");
        return Ok(());
    }
    let (before, after) = (median(open.starts_ms), median(confined.starts_ms));
    let over = after - before;
    report.add(Line {
        what: "worker start, program's start to its first answer, confined".into(),
        native: format!("{before:.1} ms not confined"),
        mica: format!("{after:.1} ms ({over:+.1}), {} layers", confined.layers),
        goal: format!("≤ +{MOST_OVER_MS} ms"),
        reached: Some(over <= MOST_OVER_MS),
    });
    let (before, after) = (median(open.resident_mb), median(confined.resident_mb));
    report.add(Line {
        what: "memory of an idle confined worker and the process around it".into(),
        native: format!("{before:.1} MB not confined"),
        mica: format!("{after:.1} MB ({:+.1})", after - before),
        goal: "-".into(),
        reached: None,
    });
    Ok(())
}

/// The parent of a process, by its number.
fn parent_of(pid: u32) -> Result<u32> {
    let file = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&file).with_context(|| format!("{file} cannot be read"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("PPid:"));
    let parent = line.and_then(|number| number.trim().parse().ok());
    parent.with_context(|| format!("{file} names no parent"))
}
