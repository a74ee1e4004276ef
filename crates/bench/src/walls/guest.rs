//! A guest with shared memory among the walls: program and worker are two processes that map one ivshmem file, wake each other through
//! agent and relay, and share no futex. What a virtual machine adds is its own kernel and processor, which are not
//! measured here.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use mica_command::child::own_path;
use mica_command::refusal::explain;
use mica_control::api::{Mode, Percent, VgpuSpec};
use mica_guest::{Agent, HostAddress, SharedMemory};
use tempfile::TempDir;

use super::{ROUNDS, all_figures, in_turns, program};
use crate::demo::private_daemon::PrivateDaemon;
use crate::programs::{Server, isolated_run, mica, numbers, printed};
use crate::report::Report;
use crate::shim_load::ShimNumbers;

/// The memory that the guest shares.
const SHARED_MEMORY: &str = "512MiB";
/// Most that a launch, and a launch with a wait, may take of the host's time.
const MOST_LAUNCH: f64 = 1.2;
/// Least that copies may have of the host's speed.
const LEAST_COPY: f64 = 0.9;

/// The host's side of a guest: `mica vm serve`. Its shared memory and its virtual GPU are given back when it is dropped.
struct Host<'a> {
    daemon: &'a PrivateDaemon,
    vgpu: String,
    server: Option<Server>,
}

impl<'a> Host<'a> {
    /// Serves streams that arrive at a path.
    fn start(daemon: &'a PrivateDaemon, share: Option<Percent>, stream: &Path) -> Result<Self> {
        // The names of shared memory are the machine's: another benchmark may run on it.
        let vgpu = format!("bench-guest-{}", std::process::id());
        let spec = VgpuSpec {
            name: Some(vgpu.clone()),
            memory_limit_bytes: Some(256 << 20),
            mode: Some(Mode::Isolated),
            share_percent: share,
            ..VgpuSpec::default()
        };
        daemon.client.create(&spec).map_err(explain)?;
        let mut host = Self {
            daemon,
            vgpu,
            server: None,
        };
        let mut command = mica(daemon, &["vm", "serve", &host.vgpu, "--ivshmem", "1"])?;
        command.args(["--ivshmem-size", SHARED_MEMORY, "--socket"]);
        command.arg(stream);
        let (server, said) = Server::start(command)?;
        ensure!(said.contains("serving"), "no guest is served: {said}");
        host.server = Some(server);
        Ok(host)
    }

    /// The file of the guest's shared memory.
    fn memory(&self) -> PathBuf {
        format!("/dev/shm/mica-{}-0", self.vgpu).into()
    }
}

impl Drop for Host<'_> {
    fn drop(&mut self) {
        self.server = None;
        let detach = mica(self.daemon, &["vm", "detach", &self.vgpu]);
        let removed = detach.and_then(printed).and_then(|_| {
            let removed = self.daemon.client.remove(&self.vgpu, true);
            removed.map(drop).map_err(explain)
        });
        if let Err(error) = removed {
            errln!("mica: {error:#}");
        }
    }
}

/// A guest with one shared-memory device; what ends first is named first.
pub(super) struct Guest<'a> {
    _agent: Agent,
    host: Host<'a>,
    folder: TempDir,
}

impl<'a> Guest<'a> {
    /// Starts its agent and its host's side.
    pub(super) fn start(daemon: &'a PrivateDaemon, share: Option<Percent>) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let stream = folder.path().join("stream");
        let host = Host::start(daemon, share, &stream)?;
        let memory = SharedMemory::Files(vec![host.memory()]);
        let address = HostAddress::Unix(stream);
        Ok(Self {
            _agent: Agent::start(address, folder.path(), memory)?,
            host,
            folder,
        })
    }

    /// A command that runs a program in the guest.
    pub(super) fn command(&self) -> Result<Command> {
        let mut command = isolated_run(self.host.daemon, &["--memory", "16MiB"])?;
        let socket = format!(
            "MICA_HOST_SOCKET={}/host.sock",
            self.folder.path().display()
        );
        command.args(["env", "-u", "MICA_TOKEN", &socket]);
        Ok(command)
    }
}

pub(super) fn rows(daemon: &PrivateDaemon, report: &mut Report) -> Result<()> {
    let guest = Guest::start(daemon, None)?;
    let behind = || {
        let mut command = guest.command()?;
        command
            .arg(own_path()?)
            .args(["shim-load", "--without-pinned"]);
        numbers::<ShimNumbers>(command)
    };
    let (host, guest) = in_turns(ROUNDS, || program(daemon, &["--without-pinned"]), behind)?;
    let judge = |more_is_better, host: f64, behind: f64| match more_is_better {
        true => (format!("≥ ×{LEAST_COPY}"), behind >= host * LEAST_COPY),
        false => (format!("≤ ×{MOST_LAUNCH}"), behind <= host * MOST_LAUNCH),
    };
    let wall = "guest's shared memory, two processes";
    all_figures(wall, [&host, &guest], judge, report);
    Ok(())
}
