//! What the API shows, built from the registry.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use mica_control::api::{Created, GpuInfo, GpuKind, ProcessInfo, VgpuInfo};
use mica_wire::host::message::Role;
use mica_wire::host::printable::printable;

use crate::devices::is_software_key;
use crate::registry::{Client, Confinement, Registry, Traffic, Vgpu};
use crate::tenant::Mechanism;

/// Figures of all processes of a virtual GPU, including processes that have ended.
struct Totals {
    launches: u64,
    gate_wait_ns: u64,
    traffic: Traffic,
}

impl Totals {
    fn of(vgpu: &Vgpu, members: &[(u64, &Client)]) -> Self {
        let ended = Self {
            launches: vgpu.dead_launches,
            gate_wait_ns: vgpu.dead_gate_wait_ns,
            traffic: vgpu.dead_traffic,
        };
        members.iter().fold(ended, |sum, (_, client)| {
            let counters = &client.governed.page.counters;
            // Any value may stand in a page.
            let add = |sum: u64, more: &AtomicU64| sum.saturating_add(more.load(Relaxed));
            Self {
                launches: add(sum.launches, &counters.launches),
                gate_wait_ns: add(sum.gate_wait_ns, &counters.gate_wait_ns),
                traffic: sum.traffic.plus(Traffic::of(client)),
            }
        })
    }
}

/// The processes of a virtual GPU as the API shows them; a program that no worker serves yet is one.
fn process_infos(vgpu: &Vgpu, members: &[(u64, &Client)]) -> Vec<ProcessInfo> {
    let shown = members.iter().filter(|(id, _)| !vgpu.is_spare(*id));
    let joined = shown.map(|(id, client)| process_info(vgpu, *id, client));
    let is_served = |pid: u32| {
        let mut served = members.iter().filter_map(|(_, client)| client.serves);
        served.any(|(program, _)| program == pid)
    };
    let unserved = vgpu.programs.iter().filter(|p| !is_served(p.pid));
    let unserved = unserved.map(|program| ProcessInfo {
        pid: program.pid,
        name: process_name(program.pid),
        command: vgpu.command_of((program.pid, program.start)),
        container: vgpu.container_of((program.pid, program.start)),
        role: role_name(Role::Program).into(),
        uid: process_user(program.pid),
        mechanism: Mechanism::Alone.name().into(),
        ..ProcessInfo::default()
    });
    joined.chain(unserved).collect()
}

impl Registry {
    /// The processes of a virtual GPU that use it, with their numbers in the daemon.
    pub(crate) fn members(&self, vgpu: &Vgpu) -> Vec<(u64, &Client)> {
        let clients = vgpu.clients.iter();
        clients
            .filter_map(|id| Some((*id, self.clients.get(id)?)))
            .filter(|(_, client)| client.role != Role::Monitor)
            .collect()
    }

    /// A virtual GPU as the API shows it.
    pub(crate) fn vgpu_info(&self, vgpu: &Vgpu) -> VgpuInfo {
        let members = self.members(vgpu);
        let totals = Totals::of(vgpu, &members);
        VgpuInfo {
            name: vgpu.name.clone(),
            state: self.state(vgpu),
            reasons: self.reasons(vgpu),
            gpu: u32::try_from(vgpu.gpu).unwrap_or(u32::MAX),
            gpu_kind: self.kind(vgpu),
            gpu_uuid: self.uuid(vgpu),
            mode: self.mode(vgpu),
            owner_uid: vgpu.owner_uid,
            memory_limit_bytes: vgpu.ledger.limit_bytes(),
            memory_used_bytes: vgpu.ledger.used_bytes() + vgpu.ledger.unattributed_bytes(),
            memory_charged_bytes: vgpu.ledger.used_bytes(),
            memory_peak_bytes: vgpu.ledger.peak_bytes(),
            memory_unattributed_bytes: vgpu.ledger.unattributed_bytes(),
            residency: self.residency(vgpu),
            share_percent: self.share_percent(vgpu),
            share_reserved: vgpu.spec.share_percent.is_some(),
            share_measured_percent: vgpu.measured_percent,
            processors_percent: (self.gpus.get(vgpu.gpu)).and_then(|gpu| gpu.processors.percent()),
            cap: vgpu.spec.cap,
            priority: vgpu.spec.priority,
            gpu_seconds: vgpu.gpu_seconds,
            throttled_seconds: totals.gate_wait_ns as f64 / 1e9,
            alloc_denied_total: self.denied_total(vgpu),
            launches_total: totals.launches,
            to_device_bytes_total: totals.traffic.to_device_bytes,
            from_device_bytes_total: totals.traffic.from_device_bytes,
            faults_total: totals.traffic.faults,
            mechanism: self.mechanism(vgpu).into(),
            time_source: vgpu.time_source.into(),
            ephemeral: vgpu.spec.ephemeral,
            on_full: vgpu.spec.on_full,
            tensor_cores: vgpu.spec.tensor_cores,
            precision_policy: vgpu.spec.precision_policy,
            max_streams: vgpu.spec.max_streams,
            profile: vgpu.spec.profile.unwrap_or(self.config.sharing.profile),
            profiled: vgpu.profiled.is_on(),
            created_at_seconds: vgpu.created_at_seconds,
            note: vgpu.spec.note.clone(),
            made_for: vgpu.made_for.as_ref().map(|made| made.info.clone()),
            link: vgpu.link.clone(),
            processes: process_infos(vgpu, &members),
        }
    }

    /// Allocations that were refused to programs: the doctor's tests do not count.
    pub(crate) fn denied_total(&self, vgpu: &Vgpu) -> u64 {
        let members = vgpu.clients.iter().filter_map(|id| self.clients.get(id));
        let denied = |client: &Client| client.governed.page.memory.denied.load(Relaxed);
        let probes = members.filter(|client| client.is_probe).map(denied);
        let by_probes = probes.fold(0, u64::saturating_add);
        vgpu.ledger.denied_total().saturating_sub(by_probes)
    }

    /// Kind of a virtual GPU's GPU.
    pub(crate) fn kind(&self, vgpu: &Vgpu) -> GpuKind {
        match self.gpus.get(vgpu.gpu) {
            Some(gpu) => gpu.facts.kind,
            None if is_software_key(&vgpu.gpu_key) => GpuKind::Software,
            None => GpuKind::Nvidia,
        }
    }

    pub(crate) fn mechanism(&self, vgpu: &Vgpu) -> &'static str {
        let mut all = vgpu
            .clients
            .iter()
            .filter_map(|id| self.clients.get(id))
            .filter(|client| client.role != Role::Monitor)
            .map(|client| Mechanism::from_number(client.governed.mechanism.load(Relaxed)));
        let Some(first) = all.next() else {
            return Mechanism::Alone.name();
        };
        // The weakest one speaks for all: a single process without a limit is what must be seen.
        all.fold(first, |worst, next| match (worst, next) {
            (Mechanism::None, _) | (_, Mechanism::None) => Mechanism::None,
            (Mechanism::Alone, other) | (other, Mechanism::Alone) => other,
            (a, b) if a == b => a,
            _ => Mechanism::Both,
        })
        .name()
    }

    /// A GPU as the API shows it.
    pub(crate) fn gpu_info(&self, index: usize) -> GpuInfo {
        let gpu = &self.gpus[index];
        let here = || self.vgpus.values().filter(|v| v.gpu == index);
        GpuInfo {
            index: index as u32,
            kind: gpu.facts.kind,
            name: gpu.facts.name.clone(),
            uuid: gpu.facts.uuid.clone(),
            memory_total_bytes: gpu.facts.memory_total_bytes,
            memory_reserved_bytes: here().map(|v| v.ledger.limit_bytes()).sum::<u64>()
                + self.region_bytes(index),
            memory_used_bytes: here()
                .map(|v| v.ledger.used_bytes() + v.ledger.unattributed_bytes())
                .sum(),
            memory_free_bytes: gpu.reading.memory_free_bytes,
            share_reserved_percent: here().filter_map(|v| v.spec.share_percent).sum(),
            utilization_percent: gpu
                .reading
                .utilization_percent
                .unwrap_or(gpu.charged_percent),
            overcommit: self.config.sharing.overcommit_memory,
            lease_state: if here().any(|v| v.tenant.leases.load(Relaxed)) {
                "leases".into()
            } else {
                "open".into()
            },
            vgpus: here().count() as u32,
            driver: gpu.facts.driver.clone(),
            temperature_celsius: gpu.reading.temperature_celsius,
            power_watts: gpu.reading.power_watts,
            xid_errors_total: gpu.xid_errors,
            lost: gpu.lost.clone(),
            unshareable: gpu.unshareable.clone(),
            drained: gpu.closed().cloned(),
        }
    }

    /// The UUID of a virtual GPU's device; empty where the device is gone.
    fn uuid(&self, vgpu: &Vgpu) -> String {
        let gpu = self.gpus.get(vgpu.gpu);
        gpu.map(|gpu| gpu.facts.uuid.clone()).unwrap_or_default()
    }

    /// How to join a virtual GPU.
    pub(crate) fn created(&self, vgpu: &Vgpu, host_socket: String) -> Created {
        Created {
            name: vgpu.name.clone(),
            token: mica_limits::Environment::token_hex(&vgpu.token),
            host_socket,
            mode: self.mode(vgpu),
            gpu: u32::try_from(vgpu.gpu).unwrap_or(u32::MAX),
            gpu_kind: self.kind(vgpu),
            gpu_uuid: self.uuid(vgpu),
            memory_limit_bytes: vgpu.ledger.limit_bytes(),
            share_percent: self.share_percent(vgpu),
            share_reserved: vgpu.spec.share_percent.is_some(),
            guard: vgpu.spec.guard,
            regions: self.region_handles(&vgpu.name),
        }
    }
}

fn process_info(vgpu: &Vgpu, id: u64, client: &Client) -> ProcessInfo {
    let page = &client.governed.page;
    let charged = client.governed.charged_ns.load(Relaxed) as f64 / 1e9;
    let traffic = Traffic::of(client);
    let worker = client.gpu_time_ns() as f64 / 1e9;
    // What a worker holds and does is its program's.
    let program = client.serves.map(|(pid, _)| pid);
    let shown = program.unwrap_or(client.pid);
    let start = client.process.as_ref().map_or(0, |process| process.start);
    ProcessInfo {
        pid: shown,
        name: match program {
            Some(pid) => process_name(pid),
            None => client.name.clone(),
        },
        command: vgpu.command_of(client.serves.unwrap_or((client.pid, start))),
        container: vgpu.container_of(client.serves.unwrap_or((client.pid, start))),
        role: role_name(program.map_or(client.role, |_| Role::Program)).into(),
        uid: process_user(shown),
        worker_pid: program.map(|_| client.pid),
        utilization_percent: client.sm_percent,
        memory_used_bytes: vgpu.ledger.used_by(id) + vgpu.ledger.unattributed_by(id),
        memory_charged_bytes: vgpu.ledger.used_by(id),
        memory_peak_bytes: page.memory.peak_bytes.load(Relaxed),
        memory_credit_bytes: page.memory.credit_bytes.load(Relaxed),
        memory_unattributed_bytes: vgpu.ledger.unattributed_by(id),
        slice_us: page.commands.slice_us.load(Relaxed),
        slice_read_us: page.client.slice_read_us.load(Relaxed),
        mechanism: Mechanism::from_number(client.governed.mechanism.load(Relaxed))
            .name()
            .into(),
        launches_total: page.counters.launches.load(Relaxed),
        drains_total: page.counters.drains.load(Relaxed),
        gate_wait_seconds: page.counters.gate_wait_ns.load(Relaxed) as f64 / 1e9,
        leases_total: client.governed.leases.load(Relaxed),
        lease_seconds: charged,
        does_not_drain: client.governed.undrained.load(Relaxed),
        overruns_total: client.governed.overruns.load(Relaxed),
        gpu_seconds: if worker > 0.0 {
            worker
        } else if client.driver_seconds > 0.0 {
            client.driver_seconds
        } else {
            charged
        },
        alloc_denied_total: page.memory.denied.load(Relaxed),
        to_device_bytes_total: traffic.to_device_bytes,
        from_device_bytes_total: traffic.from_device_bytes,
        faults_total: traffic.faults,
        unknown_symbols: page.client.unknown_symbols.load(Relaxed),
        unknown_symbol_names: client.unknown_names.iter().cloned().collect(),
        driver_version: page.client.driver_version.load(Relaxed),
        slice_status: page.client.slice_status.load(Relaxed),
        confinement: client.confinement.as_ref().map(Confinement::info),
    }
}

pub(crate) fn role_name(role: Role) -> &'static str {
    match role {
        Role::Direct => "direct",
        Role::Worker => "worker",
        Role::Program => "program",
        Role::Monitor => "monitor",
    }
}

/// User of a process.
fn process_user(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    // The second one is the effective user.
    numbers.split_whitespace().nth(1)?.parse().ok()
}

/// Command name of a process.
pub(crate) fn process_name(pid: u32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name);
    printable(name.trim_end_matches('\n')).into_owned()
}
