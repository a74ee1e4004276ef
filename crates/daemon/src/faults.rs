//! Faults of cards: told as events, and cards that must be reset get no new programs.
//!
//! Owns what the numbers of faults mean and what follows. The driver ends the work of the process that caused a fault,
//! and that process has a worker of its own, so most faults need nothing here but words. Nothing here resets a card: only
//! an administrator knows what else runs on it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mica_control::api::{GpuKind, Severity};
use mica_wire::host::message::Role;

use crate::daemon::Daemon;
use crate::devices::DeviceFault;
use crate::registry::{Client, Registry};
use crate::watched::Watched;

/// How long a killed worker may take to end: its memory is unmapped from the card meanwhile.
const ENDING: Duration = Duration::from_secs(30);

/// What follows from a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// The driver has ended the work of one process.
    ProcessEnds,
    /// The card goes on; an administrator should know.
    Look,
    /// The card must be reset.
    Reset,
}

/// Faults by the driver's numbers, in plain words.
const KNOWN: &[(u64, &str, Then)] = &[
    (8, "the GPU stopped processing", Then::ProcessEnds),
    (
        13,
        "a kernel made an illegal access or instruction",
        Then::ProcessEnds,
    ),
    (
        31,
        "a kernel touched memory that is not mapped",
        Then::ProcessEnds,
    ),
    (32, "a corrupted command stream", Then::ProcessEnds),
    (
        43,
        "the work of a process was stopped after an error",
        Then::ProcessEnds,
    ),
    (
        45,
        "the work of a process was cleaned up after an error",
        Then::ProcessEnds,
    ),
    (46, "the GPU stopped processing", Then::Reset),
    (48, "an ECC error of two bits", Then::Reset),
    (62, "the GPU's own controller halted", Then::Reset),
    (
        63,
        "a faulty row of memory was recorded for replacement",
        Then::Look,
    ),
    (
        64,
        "a faulty row of memory could not be recorded",
        Then::Reset,
    ),
    (68, "a video decoder failed", Then::ProcessEnds),
    (
        69,
        "a kernel used the GPU's engine wrongly",
        Then::ProcessEnds,
    ),
    (74, "an error of NVLink", Then::Look),
    (79, "the GPU has fallen off the bus", Then::Reset),
    (92, "many ECC errors of one bit", Then::Look),
    (94, "an ECC error that hit one process", Then::ProcessEnds),
    (
        95,
        "an ECC error that may have hit every process",
        Then::Reset,
    ),
    (
        109,
        "the switch to another process took too long",
        Then::ProcessEnds,
    ),
    (119, "the GPU's own processor did not answer", Then::Reset),
    (120, "the GPU's own processor failed", Then::Reset),
    (140, "an ECC error that was not corrected", Then::Reset),
    (143, "the GPU could not be initialized", Then::Reset),
];

fn meaning(xid: u64) -> (&'static str, Then) {
    let known = KNOWN.iter().find(|(number, ..)| *number == xid);
    known.map_or(
        ("see the driver's list of Xid errors", Then::Look),
        |(_, words, then)| (words, *then),
    )
}

/// Tells faults, and closes cards that must be reset.
pub(crate) fn note(daemon: &Daemon, faults: Vec<DeviceFault>) {
    for fault in faults {
        note_one(daemon, fault);
    }
}

fn note_one(daemon: &Daemon, fault: DeviceFault) {
    let (words, then) = meaning(fault.xid);
    let mut registry = daemon.registry();
    let mut gpus = registry.gpus.iter();
    let Some(index) = gpus.position(|gpu| gpu.driver_index == Some(fault.index)) else {
        return;
    };
    registry.gpus[index].xid_errors += 1;
    let found = culprit(&registry, index, fault.pid);
    let vgpu = found.map(|client| client.vgpu.clone());
    // A worker stands for its program.
    let pid = found.map(|client| client.serves.map_or(client.pid, |(pid, _)| pid));
    let pid = pid.or(fault.pid);
    let whose = match (&vgpu, pid) {
        (Some(name), Some(pid)) => format!(" (process {pid} of {name})"),
        (None, Some(pid)) => format!(" (process {pid}, of no virtual GPU)"),
        _ => String::new(),
    };
    let text = format!("GPU {index}: Xid {}, {words}{whose}", fault.xid);
    let closes = then == Then::Reset && registry.gpus[index].drained.is_none();
    let why = format!(
        "Xid {}, {words}: end the programs on it, reset it (`nvidia-smi --gpu-reset -i {}`, or restart the host) and \
         restart the Mica daemon",
        fault.xid, fault.index
    );
    if closes {
        registry.gpus[index].drained = Some(why.clone());
    }
    drop(registry);
    let severity = match then {
        Then::Look => Severity::Warning,
        Then::ProcessEnds | Then::Reset => Severity::Error,
    };
    let events = &daemon.events;
    events.add(severity, "gpu_fault", vgpu.as_deref(), pid, text);
    if closes {
        let text = format!("GPU {index} takes no new programs: {why}");
        events.add(Severity::Error, "gpu_drained", None, None, text);
    }
}

/// The process of a virtual GPU that caused a fault: the one the driver names, or the only one on the card.
fn culprit(registry: &Registry, index: usize, pid: Option<u32>) -> Option<&Client> {
    let on_card = |client: &&Client| client.role != Role::Monitor && client.gpu == index;
    let mut clients = registry.clients.values().filter(on_card);
    if let Some(pid) = pid {
        return clients.find(|client| client.pid == pid);
    }
    let first = clients.next()?;
    let alone = clients.next().is_none() && registry.gpus[index].outsiders.is_empty();
    alone.then_some(first)
}

/// Workers that were killed and have not ended yet.
#[derive(Debug, Default)]
pub(crate) struct Endings(Mutex<Vec<Ending>>);

#[derive(Debug)]
struct Ending {
    process: Watched,
    vgpu: String,
    gpu: usize,
    since: Instant,
}

impl Endings {
    /// Watches the end of a card's worker whose connection has closed.
    pub(crate) fn watch(&self, process: Watched, vgpu: String, gpu: usize) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Ending {
            process,
            vgpu,
            gpu,
            since: Instant::now(),
        });
    }

    /// Why a card takes no programs: a worker on it was killed and does not end, because the driver waits for work on
    /// the card that does not end either.
    fn hung(
        &self,
        gpu: usize,
        is_alive: impl Fn(&Watched) -> bool,
        ending: Duration,
    ) -> Option<String> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|e| e.gpu != gpu || is_alive(&e.process));
        let late = all
            .iter()
            .find(|e| e.gpu == gpu && e.since.elapsed() > ending)?;
        Some(format!(
            "worker {} of {} was killed and does not end, because the card does not end its work: if it stays, reset \
             the card (`nvidia-smi --gpu-reset`) or restart the host",
            late.process.pid, late.vgpu
        ))
    }
}

/// Why each card takes no programs because of a worker that does not end.
pub(crate) fn hung(daemon: &Daemon) -> Vec<(usize, Option<String>)> {
    let cards: Vec<usize> = {
        let registry = daemon.registry();
        let all = registry.gpus.iter().enumerate();
        let cards = all.filter(|(_, gpu)| gpu.facts.kind == GpuKind::Nvidia);
        cards.map(|(index, _)| index).collect()
    };
    let why = |index| daemon.endings.hung(index, Watched::alive, ENDING);
    cards.into_iter().map(|index| (index, why(index))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_faults_of_the_whole_card_close_it() {
        for xid in [48, 62, 64, 79, 95, 119, 120] {
            assert_eq!(meaning(xid).1, Then::Reset, "{xid}");
        }
        // A program can cause these.
        for xid in [13, 31, 43, 45, 94, 109] {
            assert_eq!(meaning(xid).1, Then::ProcessEnds, "{xid}");
        }
        assert_eq!(meaning(9999).1, Then::Look);
        assert!(KNOWN.is_sorted_by_key(|(number, ..)| *number));
    }

    #[test]
    fn a_worker_that_does_not_end_closes_its_card_until_it_does() {
        let endings = Endings::default();
        let process = Watched::open(std::process::id()).unwrap();
        endings.watch(process, "team".into(), 1);
        assert_eq!(
            endings.hung(1, |_| true, ENDING),
            None,
            "it has just been killed"
        );
        assert_eq!(
            endings.hung(0, |_| true, Duration::ZERO),
            None,
            "another card"
        );
        let why = endings.hung(1, |_| true, Duration::ZERO).unwrap();
        assert!(why.contains("of team was killed"), "{why}");
        assert_eq!(endings.hung(1, |_| false, Duration::ZERO), None);
        assert_eq!(
            endings.hung(1, |_| true, Duration::ZERO),
            None,
            "it is forgotten"
        );
    }
}
