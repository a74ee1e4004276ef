//! Which role a process may have in a virtual GPU.
//!
//! Roles follow the mode: a direct virtual GPU has programs that drive the GPU themselves, an isolated one has workers
//! that the daemon started and programs that are served by them. A token proves that a process may use a virtual GPU. It
//! does not prove that a process is a worker, whose figures the daemon believes.

use mica_control::api::Mode;
use mica_wire::host::message::{Refusal, Role};

use super::Rejection;
use crate::registry::{Registry, Vgpu};
use crate::watched::start_time;

/// Refuses a role that the virtual GPU's mode does not have, and workers that no daemon started.
pub(super) fn check(
    registry: &Registry,
    vgpu: &Vgpu,
    role: Role,
    pid: u32,
) -> Result<(), Rejection> {
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
        // It ends, and the snapshot can be restored again.
        (Role::Worker, Mode::Isolated) if is_left_over(vgpu, pid) => Err((
            Refusal::Permission,
            format!(
                "worker {pid} restored {name} for an earlier daemon, which ended before the program could go on"
            ),
        )),
        _ => Ok(()),
    }
}

/// Whether a worker of an earlier daemon has a session that was not let go on.
fn is_left_over(vgpu: &Vgpu, pid: u32) -> bool {
    vgpu.slot_of_worker(pid).is_none() && vgpu.is_left_over((pid, start_time(pid).unwrap_or(0)))
}

/// Whether a process is a worker that this daemon started, or that an earlier one knew.
fn is_worker(vgpu: &Vgpu, pid: u32) -> bool {
    let start = start_time(pid).unwrap_or(0);
    vgpu.slot_of_worker(pid).is_some() || vgpu.ledger.expects_worker(pid, start)
}
