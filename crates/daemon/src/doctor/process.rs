//! What is in force for one process of a virtual GPU.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use mica_control::api::{GpuKind, Verdict};
use mica_wire::host::message::Role;
use mica_wire::host::page::client_flags;

use super::VgpuChecks;
use crate::enforce::why_no_slice;
use crate::registry::Client;
use crate::tenant::Mechanism;

/// Checks one process; `kind` is the kind of its GPU.
pub(super) fn check(client: &Client, kind: GpuKind, checks: &mut VgpuChecks<'_>) {
    let pid = client.pid;
    if kind == GpuKind::Nvidia {
        checks.add(format!("hardware slice of process {pid}"), slice(client));
    }
    if client.role == Role::Worker {
        let confinement = match &client.confinement {
            Some(confinement) => confinement.verdict(),
            None => (Verdict::Failed, "the worker is not confined".into()),
        };
        checks.add(format!("confinement of worker {pid}"), confinement);
        if kind == GpuKind::Nvidia {
            let evidence =
                "HMM is switched off in the worker: a worker whose GPU offers it does not serve";
            let what = format!("kernels and the memory of worker {pid}");
            checks.add(what, (Verdict::Ok, evidence.into()));
        }
    }
    if client.governed.undrained.load(Relaxed) {
        let work = (Verdict::Warning, undrained(client));
        checks.add(format!("work of process {pid}"), work);
    }
    if !client.refused_requests.is_empty() {
        let evidence = format!(
            "refused by the worker's filter: {}; calls that need them fail",
            listed(&client.refused_requests)
        );
        let what = format!("driver requests of worker {pid}");
        checks.add(what, (Verdict::Warning, evidence));
    }
    let unknown = client.governed.page.client.unknown_symbols.load(Relaxed);
    if unknown > 0 || !client.unknown_names.is_empty() {
        let evidence = format!(
            "{unknown} looked up that this Mica does not know and that may allocate or launch: {}",
            listed(&client.unknown_names)
        );
        let what = format!("entry points of process {pid}");
        checks.add(what, (Verdict::Warning, evidence));
    }
}

fn listed(names: &BTreeSet<String>) -> String {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.join(", ")
}

/// What is done with a process whose work does not drain.
fn undrained(client: &Client) -> String {
    let governed = &client.governed;
    let overruns = governed.overruns.load(Relaxed);
    let mechanism = Mechanism::from_number(governed.mechanism.load(Relaxed)).name();
    let cap = match governed.held_by_stops.load(Relaxed) {
        true => ", its cap held by stopping and starting it",
        false => "",
    };
    format!(
        "does not drain: {overruns} leases were taken away while it ran on, so it has none for a \
         while; its time is divided by {mechanism}{cap}"
    )
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
