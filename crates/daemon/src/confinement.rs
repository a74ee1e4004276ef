//! How workers are confined: as which user, with which files, in which cgroup.
//!
//! The worker applies it to itself (`mica_worker::confine`); here is decided what it is told. Owns the folders of
//! the workers' cgroups.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use mica_jail::Layer;

use crate::api::{ConfinementInfo, MissingLayer, Priority, Verdict};
use crate::config::WorkersSection;
use crate::paths::uid;
use crate::registry::Confinement;

/// Memory that a worker may hold beside what its virtual GPU may: code, queues, buffers, the process itself.
const OWN_MEMORY_BYTES: u64 = 3 << 30;
/// Threads and processes of one worker.
const MOST_THREADS: u32 = 4096;
/// Where the kernel shows cgroups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Whether a variable of the daemon's environment is one that workers read.
pub(crate) fn is_for_workers(name: &str) -> bool {
    const PREFIXES: [&str; 5] = ["MICA_", "CUDA_", "NVIDIA_", "RUST_", "XDG_CACHE_HOME"];
    const NAMES: [&str; 4] = ["PATH", "HOME", "LD_LIBRARY_PATH", "LANG"];
    // What leads programs to a virtual GPU would lead the worker to one.
    let misleading = ["MICA_HOST_SOCKET", "MICA_TOKEN"].contains(&name);
    !misleading && (NAMES.contains(&name) || PREFIXES.iter().any(|p| name.starts_with(p)))
}

/// User number of the workers of one owner, where the daemon is root. The workers of two owners are never the same
/// user while the owners' numbers lie below the size of the range.
pub(crate) fn worker_user(workers: &WorkersSection, owner_uid: u32) -> Option<u32> {
    let privileged = uid() == 0 && workers.confine;
    privileged.then(|| workers.first_uid + owner_uid % workers.uid_count)
}

/// Variables that tell a worker how to confine itself; the names are `mica_worker::Confinement`'s.
pub(crate) fn variables(
    workers: &WorkersSection,
    owner_uid: u32,
    cgroup: Option<&Path>,
) -> Vec<(&'static str, OsString)> {
    if !workers.confine {
        return Vec::new();
    }
    let mut variables = vec![
        ("MICA_WORKER_JAIL", "1".into()),
        ("MICA_WORKER_REQUIRE", workers.require.join(",").into()),
        ("MICA_WORKER_WITHOUT", workers.without.join(",").into()),
    ];
    if let Some(user) = worker_user(workers, owner_uid) {
        variables.push(("MICA_WORKER_USER", user.to_string().into()));
        // Code that one owner's worker compiled is run by no other owner's.
        if let Some(cache) = kernel_cache_of(owner_uid) {
            variables.push(("MICA_KERNEL_CACHE", cache.into()));
        }
    }
    if let Some(cgroup) = cgroup {
        variables.push(("MICA_WORKER_CGROUP", cgroup.into()));
    }
    variables
}

/// Folder of compiled kernels of one owner; `None` where none are kept.
fn kernel_cache_of(owner_uid: u32) -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let base = match set("MICA_KERNEL_CACHE") {
        Some(value) if value == "off" => return None,
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from("/var/cache/mica/kernels"),
    };
    Some(base.join(format!("user-{owner_uid}")))
}

/// Layers without which a hole in a worker is a way to the host.
const VITAL: [Layer; 4] = [
    Layer::User,
    Layer::Capabilities,
    Layer::NoNewPrivileges,
    Layer::Seccomp,
];

impl Confinement {
    /// Notes what a worker tells: the layers in force, and one that is not or, at the end, none.
    pub(crate) fn note(&mut self, applied: u64, missing: u64, why: String) {
        if self.complete {
            return;
        }
        self.applied = applied;
        self.complete = missing == 0;
        if missing.is_power_of_two() {
            self.missing.insert(missing, why);
        }
    }

    /// As the API shows it.
    pub(crate) fn info(&self) -> ConfinementInfo {
        let has = |layer: &Layer| self.applied & layer.bit() != 0;
        let name = |layer: Layer| layer.name().to_owned();
        let missing = |layer: Layer| MissingLayer {
            layer: name(layer),
            reason: self.missing.get(&layer.bit()).cloned().unwrap_or_default(),
        };
        ConfinementInfo {
            applied: Layer::ALL.into_iter().filter(has).map(name).collect(),
            missing: (Layer::ALL.into_iter())
                .filter(|layer| !has(layer))
                .map(missing)
                .collect(),
        }
    }

    /// Whether the worker is confined well enough, and how that is known.
    pub(crate) fn verdict(&self) -> (Verdict, String) {
        let lacks = |layer: Layer| self.applied & layer.bit() == 0;
        let info = self.info();
        let mut evidence = format!("in force: {}", info.applied.join(", "));
        for missing in &info.missing {
            evidence += &format!("; without {}: {}", missing.layer, missing.reason);
        }
        let verdict = if VITAL.into_iter().any(lacks) {
            Verdict::Failed
        } else if Layer::ALL
            .into_iter()
            .any(|l| l != Layer::Cgroup && lacks(l))
        {
            Verdict::Warning
        } else {
            Verdict::Ok
        };
        (verdict, evidence)
    }
}

/// The cgroups of this daemon's workers.
#[derive(Debug)]
pub(crate) struct Cgroups {
    parent: Result<PathBuf, String>,
}

impl Cgroups {
    /// Finds a place for the workers' cgroups: below the daemon's own, if it has one to itself, as a service with
    /// `Delegate=yes` has.
    pub(crate) fn find(workers: &WorkersSection) -> Self {
        let parent = match workers.confine {
            true => delegated(Path::new(CGROUPS)),
            false => Err("workers are not confined".into()),
        };
        if let Err(why) = &parent {
            tracing::info!("workers get no cgroups: {why}");
        }
        Self { parent }
    }

    /// Makes the cgroup of one worker; `None` where there can be none.
    pub(crate) fn make(
        &self,
        slot: u64,
        priority: Priority,
        memory_bytes: Option<u64>,
    ) -> Option<PathBuf> {
        let folder = self.folder(slot)?;
        let made = make_group(&folder, priority, memory_bytes);
        if let Err(error) = &made {
            tracing::warn!(%error, "no cgroup {} for a worker", folder.display());
        }
        made.ok().map(|()| folder)
    }

    /// Removes the cgroup of a worker that has ended.
    pub(crate) fn remove(&self, slot: u64) {
        if let Some(folder) = self.folder(slot) {
            let _ = std::fs::remove_dir(folder);
        }
    }

    fn folder(&self, slot: u64) -> Option<PathBuf> {
        let parent = self.parent.as_ref().ok()?;
        Some(parent.join(format!("worker-{}-{slot}", std::process::id())))
    }
}

/// Prepares the daemon's own cgroup for children with limits. A cgroup that has such children may hold no process
/// itself, so the daemon moves into one of them.
fn delegated(root: &Path) -> Result<PathBuf, String> {
    if !root.join("cgroup.controllers").exists() {
        return Err("the host does not use cgroup version 2".into());
    }
    let own = std::fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let path = path.ok_or("the daemon is in no cgroup of version 2")?;
    let own = root.join(path);
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error: std::io::Error| format!("{what}: {error}")
    };
    let members = std::fs::read_to_string(own.join("cgroup.procs"));
    let members = members.map_err(failed("the daemon's cgroup cannot be read"))?;
    if members.trim() != std::process::id().to_string() {
        return Err("the daemon shares its cgroup with other processes".into());
    }
    let inner = own.join("daemon");
    std::fs::create_dir_all(&inner).map_err(failed("a cgroup cannot be made"))?;
    std::fs::write(inner.join("cgroup.procs"), "0").map_err(failed("cgroup.procs"))?;
    let controllers = "+memory +pids +cpu";
    std::fs::write(own.join("cgroup.subtree_control"), controllers)
        .map_err(failed("the controllers of the cgroup cannot be used"))?;
    Ok(own)
}

fn make_group(folder: &Path, priority: Priority, memory_bytes: Option<u64>) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let set = |file: &str, value: String| std::fs::write(folder.join(file), value);
    set("pids.max", MOST_THREADS.to_string())?;
    let weight = match priority {
        Priority::High => 400,
        Priority::Normal => 100,
        Priority::Low => 25,
    };
    set("cpu.weight", weight.to_string())?;
    if let Some(bytes) = memory_bytes {
        set("memory.max", (bytes + OWN_MEMORY_BYTES).to_string())?;
        set("memory.swap.max", "0".into())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_the_daemons_environment_stay_with_the_daemon() {
        for name in [
            "AWS_SECRET_ACCESS_KEY",
            "SSH_AUTH_SOCK",
            "MICA_TOKEN",
            "LD_PRELOAD",
        ] {
            assert!(!is_for_workers(name), "{name}");
        }
        for name in ["MICA_KERNEL_CACHE", "CUDA_CACHE_PATH", "PATH", "RUST_LOG"] {
            assert!(is_for_workers(name), "{name}");
        }
    }

    #[test]
    fn a_worker_group_has_limits_of_threads_processor_and_memory() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("worker");
        make_group(&folder, Priority::High, Some(1 << 30)).unwrap();
        let read = |file| std::fs::read_to_string(folder.join(file)).unwrap();
        assert_eq!(read("pids.max"), "4096");
        assert_eq!(read("cpu.weight"), "400");
        assert_eq!(read("memory.max"), (4_u64 << 30).to_string());
    }

    #[test]
    fn a_host_without_version_2_is_told_of() {
        let dir = tempfile::tempdir().unwrap();
        assert!(delegated(dir.path()).unwrap_err().contains("version 2"));
    }
}
