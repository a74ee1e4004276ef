//! The virtual GPUs of this host, their processes and their GPUs.
//!
//! Owns every table; one lock guards them all and is never held while waiting. Decides what exists and
//! who is in it; how memory is counted is the ledger's business, and whose turn it is the GPU thread's.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use mica_scheduler::slices;
use mica_wire::host::message::Role;
use mica_wire::host::socket::HostSocket;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::api::{ApiError, GpuKind, Priority, Profile, Resize, Sample, VgpuSpec, VgpuState};
use crate::config::Config;
use crate::devices::{DeviceFacts, DeviceReading};
use crate::enforce::unenforceable;
use crate::gpu_thread::{Change, GpuThread};
use crate::journal::{Entry, Journal};
use crate::ledger::Ledger;
use crate::placement::{Candidate, Wish, choose, error, size};
use crate::store::StoredVgpu;
use crate::tenant::{Entitlement, Governed, Tenant};

/// How long a virtual GPU without a known creator waits for its first process.
const FIRST_PROCESS_WITHIN: Duration = Duration::from_secs(60);

/// A physical GPU.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) facts: DeviceFacts,
    /// Place in the driver's list, for readings.
    pub(crate) driver_index: Option<usize>,
    pub(crate) reading: DeviceReading,
    pub(crate) thread: Arc<GpuThread>,
    pub(crate) lost: Option<String>,
    pub(crate) charged_percent: f64,
}

/// A process that is known by its number only: the creator of an ephemeral virtual GPU, or a program
/// that a worker serves.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) pid: u32,
    pub(crate) start: u64,
    pub(crate) pidfd: OwnedFd,
}

impl Watched {
    /// Watches a live process; `None` if it is gone or cannot be seen.
    pub(crate) fn open(pid: u32) -> Option<Self> {
        let number = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let pidfd = pidfd_open(number, PidfdFlags::empty()).ok()?;
        Some(Self {
            pid,
            start: start_time(pid)?,
            pidfd,
        })
    }

    pub(crate) fn alive(&self) -> bool {
        // A pidfd is readable from the moment its process ends.
        let mut poll = [rustix::event::PollFd::new(
            &self.pidfd,
            rustix::event::PollFlags::IN,
        )];
        let now = rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        matches!(rustix::event::poll(&mut poll, Some(&now)), Ok(0))
    }

    pub(crate) fn kill(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

/// Start time of a process in clock ticks, which tells it from a later one with the same number.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = &stat[stat.rfind(')')? + 1..];
    after_name.split_whitespace().nth(19)?.parse().ok()
}

/// A connected process.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) vgpu: String,
    pub(crate) role: Role,
    pub(crate) pid: u32,
    pub(crate) name: String,
    pub(crate) process: Option<Watched>,
    pub(crate) socket: Arc<HostSocket>,
    pub(crate) governed: Arc<Governed>,
    /// Percent of the GPU's time the driver reports.
    pub(crate) sm_percent: f64,
    /// Found at the last look to have a context that no mechanism reaches.
    pub(crate) without_mechanism: bool,
    /// Entry points it looked up that pass the limits unseen.
    pub(crate) unknown_names: BTreeSet<String>,
    /// GPU time by the driver's percentages.
    pub(crate) driver_seconds: f64,
    pub(crate) last_launches: u64,
    pub(crate) last_gate_wait_ns: u64,
    pub(crate) last_gpu_time_ns: u64,
}

/// The worker of an isolated virtual GPU.
#[derive(Debug, Default)]
pub(crate) struct WorkerSlot {
    pub(crate) client: Option<u64>,
    pub(crate) started: Option<Instant>,
    pub(crate) pid: Option<u32>,
    /// Sessions that wait for the worker to say hello: descriptor, program's number and user.
    pub(crate) pending: Vec<(OwnedFd, u32, u32)>,
    pub(crate) next_session: u64,
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
    pub(crate) suspended: bool,
    pub(crate) created_at_seconds: u64,
    pub(crate) made: Instant,
    pub(crate) holder: Option<Watched>,
    pub(crate) ever_joined: bool,
    pub(crate) clients: BTreeSet<u64>,
    pub(crate) programs: Vec<Watched>,
    pub(crate) worker: WorkerSlot,
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) reasons: BTreeSet<String>,
    pub(crate) dead_launches: u64,
    pub(crate) dead_gate_wait_ns: u64,
    pub(crate) gpu_seconds: f64,
    pub(crate) last_charged_ns: u64,
    pub(crate) time_source: &'static str,
    pub(crate) measured_percent: f64,
    pub(crate) correction: f64,
    pub(crate) history: VecDeque<Sample>,
}

/// A request that waits for memory.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) vgpu: String,
    pub(crate) client: u64,
    pub(crate) message_id: u32,
    pub(crate) bytes: u64,
    pub(crate) deadline: Instant,
}

/// All tables.
#[derive(Debug)]
pub(crate) struct Registry {
    pub(crate) config: Arc<Config>,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) vgpus: BTreeMap<String, Vgpu>,
    pub(crate) clients: HashMap<u64, Client>,
    pub(crate) waiters: Vec<Waiter>,
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
            journal,
            next_id: 1,
        }
    }

    pub(crate) fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Makes a virtual GPU for a user.
    pub(crate) fn create(
        &mut self,
        mut spec: VgpuSpec,
        uid: u32,
        creator_pid: Option<u32>,
    ) -> Result<&Vgpu, ApiError> {
        check_spec(&spec)?;
        let name = match spec.name.take() {
            Some(name) => name,
            None => self.made_up_name(),
        };
        check_name(&name)?;
        if self.vgpus.contains_key(&name) {
            return Err(error(
                "exists",
                format!("a virtual GPU named {name} exists"),
                Some("choose another name, or remove it".into()),
            ));
        }
        let config = self.config.clone();
        let (gpu, limit) = choose(&self.candidates(), &self.wish(&spec))?;
        self.check_quota(&spec, uid, limit)?;
        let reasons = unenforceable(&spec, self.gpus[gpu as usize].facts.kind);
        if !reasons.is_empty() && !spec.allow_degraded {
            return Err(error(
                "enforcement",
                reasons.join("; "),
                Some("use isolated mode, or allow it to be degraded".into()),
            ));
        }
        let tokens = (random_token()?, random_token()?);
        let id = self.fresh_id();
        let gpu_key = self.gpus[gpu as usize].facts.key();
        let vgpu = Vgpu {
            id,
            name: name.clone(),
            gpu: gpu as usize,
            gpu_key,
            token: tokens.0,
            worker_token: tokens.1,
            owner_uid: uid,
            ledger: Ledger::new(
                limit,
                config.sharing.charge_unattributed,
                self.journal.clone(),
            ),
            suspended: false,
            created_at_seconds: crate::events::now_seconds() as u64,
            made: Instant::now(),
            holder: creator_pid
                .filter(|_| spec.ephemeral)
                .and_then(Watched::open),
            ever_joined: false,
            clients: BTreeSet::new(),
            programs: Vec::new(),
            worker: WorkerSlot::default(),
            tenant: Arc::new(Tenant {
                id,
                ..Tenant::default()
            }),
            reasons: reasons.into_iter().collect(),
            dead_launches: 0,
            dead_gate_wait_ns: 0,
            gpu_seconds: 0.0,
            last_charged_ns: 0,
            time_source: "none",
            measured_percent: 0.0,
            correction: 1.0,
            history: VecDeque::new(),
            spec,
        };
        self.vgpus.insert(name.clone(), vgpu);
        self.publish_entitlements(gpu as usize);
        Ok(&self.vgpus[&name])
    }

    /// Puts back what an earlier daemon kept.
    pub(crate) fn restore(&mut self, stored: StoredVgpu) {
        let gpu = self
            .gpus
            .iter()
            .position(|gpu| gpu.facts.key() == stored.gpu_key);
        let id = self.fresh_id();
        let holder = stored
            .holder
            .and_then(|(pid, start)| Watched::open(pid).filter(|w| w.start == start));
        let mut reasons = BTreeSet::new();
        if gpu.is_none() {
            reasons.insert(format!(
                "its GPU {} is not on this host now",
                stored.gpu_key
            ));
        }
        if let Some(gpu) = gpu {
            reasons.extend(unenforceable(&stored.spec, self.gpus[gpu].facts.kind));
        }
        let vgpu = Vgpu {
            id,
            name: stored.name.clone(),
            spec: stored.spec,
            gpu: gpu.unwrap_or(usize::MAX),
            gpu_key: stored.gpu_key,
            token: stored.token,
            worker_token: stored.worker_token,
            owner_uid: stored.owner_uid,
            ledger: Ledger::new(
                stored.memory_limit_bytes,
                self.config.sharing.charge_unattributed,
                self.journal.clone(),
            ),
            suspended: stored.suspended,
            created_at_seconds: stored.created_at_seconds,
            made: Instant::now(),
            holder,
            // Its processes may still be there and are about to return.
            ever_joined: true,
            clients: BTreeSet::new(),
            programs: Vec::new(),
            worker: WorkerSlot::default(),
            tenant: Arc::new(Tenant {
                id,
                ..Tenant::default()
            }),
            reasons,
            dead_launches: 0,
            dead_gate_wait_ns: 0,
            gpu_seconds: stored.gpu_seconds,
            last_charged_ns: 0,
            time_source: "none",
            measured_percent: 0.0,
            correction: 1.0,
            history: VecDeque::new(),
        };
        self.vgpus.insert(stored.name, vgpu);
        if let Some(gpu) = gpu {
            self.publish_entitlements(gpu);
        }
    }

    /// Expects the processes an earlier daemon had granted memory to, those that live.
    pub(crate) fn expect(&mut self, entries: Vec<(u64, Entry)>) {
        for (slot, entry) in entries {
            self.next_id = self.next_id.max(entry.client);
            let process = Watched::open(entry.pid).filter(|p| p.start == entry.start);
            let vgpu = self.vgpus.values_mut().find(|v| v.token == entry.token);
            match (process, vgpu) {
                (Some(process), Some(vgpu)) => vgpu.ledger.expect(slot, entry, process),
                _ => self.journal.clear(slot),
            }
        }
    }

    /// What to keep.
    pub(crate) fn stored(&self) -> Vec<StoredVgpu> {
        self.vgpus
            .values()
            .map(|vgpu| StoredVgpu {
                name: vgpu.name.clone(),
                spec: vgpu.spec.clone(),
                memory_limit_bytes: vgpu.ledger.limit_bytes(),
                gpu_key: vgpu.gpu_key.clone(),
                token: vgpu.token,
                worker_token: vgpu.worker_token,
                owner_uid: vgpu.owner_uid,
                created_at_seconds: vgpu.created_at_seconds,
                suspended: vgpu.suspended,
                holder: vgpu.holder.as_ref().map(|h| (h.pid, h.start)),
                gpu_seconds: vgpu.gpu_seconds,
            })
            .collect()
    }

    fn wish(&self, spec: &VgpuSpec) -> Wish {
        let sharing = &self.config.sharing;
        Wish {
            memory_bytes: spec.memory_limit_bytes,
            share_percent: spec.share_percent,
            gpu: spec.gpu,
            placement: spec.placement,
            overcommit_memory: sharing.overcommit_memory,
            overcommit_share: sharing.overcommit_share,
            default_memory_bytes: sharing.default_memory_bytes,
        }
    }

    fn candidates(&self) -> Vec<Candidate> {
        let sharing = &self.config.sharing;
        self.gpus
            .iter()
            .enumerate()
            .map(|(index, gpu)| {
                let here = || self.vgpus.values().filter(|v| v.gpu == index);
                let kept = match gpu.facts.kind {
                    GpuKind::Nvidia => sharing.reserve_bytes,
                    GpuKind::Software => 0,
                };
                Candidate {
                    index: index as u32,
                    total_bytes: gpu.facts.memory_total_bytes.saturating_sub(kept),
                    reserved_bytes: here().map(|v| v.ledger.limit_bytes()).sum(),
                    share_reserved_percent: here().filter_map(|v| v.spec.share_percent).sum(),
                    vgpus: here().count() as u32,
                    load_percent: gpu
                        .reading
                        .utilization_percent
                        .unwrap_or(gpu.charged_percent),
                    lost: gpu.lost.clone(),
                    largest: here()
                        .max_by_key(|v| v.ledger.limit_bytes())
                        .map(|v| (v.name.clone(), v.ledger.limit_bytes())),
                }
            })
            .collect()
    }

    fn check_quota(&self, spec: &VgpuSpec, uid: u32, limit: u64) -> Result<(), ApiError> {
        let quota = self.config.quota_of(uid);
        let own = || self.vgpus.values().filter(|v| v.owner_uid == uid);
        let over = |what: String| {
            error(
                "quota",
                format!("user {uid} may have {what}"),
                Some("remove one of your virtual GPUs, or ask the administrator".into()),
            )
        };
        if let Some(most) = quota.vgpus
            && own().count() as u32 >= most
        {
            return Err(over(format!("{most} virtual GPUs and has them")));
        }
        let memory: u64 = own().map(|v| v.ledger.limit_bytes()).sum();
        if let Some(most) = quota.memory_bytes
            && memory.saturating_add(limit) > most
        {
            return Err(over(format!(
                "{} of GPU memory, has {} and asked for {} more",
                size(most),
                size(memory),
                size(limit)
            )));
        }
        let share: u32 = own().filter_map(|v| v.spec.share_percent).sum();
        if let Some(most) = quota.share_percent
            && share + spec.share_percent.unwrap_or(0) > most
        {
            return Err(over(format!("shares of {most} % and has {share} %")));
        }
        Ok(())
    }

    fn made_up_name(&mut self) -> String {
        loop {
            let id = self.fresh_id();
            let name = format!("vgpu-{id}");
            if !self.vgpus.contains_key(&name) {
                return name;
            }
        }
    }

    /// Changes limits while processes run.
    pub(crate) fn resize(&mut self, name: &str, change: &Resize) -> Result<(), ApiError> {
        let overcommit = self.config.sharing.overcommit_memory;
        let overcommit_share = self.config.sharing.overcommit_share;
        let vgpu = self.vgpu(name)?;
        let gpu = vgpu.gpu;
        let candidate = self.candidates().into_iter().nth(gpu);
        let old_limit = self.vgpu(name)?.ledger.limit_bytes();
        let old_share = self.vgpu(name)?.spec.share_percent.unwrap_or(0);
        let mut checked = self.vgpu(name)?.spec.clone();
        checked.share_percent = change.share_percent.or(checked.share_percent);
        check_spec(&checked)?;
        if let (Some(candidate), Some(limit)) = (&candidate, change.memory_limit_bytes) {
            let room = if overcommit {
                candidate.total_bytes
            } else {
                (candidate.total_bytes + old_limit).saturating_sub(candidate.reserved_bytes)
            };
            if limit > room || limit == 0 {
                return Err(error(
                    "no_memory",
                    format!(
                        "{name} can have at most {} on gpu {gpu}, {} asked",
                        size(room),
                        size(limit)
                    ),
                    None,
                ));
            }
        }
        if let (Some(candidate), Some(share)) = (&candidate, change.share_percent) {
            let room = (100 + old_share).saturating_sub(candidate.share_reserved_percent);
            if share > room && !overcommit_share {
                return Err(error(
                    "no_share",
                    format!("{name} can have at most {room} % of gpu {gpu}, {share} % asked"),
                    None,
                ));
            }
        }
        let vgpu = self.vgpu_mut(name)?;
        if let Some(limit) = change.memory_limit_bytes {
            vgpu.ledger.resize(limit, change.drain).map_err(|full| {
                error(
                    "busy",
                    format!(
                        "{} are in use in {name}, more than a limit of {}",
                        size(full.used_bytes),
                        size(limit)
                    ),
                    Some("free memory first, or let it drain with --drain".into()),
                )
            })?;
            vgpu.spec.memory_limit_bytes = Some(limit);
        }
        vgpu.spec.share_percent = change.share_percent.or(vgpu.spec.share_percent);
        vgpu.spec.cap = change.cap.unwrap_or(vgpu.spec.cap);
        vgpu.spec.priority = change.priority.unwrap_or(vgpu.spec.priority);
        self.publish_entitlements(gpu);
        Ok(())
    }

    /// Holds or releases a virtual GPU's processes.
    pub(crate) fn set_suspended(&mut self, name: &str, suspended: bool) -> Result<(), ApiError> {
        let vgpu = self.vgpu_mut(name)?;
        vgpu.suspended = suspended;
        let gpu = vgpu.gpu;
        self.publish_entitlements(gpu);
        Ok(())
    }

    /// Removes a virtual GPU; its processes are ended with `force`.
    pub(crate) fn remove(&mut self, name: &str, force: bool) -> Result<Vgpu, ApiError> {
        let vgpu = self.vgpu_mut(name)?;
        vgpu.programs.retain(Watched::alive);
        let running = vgpu.clients.len() + vgpu.programs.len();
        let workers = usize::from(vgpu.worker.client.is_some());
        if running > workers && !force {
            return Err(error(
                "busy",
                format!("{} processes run in {name}", running - workers),
                Some("end them, or remove it with --force".into()),
            ));
        }
        let Some(mut vgpu) = self.vgpus.remove(name) else {
            return Err(not_found(name));
        };
        for program in &vgpu.programs {
            program.kill();
        }
        for client in &vgpu.clients {
            if let Some(client) = self.clients.get(client)
                && let Some(process) = &client.process
                && client.role != Role::Monitor
            {
                process.kill();
            }
        }
        vgpu.ledger.kill_expected();
        vgpu.ledger.close_all();
        self.waiters.retain(|waiter| waiter.vgpu != name);
        if let Some(gpu) = self.gpus.get(vgpu.gpu) {
            for client in &vgpu.clients {
                gpu.thread.send(Change::ClientGone(*client));
            }
            gpu.thread.send(Change::TenantGone(vgpu.id));
        }
        self.publish_entitlements(vgpu.gpu);
        Ok(vgpu)
    }

    /// Names of ephemeral virtual GPUs that nothing holds any more.
    pub(crate) fn abandoned(&mut self) -> Vec<String> {
        self.vgpus
            .values_mut()
            .filter_map(|vgpu| {
                vgpu.programs.retain(Watched::alive);
                if vgpu.holder.as_ref().is_some_and(|holder| !holder.alive()) {
                    vgpu.holder = None;
                    vgpu.ever_joined = true;
                }
                let worker = vgpu.worker.client;
                let in_use = vgpu.clients.iter().any(|client| worker != Some(*client))
                    || !vgpu.programs.is_empty()
                    || !vgpu.worker.pending.is_empty()
                    || vgpu.holder.is_some()
                    || vgpu.ledger.expects(None);
                let expected = !vgpu.ever_joined && vgpu.made.elapsed() < FIRST_PROCESS_WITHIN;
                (vgpu.spec.ephemeral && !in_use && !expected).then(|| vgpu.name.clone())
            })
            .collect()
    }

    /// A virtual GPU by name.
    pub(crate) fn vgpu(&self, name: &str) -> Result<&Vgpu, ApiError> {
        self.vgpus.get(name).ok_or_else(|| not_found(name))
    }

    /// The same, to change.
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
    pub(crate) fn share_percent(&self, vgpu: &Vgpu) -> u32 {
        if let Some(share) = vgpu.spec.share_percent {
            return share;
        }
        let here = || self.vgpus.values().filter(|v| v.gpu == vgpu.gpu);
        let reserved: u32 = here().filter_map(|v| v.spec.share_percent).sum();
        let sharers = here().filter(|v| v.spec.share_percent.is_none()).count() as u32;
        (100_u32.saturating_sub(reserved) / sharers.max(1)).max(1)
    }

    /// Tells a GPU's thread what its tenants are entitled to now.
    pub(crate) fn publish_entitlements(&self, gpu: usize) {
        let Some(device) = self.gpus.get(gpu) else {
            return;
        };
        for vgpu in self.vgpus.values().filter(|v| v.gpu == gpu) {
            let entitlement = Entitlement {
                weight: f64::from(self.share_percent(vgpu)),
                cap: vgpu.spec.cap,
                priority: priority(vgpu.spec.priority),
                profile: profile(vgpu.spec.profile.unwrap_or(self.config.sharing.profile)),
                suspended: vgpu.suspended,
                correction: vgpu.correction,
            };
            device
                .thread
                .send(Change::Tenant(vgpu.tenant.clone(), entitlement));
        }
    }

    /// Takes a client out of every table; everything it held is available again when this returns.
    pub(crate) fn client_gone(&mut self, id: u64) -> Option<Client> {
        let client = self.clients.remove(&id)?;
        self.waiters.retain(|waiter| waiter.client != id);
        if let Some(vgpu) = self.vgpus.get_mut(&client.vgpu) {
            vgpu.clients.remove(&id);
            vgpu.ledger.close(id);
            let counters = &client.governed.page.counters;
            vgpu.dead_launches += counters.launches.load(Relaxed);
            vgpu.dead_gate_wait_ns += counters.gate_wait_ns.load(Relaxed);
            if vgpu.worker.client == Some(id) {
                vgpu.worker.client = None;
                vgpu.worker.started = None;
                vgpu.worker.pid = None;
            }
            if let Some(gpu) = self.gpus.get(vgpu.gpu) {
                gpu.thread.send(Change::ClientGone(id));
            }
        }
        Some(client)
    }

    /// Condition of a virtual GPU.
    pub(crate) fn state(&self, vgpu: &Vgpu) -> VgpuState {
        let lost = self.gpus.get(vgpu.gpu).is_none_or(|gpu| gpu.lost.is_some());
        if lost {
            VgpuState::Lost
        } else if !vgpu.reasons.is_empty() {
            VgpuState::Degraded
        } else if vgpu.suspended {
            VgpuState::Suspended
        } else if vgpu.clients.is_empty() && vgpu.programs.is_empty() {
            VgpuState::Ready
        } else {
            VgpuState::Active
        }
    }
}

/// The scheduler's word for a priority.
pub(crate) fn priority(priority: Priority) -> mica_scheduler::Priority {
    match priority {
        Priority::High => mica_scheduler::Priority::High,
        Priority::Normal => mica_scheduler::Priority::Normal,
        Priority::Low => mica_scheduler::Priority::Low,
    }
}

fn profile(profile: Profile) -> slices::Profile {
    match profile {
        Profile::Throughput => slices::Profile::Throughput,
        Profile::Balanced => slices::Profile::Balanced,
        Profile::Latency => slices::Profile::Latency,
    }
}

pub(crate) fn not_found(name: &str) -> ApiError {
    error(
        "not_found",
        format!("there is no virtual GPU named {name}"),
        Some("`mica ls` shows those there are".into()),
    )
}

fn check_name(name: &str) -> Result<(), ApiError> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts_well && name.len() <= 64 && name.chars().all(good) {
        return Ok(());
    }
    Err(error(
        "invalid",
        format!("{name:?} is no name for a virtual GPU"),
        Some(
            "use up to 64 letters, digits, '-', '_' and '.', beginning with a letter or digit"
                .into(),
        ),
    ))
}

fn check_spec(spec: &VgpuSpec) -> Result<(), ApiError> {
    let invalid = |message: &str| Err(error("invalid", message.into(), None));
    match spec.share_percent {
        Some(0) | Some(101..) => return invalid("a share is between 1 and 100 percent"),
        None if spec.cap => return invalid("a cap needs a share to be capped at"),
        _ => {}
    }
    if spec.memory_limit_bytes.is_some_and(|bytes| bytes < 1 << 20) {
        return invalid("a memory limit is at least 1 MiB");
    }
    if spec.max_streams == Some(0) {
        return invalid("a virtual GPU needs at least one stream");
    }
    Ok(())
}

fn random_token() -> Result<[u8; 16], ApiError> {
    use std::io::Read;
    let mut token = [0; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut token))
        .map_err(|source| {
            error(
                "internal",
                format!("no random numbers can be had: {source}"),
                None,
            )
        })?;
    Ok(token)
}
