//! The environment that puts a program into a virtual GPU.
//!
//! The program finds Mica's `libcuda.so.1` because it is preloaded under that name, which also holds
//! when the program has an RPATH, and by the library path, which also reaches what it starts.

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use mica_control::api::{Created, GpuKind, Mode};
use mica_wire::host::printable::printable;

use crate::args::WatchArgs;
use crate::libraries;
use crate::not_started::find;

/// Has CUDA's runtime load all modules of a program when it starts, not each when it is first used.
const MODULE_LOADING: &str = "CUDA_MODULE_LOADING";
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// A program with the environment that puts it into a virtual GPU.
pub(super) fn prepare(
    joined: &Created,
    command: &[OsString],
    watch: &WatchArgs,
) -> Result<Command> {
    let (path, arguments) = command.split_first().context("no program was named")?;
    let prepared = libraries::prepare(joined.mode)?;
    let mut child = Command::new(path);
    child.args(arguments);
    join(&mut child, joined, &prepared.folder);
    if joined.mode == Mode::Direct && !joined.gpu_uuid.is_empty() {
        show_one_card(&mut child, joined);
    }
    set_watch(&mut child, watch, joined)?;
    if prepared.lacks_driver {
        errln!(
            "mica: the NVIDIA driver's libcuda.so.1 was not found (MICA_LIBCUDA says where it is): the program will \
             find no GPU"
        );
    }
    if ignores_preloads(path) {
        let program = path.display().to_string();
        errln!(
            "mica: {} runs with the rights of another user or group, so the system keeps Mica's \
             libcuda.so.1 out of it: it will not find the virtual GPU",
            printable(&program)
        );
    }
    Ok(child)
}

/// Tells a program its virtual GPU, the way to the daemon, and Mica's libraries.
fn join(child: &mut Command, joined: &Created, libraries: &Path) {
    let mode = match joined.mode {
        Mode::Direct => "direct",
        Mode::Isolated => "isolated",
    };
    let driver = libraries.join("libcuda.so.1");
    child
        .env("MICA_HOST_SOCKET", &joined.host_socket)
        .env("MICA_TOKEN", &joined.token)
        .env("MICA_VGPU", &joined.name)
        .env("MICA_MODE", mode)
        .env("LD_LIBRARY_PATH", prepend(libraries, "LD_LIBRARY_PATH"))
        .env("LD_PRELOAD", prepend(&driver, "LD_PRELOAD"));
    for region in &joined.regions {
        child.env(region.variable(), &region.handle);
    }
    if joined.guard {
        child.env(mica_limits::GUARD, "1");
    }
}

/// Shows a program the one card that its virtual GPU is on, as device 0.
fn show_one_card(child: &mut Command, joined: &Created) {
    if let Some(wanted) = other_device_wanted(std::env::var(VISIBLE).ok(), joined) {
        errln!(
            "mica: {VISIBLE}={wanted} is replaced: the virtual GPU is on GPU {} (--gpu chooses another)",
            joined.gpu
        );
    }
    child.env(VISIBLE, &joined.gpu_uuid);
}

/// Has a program watched as its user asked; refuses what its virtual GPU cannot watch.
fn set_watch(child: &mut Command, watch: &WatchArgs, joined: &Created) -> Result<()> {
    if watch.memcheck {
        if joined.gpu_kind != GpuKind::Software {
            bail!(
                "--memcheck is for the software GPU (--gpu software); on an NVIDIA GPU compute-sanitizer does it"
            );
        }
        child.env(mica_limits::MEMCHECK, "1");
    }
    if watch.leaks && joined.mode != Mode::Isolated {
        bail!("--leaks is for isolated virtual GPUs (--mode isolated), and this one is direct");
    }
    if let Some(check) = &watch.check {
        child
            .env("MICA_CHECK", &check.tools)
            .env("MICA_CHECK_REPORT", &check.report);
    }
    if let Some(profile) = &watch.profile {
        child.env(mica_limits::PROFILE, profile);
    }
    if watch.loads_all && std::env::var_os(MODULE_LOADING).is_none() {
        child.env(MODULE_LOADING, "EAGER");
    }
    if let Some(trace) = &watch.trace {
        // The library in the program says nothing, so what would fail there fails here.
        (OpenOptions::new().append(true).create(true).open(trace))
            .with_context(|| format!("the trace cannot be written to {}", trace.display()))?;
        child.env("MICA_TRACE", std::path::absolute(trace)?);
    }
    Ok(())
}

/// What the environment says of devices, if that may be another one than the virtual GPU's. Numbers are told by CUDA's
/// order, which may differ from ours: but the first one is nearly always the first.
fn other_device_wanted(visible: Option<String>, joined: &Created) -> Option<String> {
    let same =
        |wanted: &String| *wanted == joined.gpu_uuid || (joined.gpu == 0 && wanted.trim() == "0");
    visible.filter(|wanted| !same(wanted))
}

/// Whether a program changes its rights when it starts: then LD_PRELOAD and LD_LIBRARY_PATH are ignored.
fn ignores_preloads(program: &OsStr) -> bool {
    let Some(file) = find(program).and_then(|path| path.metadata().ok()) else {
        return false;
    };
    // SAFETY: both only ask.
    let (user, group) = unsafe { (libc::getuid(), libc::getgid()) };
    let mode = file.mode();
    mode & libc::S_ISUID != 0 && file.uid() != user
        || mode & libc::S_ISGID != 0 && file.gid() != group
}

fn prepend(first: &Path, variable: &str) -> OsString {
    let mut value = OsString::from(first);
    if let Some(rest) = std::env::var_os(variable).filter(|rest| !rest.is_empty()) {
        value.push(":");
        value.push(rest);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_device_than_the_virtual_gpus_is_spoken_of() {
        let joined = |gpu| Created {
            name: "a".into(),
            token: String::new(),
            host_socket: String::new(),
            mode: Mode::Direct,
            gpu,
            gpu_kind: GpuKind::Nvidia,
            gpu_uuid: "GPU-1".into(),
            memory_limit_bytes: 1,
            share_percent: 1.into(),
            share_reserved: true,
            regions: Vec::new(),
            guard: false,
        };
        let spoken_of = |wanted: &str, gpu| other_device_wanted(Some(wanted.into()), &joined(gpu));
        assert_eq!(other_device_wanted(None, &joined(0)), None);
        assert_eq!(spoken_of("GPU-1", 3), None);
        assert_eq!(spoken_of("0", 0), None);
        assert_eq!(spoken_of("0", 1).as_deref(), Some("0"));
        assert_eq!(spoken_of("1", 0).as_deref(), Some("1"));
        assert_eq!(spoken_of("0,1", 0).as_deref(), Some("0,1"));
    }
}
