//! The worker's confinement: what it keeps, and what the daemon is told of it.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use mica_jail::{Jail, Kept, Layer, Profile, Report};
use mica_limits::{HostLink, worker_variables};

use crate::{WorkerConfig, WorkerError, number, startup};

/// Most bytes that the driver keeps of what it has compiled.
const DRIVER_CACHE_BYTES: u64 = 256 << 20;

/// How the daemon wants a worker confined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// User that a privileged worker becomes.
    pub user: Option<u32>,
    /// Folder of the cgroup made for the worker.
    pub cgroup: Option<PathBuf>,
    /// Layers without which the worker does not serve.
    pub required: Vec<Layer>,
    /// Layers that are switched off.
    pub without: Vec<Layer>,
}

impl Confinement {
    pub(crate) fn from_environment() -> Result<Option<Self>, WorkerError> {
        if number::<u64>(worker_variables::JAIL)? != Some(1) {
            return Ok(None);
        }
        let layers = |name| Layer::parse_list(&std::env::var(name).unwrap_or_default());
        Ok(Some(Self {
            user: number(worker_variables::USER)?,
            cgroup: std::env::var_os(worker_variables::CGROUP).map(PathBuf::from),
            required: layers(worker_variables::REQUIRE)?,
            without: layers(worker_variables::WITHOUT)?,
        }))
    }
}

/// Confines this process as configured. Everything after this call is confined, and may run in a child of the
/// process that made the call.
///
/// # Errors
/// A layer was begun and not finished; a layer that is missing without being required is no error.
pub fn confine(config: &WorkerConfig) -> Result<Option<Report>, WorkerError> {
    let Some(wanted) = &config.confinement else {
        return Ok(None);
    };
    // Read now: the files are out of sight afterwards.
    mica_backend_software::read_host_facts();
    let mut jail = Jail {
        profile: Profile::Software,
        user: wanted.user,
        read_only: Vec::new(),
        libraries: Vec::new(),
        read_write: Vec::new(),
        devices: Vec::new(),
        cgroup: wanted.cgroup.clone(),
        kept: None,
        without: wanted.without.clone(),
        done: startup::done,
        code: None,
    };
    // A daemon that is replaced makes its socket anew, so the folder is needed and not the socket.
    jail.read_only
        .extend(config.environment.socket.parent().map(Path::to_owned));
    if config.nvidia {
        let uuid = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
        jail.profile = Profile::Nvidia;
        jail.libraries = mica_driver_files::driver_libraries();
        jail.devices = mica_driver_files::nodes_of(&uuid);
        jail.read_only.push("/sys/devices/system".into());
        jail.read_only.push("/sys/bus/pci".into());
        jail.read_only.push("/sys/module/nvidia".into());
        jail.read_only.push("/sys/module/nvidia_uvm".into());
        jail.read_write.extend(make_driver_cache(wanted.user));
    } else {
        let folder = mica_backend_software::kernel_cache_folder();
        let folder = folder.and_then(|folder| make_cache(wanted.user, folder));
        jail.kept = folder.map(|folder| Kept {
            folder,
            keep: mica_backend_software::keep_kernels,
            take: mica_backend_software::use_keeper,
        });
        let code = mica_backend_software::reserve_code_addresses();
        jail.code = Some(code.map_err(|e| WorkerError::Device(e.to_string()))?);
    }
    Ok(Some(mica_jail::enter(&jail)?))
}

/// Makes a folder of compiled code, for the user that the worker becomes. Without it all is compiled anew, so trouble
/// with it is logged and no error.
fn make_cache(user: Option<u32>, folder: PathBuf) -> Option<PathBuf> {
    let made = match user {
        Some(user) => mica_jail::make_folder_of(user, &folder),
        None => std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder),
    };
    match made {
        Ok(()) => Some(folder),
        Err(error) => {
            tracing::warn!(%error, "compiled kernels are not kept in {}", folder.display());
            None
        }
    }
}

/// Makes the folder in which the driver keeps what it has compiled, and leads the driver there: the program's own folder is out
/// of sight. A library that makes its kernels anew for every plan, as cuFFT does, would wait for a compiler each time.
fn make_driver_cache(user: Option<u32>) -> Option<PathBuf> {
    let kernels = mica_backend_software::kernel_cache_folder()?;
    let folder = worker_variables::driver_cache_beside(&kernels)?;
    let folder = make_cache(user, folder)?;
    // SAFETY: the worker has one thread until it is confined.
    unsafe {
        std::env::set_var("CUDA_CACHE_PATH", &folder);
        std::env::set_var("CUDA_CACHE_MAXSIZE", DRIVER_CACHE_BYTES.to_string());
    }
    Some(folder)
}

/// Tells the daemon what is in force, and refuses to go on where something required is not.
pub(crate) fn report(
    config: &WorkerConfig,
    report: Option<&Report>,
    link: &HostLink,
) -> Result<(), WorkerError> {
    let (Some(report), Some(wanted)) = (report, &config.confinement) else {
        return Ok(());
    };
    for (layer, why) in report.missing() {
        link.confined(report.applied_bits(), layer.bit(), why);
    }
    link.confined(report.applied_bits(), 0, "");
    match report.missing_of(&wanted.required) {
        None => Ok(()),
        Some(why) => {
            link.note_worker_failed(&format!("a worker does not serve: {why}"));
            Err(WorkerError::Confinement(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_and_the_device_mean_the_same_folder_of_kernels() {
        assert_eq!(
            (
                worker_variables::KERNEL_CACHE,
                worker_variables::KERNEL_CACHE_MIB
            ),
            (
                mica_backend_software::KERNEL_CACHE,
                mica_backend_software::KERNEL_CACHE_MIB
            )
        );
        let own = mica_backend_software::kernel_cache_folder();
        assert_eq!(worker_variables::own_kernel_cache(), own);
    }
}
