//! `mica run` and `mica exec`: a program inside a virtual GPU.
//!
//! ```text
//!   create (or join) ─► environment: socket, token, libraries ─► spawn ─► wait ─► its exit code
//! ```
//! The program finds Mica's `libcuda.so.1` because it is preloaded under that name, which also holds
//! when the program has an RPATH, and by the library path, which also reaches what it starts.

use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use mica_daemon::api::{Created, Event, Mode};
use mica_daemon::client::ControlClient;

use crate::args::{ExecArgs, RunArgs};
use crate::control;
use crate::libraries;
use crate::spec::specification;

/// Runs a program in a virtual GPU of its own; returns its exit code.
pub(crate) fn run(args: &RunArgs) -> Result<i32> {
    let client = control::connect()?;
    let mut spec = specification(&args.spec, &client)?;
    spec.name = args.name.clone();
    spec.ephemeral = true;
    spec.note = Some(args.command.join(" "));
    let created = client.create(&spec).map_err(control::explain)?;
    let result = start(&created, &args.command, args.trace.as_deref())
        .and_then(|child| wait(child, &args.command[0]));
    say_what_escaped(&client, &created.name);
    remove(&client, &created.name);
    result
}

/// Runs a program in an existing virtual GPU; returns its exit code.
pub(crate) fn exec(args: &ExecArgs) -> Result<i32> {
    let client = control::connect()?;
    let joined = client.join(&args.name).map_err(control::explain)?;
    let child = start(&joined, &args.command, args.trace.as_deref())?;
    wait(child, &args.command[0])
}

/// Starts a program with the environment that puts it into a virtual GPU.
pub(crate) fn start(joined: &Created, command: &[String], trace: Option<&Path>) -> Result<Child> {
    let (program, arguments) = command.split_first().context("no program was named")?;
    let libraries = libraries::prepare(joined.mode)?;
    let mut child = Command::new(program);
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
        .env("LD_LIBRARY_PATH", prepend(&libraries, "LD_LIBRARY_PATH"))
        .env(
            "LD_PRELOAD",
            prepend(&libraries.join("libcuda.so.1"), "LD_PRELOAD"),
        );
    if joined.mode == Mode::Direct && !joined.gpu_uuid.is_empty() {
        // One virtual GPU is on one card: the program sees that card as device 0.
        child.env("CUDA_VISIBLE_DEVICES", &joined.gpu_uuid);
    }
    if let Some(trace) = trace {
        child.env("MICA_TRACE", std::path::absolute(trace)?);
    }
    let parent = std::process::id();
    // SAFETY: only async-signal-safe calls between fork and exec.
    unsafe {
        child.pre_exec(move || {
            // A killed `mica run` leaves no program behind.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() as u32 != parent {
                return Err(std::io::ErrorKind::Interrupted.into());
            }
            Ok(())
        });
    }
    match child.spawn() {
        Ok(child) => Ok(child),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("{program}: no such program")
        }
        Err(error) => Err(error).with_context(|| format!("{program} cannot be started")),
    }
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

fn wait(mut child: Child, program: &str) -> Result<i32> {
    PROGRAM.store(child.id() as i32, Ordering::Relaxed);
    watch(child.id());
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
        .with_context(|| format!("{program} cannot be waited for"))?;
    PROGRAM.store(0, Ordering::Relaxed);
    Ok(exit_code(status))
}

/// The code a shell would show: 128 plus the signal for a killed program.
pub(crate) fn exit_code(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Says on stderr that the program, or one it started, was not held to its limits, or was ended because
/// it could not be.
fn say_what_escaped(client: &ControlClient, name: &str) {
    let told = client.past_events().unwrap_or_default();
    let of_this = |event: &&Event| event.vgpu.as_deref() == Some(name);
    let kinds = ["process_outside", "process_refused"];
    let found = told.iter().filter(of_this);
    let lines: Vec<&str> = found
        .filter(|event| kinds.contains(&event.kind.as_str()))
        .map(|event| event.message.as_str())
        .collect();
    for line in &lines {
        eprintln!("mica: {line}");
    }
    if let (true, Some(library)) = (lines.is_empty(), ESCAPED.get()) {
        eprintln!(
            "mica: the program used {library} and not Mica's libcuda.so.1, so it ran without limits \
             (is it setuid, or does it drop LD_PRELOAD?)"
        );
    }
}

/// The driver library the program was seen with, if Mica's was not there.
static ESCAPED: OnceLock<String> = OnceLock::new();

/// Looks at the program's libraries now and then, rarely enough to cost nothing.
fn watch(pid: u32) {
    let looks = [200, 800, 1000, 2000, 4000];
    let looks = looks.into_iter().chain(std::iter::repeat(30_000));
    let body = move || {
        for pause in looks.map(Duration::from_millis) {
            std::thread::sleep(pause);
            let Ok(maps) = std::fs::read_to_string(format!("/proc/{pid}/maps")) else {
                return;
            };
            // Mica's may be a shell's that becomes another program, so the looking goes on.
            if let Driver::Other(library) = foreign_driver(&maps) {
                let _ = ESCAPED.set(library);
                return;
            }
        }
    };
    let _ = std::thread::Builder::new().name("watch".into()).spawn(body);
}

/// Whose driver library a process has mapped.
#[derive(Debug, PartialEq, Eq)]
enum Driver {
    None,
    Mica,
    Other(String),
}

fn foreign_driver(maps: &str) -> Driver {
    let mut found = Driver::None;
    for line in maps.lines() {
        let Some(at) = line.find('/') else {
            continue;
        };
        let path = &line[at..];
        let file = path.rsplit('/').next().unwrap_or_default();
        if file.starts_with("libmica_shim.so") {
            return Driver::Mica;
        }
        if file.starts_with("libcuda.so") && found == Driver::None {
            found = Driver::Other(path.to_owned());
        }
    }
    found
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
    fn a_driver_without_mica_before_it_is_seen() {
        let line = |path: &str| format!("7f00-7f10 r-xp 00000000 08:01 17   {path}\n");
        let real = line("/usr/lib/libcuda.so.580.95.05");
        let mica = line("/opt/mica/lib/libmica_shim.so");
        let other = line("/usr/lib/libcudart.so.13") + "7f00-7f10 rw-p 00000000 00:00 0\n";
        assert_eq!(foreign_driver(&other), Driver::None);
        let both = format!("{other}{real}{mica}");
        assert_eq!(foreign_driver(&both), Driver::Mica);
        let path = "/usr/lib/libcuda.so.580.95.05".to_owned();
        assert_eq!(foreign_driver(&(other + &real)), Driver::Other(path));
    }
}
