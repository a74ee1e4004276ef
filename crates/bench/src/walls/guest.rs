//! A guest with shared memory among the walls: program and worker are two processes that map one region, wake each other through
//! agent and relay, and share no futex. What a virtual machine adds is its own kernel and processor, which are not
//! measured here.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use anyhow::{Context, Result};
use mica_command::child::own_path;
use mica_command::refusal::explain;
use mica_control::api::{ContainerSocketSpec, Mode, VgpuSpec};
use mica_guest::{Agent, HostAddress, SharedMemory};
use mica_limits::Environment;

use super::{
    BATCHES, FROM_DEVICE, LAUNCH, Pair, ROUNDS, STARTUP, SYNC, TO_DEVICE, in_turns, program,
};
use crate::demo::private_daemon::PrivateDaemon;
use crate::programs::{isolated_run, numbers};
use crate::report::Report;
use crate::shim_load::ShimNumbers;
use crate::software::median;

/// Bytes of the region.
const REGION_BYTES: u64 = 512 << 20;
/// Most that a launch, and a launch with a wait, may take of the host's time.
const MOST_LAUNCH: f64 = 1.2;
/// Least that copies may have of the host's speed.
const LEAST_COPY: f64 = 0.9;

/// A region's file, removed when dropped.
struct RegionFile(PathBuf);

impl Drop for RegionFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(super) fn rows(daemon: &PrivateDaemon, report: &mut Report) -> Result<()> {
    // A machine has one virtual GPU by its name; what a container is known by, a relay has not.
    let named = VgpuSpec {
        name: Some("bench-guest".into()),
        memory_limit_bytes: Some(256 << 20),
        mode: Some(Mode::Isolated),
        ..VgpuSpec::default()
    };
    daemon.client.create(&named).map_err(explain)?;
    let asked = ContainerSocketSpec {
        vgpu: named.name,
        ..ContainerSocketSpec::default()
    };
    let socket = daemon.client.container_socket(&asked).map_err(explain)?;
    let folder = tempfile::tempdir()?;
    let region = RegionFile(format!("/dev/shm/mica-bench-{}", std::process::id()).into());
    mica_guest::prepare_region(&region.0, REGION_BYTES, None)?;
    let stream = folder.path().join("stream");
    let listener = UnixListener::bind(&stream).context("the guest's stream cannot be made")?;
    let environment = Environment {
        socket: PathBuf::from(&socket.folder).join("host.sock"),
        token: Environment::NO_TOKEN,
    };
    let regions = vec![region.0.clone()];
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (environment, regions) = (environment.clone(), regions.clone());
            std::thread::spawn(move || {
                let _ = mica_guest::serve(stream.into(), &environment, &regions);
            });
        }
    });
    let memory = SharedMemory::Files(vec![region.0.clone()]);
    let _agent = Agent::start(HostAddress::Unix(stream), folder.path(), memory)?;
    let behind = || {
        let mut command = isolated_run(daemon, &["--memory", "16MiB"])?;
        let socket = format!("MICA_HOST_SOCKET={}/host.sock", folder.path().display());
        command.args(["env", "-u", "MICA_TOKEN", &socket]);
        command
            .arg(own_path()?)
            .args(["shim-load", "--without-pinned"]);
        numbers::<ShimNumbers>(command)
    };
    let (host, guest) = in_turns(ROUNDS, || program(daemon, &["--without-pinned"]), behind)?;
    for (what, unit, more_is_better, figure) in
        [LAUNCH, BATCHES, SYNC, TO_DEVICE, FROM_DEVICE, STARTUP]
    {
        let of = |side: &[ShimNumbers]| median(side.iter().map(figure).collect());
        let (host, behind) = (of(&host), of(&guest));
        let (goal, reached) = match (what == STARTUP.0, more_is_better) {
            (true, _) => (String::new(), None),
            (_, true) => (
                format!("≥ ×{LEAST_COPY}"),
                Some(behind >= host * LEAST_COPY),
            ),
            (_, false) => (
                format!("≤ ×{MOST_LAUNCH}"),
                Some(behind <= host * MOST_LAUNCH),
            ),
        };
        let pair = Pair {
            what: format!("guest's shared memory, two processes: {what}"),
            unit,
            host,
            behind,
            goal,
            reached,
        };
        pair.report(report);
    }
    Ok(())
}
