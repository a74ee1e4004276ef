//! How workers are confined: as which user, with which files.
//!
//! The worker applies it to itself (`mica_worker::confine`); here is decided what it is told. Cgroups are made
//! in `cgroups`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use mica_control::api::{ConfinementInfo, MissingLayer, Verdict};
use mica_control::uid;
use mica_jail::Layer;
use mica_limits::{Environment, worker_variables};

use crate::config::WorkersSection;
use crate::registry::Confinement;

/// Whether a variable of the daemon's environment is one that workers read.
pub(crate) fn is_for_workers(name: &str) -> bool {
    const PREFIXES: [&str; 5] = ["MICA_", "CUDA_", "NVIDIA_", "RUST_", "XDG_CACHE_HOME"];
    const NAMES: [&str; 4] = ["PATH", "HOME", "LD_LIBRARY_PATH", "LANG"];
    // What leads programs to a virtual GPU would lead the worker to one.
    let misleading = [Environment::SOCKET, Environment::TOKEN].contains(&name);
    !misleading && (NAMES.contains(&name) || PREFIXES.iter().any(|p| name.starts_with(p)))
}

/// User number of the workers of one owner, where the daemon is root. The workers of two owners are never the same
/// user while the owners' numbers lie below the size of the range.
pub(crate) fn worker_user(workers: &WorkersSection, owner_uid: u32) -> Option<u32> {
    let privileged = uid() == 0 && workers.confine;
    privileged.then(|| workers.first_uid + owner_uid % workers.uid_count)
}

/// Variables that tell a worker how to confine itself.
pub(crate) fn variables(
    workers: &WorkersSection,
    owner_uid: u32,
    cgroup: Option<&Path>,
) -> Vec<(&'static str, OsString)> {
    if !workers.confine {
        return Vec::new();
    }
    let mut variables = vec![
        (worker_variables::JAIL, "1".into()),
        (worker_variables::REQUIRE, workers.require.join(",").into()),
        (worker_variables::WITHOUT, workers.without.join(",").into()),
    ];
    if let Some(user) = worker_user(workers, owner_uid) {
        variables.push((worker_variables::USER, user.to_string().into()));
        // Code that one owner's worker compiled is run by no other owner's.
        if let Some(cache) = kernel_cache_of(owner_uid) {
            variables.push((worker_variables::KERNEL_CACHE, cache.into()));
        }
    }
    if let Some(cgroup) = cgroup {
        variables.push((worker_variables::CGROUP, cgroup.into()));
    }
    variables
}

/// Folder of compiled kernels of one owner; `None` where none are kept.
pub(crate) fn kernel_cache_of(owner_uid: u32) -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let base = match set(worker_variables::KERNEL_CACHE) {
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
    /// Notes a worker's report: the layers in force and one missing layer. The last report names no missing layer.
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
}
