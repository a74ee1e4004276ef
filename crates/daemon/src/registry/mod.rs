//! The virtual GPUs of this host, their processes and their GPUs.
//!
//! Owns every table; one lock guards them all and is never held while waiting. Decides what exists and
//! who is in it; how memory is counted is the ledger's business, and whose turn it is the GPU thread's.

mod admission;
mod changes;
mod containers;
mod creation;
mod names;
mod program_reports;
mod regions;

pub(crate) use containers::{Behind, MadeFor};
pub(crate) use names::may_mean;
pub(crate) use program_reports::StartedProgram;
pub(crate) use regions::{OpenedRegion, Region, StoredRegion};

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use mica_control::api::{ApiError, GpuKind, LinkInfo, Mode, Percent, Sample, VgpuSpec, VgpuState};
use mica_wire::host::message::Role;
use mica_wire::host::socket::HostSocket;

use crate::cgroups::GroupLimits;
use crate::config::Config;
use crate::containers::{Container, ContainerSockets};
use crate::devices::{DeviceFacts, DeviceReading};
use crate::enforce::mode_on;
use crate::gpu_thread::{Change, GpuThread};
use crate::journal::Journal;
use crate::ledger::Ledger;
use crate::placement::error;
use crate::processors::Processors;
use crate::profiles::{Profiled, ToldProfile};
use crate::swap::{Moved, Turns};
use crate::tenant::{Entitlement, Governed, Tenant};
use crate::watched::Watched;
use crate::workers::PendingSession;

/// A physical GPU.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) facts: DeviceFacts,
    /// Place in the driver's list, for readings.
    pub(crate) driver_index: Option<usize>,
    pub(crate) reading: DeviceReading,
    pub(crate) thread: Arc<GpuThread>,
    /// Faults that the driver has reported.
    pub(crate) xid_errors: u64,
    pub(crate) lost: Option<String>,
    /// Why its settings, such as its compute mode, forbid sharing.
    pub(crate) unshareable: Option<String>,
    /// Why it must be reset. Until then it takes no new programs.
    pub(crate) drained: Option<String>,
    /// The killed worker on it that does not end. Until it does, the GPU takes no new programs.
    pub(crate) hung: Option<String>,
    pub(crate) charged_percent: f64,
    pub(crate) processors: Processors,
    /// Processes that use it and belong to no virtual GPU, with the memory they hold.
    pub(crate) outsiders: Vec<(u32, u64)>,
}

impl Gpu {
    /// Why the GPU takes no new programs.
    pub(crate) fn closed(&self) -> Option<&String> {
        self.drained.as_ref().or(self.hung.as_ref())
    }
}

/// What is in force of a worker's confinement.
#[derive(Clone, Debug, Default)]
pub(crate) struct Confinement {
    /// One bit for each layer.
    pub(crate) applied: u64,
    /// The bits of layers that are not in force, with the reasons.
    pub(crate) missing: BTreeMap<u64, String>,
    /// Whether the worker has reported every layer. It does so before it reads a byte of its tenant: a later report may
    /// come from a tenant that has taken the worker over.
    pub(crate) complete: bool,
}

/// A connected process.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) vgpu: String,
    /// Number of the GPU.
    pub(crate) gpu: usize,
    pub(crate) role: Role,
    pub(crate) pid: u32,
    pub(crate) name: String,
    pub(crate) process: Option<Watched>,
    /// The program that this worker serves: process number and start time.
    pub(crate) serves: Option<(u32, u64)>,
    /// It tests the limits for the doctor, or is the worker of a process that does.
    pub(crate) is_probe: bool,
    pub(crate) socket: Arc<HostSocket>,
    /// It has been sent its welcome, which must come before all other messages.
    pub(crate) is_welcomed: bool,
    pub(crate) governed: Arc<Governed>,
    /// Percent of the GPU's time the driver reports.
    pub(crate) sm_percent: f64,
    /// At the last look, it had a context that no mechanism limits.
    pub(crate) without_mechanism: bool,
    /// The event that its slices cannot be set was logged.
    pub(crate) told_unsliced: bool,
    /// At the last look, it got no leases because its work does not drain.
    pub(crate) undrained: bool,
    /// What a worker has reported about its confinement.
    pub(crate) confinement: Option<Confinement>,
    /// Where a worker's memory is.
    pub(crate) moved: Moved,
    /// Regions that a worker was given, with their bytes: the driver may count these bytes for the worker's process.
    pub(crate) opened_regions: BTreeMap<[u8; 16], u64>,
    /// Which figures of kernels a worker has reported.
    pub(crate) told_profile: ToldProfile,
    /// Entry points it looked up that pass the limits unseen.
    pub(crate) unknown_names: BTreeSet<String>,
    /// Numbers of the driver's requests that a worker's filter refused.
    pub(crate) refused_requests: BTreeSet<String>,
    /// GPU time by the driver's percentages.
    pub(crate) driver_seconds: f64,
    pub(crate) last_launches: u64,
    pub(crate) last_gate_wait_ns: u64,
    pub(crate) last_gpu_time_ns: u64,
}

impl Client {
    /// The driver's figure for this process without the bytes of regions.
    pub(crate) fn without_regions(&self, driver_bytes: u64) -> u64 {
        driver_bytes.saturating_sub(self.opened_regions.values().sum())
    }

    /// GPU time that the client measured itself: a program's own word is not believed.
    pub(crate) fn gpu_time_ns(&self) -> u64 {
        match self.role {
            Role::Worker => self.governed.page.counters.gpu_time_ns.load(Relaxed),
            _ => 0,
        }
    }
}

/// The worker of one program in an isolated virtual GPU.
#[derive(Debug)]
pub(crate) struct WorkerSlot {
    /// The worker's connection, once it has said hello.
    pub(crate) client: Option<u64>,
    pub(crate) started: Instant,
    /// The process that was started. The process that says hello may be its child.
    pub(crate) pid: Option<u32>,
    /// The program served: process number and start time; `None` where it cannot be seen.
    pub(crate) program: Option<(u32, u64)>,
    /// Whether the worker was started ahead and no program has come for it yet.
    pub(crate) is_spare: bool,
    /// Sessions that wait for the worker to say hello.
    pub(crate) pending: Vec<PendingSession>,
    pub(crate) next_session: u64,
}

impl WorkerSlot {
    /// A slot for a worker that is about to be started.
    pub(crate) fn of(program: Option<(u32, u64)>) -> Self {
        Self {
            client: None,
            started: Instant::now(),
            pid: None,
            program,
            is_spare: false,
            pending: Vec::new(),
            next_session: 0,
        }
    }

    /// A slot for a worker that is started ahead of its program.
    pub(crate) fn spare() -> Self {
        Self {
            is_spare: true,
            ..Self::of(None)
        }
    }
}

/// Bytes that processes have copied, and faults of their kernels.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) to_device_bytes: u64,
    pub(crate) from_device_bytes: u64,
    pub(crate) faults: u64,
}

impl Traffic {
    /// What a process reports about itself.
    pub(crate) fn of(client: &Client) -> Self {
        let traffic = &client.governed.page.traffic;
        Self {
            to_device_bytes: traffic.to_device_bytes.load(Relaxed),
            from_device_bytes: traffic.from_device_bytes.load(Relaxed),
            faults: traffic.faults.load(Relaxed),
        }
    }

    /// The sum of both.
    pub(crate) fn plus(self, more: Self) -> Self {
        let sum = u64::saturating_add;
        Self {
            to_device_bytes: sum(self.to_device_bytes, more.to_device_bytes),
            from_device_bytes: sum(self.from_device_bytes, more.from_device_bytes),
            faults: sum(self.faults, more.faults),
        }
    }
}

/// A virtual GPU.
#[derive(Debug)]
pub(crate) struct Vgpu {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) spec: VgpuSpec,
    pub(crate) gpu: usize,
    pub(crate) gpu_key: String,
    pub(crate) token: [u8; 16],
    pub(crate) worker_token: [u8; 16],
    pub(crate) owner_uid: u32,
    pub(crate) ledger: Ledger,
    /// What its workers hold of the host's memory besides.
    pub(crate) host_ledger: Ledger,
    pub(crate) suspended: bool,
    /// The program that waits for a snapshot to be restored; see [`Vgpu::parked_program`].
    pub(crate) parked: Option<crate::snapshots::Parked>,
    /// It is being saved or restored.
    pub(crate) is_moving: bool,
    /// The session that was restored, until its program has asked for the way to its worker.
    pub(crate) returning: Option<crate::snapshots::Returning>,
    /// Another GPU on which it has a place: it is on its way there, or from there.
    pub(crate) other_place: Option<usize>,
    /// Its turns on the card, if it is swappable.
    pub(crate) turns: Turns,
    pub(crate) profiled: Profiled,
    pub(crate) created_at_seconds: u64,
    pub(crate) made: Instant,
    pub(crate) holder: Option<Watched>,
    pub(crate) ever_joined: bool,
    pub(crate) clients: BTreeSet<u64>,
    pub(crate) programs: Vec<Watched>,
    /// The container that it was made for.
    pub(crate) made_for: Option<MadeFor>,
    /// The way to its programs, if those run on another machine.
    pub(crate) link: Option<LinkInfo>,
    /// Programs that came through a container's socket.
    pub(crate) in_containers: Vec<(Watched, Arc<Container>)>,
    /// Processes of the doctor, which test the limits. Their starts and failures are not events of the tenant.
    pub(crate) probes: Vec<Watched>,
    /// Programs whose start was told, with their command lines. These are not read from the processes: a process can make
    /// a reader of its memory wait for ever.
    pub(crate) started: Vec<StartedProgram>,
    /// Which worker served which program when an earlier daemon ended, by process number and start time.
    pub(crate) served_before: BTreeMap<(u32, u64), (u32, u64)>,
    /// It may have programs that the daemon does not know: from before a restart, or of another process namespace.
    pub(crate) has_unseen: bool,
    /// The workers of its programs, by a number of their own.
    pub(crate) workers: BTreeMap<u64, WorkerSlot>,
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) reasons: BTreeSet<String>,
    pub(crate) dead_launches: u64,
    pub(crate) dead_gate_wait_ns: u64,
    pub(crate) dead_traffic: Traffic,
    pub(crate) gpu_seconds: f64,
    pub(crate) last_charged_ns: u64,
    pub(crate) time_source: &'static str,
    pub(crate) measured_percent: f64,
    pub(crate) history: VecDeque<Sample>,
    /// The container of the process that joined last, if it runs in one.
    pub(crate) container: Option<String>,
}

/// A request that waits for memory.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) vgpu: String,
    pub(crate) client: u64,
    pub(crate) message_id: u32,
    pub(crate) bytes: u64,
    /// Credit that the client had when it asked. What it has freed since counts towards the request.
    pub(crate) had_bytes: u64,
    pub(crate) deadline: Instant,
    /// It waits for room on the card, and not for its virtual GPU's limit.
    pub(crate) for_room: bool,
}

/// All tables.
#[derive(Debug)]
pub(crate) struct Registry {
    pub(crate) config: Arc<Config>,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) vgpus: BTreeMap<String, Vgpu>,
    pub(crate) clients: HashMap<u64, Client>,
    pub(crate) waiters: Vec<Waiter>,
    /// How fast memory leaves the card, as measured.
    pub(crate) swap_bytes_per_second: u64,
    /// The sockets that are mounted into containers.
    pub(crate) sockets: ContainerSockets,
    /// Memory that virtual GPUs share, by full name.
    pub(crate) regions: BTreeMap<String, Region>,
    /// Containers that have connected, by what tells them apart.
    pub(crate) containers: BTreeMap<String, Arc<Container>>,
    journal: Arc<Journal>,
    next_id: u64,
}

impl Registry {
    pub(crate) fn new(config: Arc<Config>, gpus: Vec<Gpu>, journal: Arc<Journal>) -> Self {
        Self {
            config,
            gpus,
            vgpus: BTreeMap::new(),
            clients: HashMap::new(),
            waiters: Vec::new(),
            swap_bytes_per_second: crate::swap::FIRST_BYTES_PER_SECOND,
            sockets: ContainerSockets::default(),
            regions: BTreeMap::new(),
            containers: BTreeMap::new(),
            journal,
            next_id: 1,
        }
    }

    pub(crate) fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// A virtual GPU by name.
    pub(crate) fn vgpu(&self, name: &str) -> Result<&Vgpu, ApiError> {
        self.vgpus.get(name).ok_or_else(|| not_found(name))
    }

    /// A virtual GPU by name, to change.
    pub(crate) fn vgpu_mut(&mut self, name: &str) -> Result<&mut Vgpu, ApiError> {
        self.vgpus.get_mut(name).ok_or_else(|| not_found(name))
    }

    /// The virtual GPU a token opens, and whether it is the worker's token.
    pub(crate) fn by_token(&self, token: &[u8; 16]) -> Option<(&Vgpu, bool)> {
        // Compared without an early end, so that time tells nothing about how much was right.
        let same = |a: &[u8; 16]| a.iter().zip(token).fold(0, |d, (x, y)| d | (x ^ y)) == 0;
        self.vgpus.values().find_map(|vgpu| {
            if same(&vgpu.token) {
                Some((vgpu, false))
            } else if same(&vgpu.worker_token) {
                Some((vgpu, true))
            } else {
                None
            }
        })
    }

    /// Percent a virtual GPU is owed: what it reserved, or its part of what nobody reserved.
    pub(crate) fn share_percent(&self, vgpu: &Vgpu) -> Percent {
        if let Some(share) = vgpu.spec.share_percent {
            return share;
        }
        let here = || self.vgpus.values().filter(|v| v.gpu == vgpu.gpu);
        let reserved: Percent = here().filter_map(|v| v.spec.share_percent).sum();
        let sharers = here().filter(|v| v.spec.share_percent.is_none()).count() as u32;
        let left = Percent::WHOLE.saturating_sub(reserved);
        left.divided_by(sharers).max(Percent::from(1))
    }

    /// Sends a GPU's thread the share, cap and priority of each of its tenants.
    pub(crate) fn publish_entitlements(&self, gpu: usize) {
        let Some(device) = self.gpus.get(gpu) else {
            return;
        };
        for vgpu in self.vgpus.values().filter(|v| v.gpu == gpu) {
            let entitlement = Entitlement {
                weight: f64::from(self.share_percent(vgpu)),
                cap: vgpu.spec.cap,
                priority: vgpu.spec.priority,
                profile: vgpu.spec.profile.unwrap_or(self.config.sharing.profile),
                suspended: vgpu.suspended,
                // Memory leaves when what is submitted has ended, which work on a stopped channel never does.
                stopped: vgpu.suspended && !vgpu.turns.put_away,
            };
            device
                .thread
                .send(Change::Tenant(vgpu.tenant.clone(), entitlement));
        }
    }

    /// The limits of the control group of a virtual GPU's workers, which hold its regions too.
    pub(crate) fn group_limits(&self, vgpu: &Vgpu) -> GroupLimits {
        let on_card = self.kind(vgpu) == GpuKind::Nvidia;
        GroupLimits::of(vgpu, on_card, self.attached_bytes(&vgpu.name))
    }

    /// Where the engine of a virtual GPU runs.
    pub(crate) fn mode(&self, vgpu: &Vgpu) -> Mode {
        mode_on(vgpu.spec.mode, self.kind(vgpu))
    }

    /// Why a virtual GPU is degraded or lost.
    pub(crate) fn reasons(&self, vgpu: &Vgpu) -> Vec<String> {
        let lost = self.gpus.get(vgpu.gpu).and_then(|gpu| gpu.lost.as_ref());
        let lost = lost.map(|why| format!("its GPU {} is lost: {why}", vgpu.gpu));
        let unshareable = self.unshareable(vgpu);
        let unshareable =
            unshareable.map(|why| format!("its GPU {} cannot be shared: {why}", vgpu.gpu));
        let closed = self.gpus.get(vgpu.gpu).and_then(Gpu::closed);
        let closed = closed.map(|why| format!("its GPU {} takes no new programs: {why}", vgpu.gpu));
        lost.into_iter()
            .chain(unshareable)
            .chain(closed)
            .chain(vgpu.reasons.iter().cloned())
            .collect()
    }

    fn unshareable(&self, vgpu: &Vgpu) -> Option<&String> {
        let gpu = self.gpus.get(vgpu.gpu);
        gpu.and_then(|gpu| gpu.unshareable.as_ref())
    }

    /// How many programs use a virtual GPU: those that are known, or at least those that its workers
    /// serve, which may be from before a restart.
    pub(crate) fn programs_in(&self, vgpu: &Vgpu) -> usize {
        let clients = || vgpu.clients.iter().filter_map(|id| self.clients.get(id));
        // What a worker says is some milliseconds old, and may be of programs that have just ended.
        let served: usize = clients()
            .filter(|c| vgpu.has_unseen && c.role == Role::Worker)
            .map(|c| c.governed.page.traffic.sessions.load(Relaxed) as usize)
            .sum();
        // Nor is the end of a process heard of the moment it comes.
        let lives = |c: &&Client| c.process.as_ref().is_none_or(Watched::alive);
        let direct = clients().filter(|c| c.role != Role::Worker).filter(lives);
        direct.count() + vgpu.programs.len().max(served)
    }

    /// Condition of a virtual GPU.
    pub(crate) fn state(&self, vgpu: &Vgpu) -> VgpuState {
        let lost = self.gpus.get(vgpu.gpu).is_none_or(|gpu| gpu.lost.is_some());
        if lost {
            VgpuState::Lost
        } else if !vgpu.reasons.is_empty()
            || self.unshareable(vgpu).is_some()
            || self
                .gpus
                .get(vgpu.gpu)
                .is_some_and(|gpu| gpu.closed().is_some())
        {
            VgpuState::Degraded
        } else if vgpu.parked_program().is_some() {
            VgpuState::Snapshotted
        } else if vgpu.suspended {
            VgpuState::Suspended
        } else if self.programs_in(vgpu) == 0 {
            VgpuState::Ready
        } else {
            VgpuState::Active
        }
    }
}

pub(crate) fn not_found(name: &str) -> ApiError {
    error(
        "not_found",
        format!("there is no virtual GPU named {name}"),
        Some("`mica ls` lists all virtual GPUs".into()),
    )
}
