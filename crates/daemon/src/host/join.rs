//! Hello: who a peer is, and whether it may have what it asks for.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use mica_control::api::GpuKind;
use mica_wire::host::message::{Introduction, PROTOCOL_VERSION, Refusal, Role};
use mica_wire::host::socket::HostSocket;

use super::newcomer::Newcomer;
use super::{PeerSocket, Rejection};
use crate::confinement::worker_user;
use crate::daemon::Daemon;
use crate::enforce::unenforceable;
use crate::gpu_thread::GpuThread;
use crate::registry::{Registry, Vgpu};
use crate::tenant::{Governed, Tenant};
use crate::view::{process_name, role_name};

/// A hello that was accepted.
pub(super) enum Joined {
    Client {
        id: u64,
        governed: Arc<Governed>,
        /// The client's end of its doorbell.
        bell: OwnedFd,
        resumed: bool,
    },
    Program {
        /// Full name of the virtual GPU.
        vgpu: String,
        session: OwnedFd,
    },
}

/// A hello and what the kernel says about its sender.
pub(super) struct Hello<'a> {
    pub(super) introduction: &'a Introduction,
    /// It was a client of an earlier daemon and brings the page that it kept.
    pub(super) resumes: bool,
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) door: PeerSocket,
    pub(super) socket: &'a Arc<HostSocket>,
}

/// The virtual GPU that a client joins, as it was when the client was let in.
pub(super) struct Place {
    pub(super) name: String,
    /// Number of the GPU.
    pub(super) gpu: usize,
    pub(super) thread: Arc<GpuThread>,
    pub(super) on_card: bool,
    pub(super) tenant: Arc<Tenant>,
    pub(super) allow_degraded: bool,
    pub(super) available_bytes: u64,
    /// The slot of a worker, unless it was started by an earlier daemon.
    pub(super) slot: Option<u64>,
    /// The program that the slot is for.
    pub(super) program: Option<(u32, u64)>,
    /// Whether the worker was started ahead of its program.
    pub(super) is_spare: bool,
}

/// Lets a process into the virtual GPU that it asks for, or says why not.
pub(super) fn join(
    daemon: &Arc<Daemon>,
    hello: &Hello<'_>,
    kept_page: Option<OwnedFd>,
) -> Result<Joined, Rejection> {
    check_version(hello.introduction.version)?;
    let role = hello.role();
    // Before the lock: this reads files.
    let container = match role {
        Role::Worker => None,
        Role::Direct | Role::Program | Role::Monitor => daemon.container_of(hello.pid),
    };
    let name = match hello.door {
        PeerSocket::Container(socket) => {
            super::containers::enter(daemon, socket, role, container.as_ref())?
        }
        PeerSocket::Programs | PeerSocket::Workers => hello.admit_by_token(daemon)?,
    };
    let mut registry = daemon.registry();
    if let (false, Ok(vgpu)) = (role == Role::Worker, registry.vgpu_mut(&name)) {
        vgpu.note_container(hello.pid, role, container.as_ref());
    }
    hello.check_gpu(&registry, &name)?;
    let vgpu = registry.vgpus.get(&name).ok_or_else(|| gone(&name))?;
    super::roles::check(&registry, vgpu, role, hello.pid)?;
    if role == Role::Program {
        drop(registry);
        let session = daemon.open_session(&name, hello.pid, hello.uid, hello.waits_for())?;
        let vgpu = name;
        return Ok(Joined::Program { vgpu, session });
    }
    let place = hello.place_in(&registry, vgpu)?;
    let newcomer = Newcomer::new(hello, place, kept_page, &mut registry)?;
    let entered = newcomer.enter(daemon, &mut registry)?;
    drop(registry);
    entered.announce(daemon);
    Ok(entered.joined())
}

impl Hello<'_> {
    pub(super) fn role(&self) -> Role {
        self.introduction.role
    }

    /// The virtual GPU that the process may join with its token and as its user.
    fn admit_by_token(&self, daemon: &Daemon) -> Result<String, Rejection> {
        let (role, uid) = (self.role(), self.uid);
        let registry = daemon.registry();
        let (vgpu, is_worker_token) = match registry.by_token(&self.introduction.token) {
            Some(found) => found,
            None => return Err((Refusal::Token, "no virtual GPU has this token".into())),
        };
        let through_workers = self.door == PeerSocket::Workers;
        if is_worker_token != (role == Role::Worker) || through_workers != is_worker_token {
            let text = format!("this token is not for a {}", role_name(role));
            return Err((Refusal::Permission, text));
        }
        let (own, owner) = (mica_control::uid(), vgpu.owner_uid);
        let allowed = match role {
            Role::Worker => uid == own || Some(uid) == worker_user(&registry.config.workers, owner),
            Role::Direct | Role::Program | Role::Monitor => uid == 0 || uid == owner,
        };
        if !allowed {
            let text = format!("user {uid} may not use the virtual GPU of this token");
            return Err((Refusal::Permission, text));
        }
        Ok(vgpu.name.clone())
    }

    /// The number of the session that a program waits for, if that was saved in a snapshot; else 0.
    fn waits_for(&self) -> u64 {
        match self.role() {
            Role::Program => self.introduction.client_id,
            Role::Direct | Role::Worker | Role::Monitor => 0,
        }
    }

    /// Refuses a process whose GPU is lost, and new programs on a GPU that takes none. A program that waits for its snapshot is
    /// not refused: it is on no GPU, and the snapshot may be restored on another one, or after a reset.
    fn check_gpu(&self, registry: &Registry, name: &str) -> Result<(), Rejection> {
        let vgpu = registry.vgpus.get(name).ok_or_else(|| gone(name))?;
        if self.waits_for() != 0 {
            return Ok(());
        }
        let Some(gpu) = registry.gpus.get(vgpu.gpu).filter(|gpu| gpu.lost.is_none()) else {
            let why = registry.reasons(vgpu).join("; ");
            return Err((Refusal::State, format!("{name} is lost: {why}")));
        };
        // Programs that are there already may end their work. So may their workers, which return after a restart.
        if let (Some(why), Role::Program | Role::Direct) = (gpu.closed(), self.role())
            && !self.resumes
        {
            let text = format!("GPU {} takes no new programs: {why}", vgpu.gpu);
            return Err((Refusal::State, text));
        }
        Ok(())
    }

    /// Where a client joins; refuses a worker that nobody started and a program whose limits cannot be enforced.
    fn place_in(&self, registry: &Registry, vgpu: &Vgpu) -> Result<Place, Rejection> {
        let gpu = registry.gpus.get(vgpu.gpu);
        let thread = gpu.ok_or_else(|| gone(&vgpu.name))?.thread.clone();
        let slot = vgpu.slot_of_worker(self.pid);
        let worker = slot.and_then(|slot| vgpu.workers.get(&slot));
        if self.role() == Role::Worker && slot.is_none() && !self.resumes {
            let (pid, name) = (self.pid, &vgpu.name);
            let text = format!("process {pid} was not started as a worker of {name}");
            return Err((Refusal::State, text));
        }
        if self.role() == Role::Direct && !vgpu.spec.allow_degraded {
            let reasons = unenforceable(&vgpu.spec, registry.kind(vgpu));
            if !reasons.is_empty() {
                return Err((Refusal::Enforcement, reasons.join("; ")));
            }
        }
        Ok(Place {
            name: vgpu.name.clone(),
            gpu: vgpu.gpu,
            thread,
            on_card: registry.kind(vgpu) == GpuKind::Nvidia,
            tenant: vgpu.tenant.clone(),
            allow_degraded: vgpu.spec.allow_degraded,
            available_bytes: vgpu.ledger.available_bytes(),
            slot,
            program: worker.and_then(|worker| worker.program),
            is_spare: worker.is_some_and(|worker| worker.is_spare),
        })
    }
}

/// The refusal of a process whose virtual GPU was removed meanwhile.
pub(super) fn gone(name: &str) -> Rejection {
    (Refusal::State, format!("{name} is gone"))
}

/// Refuses a program that speaks another version.
pub(super) fn check_version(theirs: u64) -> Result<(), Rejection> {
    match theirs {
        PROTOCOL_VERSION => Ok(()),
        theirs => Err((
            Refusal::Version,
            format!(
                "this daemon speaks protocol {PROTOCOL_VERSION}, the program {theirs}: use one version of Mica for both"
            ),
        )),
    }
}

/// What the event log says about a process that joined.
pub(crate) fn joined_words(
    role: Role,
    pid: u32,
    serves: Option<(u32, u64)>,
    name: &str,
    resumed: bool,
) -> String {
    let did = match resumed {
        false => "joined",
        true => "is back in",
    };
    match (role, serves) {
        (Role::Worker, Some((program, _))) => {
            let command = process_name(program);
            format!("process {program} ({command}) {did} {name}, served by worker {pid}")
        }
        (Role::Worker, None) => format!("worker {pid} {did} {name}"),
        (Role::Direct | Role::Program | Role::Monitor, _) => {
            format!("process {pid} ({}) {did} {name}", process_name(pid))
        }
    }
}
