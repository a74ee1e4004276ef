//! `mica run` and `mica exec`: a program inside a virtual GPU.
//!
//! ```text
//!   create (or join) ─► environment: socket, token, libraries ─► spawn ─► wait ─► its exit code
//! ```
//! The program finds Mica's `libcuda.so.1` because it is preloaded under that name, which also holds
//! when the program has an RPATH, and by the library path, which also reaches what it starts.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use mica_check::CheckSettings;
use mica_command::child::{ends_with_us, own_path};
use mica_command::refusal::explain;
use mica_control::api::{
    Created, GpuInfo, GpuKind, Mode, ProfileLevel, ProgramReport, SetProfile, VgpuSpec,
};
use mica_control::client::ControlClient;
use mica_wire::host::printable::printable;

use crate::args::{
    CheckArgs, CovArgs, ExecArgs, ModeArg, ProfileArgs, RunArgs, SpecArgs, WatchArgs,
};
use crate::check::leaks;
use crate::control;
use crate::escape;
use crate::exit_report;
use crate::libraries;
use crate::manage;
use crate::not_started::{NotStarted, find};
use crate::region;
use crate::signals;
use crate::spec::{gpu_index, specification};

/// How long the daemon's answer to a report of a program is waited for.
const REPORT_WITHIN: Duration = Duration::from_secs(2);

/// Runs a program in a virtual GPU of its own; returns its exit code.
pub(crate) fn run(args: &RunArgs) -> Result<i32> {
    if args.watch.leaks && args.watch.check.is_none() {
        return leaks::around(|check| {
            let watch = args.watch.with_check(check);
            run(&RunArgs {
                watch,
                ..args.clone()
            })
        });
    }
    if let Some(on) = &args.on {
        if !args.region.is_empty() {
            bail!("a region is memory of this machine's GPU: --region cannot be used with --on");
        }
        if args.seed.is_some() || args.cores.is_some() {
            bail!(
                "--seed and --cores are for the software GPU of this machine: they cannot be used with --on"
            );
        }
        return crate::remote::run::run(args, on);
    }
    let client = control::connect()?;
    let since = SystemTime::now();
    let mut spec = match (args.seed, args.cores) {
        (None, None) => specification(&args.spec, &client)?,
        (Some(_), _) => on_software(&args.spec, &client, "--seed")?,
        (None, Some(_)) => on_software(&args.spec, &client, "--cores")?,
    };
    (spec.seed, spec.cores) = (args.seed, args.cores);
    spec.name = args.name.clone();
    spec.ephemeral = true;
    spec.note = Some(command_line(&args.command));
    if args.watch.leaks {
        // A program before the driver itself is not asked what it has freed.
        spec.mode.get_or_insert(Mode::Isolated);
    }
    region::fit(&mut spec, &args.region, &client)?;
    let created = client.create(&spec).map_err(explain)?;
    if spec.allow_degraded {
        manage::say_if_degraded(&client, &created.name);
    }
    let name = created.name.clone();
    let run = || {
        let joined = region::attach(created, &args.region, &client)?;
        let child = start(&joined, &args.command, &args.watch)?;
        let ended = wait(child, &client, &joined, &args.command)?;
        Ok(ended.tell(&client, &joined, since))
    };
    let code = run();
    remove(&client, &name);
    code
}

/// Runs a program in a virtual GPU of its own that looks for mistakes; returns the program's exit code.
pub(crate) fn run_checked(
    args: &CheckArgs,
    settings: &CheckSettings,
    watch: &WatchArgs,
) -> Result<i32> {
    let client = control::connect()?;
    let since = SystemTime::now();
    let mut spec = on_software(&args.spec, &client, "mica check")?;
    spec.ephemeral = true;
    spec.check = Some(settings.to_string());
    spec.note = Some(command_line(&args.command));
    let created = client.create(&spec).map_err(explain)?;
    let result = start(&created, &args.command, watch)
        .and_then(|child| wait(child, &client, &created, &args.command));
    let code = result.map(|ended| ended.tell(&client, &created, since));
    remove(&client, &created.name);
    code
}

/// Runs a program in a virtual GPU of its own that records which lines of kernels are reached; returns the program's exit
/// code.
pub(crate) fn run_covered(args: &CovArgs, watch: &WatchArgs) -> Result<i32> {
    let client = control::connect()?;
    let since = SystemTime::now();
    let mut spec = on_software(&args.spec, &client, "mica cov")?;
    spec.ephemeral = true;
    spec.coverage = true;
    spec.note = Some(command_line(&args.command));
    let created = client.create(&spec).map_err(explain)?;
    let result = start(&created, &args.command, watch)
        .and_then(|child| wait(child, &client, &created, &args.command));
    let code = result.map(|ended| ended.tell(&client, &created, since));
    remove(&client, &created.name);
    code
}

/// The specification of a virtual GPU that must be on the software GPU; `what` needs it.
fn on_software(args: &SpecArgs, client: &ControlClient, what: &str) -> Result<VgpuSpec> {
    let mut wanted = args.clone();
    match wanted.gpu.as_deref() {
        None => wanted.gpu = Some("software".to_owned()),
        Some("software") => {}
        Some(other) => {
            let index = gpu_index(other, client)?;
            let gpus = client.gpus().context("the daemon does not list its GPUs")?;
            let is_software = |gpu: &&GpuInfo| gpu.index == index && gpu.kind == GpuKind::Software;
            if gpus.iter().find(is_software).is_none() {
                bail!("{what} needs the software GPU (--gpu software), not GPU {other}");
            }
        }
    }
    if wanted.mode == Some(ModeArg::Direct) {
        bail!("{what} needs the software GPU, which has no direct mode");
    }
    specification(&wanted, client)
}

/// Runs a program in a virtual GPU of its own that is profiled; returns the program's exit code.
pub(crate) fn run_profiled(args: &ProfileArgs, watch: &WatchArgs) -> Result<i32> {
    let client = control::connect()?;
    let since = SystemTime::now();
    let mut spec = specification(&args.spec, &client)?;
    spec.ephemeral = true;
    // Only a worker sees kernels.
    spec.mode = Some(Mode::Isolated);
    spec.note = Some(command_line(&args.command));
    let created = client.create(&spec).map_err(explain)?;
    let every_span = SetProfile {
        level: ProfileLevel::Spans,
        seconds: None,
    };
    let result = client
        .set_profile(&created.name, &every_span)
        .map_err(explain)
        .and_then(|_| start(&created, &args.command, watch))
        .and_then(|child| wait(child, &client, &created, &args.command));
    let code = result.map(|ended| ended.tell(&client, &created, since));
    remove(&client, &created.name);
    code
}

/// Runs a program in an existing virtual GPU; returns its exit code.
pub(crate) fn exec(args: &ExecArgs) -> Result<i32> {
    if args.watch.leaks && args.watch.check.is_none() {
        return leaks::around(|check| {
            let watch = args.watch.with_check(check);
            exec(&ExecArgs {
                watch,
                ..args.clone()
            })
        });
    }
    let client = control::connect()?;
    let since = SystemTime::now();
    let joined = client.join(&args.name).map_err(explain)?;
    let child = start(&joined, &args.command, &args.watch)?;
    let ended = wait(child, &client, &joined, &args.command)?;
    Ok(ended.tell(&client, &joined, since))
}

/// Becomes this program in an existing virtual GPU, to test its limits: nothing of it is an event of the tenant's.
pub(crate) fn become_probe(name: &str, arguments: &[OsString]) -> Result<Infallible> {
    let joined = control::connect()?.join_as_probe(name);
    let joined = joined.map_err(explain)?;
    let own = own_path()?.into_os_string();
    let command: Vec<OsString> = std::iter::once(own)
        .chain(arguments.iter().cloned())
        .collect();
    Err(prepare(&joined, &command, &WatchArgs::default())?.exec())
        .context("the probe cannot be run")
}

/// Starts a program in a virtual GPU.
pub(crate) fn start(joined: &Created, command: &[OsString], watch: &WatchArgs) -> Result<Child> {
    let mut child = prepare(joined, command, watch)?;
    // A killed `mica run` leaves no program behind.
    let started = ends_with_us(&mut child, libc::SIGKILL).spawn();
    started.map_err(|error| NotStarted::new(child.get_program(), error).into())
}

/// A program with the environment that puts it into a virtual GPU.
fn prepare(joined: &Created, command: &[OsString], watch: &WatchArgs) -> Result<Command> {
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
    for region in &joined.regions {
        child.env(region.variable(), &region.handle);
    }
    if joined.mode == Mode::Direct && !joined.gpu_uuid.is_empty() {
        // One virtual GPU is on one card: the program sees that card as device 0.
        if let Some(wanted) = other_device_wanted(std::env::var(VISIBLE).ok(), joined) {
            errln!(
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
    if prepared.lacks_driver {
        errln!(
            "mica: the NVIDIA driver's libcuda.so.1 was not found (MICA_LIBCUDA says where it is): the program will \
             find no GPU"
        );
    }
    if ignores_preloads(path) {
        errln!(
            "mica: {program} runs with the rights of another user or group, so the system keeps Mica's \
             libcuda.so.1 out of it: it will not find the virtual GPU"
        );
    }
    Ok(child)
}

/// Has CUDA's runtime load all modules of a program when it starts, not each when it is first used.
const MODULE_LOADING: &str = "CUDA_MODULE_LOADING";
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

/// Waits for a program, and tells the daemon of its start and its end.
fn wait(
    mut child: Child,
    client: &ControlClient,
    joined: &Created,
    command: &[OsString],
) -> Result<Ended> {
    signals::pass_on_to(child.id());
    escape::watch(child.id(), joined.mode);
    let report = |end| ProgramReport {
        token: joined.token.clone(),
        pid: child.id(),
        command: command_line(command),
        end,
    };
    // A daemon that does not answer keeps no program waiting.
    let client = client.clone().with_timeout(REPORT_WITHIN);
    let _ = client.report(&joined.name, &report(None));
    let ended = report(None);
    let status = child
        .wait()
        .with_context(|| format!("{} cannot be waited for", ended.command))?;
    signals::stop();
    let ended = ProgramReport {
        end: Some(exit_report::end_of(status)),
        ..ended
    };
    let told = client.report(&joined.name, &ended);
    let removed = told.is_err_and(|error| error.reason() == Some("not_found"));
    Ok(Ended { status, removed })
}

/// How a program ended, and whether its virtual GPU was there until then.
struct Ended {
    status: ExitStatus,
    removed: bool,
}

impl Ended {
    /// Says what happened, and returns the program's exit code.
    fn tell(&self, client: &ControlClient, joined: &Created, since: SystemTime) -> i32 {
        let code = exit_report::exit_code(self.status);
        let told = client
            .past_events_of(Some(&joined.name))
            .unwrap_or_default();
        exit_report::say_events(&told, joined, since, code != 0);
        match self.removed {
            true => errln!("mica: virtual GPU {} was removed", joined.name),
            false => exit_report::say_signal(self.status),
        }
        code
    }
}

/// A command line, for listings.
pub(crate) fn command_line(command: &[OsString]) -> String {
    command.join(OsStr::new(" ")).display().to_string()
}

/// Removes an ephemeral virtual GPU unless programs it started still use it.
fn remove(client: &ControlClient, name: &str) {
    let _ = client.remove(name, false);
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
