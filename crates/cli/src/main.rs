//! The `mica` command.
#![deny(clippy::unwrap_used, clippy::expect_used)]

// `out!`, `outln!` and `errln!`.
#[macro_use]
extern crate mica_command;

mod args;
mod cdi;
mod check;
mod complete;
mod control;
mod cov;
mod escape;
mod examine;
mod exit_report;
mod follower;
mod libraries;
mod listing;
mod log;
mod manage;
mod migration;
mod not_started;
mod profile;
mod program;
mod ptx;
mod region;
mod remote;
mod signals;
mod snapshot;
mod spec;
mod usage;
mod vm;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{CommandFactory, Parser};
use mica_bench::ShimTask;
use mica_control::client::ControlClient;
use mica_wire::host::printable::printable_lines;

use crate::args::{Cli, Command};
use crate::not_started::{NotStarted, OWN_FAILURE};

fn main() -> ExitCode {
    reset_sigpipe();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage::report(error),
    };
    let code = dispatch(&cli.command).unwrap_or_else(|error| {
        errln!("mica: {}", printable_lines(&format!("{error:#}")));
        failure_code(&cli.command, &error)
    });
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// The exit code of a failure. Where a program's own code is returned, Mica's failures have codes of their own.
fn failure_code(command: &Command, error: &anyhow::Error) -> i32 {
    match command {
        Command::Run(_)
        | Command::Exec(_)
        | Command::Check(_)
        | Command::Cov(_)
        | Command::Profile(_) => {
            let not_started = error.downcast_ref::<NotStarted>();
            not_started.map_or(OWN_FAILURE, |failure| failure.code)
        }
        _ if error.is::<mica_views::smi::WrongQuery>() => 2,
        _ => 1,
    }
}

/// `mica ls | head` ends quietly, as every tool does.
fn reset_sigpipe() {
    // SAFETY: restores the default action; no other thread runs yet.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

fn dispatch(command: &Command) -> Result<i32> {
    let done = |result: Result<()>| result.map(|()| 0);
    let healthy = |result: Result<bool>| result.map(|ok| i32::from(!ok));
    match command {
        Command::Run(args) => program::run(args),
        Command::Exec(args) => program::exec(args),
        Command::Check(args) => check::run(args),
        Command::Cov(args) => cov::run(args),
        Command::Profile(args) => profile::run(args),
        Command::Create(args) => done(manage::create(args)),
        Command::Ls(args) => done(listing::list(args)),
        Command::Show(args) => done(listing::show(args)),
        Command::Resize(args) => done(manage::resize(args)),
        Command::Rm(args) => done(manage::remove(args)),
        Command::Suspend(args) => done(manage::suspend(args)),
        Command::Resume(args) => done(manage::resume(args)),
        Command::Snapshot(args) => done(snapshot::snapshot(args)),
        Command::Restore(args) => done(snapshot::restore(args)),
        Command::Migrate(args) => done(migration::migrate(args)),
        Command::Cancel(args) => done(manage::cancel(args)),
        Command::Memory(args) => done(listing::memory(args)),
        Command::Region(command) => done(region::run(command)),
        Command::Gpus(args) => done(listing::gpus(args)),
        Command::Stats(args) => done(listing::stats(args)),
        Command::Top(args) => done(top(args)),
        Command::Smi(args) => done(mica_views::smi::run(&control::connect()?, args)),
        Command::Why(args) => done(mica_views::why::run(&control::connect()?, args)),
        Command::Report(args) => done(mica_views::accounts::report(&control::connect()?, args)),
        Command::Events(args) => done(listing::events(args)),
        Command::Doctor(args) => healthy(listing::doctor(args)),
        Command::Demo(args) => healthy(mica_bench::demo::run(args.json)),
        Command::DemoTenant => done(mica_bench::demo::serve_tenant()),
        Command::Cdi(args) => done(cdi::run(args)),
        Command::Vm(args) => done(vm::run(args)),
        Command::VmStream { socket, ivshmem } => done(vm::stream(socket, ivshmem)),
        Command::Bench(args) => healthy(mica_bench::run(args, &|| libraries::find().map(drop))),
        Command::Dashboard(args) => done(manage::dashboard(args)),
        Command::Daemon(args) => done(manage::daemon(args)),
        Command::Serve(args) => done(remote::serve::serve(args)),
        Command::ServeConnection {
            pair,
            resume,
            keep_uploads,
        } => {
            let terms = remote::serve::Terms {
                resume_seconds: *resume,
                upload_bytes: *keep_uploads,
            };
            done(remote::serve::connection(*pair, terms))
        }
        Command::Remote(command) => done(remote::manage(command)),
        Command::Ptx(args) => done(ptx::show(args)),
        Command::Config(args) => done(manage::config(args)),
        Command::Completions { shell } => {
            out!("{}", complete::script(*shell));
            Ok(0)
        }
        Command::Complete { words } => {
            complete::print(words);
            Ok(0)
        }
        Command::Libraries { folder } => done(libraries::write_for_all(folder)),
        Command::Man { folder } => done(write_man_pages(folder)),
        Command::Worker { .. } => done(manage::worker()),
        Command::ShimLoad {
            copy_for_ever,
            train,
            large_module,
            without_pinned,
            copies,
            uploads,
        } => done(mica_bench::run_shim_load(
            match (copy_for_ever, train, large_module, copies) {
                _ if *uploads => ShimTask::Uploads,
                (.., Some(direction)) => ShimTask::Copies(*direction),
                (true, ..) => ShimTask::CopyForEver,
                (_, true, ..) => ShimTask::Train,
                (_, _, true, _) => ShimTask::LargeModule,
                _ => ShimTask::Calls {
                    pinned: !without_pinned,
                },
            },
        )),
        Command::LimitProbe { limit, vgpu } => examine::limit_probe(*limit, vgpu.as_deref()),
        Command::Load { load } => done(run_load(load)),
    }
}

fn top(args: &mica_views::args::TopArgs) -> Result<()> {
    let client = match &args.socket {
        Some(socket) => ControlClient::new(socket.clone()),
        None => control::connect()?,
    };
    mica_views::top::run(&client, args)
}

/// Writes the manual pages of all commands into a folder.
fn write_man_pages(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), folder))
        .with_context(|| format!("man pages cannot be written to {}", folder.display()))
}

/// Runs a load of the benchmarks, given as JSON, and prints its report.
fn run_load(load: &str) -> Result<()> {
    let load = serde_json::from_str(load).context("the load is not valid JSON")?;
    let report = mica_load::run(&load)?;
    outln!("{}", serde_json::to_string(&report)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_definition_is_sound() {
        Cli::command().debug_assert();
    }
}
