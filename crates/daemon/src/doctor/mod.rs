//! What is in force, and how that is known: the checks behind `mica doctor`.
//!
//! Everything here is read from the running system: the pages of the processes, the ledger, the driver's
//! figures, the driver's files. Whether a limit refuses is tried by the tool itself, from outside.

mod driver;
mod process;

use std::sync::atomic::Ordering::Relaxed;

use mica_control::api::{Check, Doctor, GpuKind, Verdict};
use mica_wire::host::page::client_flags;

use crate::placement::{count, size};
use crate::registry::{Client, Gpu, Registry, Vgpu};
use crate::share_check::{Second, judge};
use crate::tenant::Mechanism;

pub(crate) use driver::driver_checks;

/// Seconds of history that shares are judged by.
const MINUTE: usize = 60;

impl Registry {
    /// What is in force for the virtual GPUs that are `wanted`, and how that is known; of the GPUs, those `looked_at`.
    pub(crate) fn doctor(
        &self,
        looked_at: impl Fn(usize) -> bool,
        wanted: impl Fn(&Vgpu) -> bool,
    ) -> Doctor {
        let mut checks = Vec::new();
        let gpus = || (self.gpus.iter().enumerate()).filter(|(index, _)| looked_at(*index));
        for (index, gpu) in gpus() {
            let facts = &gpu.facts;
            let driver = facts.driver.as_ref();
            let driver = driver.map_or_else(String::new, |driver| format!(", driver {driver}"));
            let wrong = gpu.lost.as_ref().or(gpu.unshareable.as_ref());
            let wrong = wrong.or(gpu.closed());
            checks.push(Check {
                what: format!("GPU {index}"),
                vgpu: None,
                verdict: match wrong {
                    Some(_) => Verdict::Failed,
                    None => Verdict::Ok,
                },
                evidence: wrong.cloned().unwrap_or_else(|| {
                    format!("{}, {}{driver}", facts.name, size(facts.memory_total_bytes))
                }),
            });
        }
        for (index, gpu) in gpus() {
            checks.extend(outsiders(index, gpu));
        }
        for vgpu in self.vgpus.values().filter(|v| wanted(v)) {
            checks.extend(self.doctor_vgpu(vgpu));
        }
        Doctor::of(checks)
    }

    /// The checks of one virtual GPU and its processes.
    fn doctor_vgpu(&self, vgpu: &Vgpu) -> Vec<Check> {
        let mut checks = VgpuChecks::of(vgpu);
        for reason in &vgpu.reasons {
            checks.add("in force", (Verdict::Failed, reason.clone()));
        }
        let members = self.members(vgpu);
        let kind = self.kind(vgpu);
        checks.add("mechanism", mechanism(self.mechanism(vgpu), members.len()));
        checks.add("memory limit", self.memory_limit(vgpu));
        if kind == GpuKind::Nvidia {
            let evidence = driver_memory(vgpu, &members);
            checks.add("memory the driver reports", evidence);
        }
        for (_, client) in &members {
            process::check(client, kind, &mut checks);
        }
        if !vgpu.history.is_empty() {
            checks.add("share over the last minute", self.share(vgpu));
        }
        checks.done
    }

    /// What the ledger says of the memory limit.
    fn memory_limit(&self, vgpu: &Vgpu) -> (Verdict, String) {
        let (used, limit) = (vgpu.ledger.used_bytes(), vgpu.ledger.limit_bytes());
        let granted = vgpu.ledger.granted_bytes();
        let verdict = match granted <= limit {
            true => Verdict::Ok,
            false => Verdict::Warning,
        };
        let evidence = format!(
            "{} of {} in use, {} granted, {} refused so far",
            size(used),
            size(limit),
            size(granted),
            count(self.denied_total(vgpu), "request", "requests")
        );
        (verdict, evidence)
    }

    fn share(&self, vgpu: &Vgpu) -> (Verdict, String) {
        let asked = self.share_percent(vgpu);
        let others = |time: u64| -> f32 {
            let there = self.vgpus.values();
            let there = there.filter(|v| v.gpu == vgpu.gpu && v.id != vgpu.id);
            let samples =
                there.filter_map(|v| v.history.iter().rev().find(|s| s.time_seconds <= time));
            let then = samples.filter(|s| s.time_seconds == time);
            then.map(|s| s.share_measured_percent).sum()
        };
        let recent = vgpu.history.iter().rev().take(MINUTE);
        let seconds: Vec<Second> = recent
            .map(|sample| Second {
                own_percent: sample.share_measured_percent,
                others_percent: others(sample.time_seconds),
                waited_percent: sample.gate_wait_percent,
            })
            .collect();
        let found = judge(asked, vgpu.spec.cap, &seconds);
        let asked = match vgpu.spec.share_percent {
            Some(share) => format!("{share} % asked"),
            None => format!("{asked} % owed now, not reserved"),
        };
        let mut evidence = match vgpu.time_source {
            "none" => format!("{asked}, nothing has run yet"),
            source => format!(
                "{asked}, {:.1} % measured over {} s by {source}",
                found.mean_percent,
                seconds.len(),
            ),
        };
        evidence += &match &found.contended {
            None => "; never contended".to_owned(),
            Some(contended) => format!("; {}", contended.words()),
        };
        (found.verdict, evidence)
    }
}

/// Checks of one virtual GPU.
struct VgpuChecks<'a> {
    vgpu: &'a str,
    done: Vec<Check>,
}

impl<'a> VgpuChecks<'a> {
    fn of(vgpu: &'a Vgpu) -> Self {
        Self {
            vgpu: &vgpu.name,
            done: Vec::new(),
        }
    }

    fn add(&mut self, what: impl Into<String>, (verdict, evidence): (Verdict, String)) {
        self.done.push(Check {
            what: what.into(),
            vgpu: Some(self.vgpu.to_owned()),
            verdict,
            evidence,
        });
    }
}

/// What divides the time of a virtual GPU with this number of processes.
fn mechanism(name: &'static str, members: usize) -> (Verdict, String) {
    let verdict = match name == Mechanism::None.name() {
        true => Verdict::Failed,
        false => Verdict::Ok,
    };
    let evidence = match members {
        0 => "no process to divide time among yet".into(),
        pages => {
            let pages = count(pages as u64, "process", "processes");
            format!("{name}, by the pages of {pages}")
        }
    };
    (verdict, evidence)
}

/// Processes that use a GPU without Mica: nothing holds them to a share, and their memory is missing
/// from what Mica may give out.
fn outsiders(index: usize, gpu: &Gpu) -> Option<Check> {
    gpu.driver_index?;
    let who: Vec<String> = gpu
        .outsiders
        .iter()
        .map(|(pid, bytes)| {
            let name = crate::view::process_name(*pid);
            format!("process {pid} ({name}) holds {}", size(*bytes))
        })
        .collect();
    Some(Check {
        what: format!("processes outside Mica on GPU {index}"),
        vgpu: None,
        verdict: match who.is_empty() {
            true => Verdict::Ok,
            false => Verdict::Warning,
        },
        evidence: match who.is_empty() {
            true => "none, by the driver's list".into(),
            false => format!("{}; shares do not hold against it", who.join(", ")),
        },
    })
}

/// Whether the driver tells what each process holds, and whether that fits the books.
fn driver_memory(vgpu: &Vgpu, members: &[(u64, &Client)]) -> (Verdict, String) {
    let (used, limit) = (vgpu.ledger.used_bytes(), vgpu.ledger.limit_bytes());
    let beyond = vgpu.ledger.unattributed_bytes();
    let has_context = |client: &Client| {
        client.governed.page.client.flags.load(Relaxed) & client_flags::CONTEXT != 0
    };
    let silent: Vec<String> = members
        .iter()
        .filter(|(id, client)| has_context(client) && vgpu.ledger.driver_bytes(*id).is_none())
        .map(|(_, client)| client.pid.to_string())
        .collect();
    let mut text = format!(
        "{} at most against a limit of {}: {} charged, {} beyond what was charged",
        size(used + beyond),
        size(limit),
        size(used),
        size(beyond)
    );
    let tolerance = limit / 100;
    let verdict = if used + beyond > limit + tolerance {
        Verdict::Failed
    } else if !silent.is_empty() {
        text += &format!(
            "; the driver says nothing of process {} (does the daemon run in another PID namespace?), so \
             what it holds beyond its charge is not seen",
            silent.join(", ")
        );
        Verdict::Warning
    } else if beyond > tolerance {
        Verdict::Warning
    } else {
        Verdict::Ok
    };
    (verdict, text)
}
