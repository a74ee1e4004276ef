//! Making, changing and removing virtual GPUs, and the processes that serve them.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use mica_control::api::{Resize, VgpuInfo};
use mica_control::client::ControlClient;
use mica_wire::host::printable::printable;

use crate::args::{
    ConfigArgs, CreateArgs, DaemonArgs, JsonArgs, NameArgs, RemoveArgs, ResizeArgs, SuspendArgs,
};
use crate::control::{connect, connect_existing};
use crate::listing::print_json;
use crate::spec;
use mica_command::refusal::explain;
use mica_command::share::share_words;
use mica_command::size::{Memory, show_bytes};

pub(crate) fn create(args: &CreateArgs) -> Result<()> {
    let client = connect()?;
    let mut specification = spec::specification(&args.spec, &client)?;
    specification.name = Some(args.name.clone());
    let created = client.create(&specification).map_err(explain)?;
    if args.json {
        return print_json(&client.get(&created.name).map_err(explain)?);
    }
    outln!(
        "{}: {} of memory and {} % of GPU {} ({}){}\nrun in it with: mica exec {} -- CMD",
        created.name,
        show_bytes(created.memory_limit_bytes),
        created.share_percent,
        created.gpu,
        created.gpu_kind,
        match created.share_reserved {
            true => "",
            false => ", not reserved (-s reserves a share)",
        },
        args.name
    );
    if args.spec.allow_degraded {
        say_if_degraded(&client, &created.name);
    }
    Ok(())
}

/// Says at once what was allowed not to be in force, and is not.
pub(crate) fn say_if_degraded(client: &ControlClient, name: &str) {
    let reasons = client.get(name).map(|vgpu| vgpu.reasons);
    for reason in reasons.unwrap_or_default() {
        errln!("mica: {name} is degraded: {}", printable(&reason));
    }
}

pub(crate) fn resize(args: &ResizeArgs) -> Result<()> {
    let change = Resize {
        memory_limit_bytes: args.memory.and_then(Memory::bytes),
        memory_limit_percent: args.memory.and_then(Memory::part),
        share_percent: args.share.map(|share| share.0),
        cap: (args.cap || args.no_cap).then_some(args.cap),
        priority: args.priority.map(spec::priority),
        drain: args.drain,
    };
    let vgpu = connect()?
        .resize(&args.vgpu.name, &change)
        .map_err(explain)?;
    report(&vgpu, args.vgpu.json)
}

fn report(vgpu: &VgpuInfo, json: bool) -> Result<()> {
    if json {
        return print_json(vgpu);
    }
    outln!(
        "{}: {}, limit {}, share {}",
        vgpu.name,
        vgpu.state,
        show_bytes(vgpu.memory_limit_bytes),
        share_words(vgpu)
    );
    Ok(())
}

pub(crate) fn remove(args: &RemoveArgs) -> Result<()> {
    let client = connect()?;
    let (mut removed, mut failed) = (Vec::new(), Vec::new());
    for name in &args.names {
        match client.remove(name, args.force) {
            Ok(_) if args.json => removed.push(name),
            Ok(_) => outln!("{name} removed"),
            Err(error) => failed.push(explain(error).to_string()),
        }
    }
    if args.json {
        print_json(&serde_json::json!({ "removed": removed }))?;
    }
    if failed.is_empty() {
        Ok(())
    } else {
        bail!(failed.join("\n"))
    }
}

pub(crate) fn suspend(args: &SuspendArgs) -> Result<()> {
    let client = connect()?;
    let suspended = match args.free {
        true => client.suspend_and_free(&args.vgpu.name),
        false => client.suspend(&args.vgpu.name),
    };
    report(&suspended.map_err(explain)?, args.vgpu.json)
}

pub(crate) fn resume(args: &NameArgs) -> Result<()> {
    report(&connect()?.resume(&args.name).map_err(explain)?, args.json)
}

pub(crate) fn cancel(args: &NameArgs) -> Result<()> {
    let done = connect()?.cancel(&args.name).map_err(explain)?;
    if args.json {
        return print_json(&done);
    }
    outln!("{}", printable(&done.done));
    Ok(())
}

pub(crate) fn daemon(args: &DaemonArgs) -> Result<()> {
    if args.stop || args.reload {
        let client = connect_existing();
        let done = if args.stop {
            client.shutdown()
        } else {
            client.reload()
        }
        .map_err(explain)?;
        if args.stop {
            wait_for_end(client.socket());
        }
        outln!("{}", printable(&done.done));
        return Ok(());
    }
    crate::log::start(mica_daemon::log_format(args.config.as_deref()));
    Ok(mica_daemon::run(args.config.clone())?)
}

/// The next command must not reach the daemon that ends. A successor may start at once: its start is not waited for.
fn wait_for_end(socket: &Path) {
    let since = Instant::now();
    while UnixStream::connect(socket).is_ok() && since.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn dashboard(args: &JsonArgs) -> Result<()> {
    let dashboard = connect()?.dashboard().map_err(explain)?;
    if args.json {
        return print_json(&dashboard);
    }
    outln!("{}", dashboard.url);
    let minutes = dashboard.ticket_seconds / 60;
    errln!(
        "the address signs in once, within {minutes} minutes; afterwards the page is at {}",
        dashboard.page
    );
    Ok(())
}

fn new_token(json: bool) -> Result<()> {
    let made = mica_daemon::new_token();
    let (token, digest) = made.context("the system has no random numbers")?;
    if json {
        return print_json(&serde_json::json!({ "token": token, "token_sha256": digest }));
    }
    outln!("{token}");
    errln!("for the configuration: token_sha256 = \"{digest}\"");
    Ok(())
}

pub(crate) fn config(args: &ConfigArgs) -> Result<()> {
    if args.new_token {
        return new_token(args.json);
    }
    ensure!(
        args.file.is_some() || !args.json,
        "--json needs FILE or --new-token"
    );
    match &args.file {
        Some(file) => {
            let checked = mica_daemon::config::Config::load(file);
            if args.json {
                let error = checked.as_ref().err().map(ToString::to_string);
                let verdict = serde_json::json!({
                    "file": file, "valid": checked.is_ok(), "error": error,
                });
                print_json(&verdict)?;
            }
            checked?;
            if !args.json {
                outln!("{}: valid", file.display());
            }
        }
        None => out!("{}", mica_daemon::config::EXAMPLE),
    }
    Ok(())
}

pub(crate) fn worker() -> Result<()> {
    // The daemon reads what a worker writes to its standard error; a worker outlives a daemon that is replaced.
    // SAFETY: ignores a signal; no other thread runs yet.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    Ok(mica_worker::run(
        &mica_worker::WorkerConfig::from_environment()?,
    )?)
}
