//! How virtual GPUs come to be: made for a user, or put back after a restart.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use mica_control::api::{ApiError, Mode, VgpuSpec};
use mica_wire::host::page::Account;

use super::admission::{check_name, check_spec, random_token};
use super::names::full_name;
use super::{Registry, Traffic, Vgpu};
use crate::enforce::{mode_on, remedy, unenforceable};
use crate::journal::Entry;
use crate::ledger::Ledger;
use crate::placement::{choose, error};
use crate::store::StoredVgpu;
use crate::swap::Turns;
use crate::tenant::Tenant;
use crate::watched::Watched;

/// Decides whether a virtual GPU is swappable, which only isolated ones can be.
fn resolve_swap(spec: &mut VgpuSpec, default: bool) -> Result<(), ApiError> {
    let is_direct = spec.mode == Some(Mode::Direct);
    if spec.swap == Some(true) && is_direct {
        return Err(error(
            "enforcement",
            "memory of a direct virtual GPU is its program's driver's own and cannot leave the GPU"
                .into(),
            Some("leave --mode out, or use --mode isolated with --swap".into()),
        ));
    }
    let swap = spec.swap.unwrap_or(default && !is_direct);
    spec.swap = Some(swap);
    if swap {
        spec.mode = Some(Mode::Isolated);
    }
    Ok(())
}

/// Guarded allocations are made by a worker.
fn resolve_guard(spec: &mut VgpuSpec) -> Result<(), ApiError> {
    if spec.guard && spec.mode == Some(Mode::Direct) {
        return Err(error(
            "enforcement",
            "memory of a direct virtual GPU is its program's driver's own and cannot be guarded"
                .into(),
            Some("leave --mode out, or use --mode isolated with --guard".into()),
        ));
    }
    if spec.guard {
        spec.mode = Some(Mode::Isolated);
    }
    Ok(())
}

/// What tells a virtual GPU from all others, and outlives a daemon.
struct Identity {
    name: String,
    gpu_key: String,
    token: [u8; 16],
    worker_token: [u8; 16],
    owner_uid: u32,
    created_at_seconds: u64,
}

impl Registry {
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
        let given = full_name(&name, uid);
        if self.has(uid, &name) || self.vgpus.contains_key(&given) {
            return Err(error(
                "exists",
                format!("a virtual GPU named {name} exists"),
                Some("choose another name, or remove it".into()),
            ));
        }
        let config = self.config.clone();
        resolve_guard(&mut spec)?;
        resolve_swap(&mut spec, config.swap.default)?;
        let swap = spec.swap == Some(true);
        let (gpu, limit) = choose(&self.candidates(uid, swap), &self.wish(&spec))?;
        let gpu = gpu as usize;
        self.check_quota(uid, limit, spec.share_percent, None)?;
        let reasons = unenforceable(&spec, self.gpus[gpu].facts.kind);
        if !reasons.is_empty() && !spec.allow_degraded {
            return Err(error(
                "enforcement",
                reasons.join("; "),
                Some(remedy(&spec).into()),
            ));
        }
        spec.mode = Some(mode_on(spec.mode, self.gpus[gpu].facts.kind));
        let identity = Identity {
            name: given.clone(),
            gpu_key: self.gpus[gpu].facts.key(),
            token: random_token()?,
            worker_token: random_token()?,
            owner_uid: uid,
            created_at_seconds: crate::events::now_seconds() as u64,
        };
        let holder = creator_pid.filter(|_| spec.ephemeral);
        let mut vgpu = self.new_vgpu(identity, spec, gpu, limit);
        vgpu.holder = holder.and_then(Watched::open);
        vgpu.reasons = reasons.into_iter().collect();
        self.vgpus.insert(given.clone(), vgpu);
        self.publish_entitlements(gpu);
        Ok(&self.vgpus[&given])
    }

    /// Puts back what an earlier daemon kept.
    pub(crate) fn restore(&mut self, stored: StoredVgpu) {
        let mut gpus = self.gpus.iter();
        let gpu = gpus.position(|gpu| gpu.facts.key() == stored.gpu_key);
        let reasons = match gpu {
            Some(gpu) => unenforceable(&stored.spec, self.gpus[gpu].facts.kind),
            None => vec![format!(
                "its GPU {} is not on this host now",
                stored.gpu_key
            )],
        };
        let identity = Identity {
            name: stored.name.clone(),
            gpu_key: stored.gpu_key,
            token: stored.token,
            worker_token: stored.worker_token,
            owner_uid: stored.owner_uid,
            created_at_seconds: stored.created_at_seconds,
        };
        let (number, limit) = (gpu.unwrap_or(usize::MAX), stored.memory_limit_bytes);
        let alive = |(pid, start)| Watched::open(pid).filter(|process| process.start == start);
        let mut vgpu = Vgpu {
            suspended: stored.suspended,
            holder: stored.holder.and_then(alive),
            // Its processes may still be there and are about to return.
            ever_joined: true,
            programs: stored.programs.into_iter().filter_map(alive).collect(),
            made_for: stored.made_for,
            served_before: stored.served.into_iter().collect(),
            has_unseen: true,
            reasons: reasons.into_iter().collect(),
            gpu_seconds: stored.gpu_seconds,
            ..self.new_vgpu(identity, stored.spec, number, limit)
        };
        vgpu.set_parked(stored.parked);
        self.vgpus.insert(stored.name, vgpu);
        if let Some(gpu) = gpu {
            self.publish_entitlements(gpu);
        }
    }

    /// A virtual GPU that nothing has used.
    fn new_vgpu(
        &mut self,
        identity: Identity,
        spec: VgpuSpec,
        gpu: usize,
        limit_bytes: u64,
    ) -> Vgpu {
        let id = self.fresh_id();
        let charges_unattributed = self.config.sharing.charge_unattributed;
        Vgpu {
            id,
            name: identity.name,
            spec,
            gpu,
            gpu_key: identity.gpu_key,
            token: identity.token,
            worker_token: identity.worker_token,
            owner_uid: identity.owner_uid,
            ledger: Ledger::new(limit_bytes, charges_unattributed, self.journal.clone()),
            host_ledger: Ledger::of_host(limit_bytes, self.journal.clone()),
            suspended: false,
            parked: None,
            is_moving: false,
            returning: None,
            other_place: None,
            turns: Turns::default(),
            profiled: crate::profiles::Profiled::default(),
            created_at_seconds: identity.created_at_seconds,
            made: Instant::now(),
            holder: None,
            ever_joined: false,
            clients: BTreeSet::new(),
            programs: Vec::new(),
            made_for: None,
            link: None,
            in_containers: Vec::new(),
            probes: Vec::new(),
            started: Vec::new(),
            served_before: BTreeMap::new(),
            has_unseen: false,
            workers: BTreeMap::new(),
            tenant: Arc::new(Tenant {
                id,
                ..Tenant::default()
            }),
            reasons: BTreeSet::new(),
            dead_launches: 0,
            dead_gate_wait_ns: 0,
            dead_traffic: Traffic::default(),
            gpu_seconds: 0.0,
            last_charged_ns: 0,
            time_source: "none",
            measured_percent: 0.0,
            history: VecDeque::new(),
            container: None,
        }
    }

    /// Expects the living processes to which an earlier daemon had granted memory.
    pub(crate) fn expect(&mut self, entries: Vec<(u64, Entry)>) {
        for (slot, entry) in entries {
            self.next_id = self.next_id.max(entry.client);
            let process = Watched::open(entry.pid).filter(|p| p.start == entry.start);
            let vgpu = self.vgpus.values_mut().find(|v| v.token == entry.token);
            match (process, vgpu) {
                (Some(process), Some(vgpu)) => {
                    let ledger = match entry.account {
                        Account::Device => &mut vgpu.ledger,
                        Account::Host => &mut vgpu.host_ledger,
                    };
                    ledger.expect(slot, entry, process);
                }
                _ => self.journal.clear(slot),
            }
        }
    }

    /// Which worker serves which program, including workers that have not returned after a restart.
    fn served(&self, vgpu: &Vgpu) -> Vec<((u32, u64), (u32, u64))> {
        let workers = vgpu.clients.iter().filter_map(|id| self.clients.get(id));
        let pairs = workers.filter_map(|client| {
            let worker = client.process.as_ref()?;
            Some(((worker.pid, worker.start), client.serves?))
        });
        let before = vgpu
            .served_before
            .iter()
            .map(|(worker, program)| (*worker, *program));
        before.chain(pairs).collect()
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
                parked: vgpu.parked_to_keep(),
                holder: vgpu.holder.as_ref().map(|h| (h.pid, h.start)),
                programs: vgpu.programs.iter().map(|p| (p.pid, p.start)).collect(),
                gpu_seconds: vgpu.gpu_seconds,
                served: self.served(vgpu),
                made_for: vgpu.made_for.clone(),
            })
            .collect()
    }
}
