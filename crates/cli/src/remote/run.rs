//! `mica run --on`: a program here, its virtual GPU there.
//!
//! This process is the program's door: the program's library connects to a socket of this process, which carries each
//! session to the server. When this process ends, so do the program and the virtual GPU.

use std::time::SystemTime;

use anyhow::{Context, Result};
use mica_control::Paths;
use mica_control::api::{Created, Mode};
use mica_limits::Environment;
use mica_remote::client::{self, RemoteVgpu};
use mica_remote::folder::Folder;
use mica_tunnel::Door;
use mica_wire::host::printable::printable_lines;

use crate::args::{RunArgs, SpecArgs};
use crate::program::{command_line, start};
use crate::spec::specification_on;
use crate::{escape, exit_report, signals};

/// Runs a program; returns its exit code.
pub(crate) fn run(args: &RunArgs, on: &str) -> Result<i32> {
    let folder = Folder::from_environment()?;
    let (server_name, server) = client::find(&folder, on)?;
    let mut spec = specification_on(&args.spec, None)?;
    spec.name = args.name.clone();
    let SpecArgs { gpu, .. } = &args.spec;
    let command = command_line(&args.command);
    let remote = RemoteVgpu::make(folder.identity()?, server, spec, gpu.clone(), command)
        .with_context(|| format!("no virtual GPU on {server_name}"))?;
    let paths = Paths::from_environment();
    paths.make_runtime_dir()?;
    let socket = paths
        .runtime_dir
        .join(format!("remote-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&socket);
    let token = mica_remote::invite::secret()?;
    let door = Door::listen(&socket, token, remote.clone())?;
    let joined = Created {
        token: Environment::token_hex(&token),
        host_socket: socket.display().to_string(),
        mode: Mode::Isolated,
        ..remote.created().clone()
    };
    let started = start(&joined, &args.command, &args.watch);
    let code = started.and_then(|mut child| {
        signals::pass_on_to(child.id());
        escape::watch(child.id(), joined.mode);
        let waited = child.wait();
        signals::stop();
        let status = waited.context("the program cannot be waited for")?;
        let code = exit_report::exit_code(status);
        let lost = remote.lost();
        // The server's clock is not this machine's: all events of a virtual GPU made for this run are of this run.
        let told = if lost.is_none() {
            remote.events()
        } else {
            Vec::new()
        };
        exit_report::say_events(&told, &joined, SystemTime::UNIX_EPOCH, code != 0);
        if let Some(lost) = lost {
            errln!("mica: {server_name}: {}", printable_lines(&lost));
        }
        exit_report::say_signal(status);
        Ok(code)
    });
    drop(door);
    remote.end();
    code
}
