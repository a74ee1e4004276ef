//! The cgroups of workers: one for each virtual GPU, with one for each of its workers below it.
//!
//! Owns the folders. The worker moves itself into its folder (`mica_jail`). Memory and processor weight are limits of the virtual
//! GPU, for all its workers are one tenant; the number of threads is a limit of both.
//!
//! ```text
//!   mica.service                     delegated to the daemon; holds no process itself
//!     ├─ daemon                      the daemon
//!     └─ vgpu-NAME                   memory.max, cpu.weight, pids.max
//!          ├─ worker-PID-SLOT        pids.max; PID is the daemon's that started it
//!          └─ …                      workers of an earlier daemon stay here
//! ```

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mica_control::api::Priority;

use crate::config::WorkersSection;
use crate::registry::Vgpu;

/// Memory of one worker that nothing counts: the process itself, its stacks, what the code generator needs for a moment.
const PROCESS_BYTES: u64 = 256 << 20;
/// Threads and processes of one worker, and of all workers of a virtual GPU.
const MOST_THREADS: u32 = 4096;
const MOST_THREADS_OF_VGPU: u32 = 32768;
/// Where the kernel shows cgroups.
const CGROUPS: &str = "/sys/fs/cgroup";
/// The group of the daemon itself; `packaging/mica.service` names it too.
const OWN_GROUP: &str = "daemon";

/// What all workers of one virtual GPU may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupLimits {
    pub(crate) priority: Priority,
    /// `None` on a card, whose driver maps more than it uses.
    pub(crate) memory_bytes: Option<u64>,
}

impl GroupLimits {
    /// What is granted, or may be: a limit that was lowered below what is in use ends no program.
    /// `region_bytes`: of the regions that are attached; whoever touches memory of a region first has it in its group.
    pub(crate) fn of(vgpu: &Vgpu, on_card: bool, region_bytes: u64) -> Self {
        let most = [&vgpu.ledger, &vgpu.host_ledger]
            .map(|ledger| ledger.limit_bytes().max(ledger.granted_bytes()));
        let processes = PROCESS_BYTES.saturating_mul(vgpu.workers.len() as u64);
        let most = most.into_iter().chain([region_bytes]);
        let all = most.fold(processes, u64::saturating_add);
        Self {
            priority: vgpu.spec.priority,
            // On the software GPU the device's memory is the host's.
            memory_bytes: (!on_card).then_some(all),
        }
    }
}

/// The cgroups of this daemon's workers.
#[derive(Debug)]
pub(crate) struct Cgroups {
    parent: Result<PathBuf, String>,
    groups: Mutex<Groups>,
}

#[derive(Debug, Default)]
struct Groups {
    /// Folders of workers that this daemon started and that have not ended.
    made: BTreeSet<PathBuf>,
    /// Whether folders of an earlier daemon are there still.
    inherited: bool,
}

impl Cgroups {
    /// Finds a place for the workers' cgroups: below the daemon's own, if it has one to itself, as a service with
    /// `Delegate=yes` has. Removes what an earlier daemon left there and nobody is in.
    pub(crate) fn find(workers: &WorkersSection) -> Self {
        let parent = match workers.confine {
            true => own_cgroup().and_then(|own| delegated(Path::new(CGROUPS), &own)),
            false => Err("workers are not confined".into()),
        };
        if let Err(why) = &parent {
            tracing::info!("workers get no cgroups: {why}");
        }
        let cgroups = Self {
            parent,
            groups: Mutex::default(),
        };
        cgroups.groups().inherited = true;
        cgroups.sweep();
        cgroups
    }

    fn groups(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn vgpu_folder(&self, vgpu: &str) -> Option<PathBuf> {
        // Names hold no separator.
        let parent = self.parent.as_ref().ok()?;
        Some(parent.join(format!("vgpu-{vgpu}")))
    }

    fn worker_folder(&self, vgpu: &str, slot: u64) -> Option<PathBuf> {
        let folder = self.vgpu_folder(vgpu)?;
        Some(folder.join(format!("worker-{}-{slot}", std::process::id())))
    }

    /// Makes the cgroup of one worker; `None` where there can be none.
    pub(crate) fn make(&self, vgpu: &str, slot: u64, limits: &GroupLimits) -> Option<PathBuf> {
        let (of_vgpu, folder) = (self.vgpu_folder(vgpu)?, self.worker_folder(vgpu, slot)?);
        let mut groups = self.groups();
        let made = make_vgpu(&of_vgpu, limits).and_then(|()| make_worker(&folder));
        match made {
            Ok(()) => {
                groups.made.insert(folder.clone());
                Some(folder)
            }
            Err(error) => {
                tracing::warn!(%error, "no cgroup {} for a worker", folder.display());
                None
            }
        }
    }

    /// Changes what the workers of a virtual GPU may use, if there are any.
    pub(crate) fn limit(&self, vgpu: &str, limits: &GroupLimits) {
        let folder = self.vgpu_folder(vgpu).filter(|folder| folder.exists());
        if let Some(folder) = folder
            && let Err(error) = set_limits(&folder, limits)
        {
            tracing::warn!(%error, "the limits of {} cannot be set", folder.display());
        }
    }

    /// Removes the cgroup of a worker that has ended, and that of its virtual GPU if it was the last.
    pub(crate) fn remove(&self, vgpu: &str, slot: u64) {
        if let Some(folder) = self.worker_folder(vgpu, slot) {
            let mut groups = self.groups();
            groups.made.remove(&folder);
            let _ = std::fs::remove_dir(&folder);
            let _ = folder.parent().map(std::fs::remove_dir);
        }
    }

    /// Removes cgroups that an earlier daemon left and that hold no process any more. The kernel refuses to remove others.
    pub(crate) fn sweep(&self) {
        let Ok(parent) = &self.parent else { return };
        let mut groups = self.groups();
        if !groups.inherited {
            return;
        }
        groups.inherited = false;
        for of_vgpu in folders(parent, "vgpu-") {
            for worker in folders(&of_vgpu, "worker-") {
                if !groups.made.contains(&worker) {
                    groups.inherited |= std::fs::remove_dir(&worker).is_err();
                }
            }
            let _ = std::fs::remove_dir(&of_vgpu);
        }
    }
}

/// Folders in a folder whose names begin so.
fn folders(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// The daemon's cgroup of version 2, as a path below the root of all.
fn own_cgroup() -> Result<String, String> {
    let own = std::fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"));
    path.map(str::to_owned)
        .ok_or_else(|| "the daemon is in no cgroup of version 2".into())
}

/// Prepares the daemon's own cgroup for children with limits. A cgroup that has such children may hold no process
/// itself, so the daemon moves into one of them. A service manager that starts the daemon in that child at once
/// (`DelegateSubgroup=`) can do so while workers of an earlier daemon live; into their parent it could not.
fn delegated(root: &Path, own: &str) -> Result<PathBuf, String> {
    if !root.join("cgroup.controllers").exists() {
        return Err("the host does not use cgroup version 2".into());
    }
    let failed = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    let members = |group: &Path| {
        std::fs::read_to_string(group.join("cgroup.procs"))
            .map_err(failed("the daemon's cgroup cannot be read"))
    };
    let own = root.join(own);
    let group = match own.parent() {
        Some(parent) if own.ends_with(OWN_GROUP) && parent != root => parent.to_owned(),
        _ => own.clone(),
    };
    let shared = match group == own {
        true => members(&own)?.trim() != std::process::id().to_string(),
        false => !members(&group)?.trim().is_empty(),
    };
    if shared {
        return Err("the daemon shares its cgroup with other processes".into());
    }
    if group == own {
        let inner = own.join(OWN_GROUP);
        std::fs::create_dir_all(&inner).map_err(failed("a cgroup cannot be made"))?;
        std::fs::write(inner.join("cgroup.procs"), "0").map_err(failed("cgroup.procs"))?;
    }
    std::fs::write(group.join("cgroup.subtree_control"), "+memory +pids +cpu")
        .map_err(failed("the controllers of the cgroup cannot be used"))?;
    Ok(group)
}

fn make_vgpu(folder: &Path, limits: &GroupLimits) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    set_limits(folder, limits)?;
    std::fs::write(folder.join("cgroup.subtree_control"), "+pids")
}

fn set_limits(folder: &Path, limits: &GroupLimits) -> io::Result<()> {
    let set = |file: &str, value: String| std::fs::write(folder.join(file), value);
    set("pids.max", MOST_THREADS_OF_VGPU.to_string())?;
    let weight = match limits.priority {
        Priority::High => 400,
        Priority::Normal => 100,
        Priority::Low => 25,
    };
    set("cpu.weight", weight.to_string())?;
    if let Some(bytes) = limits.memory_bytes {
        set("memory.max", bytes.to_string())?;
        set("memory.swap.max", "0".into())?;
    }
    Ok(())
}

fn make_worker(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("pids.max"), MOST_THREADS.to_string())
}

#[cfg(test)]
mod tests;
