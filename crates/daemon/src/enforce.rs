//! Whether what is configured is in force, and what is done when it is not.
//!
//! ```text
//!   create, hello    limits the mode cannot hold at all        refused
//!   hello (resumed)  a context that neither mechanism reaches  refused
//!   each second      the same, seen in the page                ended, its death frees everything
//!   each second      a GPU process of the virtual GPU that     degraded, and an event
//!                    never joined
//!   each second      a context whose slice cannot be set        an event: leases divide its time instead
//!   each second      work that does not drain                  an event; degraded if only leases would hold
//!                                                              its share or cap
//! ```
//! With `allow_degraded` nothing is refused or ended: the reason stands in every view instead. Whether
//! slices can be set is only known once there is a context, so a process without any mechanism is ended
//! then, as removing its virtual GPU by force would: it cannot be asked to stop what it queued already.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use mica_control::api::{GpuKind, Mode, PrecisionPolicy, Severity, VgpuSpec};
use mica_wire::host::message::Role;
use mica_wire::host::page::{ClientPage, client_flags};

use crate::registry::Registry;
use crate::tenant::Mechanism;

const NO_SHARE: &str = "the share is not in force";
const UNDRAINED: &str = "its work does not drain";
const OUTSIDE: &str = "uses the GPU outside its limits";
/// How far up a process's parents are followed.
const MOST_PARENTS: usize = 64;

/// Something to tell: how bad, what kind, which virtual GPU, which process, the sentence.
pub(crate) type Notice = (Severity, &'static str, String, u32, String);

/// Where the engine runs if this was asked for on such a GPU.
pub(crate) fn mode_on(asked: Option<Mode>, kind: GpuKind) -> Mode {
    match (asked, kind) {
        (_, GpuKind::Software) => Mode::Isolated,
        (asked, GpuKind::Nvidia) => asked.unwrap_or(Mode::Direct),
    }
}

/// The limits of a specification that nothing can enforce on such a GPU, as sentences.
pub(crate) fn unenforceable(spec: &VgpuSpec, kind: GpuKind) -> Vec<String> {
    let mut all = Vec::new();
    if kind == GpuKind::Software {
        return all;
    }
    let mut software = |what: &str| all.push(format!("{what} needs the software GPU"));
    if spec.coverage {
        software("coverage of kernels");
    }
    if spec.seed.is_some() {
        software("a fixed order of blocks (seed)");
    }
    if spec.cores.is_some() {
        software("a number of cores");
    }
    if spec.capability.is_some() {
        software("a compute capability");
    }
    // A worker counts streams, and gives the driver no code but PTX that it has judged.
    if mode_on(spec.mode, kind) == Mode::Isolated {
        return all;
    }
    let mut add = |what: &str| all.push(format!("{what} cannot be enforced in direct mode"));
    if spec.check.is_some() {
        add("a check of kernels");
    }
    if spec.max_streams.is_some() {
        add("a limit on streams");
    }
    if !spec.tensor_cores {
        add("a ban on tensor cores");
    }
    if spec.precision_policy == PrecisionPolicy::Full {
        add("full precision");
    }
    all
}

/// What to do about limits that [`unenforceable`] names.
pub(crate) fn remedy(spec: &VgpuSpec) -> &'static str {
    let kernels = spec.coverage || spec.seed.is_some() || spec.cores.is_some();
    match kernels || spec.capability.is_some() {
        true => "use the software GPU",
        false => "use isolated mode, or allow it to be degraded",
    }
}

/// Why a process's share is not in force, if it has a context and no mechanism reaches it.
pub(crate) fn without_mechanism(page: &ClientPage) -> Option<String> {
    let flags = page.client.flags.load(Acquire);
    let has = |bit| flags & bit != 0;
    let reached = has(client_flags::SLICE_CONTROL) || has(client_flags::GATE_CONTROL);
    (has(client_flags::CONTEXT) && !reached).then(|| {
        let why = why_no_slice(page.client.slice_status.load(Relaxed));
        format!("slices cannot be set ({why}) and its submissions pass no gate")
    })
}

/// Why a process's slice cannot be set, by the number it gives for that (`RmError::code` of `mica_rm`).
pub(crate) fn why_no_slice(status: i32) -> String {
    match status {
        0 => "not tried yet".into(),
        i32::MIN => "its channel groups on the GPU are not to be seen".into(),
        _ if status < 0 => std::io::Error::from_raw_os_error(-status).to_string(),
        _ => format!("the driver refused it with status {status:#x}"),
    }
}

/// Tells once of each process whose slices cannot be set, so that leases divide its time instead.
pub(crate) fn check_slices(registry: &mut Registry, news: &mut Vec<Notice>) {
    let Registry {
        vgpus,
        clients,
        gpus,
        ..
    } = &mut *registry;
    for client in clients.values_mut() {
        let vgpu = vgpus.get(&client.vgpu);
        let gpu = vgpu.and_then(|vgpu| gpus.get(vgpu.gpu));
        let client_page = &client.governed.page.client;
        let flags = client_page.flags.load(Acquire);
        let has = |bit| flags & bit != 0;
        let status = client_page.slice_status.load(Relaxed);
        let refused = gpu.is_some_and(|gpu| gpu.facts.kind == GpuKind::Nvidia)
            && has(client_flags::CONTEXT)
            && has(client_flags::GATE_CONTROL)
            && !has(client_flags::SLICE_CONTROL)
            && status != 0;
        if refused && !std::mem::replace(&mut client.told_unsliced, true) {
            let (pid, why) = (client.pid, why_no_slice(status));
            let text = format!(
                "hardware slices of process {pid} cannot be set ({why}): leases divide its time instead"
            );
            news.push((
                Severity::Warning,
                "slices_refused",
                client.vgpu.clone(),
                pid,
                text,
            ));
        }
        if has(client_flags::SLICE_CONTROL) {
            client.told_unsliced = false;
        }
    }
}

/// Ends or marks processes that no mechanism reaches.
pub(crate) fn check_shares(registry: &mut Registry, news: &mut Vec<Notice>) {
    let Registry { vgpus, clients, .. } = &mut *registry;
    for vgpu in vgpus.values_mut() {
        let mut reasons = Vec::new();
        for id in &vgpu.clients {
            let Some(client) = clients.get_mut(id) else {
                continue;
            };
            let why = match client.role {
                Role::Monitor => None,
                _ => without_mechanism(&client.governed.page),
            };
            let Some(why) = why else {
                client.without_mechanism = false;
                continue;
            };
            // A second look: a process says that it has a context before its slice has been tried.
            if !std::mem::replace(&mut client.without_mechanism, true) {
                continue;
            }
            let pid = client.pid;
            reasons.push((pid, format!("{NO_SHARE} for process {pid}: {why}")));
            if !vgpu.spec.allow_degraded
                && let Some(process) = &client.process
            {
                process.kill();
                news.push((
                    Severity::Error,
                    "process_refused",
                    vgpu.name.clone(),
                    pid,
                    format!("process {pid} was ended, its share cannot be enforced: {why}"),
                ));
            }
        }
        replace(vgpu, NO_SHARE, reasons, news);
    }
}

/// Tells of processes that are given no leases because their work does not drain, and marks them where leases are
/// all that holds a limit.
pub(crate) fn check_drains(registry: &mut Registry, news: &mut Vec<Notice>) {
    let Registry { vgpus, clients, .. } = &mut *registry;
    for vgpu in vgpus.values_mut() {
        let mut reasons = Vec::new();
        for id in &vgpu.clients {
            let Some(client) = clients.get_mut(id) else {
                continue;
            };
            let pid = client.pid;
            let undrained = client.governed.undrained.load(Acquire);
            let before = std::mem::replace(&mut client.undrained, undrained);
            let mechanism = Mechanism::from_number(client.governed.mechanism.load(Relaxed));
            let stops = client.governed.held_by_stops.load(Relaxed);
            let is_unheld = (vgpu.spec.cap && !stops) || mechanism == Mechanism::None;
            if undrained && is_unheld {
                let what = if vgpu.spec.cap { "cap" } else { "share" };
                let text = format!("the {what} is not in force for process {pid}: {UNDRAINED}");
                reasons.push((pid, text));
            }
            if let Some((severity, kind, text)) =
                drain_news(pid, (before, undrained), is_unheld, stops)
            {
                news.push((severity, kind, vgpu.name.clone(), pid, text));
            }
        }
        replace(vgpu, UNDRAINED, reasons, news);
    }
}

/// What is told when a process stops or begins to drain (`before`, `now`); where nothing holds its limit, that is a reason
/// of its virtual GPU and not told here.
fn drain_news(
    pid: u32,
    (before, now): (bool, bool),
    is_unheld: bool,
    stops: bool,
) -> Option<(Severity, &'static str, String)> {
    match (before, now) {
        (false, true) if !is_unheld => {
            let how = match stops {
                true => "its cap is held by stopping and starting it",
                false => "hardware slices divide its time",
            };
            let text = format!(
                "process {pid} is given no leases for a while: {UNDRAINED} when they end; {how}"
            );
            Some((Severity::Warning, "process_undrained", text))
        }
        (true, false) => {
            let text = format!("process {pid} drains again and is given leases");
            Some((Severity::Info, "process_drained", text))
        }
        _ => None,
    }
}

/// Puts these reasons in the place of the earlier ones of their kind.
pub(crate) fn replace(
    vgpu: &mut crate::registry::Vgpu,
    kind: &str,
    reasons: Vec<(u32, String)>,
    news: &mut Vec<Notice>,
) {
    let before = vgpu.reasons.clone();
    vgpu.reasons.retain(|reason| !reason.contains(kind));
    for (pid, reason) in reasons {
        if !before.contains(&reason) {
            let what = if kind == OUTSIDE {
                "process_outside"
            } else {
                "vgpu_degraded"
            };
            let name = vgpu.name.clone();
            news.push((Severity::Warning, what, name, pid, reason.clone()));
        }
        vgpu.reasons.insert(reason);
    }
}

/// Who belongs to which virtual GPU, for looking at processes without the registry's lock.
#[derive(Debug, Default)]
pub(crate) struct Family {
    /// Processes whose limits are kept, and those an earlier daemon knew.
    joined: HashSet<u32>,
    /// Processes whose children belong to a virtual GPU.
    parents: HashMap<u32, String>,
    /// Processes that belong to one and have no business on the device themselves.
    members: HashMap<u32, String>,
    /// `MICA_TOKEN=…` of each virtual GPU.
    tokens: Vec<(String, String)>,
}

impl Family {
    pub(crate) fn of(registry: &Registry) -> Self {
        let mut family = Self::default();
        for vgpu in registry.vgpus.values() {
            let token = mica_limits::Environment::token_hex(&vgpu.token);
            let variable = format!("{}={token}", mica_limits::Environment::TOKEN);
            family.tokens.push((variable, vgpu.name.clone()));
            if let Some(holder) = &vgpu.holder {
                family.parents.insert(holder.pid, vgpu.name.clone());
            }
            for program in &vgpu.programs {
                family.members.insert(program.pid, vgpu.name.clone());
            }
            family.joined.extend(vgpu.ledger.expected_pids());
        }
        for client in registry.clients.values() {
            if client.role == Role::Monitor {
                family.members.insert(client.pid, client.vgpu.clone());
            } else {
                family.joined.insert(client.pid);
                family.parents.insert(client.pid, client.vgpu.clone());
            }
        }
        family
    }

    /// The virtual GPU a process on a GPU belongs to without having joined it.
    pub(crate) fn strays_from(&self, pid: u32) -> Option<String> {
        // One that is just ending has no command line any more; its connection may be closed already.
        let ending = || std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|c| c.is_empty());
        if pid == std::process::id() || self.joined.contains(&pid) || ending() {
            return None;
        }
        let mut at = pid;
        for _ in 0..MOST_PARENTS {
            let parent = if at == pid {
                None
            } else {
                self.parents.get(&at)
            };
            if let Some(vgpu) = self.members.get(&at).or(parent) {
                return Some(vgpu.clone());
            }
            if let Some(vgpu) = self.by_environment(at) {
                return Some(vgpu);
            }
            at = parent_of(at).filter(|parent| *parent > 1)?;
        }
        None
    }

    /// Whether a process has nothing to do with any virtual GPU.
    pub(crate) fn is_outsider(&self, pid: u32) -> bool {
        pid != std::process::id() && !self.joined.contains(&pid) && self.strays_from(pid).is_none()
    }

    fn by_environment(&self, pid: u32) -> Option<String> {
        let bytes = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let has = |wanted: &str| bytes.split(|b| *b == 0).any(|v| v == wanted.as_bytes());
        let found = self.tokens.iter().find(|(variable, _)| has(variable));
        found.map(|(_, vgpu)| vgpu.clone())
    }
}

/// The parent of a process.
pub(crate) fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = &stat[stat.rfind(')')? + 1..];
    after_name.split_whitespace().nth(1)?.parse().ok()
}

/// Marks virtual GPUs from which processes stray.
pub(crate) fn mark_strays(
    registry: &mut Registry,
    strays: &HashMap<u32, String>,
    news: &mut Vec<Notice>,
) {
    for vgpu in registry.vgpus.values_mut() {
        let mut reasons = Vec::new();
        for pid in strays
            .iter()
            .filter(|(_, v)| **v == vgpu.name)
            .map(|s| *s.0)
        {
            let name = crate::view::process_name(pid);
            reasons.push((
                pid,
                format!(
                    "process {pid} ({name}) {OUTSIDE}: it belongs to {} and never joined it (Mica's libcuda.so.1 or its environment was lost)",
                    vgpu.name
                ),
            ));
        }
        replace(vgpu, OUTSIDE, reasons, news);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_mode_admits_what_it_cannot_hold() {
        let mut spec = VgpuSpec {
            max_streams: Some(3),
            tensor_cores: false,
            ..VgpuSpec::default()
        };
        assert_eq!(unenforceable(&spec, GpuKind::Nvidia).len(), 2);
        assert!(unenforceable(&spec, GpuKind::Software).is_empty());
        spec.mode = Some(Mode::Isolated);
        // The engine counts streams and judges code.
        spec.precision_policy = PrecisionPolicy::Full;
        assert!(unenforceable(&spec, GpuKind::Nvidia).is_empty());
        // Workers pass the gate as programs in direct mode do.
        spec.cap = true;
        assert!(unenforceable(&spec, GpuKind::Nvidia).is_empty());
    }

    #[test]
    fn what_only_the_software_gpu_can_do_is_refused_on_a_card_in_both_modes() {
        for mode in [Mode::Direct, Mode::Isolated] {
            let spec = VgpuSpec {
                mode: Some(mode),
                coverage: true,
                seed: Some(0),
                cores: Some(2),
                capability: Some("9.0".into()),
                ..VgpuSpec::default()
            };
            let reasons = unenforceable(&spec, GpuKind::Nvidia);
            assert_eq!(reasons.len(), 4, "{reasons:?}");
            assert!(reasons[0].ends_with("needs the software GPU"));
            assert!(unenforceable(&spec, GpuKind::Software).is_empty());
            assert_eq!(remedy(&spec), "use the software GPU");
        }
    }

    #[test]
    fn a_child_is_traced_to_its_parent() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        // In the middle of its exec a process has no command line, as one that ends has none.
        let command_line = format!("/proc/{}/cmdline", child.id());
        while std::fs::read(&command_line).unwrap().is_empty() {
            std::thread::yield_now();
        }
        let own = std::process::id();
        assert_eq!(parent_of(child.id()), Some(own));
        let mut family = Family::default();
        assert_eq!(family.strays_from(child.id()), None);
        family.parents.insert(own, "a".into());
        assert_eq!(family.strays_from(child.id()).as_deref(), Some("a"));
        family.joined.insert(child.id());
        assert_eq!(family.strays_from(child.id()), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
