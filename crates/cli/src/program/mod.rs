//! `mica run` and `mica exec`: a program inside a virtual GPU.
//!
//! ```text
//!   create (or join) ─► environment: socket, token, libraries ─► spawn ─► wait ─► its exit code
//! ```

mod environment;

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use mica_check::CheckSettings;
use mica_command::child::{ends_with_us, own_path};
use mica_command::refusal::explain;
use mica_control::api::{
    Created, GpuInfo, GpuKind, Mode, ProfileLevel, ProgramReport, SetProfile, VgpuSpec,
};
use mica_control::client::ControlClient;

use crate::args::{
    CheckArgs, CovArgs, ExecArgs, ModeArg, ProfileArgs, RunArgs, SpecArgs, WatchArgs,
};
use crate::check::leaks;
use crate::control;
use crate::escape;
use crate::exit_report;
use crate::manage;
use crate::not_started::NotStarted;
use crate::region;
use crate::signals;
use crate::spec::{gpu_index, specification};
use environment::prepare;

/// How long the daemon's answer to a report of a program is waited for.
const REPORT_WITHIN: Duration = Duration::from_secs(2);

/// An option that only the software GPU of this machine knows, if one is given.
fn for_software(args: &RunArgs) -> Option<&'static str> {
    let options = [
        (args.seed.is_some(), "--seed"),
        (args.cores.is_some(), "--cores"),
        (args.capability.is_some(), "--capability"),
    ];
    options
        .into_iter()
        .find_map(|(is_given, name)| is_given.then_some(name))
}

/// Runs a program in a virtual GPU of its own; returns its exit code.
pub(crate) fn run(args: &RunArgs) -> Result<i32> {
    if args.watch.leaks && args.watch.check.is_none() {
        return leaks::around(&args.watch, |check| {
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
        if let Some(option) = for_software(args) {
            bail!("{option} is for the software GPU of this machine: it cannot be used with --on");
        }
        return crate::remote::run::run(args, on);
    }
    let client = control::connect()?;
    let mut spec = match for_software(args) {
        None => specification(&args.spec, &client)?,
        Some(option) => on_software(&args.spec, &client, option)?,
    };
    (spec.seed, spec.cores) = (args.seed, args.cores);
    spec.capability = args.capability.clone();
    spec.name = args.name.clone();
    if args.watch.leaks {
        // A program before the driver itself is not asked what it has freed.
        spec.mode.get_or_insert(Mode::Isolated);
    }
    region::fit(&mut spec, &args.region, &client)?;
    run_in_own(&client, spec, &args.command, &args.watch, |created| {
        region::attach(created, &args.region, &client)
    })
}

/// Runs a program in a virtual GPU of its own that looks for mistakes; returns the program's exit code.
pub(crate) fn run_checked(
    args: &CheckArgs,
    settings: &CheckSettings,
    watch: &WatchArgs,
) -> Result<i32> {
    let client = control::connect()?;
    let mut spec = on_software(&args.spec, &client, "mica check")?;
    spec.check = Some(settings.to_string());
    run_in_own(&client, spec, &args.command, watch, Ok)
}

/// Runs a program in a virtual GPU of its own that records which lines of kernels are reached; returns the program's exit
/// code.
pub(crate) fn run_covered(args: &CovArgs, watch: &WatchArgs) -> Result<i32> {
    let client = control::connect()?;
    let mut spec = on_software(&args.spec, &client, "mica cov")?;
    spec.coverage = true;
    run_in_own(&client, spec, &args.command, watch, Ok)
}

/// Runs a program in a virtual GPU of its own that is profiled; returns the program's exit code.
pub(crate) fn run_profiled(args: &ProfileArgs, watch: &WatchArgs) -> Result<i32> {
    let client = control::connect()?;
    let mut spec = specification(&args.spec, &client)?;
    // Only a worker sees kernels.
    spec.mode = Some(Mode::Isolated);
    let every_span = SetProfile {
        level: ProfileLevel::Spans,
        seconds: None,
    };
    run_in_own(&client, spec, &args.command, watch, |created| {
        let profiled = client.set_profile(&created.name, &every_span);
        profiled.map_err(explain).map(|_| created)
    })
}

/// Makes a virtual GPU for one program, sets it up, runs the program in it and removes it; returns the program's exit code.
fn run_in_own(
    client: &ControlClient,
    mut spec: VgpuSpec,
    command: &[OsString],
    watch: &WatchArgs,
    set_up: impl FnOnce(Created) -> Result<Created>,
) -> Result<i32> {
    let since = SystemTime::now();
    spec.ephemeral = true;
    spec.note = Some(command_line(command));
    let created = client.create(&spec).map_err(explain)?;
    let name = created.name.clone();
    if spec.allow_degraded {
        manage::say_if_degraded(client, &name);
    }
    let result = set_up(created).and_then(|joined| run_in(client, &joined, command, watch, since));
    // Programs that it has started may still use the virtual GPU, which then stays until they end.
    let _ = client.remove(&name, false);
    result
}

/// Runs a program in a virtual GPU that is there; returns its exit code.
fn run_in(
    client: &ControlClient,
    joined: &Created,
    command: &[OsString],
    watch: &WatchArgs,
    since: SystemTime,
) -> Result<i32> {
    let child = start(joined, command, watch)?;
    let ended = wait(child, client, joined, command)?;
    Ok(ended.tell(client, joined, since))
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

/// Runs a program in an existing virtual GPU; returns its exit code.
pub(crate) fn exec(args: &ExecArgs) -> Result<i32> {
    if args.watch.leaks && args.watch.check.is_none() {
        return leaks::around(&args.watch, |check| {
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
    run_in(&client, &joined, &args.command, &args.watch, since)
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
