//! The `mica` command.

mod args;
mod bench;
mod control;
mod demo;
mod escape;
mod examine;
mod libraries;
mod listing;
mod manage;
mod program;
mod ptx;
mod size;
mod spec;
mod table;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{CommandFactory, Parser};
use mica_wire::host::printable::printable_lines;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    reset_sigpipe();
    let cli = Cli::parse();
    match dispatch(&cli.command) {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => {
            eprintln!("mica: {}", printable_lines(&format!("{error:#}")));
            ExitCode::FAILURE
        }
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
        Command::Create(args) => done(manage::create(args)),
        Command::Ls(args) => done(listing::list(args)),
        Command::Show(args) => done(listing::show(args)),
        Command::Resize(args) => done(manage::resize(args)),
        Command::Rm(args) => done(manage::remove(args)),
        Command::Suspend(args) => done(manage::suspend(args)),
        Command::Resume(args) => done(manage::resume(args)),
        Command::Cancel(args) => done(manage::cancel(args)),
        Command::Gpus(args) => done(listing::gpus(args)),
        Command::Stats(args) => done(listing::stats(args)),
        Command::Events(args) => done(listing::events(args)),
        Command::Doctor(args) => healthy(listing::doctor(args)),
        Command::Demo(args) => healthy(demo::run(args)),
        Command::DemoTenant => done(demo::tenant::serve()),
        Command::Bench(args) => healthy(bench::run(args)),
        Command::Daemon(args) => done(manage::daemon(args)),
        Command::Ptx(args) => done(ptx::show(args)),
        Command::Config(args) => done(manage::config(args)),
        Command::Completions { shell } => {
            clap_complete::generate(*shell, &mut Cli::command(), "mica", &mut std::io::stdout());
            Ok(0)
        }
        Command::Man { folder } => {
            std::fs::create_dir_all(folder)
                .and_then(|()| clap_mangen::generate_to(Cli::command(), folder))
                .with_context(|| format!("man pages cannot be written to {}", folder.display()))?;
            Ok(0)
        }
        Command::Worker { .. } => done(manage::worker()),
        Command::ShimLoad { copy_for_ever } => done(bench::shim_load::run(*copy_for_ever)),
        Command::LimitProbe { limit } => Ok(examine::be_limit_probe(*limit)),
        Command::Load { load } => {
            let load = serde_json::from_str(load).context("the load is no valid JSON")?;
            let report = mica_load::run(&load)?;
            println!("{}", serde_json::to_string(&report)?);
            Ok(0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_definition_is_sound() {
        Cli::command().debug_assert();
    }
}
