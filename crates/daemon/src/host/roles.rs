//! Which role a process may have in a virtual GPU.
//!
//! Roles follow the mode: a direct virtual GPU has programs that drive the GPU themselves, an isolated one has workers
//! that the daemon started and programs that are served by them. A token proves that a process may use a virtual GPU. It
//! does not prove that a process is a worker, whose figures the daemon believes.

use mica_wire::host::message::{Refusal, Role};

use crate::api::Mode;
use crate::enforce::parent_of;
use crate::registry::{Registry, Vgpu};
use crate::watched::start_time;

/// How far a worker may be from the process that the daemon started: `worker_command` may be a chain of wrappers.
const MOST_WRAPPERS: usize = 8;

/// Refuses a role that the virtual GPU's mode does not have, and workers that no daemon started.
pub(super) fn check(
    registry: &Registry,
    vgpu: &Vgpu,
    role: Role,
    pid: u32,
) -> Result<(), (Refusal, String)> {
    let name = &vgpu.name;
    match (role, registry.mode(vgpu)) {
        (Role::Direct, Mode::Isolated) => Err((
            Refusal::State,
            format!("{name} is an isolated virtual GPU: a worker serves its programs"),
        )),
        (Role::Worker, Mode::Direct) => Err((
            Refusal::State,
            format!("{name} is a direct virtual GPU and has no worker"),
        )),
        (Role::Worker, Mode::Isolated) if !is_worker(vgpu, pid) => Err((
            Refusal::Permission,
            format!("process {pid} is not a worker that the daemon started for {name}"),
        )),
        _ => Ok(()),
    }
}

/// Whether a process is a worker that this daemon started, or that an earlier one knew.
fn is_worker(vgpu: &Vgpu, pid: u32) -> bool {
    let started = |pid: &u32| vgpu.worker.pid == Some(*pid);
    let ancestors = std::iter::successors(Some(pid), |pid| parent_of(*pid));
    let start = start_time(pid).unwrap_or(0);
    ancestors.take(MOST_WRAPPERS).any(|pid| started(&pid)) || vgpu.ledger.expects_worker(pid, start)
}
