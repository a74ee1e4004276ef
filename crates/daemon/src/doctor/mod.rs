//! What is in force, and how that is known: the checks behind `mica doctor`.
//!
//! Everything here is read from the running system: the pages of the processes, the ledger, the driver's
//! figures, the driver's files. Whether a limit refuses is tried by the tool itself, from outside.

use std::sync::atomic::Ordering::Relaxed;

use mica_control::api::{Check, Doctor, GpuKind, Verdict};
use mica_wire::host::message::Role;
use mica_wire::host::page::client_flags;

use crate::enforce::why_no_slice;
use crate::placement::{count, size};
use crate::registry::{Client, Gpu, Registry, Vgpu};
use crate::share_check::{Second, judge};
use crate::tenant::Mechanism;

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
                what: format!("gpu {index}"),
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
            self.doctor_vgpu(vgpu, &mut checks);
        }
        Doctor::of(checks)
    }

    fn doctor_vgpu(&self, vgpu: &Vgpu, checks: &mut Vec<Check>) {
        let mut check = |what: &str, verdict, evidence: String| {
            checks.push(Check {
                what: what.into(),
                vgpu: Some(vgpu.name.clone()),
                verdict,
                evidence,
            });
        };
        for reason in &vgpu.reasons {
            check("in force", Verdict::Failed, reason.clone());
        }
        let members: Vec<(u64, &Client)> = vgpu
            .clients
            .iter()
            .filter_map(|id| Some((*id, self.clients.get(id)?)))
            .filter(|(_, client)| client.role != Role::Monitor)
            .collect();
        let mechanism = self.mechanism(vgpu);
        check(
            "mechanism",
            if mechanism == Mechanism::None.name() {
                Verdict::Failed
            } else {
                Verdict::Ok
            },
            match members.len() {
                0 => "no process to divide time among yet".into(),
                pages => {
                    let pages = count(pages as u64, "process", "processes");
                    format!("{mechanism}, by the pages of {pages}")
                }
            },
        );
        let (used, limit) = (vgpu.ledger.used_bytes(), vgpu.ledger.limit_bytes());
        let granted = vgpu.ledger.granted_bytes();
        check(
            "memory limit",
            if granted <= limit {
                Verdict::Ok
            } else {
                Verdict::Warning
            },
            format!(
                "{} of {} in use, {} granted, {} refused so far",
                size(used),
                size(limit),
                size(granted),
                count(self.denied_total(vgpu), "request", "requests")
            ),
        );
        if self.kind(vgpu) == GpuKind::Nvidia {
            let (verdict, evidence) = driver_memory(vgpu, &members);
            check("memory the driver reports", verdict, evidence);
        }
        for (_, client) in &members {
            if self.kind(vgpu) == GpuKind::Nvidia {
                let (verdict, evidence) = slice(client);
                let what = format!("hardware slice of process {}", client.pid);
                check(&what, verdict, evidence);
            }
            if client.role == Role::Worker {
                let (verdict, evidence) = match &client.confinement {
                    Some(confinement) => confinement.verdict(),
                    None => (Verdict::Failed, "the worker is not confined".into()),
                };
                let what = format!("confinement of worker {}", client.pid);
                check(&what, verdict, evidence);
                if self.kind(vgpu) == GpuKind::Nvidia {
                    let what = format!("kernels and the memory of worker {}", client.pid);
                    let evidence = "HMM is switched off in the worker: a worker whose GPU offers it does not serve";
                    check(&what, Verdict::Ok, evidence.into());
                }
            }
            if client.governed.undrained.load(Relaxed) {
                let overruns = client.governed.overruns.load(Relaxed);
                check(
                    &format!("work of process {}", client.pid),
                    Verdict::Warning,
                    format!(
                        "does not drain: {overruns} leases were taken away while it ran on, so it has none for a \
                         while; its time is divided by {}{}",
                        Mechanism::from_number(client.governed.mechanism.load(Relaxed)).name(),
                        match client.governed.held_by_stops.load(Relaxed) {
                            true => ", its cap held by stopping and starting it",
                            false => "",
                        }
                    ),
                );
            }
            if !client.refused_requests.is_empty() {
                let numbers: Vec<&str> =
                    client.refused_requests.iter().map(String::as_str).collect();
                check(
                    &format!("driver requests of worker {}", client.pid),
                    Verdict::Warning,
                    format!(
                        "refused by the worker's filter: {}; calls that need them fail",
                        numbers.join(", ")
                    ),
                );
            }
            let unknown = client.governed.page.client.unknown_symbols.load(Relaxed);
            if unknown > 0 || !client.unknown_names.is_empty() {
                let names: Vec<&str> = client.unknown_names.iter().map(String::as_str).collect();
                check(
                    &format!("entry points of process {}", client.pid),
                    Verdict::Warning,
                    format!(
                        "{unknown} looked up that this Mica does not know and that may allocate or launch: {}",
                        names.join(", ")
                    ),
                );
            }
        }
        if !vgpu.history.is_empty() {
            let (verdict, evidence) = self.share(vgpu);
            check("share over the last minute", verdict, evidence);
        }
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
        what: format!("processes outside Mica on gpu {index}"),
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

/// The slice of one process: asked and read back.
fn slice(client: &Client) -> (Verdict, String) {
    let page = &client.governed.page;
    let flags = page.client.flags.load(Relaxed);
    let asked = page.commands.slice_us.load(Relaxed);
    let read = page.client.slice_read_us.load(Relaxed);
    let status = page.client.slice_status.load(Relaxed);
    if flags & client_flags::CONTEXT == 0 {
        return (Verdict::Unknown, "no context yet".into());
    }
    if flags & client_flags::SLICE_CONTROL == 0 {
        let gated = flags & client_flags::GATE_CONTROL != 0;
        let text = format!("slices cannot be set ({})", why_no_slice(status));
        return match gated {
            true => (Verdict::Warning, format!("{text}; leases are used instead")),
            false => (Verdict::Failed, format!("{text} and there is no gate")),
        };
    }
    match asked {
        0 => (
            Verdict::Ok,
            format!("the driver's own, {read} µs read back"),
        ),
        _ if asked == read => (
            Verdict::Ok,
            format!("{asked} µs asked, {read} µs read back"),
        ),
        _ => (
            Verdict::Warning,
            format!("{asked} µs asked, {read} µs read back (status {status})"),
        ),
    }
}

/// Facts about the driver on this host, as checks; none where there is no driver. Reads files, so the
/// registry's lock must not be held.
pub(crate) fn driver_checks() -> Vec<Check> {
    let mut checks = Vec::new();
    let mut check = |what: &str, verdict, evidence| {
        checks.push(Check {
            what: what.into(),
            vgpu: None,
            verdict,
            evidence,
        });
    };
    if let Ok(text) = std::fs::read_to_string("/proc/driver/nvidia/version") {
        let (verdict, evidence) = kernel_module(&text);
        check("kernel module", verdict, evidence);
    }
    let entry_points = mica_backend_cuda::symbols::unknown_entry_points();
    if let Some(why) = crate::nvidia::absent() {
        // Where there is no driver at all, nobody expects a card of it.
        let verdict = match entry_points {
            Some(_) => Verdict::Warning,
            None => Verdict::Ok,
        };
        check("NVIDIA GPUs", verdict, format!("none: {why}"));
    }
    if let Some((path, unknown)) = entry_points {
        let path = path.display();
        if unknown.is_empty() {
            let text =
                format!("{path} exports nothing that allocates or launches and is not known");
            check("entry points of the driver", Verdict::Ok, text);
        } else {
            let text = format!(
                "{path} exports {} that may allocate or launch and that this Mica does not know: {}",
                unknown.len(),
                unknown.join(", ")
            );
            check("entry points of the driver", Verdict::Warning, text);
        }
    }
    checks
}

fn kernel_module(text: &str) -> (Verdict, String) {
    let line = text.lines().next().unwrap_or_default().trim();
    let line = line.split_once(':').map_or(line, |(_, rest)| rest.trim());
    let words: Vec<&str> = line.split_whitespace().collect();
    if line.contains("Open Kernel Module") {
        (Verdict::Ok, format!("open: {}", words.join(" ")))
    } else {
        let text = format!(
            "closed: {} (slices are proven on the open one)",
            words.join(" ")
        );
        (Verdict::Warning, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_and_closed_modules_are_told_apart() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release\nGCC version: 12\n";
        let (verdict, text) = kernel_module(open);
        assert_eq!(verdict, Verdict::Ok);
        assert!(text.starts_with("open: NVIDIA UNIX"), "{text}");
        assert!(text.contains("580.95.05"), "{text}");
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n";
        assert_eq!(kernel_module(closed).0, Verdict::Warning);
    }
}
