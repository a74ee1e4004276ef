//! `mica run` and `mica exec`: a program inside a virtual GPU.
//!
//! ```text
//!   create (or join) ─► environment: socket, token, libraries ─► spawn ─► wait ─► its exit code
//! ```
//! The program finds Mica's `libcuda.so.1` because it is preloaded under that name, which also holds
//! when the program has an RPATH, and by the library path, which also reaches what it starts.

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use mica_daemon::api::{Created, Event, GpuKind, Mode};
use mica_daemon::client::ControlClient;
use mica_wire::host::printable::printable;

use crate::args::{ExecArgs, RunArgs, WatchArgs};
use crate::control;
use crate::escape;
use crate::libraries;
use crate::manage;
use crate::spec::specification;

/// Below this a virtual GPU has hardly room for more than a context (520 MiB on an H200).
const CONTEXT_BYTES: u64 = 640 << 20;

/// Runs a program in a virtual GPU of its own; returns its exit code.
pub(crate) fn run(args: &RunArgs) -> Result<i32> {
    let client = control::connect()?;
    let since = SystemTime::now();
    let mut spec = specification(&args.spec, &client)?;
    spec.name = args.name.clone();
    spec.ephemeral = true;
    spec.note = Some(args.command.join(OsStr::new(" ")).display().to_string());
    let created = client.create(&spec).map_err(control::explain)?;
    if spec.allow_degraded {
        manage::say_if_degraded(&client, &created.name);
    }
    let result = start(&created, &args.command, &args.watch)
        .and_then(|child| wait(child, &args.command[0], created.mode));
    say_what_happened(&client, &created, since, &result);
    remove(&client, &created.name);
    result
}

/// Runs a program in an existing virtual GPU; returns its exit code.
pub(crate) fn exec(args: &ExecArgs) -> Result<i32> {
    let client = control::connect()?;
    let since = SystemTime::now();
    let joined = client.join(&args.name).map_err(control::explain)?;
    let child = start(&joined, &args.command, &args.watch)?;
    let code = wait(child, &args.command[0], joined.mode);
    say_what_happened(&client, &joined, since, &code);
    code
}

/// Starts a program with the environment that puts it into a virtual GPU.
fn start(joined: &Created, command: &[OsString], watch: &WatchArgs) -> Result<Child> {
    let (path, arguments) = command.split_first().context("no program was named")?;
    let program = path.display().to_string();
    let program = printable(&program);
    let prepared = libraries::prepare(joined.mode)?;
    let libraries = &prepared.folder;
    let mut child = Command::new(path);
    child
        .args(arguments)
        .env("MICA_HOST_SOCKET", &joined.host_socket)
        .env("MICA_TOKEN", &joined.token)
        .env("MICA_VGPU", &joined.name)
        .env(
            "MICA_MODE",
            match joined.mode {
                Mode::Direct => "direct",
                Mode::Isolated => "isolated",
            },
        )
        .env("LD_LIBRARY_PATH", prepend(libraries, "LD_LIBRARY_PATH"))
        .env(
            "LD_PRELOAD",
            prepend(&libraries.join("libcuda.so.1"), "LD_PRELOAD"),
        );
    if joined.mode == Mode::Direct && !joined.gpu_uuid.is_empty() {
        // One virtual GPU is on one card: the program sees that card as device 0.
        if let Some(wanted) = other_device_wanted(std::env::var(VISIBLE).ok(), joined) {
            eprintln!(
                "mica: {VISIBLE}={wanted} is replaced: the virtual GPU is on GPU {} (--gpu chooses another)",
                joined.gpu
            );
        }
        child.env(VISIBLE, &joined.gpu_uuid);
    }
    if watch.memcheck {
        if joined.gpu_kind != GpuKind::Software {
            bail!(
                "--memcheck is for the software GPU (--gpu software); on an NVIDIA GPU compute-sanitizer does it"
            );
        }
        child.env(mica_limits::MEMCHECK, "1");
    }
    if let Some(trace) = &watch.trace {
        // The library in the program says nothing, so what would fail there fails here.
        (OpenOptions::new().append(true).create(true).open(trace))
            .with_context(|| format!("the trace cannot be written to {}", trace.display()))?;
        child.env("MICA_TRACE", std::path::absolute(trace)?);
    }
    if prepared.lacks_driver {
        eprintln!(
            "mica: the NVIDIA driver's libcuda.so.1 was not found (MICA_LIBCUDA says where it is): the program will \
             find no GPU"
        );
    }
    if ignores_preloads(path) {
        eprintln!(
            "mica: {program} runs with the rights of another user or group, so the system keeps Mica's \
             libcuda.so.1 out of it: it will not find the virtual GPU"
        );
    }
    // A killed `mica run` leaves no program behind.
    match ends_with_us(&mut child, libc::SIGKILL).spawn() {
        Ok(child) => Ok(child),
        Err(error) if error.kind() == ErrorKind::NotFound => bail!("{program}: no such program"),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            bail!("{program} is not a program that may be run here")
        }
        Err(error) => Err(error).with_context(|| format!("{program} cannot be started")),
    }
}

/// The kernel sends the child this signal when this process ends, however it ends. To be started by a thread that stays:
/// its end counts as the process's.
pub(crate) fn ends_with_us(command: &mut Command, signal: libc::c_int) -> &mut Command {
    let parent = std::process::id();
    // SAFETY: only async-signal-safe calls between fork and exec.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, signal);
            if libc::getppid() as u32 != parent {
                return Err(ErrorKind::Interrupted.into());
            }
            Ok(())
        })
    }
}

const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// What the environment says of devices, if that may be another one than the virtual GPU's. Numbers are told by CUDA's
/// order, which may differ from ours: but the first one is nearly always the first.
fn other_device_wanted(visible: Option<String>, joined: &Created) -> Option<String> {
    let same =
        |wanted: &String| *wanted == joined.gpu_uuid || (joined.gpu == 0 && wanted.trim() == "0");
    visible.filter(|wanted| !same(wanted))
}

/// Whether a program changes its rights when it starts: then LD_PRELOAD and LD_LIBRARY_PATH are ignored.
fn ignores_preloads(program: &OsStr) -> bool {
    let paths = match program.as_encoded_bytes().contains(&b'/') {
        true => vec![PathBuf::from(program)],
        false => std::env::var_os("PATH")
            .map(|path| {
                std::env::split_paths(&path)
                    .map(|p| p.join(program))
                    .collect()
            })
            .unwrap_or_default(),
    };
    let Some(file) = paths.iter().find_map(|path| path.metadata().ok()) else {
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

/// The program that signals are passed on to.
static PROGRAM: AtomicI32 = AtomicI32::new(0);

extern "C" fn pass_on(signal: libc::c_int) {
    let program = PROGRAM.load(Ordering::Relaxed);
    if program > 0 {
        // SAFETY: kill is async-signal-safe and the number is our child's until it is reaped.
        unsafe { libc::kill(program, signal) };
    }
}

fn wait(mut child: Child, program: &OsStr, mode: Mode) -> Result<i32> {
    PROGRAM.store(child.id() as i32, Ordering::Relaxed);
    escape::watch(child.id(), mode);
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2] {
        // SAFETY: the handler only loads an atomic and calls kill.
        unsafe { libc::signal(signal, pass_on as *const () as libc::sighandler_t) };
    }
    for signal in [libc::SIGINT, libc::SIGQUIT] {
        // A terminal sends these to the program too; it decides, and we report how it ended.
        // SAFETY: ignoring a signal runs no code.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let status = child
        .wait()
        .with_context(|| format!("{} cannot be waited for", program.display()))?;
    PROGRAM.store(0, Ordering::Relaxed);
    Ok(exit_code(status))
}

/// The code a shell would show: 128 plus the signal for a killed program.
pub(crate) fn exit_code(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Says on stderr what the program could not say itself: that a kernel faulted and where, that it, or one it
/// started, was not held to its limits, or was ended because it could not be. Of one that failed also why modules
/// and memory were refused: one that did not got along without them.
fn say_what_happened(
    client: &ControlClient,
    joined: &Created,
    since: SystemTime,
    code: &Result<i32>,
) {
    let name = joined.name.as_str();
    let told = client.past_events().unwrap_or_default();
    let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
    let of_this = |event: &&Event| {
        event.vgpu.as_deref() == Some(name) && event.time_seconds >= since.as_secs_f64()
    };
    let failed = !matches!(code, Ok(0));
    let mut refused: Vec<&str> = Vec::new();
    let mut denied = None;
    let mut escaped = false;
    for event in told.iter().filter(of_this) {
        let outside = ["process_outside", "process_refused"].contains(&event.kind.as_str());
        escaped |= outside;
        if outside || event.kind == "kernel_fault" {
            eprintln!("mica: {}", printable(&event.message));
        }
        if event.kind == "memory_denied" {
            denied = Some(&event.message);
        }
        let explains = match event.kind.as_str() {
            "module_refused" => Some("a module was refused: "),
            "worker_died" | "worker_failed" => Some(""),
            _ => None,
        };
        if let Some(begin) = explains.filter(|_| failed && !refused.contains(&&*event.message)) {
            eprintln!("mica: {begin}{}", printable(&event.message));
            refused.push(&event.message);
        }
    }
    if let (true, Some(denied)) = (failed, denied) {
        let why = printable(denied);
        eprintln!("mica: memory was refused, the last time because {why}");
        if joined.gpu_kind == GpuKind::Nvidia && joined.memory_limit_bytes < CONTEXT_BYTES {
            eprintln!("  hint: a context alone takes some 520 MiB of an NVIDIA GPU");
        }
    }
    if !escaped {
        escape::say();
    }
}

/// Removes an ephemeral virtual GPU unless programs it started still use it.
fn remove(client: &ControlClient, name: &str) {
    let _ = client.remove(name, false);
}

/// For tests and benchmarks: this program's own path.
pub(crate) fn own_path() -> Result<PathBuf> {
    std::env::current_exe().context("this program's own path is unknown")
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
            share_percent: 1,
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
