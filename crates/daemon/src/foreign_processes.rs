//! Processes that use a GPU without Mica, and whose they seem to be.
//!
//! A program can lose the token and its ancestors (`env -i` and two forks, `ssh`, `cron`). Then only its user connects it to a
//! virtual GPU. Whether or not it came from there, shares do not hold against it, and its user's virtual GPUs say so.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;

use mica_control::api::Mode;

use crate::enforce::{Notice, replace};
use crate::registry::Registry;

const WITHOUT_MICA: &str = "uses the GPU without Mica";

/// A process that holds memory of a GPU and has nothing of Mica's about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ForeignProcess {
    gpu: usize,
    pid: u32,
    uid: u32,
    name: String,
}

impl ForeignProcess {
    /// A process and its user; `None` if it is gone.
    pub(crate) fn of(gpu: usize, pid: u32) -> Option<Self> {
        let uid = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
        let name = crate::view::process_name(pid);
        Some(Self {
            gpu,
            pid,
            uid,
            name,
        })
    }
}

/// Those seen at this look and at the one before: a process may be between two states.
pub(crate) fn stayed(
    seen: &mut HashMap<u32, ForeignProcess>,
    now: Vec<ForeignProcess>,
) -> Vec<ForeignProcess> {
    let now: HashMap<u32, ForeignProcess> = now.into_iter().map(|o| (o.pid, o)).collect();
    let earlier = std::mem::replace(seen, now);
    let stayed = seen.values().filter(|o| earlier.contains_key(&o.pid));
    stayed.cloned().collect()
}

/// Marks the direct virtual GPUs of users whose processes use the same GPU without Mica.
pub(crate) fn mark(registry: &mut Registry, outsiders: &[ForeignProcess], news: &mut Vec<Notice>) {
    let direct: Vec<String> = registry
        .vgpus
        .values()
        .filter(|vgpu| registry.mode(vgpu) == Mode::Direct)
        .map(|vgpu| vgpu.name.clone())
        .collect();
    for name in direct {
        let Ok(vgpu) = registry.vgpu_mut(&name) else {
            continue;
        };
        let (gpu, owner) = (vgpu.gpu, vgpu.owner_uid);
        let its = |o: &&ForeignProcess| o.gpu == gpu && o.uid == owner;
        let reason = |o: &ForeignProcess| {
            let (pid, name, uid) = (o.pid, &o.name, o.uid);
            let text = format!(
                "process {pid} ({name}) of user {uid} {WITHOUT_MICA}: no share or limit holds for it"
            );
            (pid, text)
        };
        let reasons = outsiders.iter().filter(its).map(reason).collect();
        replace(vgpu, WITHOUT_MICA, reasons, news);
    }
}
