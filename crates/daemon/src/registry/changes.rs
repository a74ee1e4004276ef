//! What changes in the life of a virtual GPU: its limits, its processes, its end.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use mica_control::api::{ApiError, Percent, Resize};
use mica_memory::residency::Place;
use mica_wire::host::message::Role;

use super::admission::check_spec;
use super::{Client, Registry, Traffic, Vgpu, not_found};
use crate::gpu_thread::Change;
use crate::host::join::joined_words;
use crate::placement::{Candidate, error, size};
use crate::watched::Watched;

/// How long a virtual GPU without a known creator waits for its first process.
const FIRST_PROCESS_WITHIN: Duration = Duration::from_secs(60);

impl Vgpu {
    /// Sets the limit of device memory, and of the host memory that its workers may hold.
    fn set_memory_limit(&mut self, limit: u64, drain: bool) -> Result<(), ApiError> {
        self.ledger.resize(limit, drain).map_err(|full| {
            let text = format!(
                "{} are in use in {}, more than a limit of {}",
                size(full.used_bytes),
                self.name,
                size(limit)
            );
            let hint = "free memory first, or let it drain with --drain";
            error("busy", text, Some(hint.into()))
        })?;
        self.host_ledger.follow(limit);
        self.spec.memory_limit_bytes = Some(limit);
        self.spec.memory_limit_percent = None;
        Ok(())
    }
}

impl Registry {
    /// Changes limits while processes run.
    pub(crate) fn resize(&mut self, name: &str, change: &Resize) -> Result<(), ApiError> {
        let vgpu = self.vgpu(name)?;
        let (gpu, owner) = (vgpu.gpu, vgpu.owner_uid);
        let old_limit = vgpu.ledger.limit_bytes();
        let old_share = vgpu.spec.share_percent.unwrap_or_default();
        let candidates = self.candidates(owner, vgpu.is_swappable());
        let candidate = candidates.into_iter().nth(gpu);
        let asked_bytes = match (change.memory_limit_bytes, change.memory_limit_percent) {
            (None, Some(part)) => (candidate.as_ref()).map(|gpu| part.of_bytes(gpu.total_bytes)),
            (bytes, _) => bytes,
        };
        let mut checked = vgpu.spec.clone();
        checked.memory_limit_bytes = change.memory_limit_bytes;
        checked.memory_limit_percent = change.memory_limit_percent;
        checked.share_percent = change.share_percent.or(checked.share_percent);
        check_spec(&checked)?;
        // What grows must fit into its owner's quota; what shrinks may always.
        let limit = asked_bytes.unwrap_or(old_limit);
        if limit > old_limit || change.share_percent.is_some_and(|share| share > old_share) {
            self.check_quota(owner, limit, checked.share_percent, Some(name))?;
        }
        if let Some(candidate) = &candidate {
            if let Some(limit) = asked_bytes {
                self.check_room(vgpu, candidate, limit)?;
            }
            if let Some(share) = change.share_percent {
                self.check_share_room(vgpu, candidate, share)?;
            }
        }
        let vgpu = self.vgpu_mut(name)?;
        if let Some(limit) = asked_bytes {
            vgpu.set_memory_limit(limit, change.drain)?;
        }
        vgpu.spec.share_percent = change.share_percent.or(vgpu.spec.share_percent);
        vgpu.spec.cap = change.cap.unwrap_or(vgpu.spec.cap);
        vgpu.spec.priority = change.priority.unwrap_or(vgpu.spec.priority);
        self.publish_entitlements(gpu);
        Ok(())
    }

    /// Whether a GPU has room for another memory limit of a virtual GPU that is on it.
    fn check_room(&self, vgpu: &Vgpu, gpu: &Candidate, limit: u64) -> Result<(), ApiError> {
        let overcommit = self.config.sharing.overcommit_memory && !vgpu.is_swappable();
        let unreserved =
            (gpu.total_bytes + vgpu.ledger.limit_bytes()).saturating_sub(gpu.reserved_bytes);
        let room = match (overcommit, vgpu.is_swappable()) {
            (true, _) => gpu.total_bytes,
            (false, false) => unreserved,
            // A swappable virtual GPU must still fit as a whole beside the memory that never leaves.
            (false, true) => {
                let capacity = self.swap_capacity_bytes(vgpu.gpu);
                unreserved.min(capacity.saturating_sub(self.fixed_bytes(vgpu.gpu)))
            }
        };
        if limit <= room && limit != 0 {
            return Ok(());
        }
        let text = format!(
            "{} can have at most {} on GPU {}, {} asked",
            vgpu.name,
            size(room),
            vgpu.gpu,
            size(limit)
        );
        Err(error("no_memory", text, None))
    }

    /// Whether a GPU has room for another share of a virtual GPU that is on it.
    fn check_share_room(
        &self,
        vgpu: &Vgpu,
        gpu: &Candidate,
        share: Percent,
    ) -> Result<(), ApiError> {
        let old_share = vgpu.spec.share_percent.unwrap_or_default();
        let room = (Percent::WHOLE + old_share).saturating_sub(gpu.share_reserved_percent);
        if share <= room || self.config.sharing.overcommit_share {
            return Ok(());
        }
        let text = format!(
            "{} can have at most {room} % of GPU {}, {share} % asked",
            vgpu.name, vgpu.gpu
        );
        Err(error("no_share", text, None))
    }

    /// Holds or releases a virtual GPU's processes.
    pub(crate) fn set_suspended(&mut self, name: &str, suspended: bool) -> Result<(), ApiError> {
        let is_here = self.place_of(self.vgpu(name)?) == Place::Resident;
        let vgpu = self.vgpu_mut(name)?;
        vgpu.suspended = suspended;
        // What was taken off the card with a suspension comes back with its end.
        vgpu.turns.recalled = !suspended && !is_here;
        vgpu.turns.put_away &= suspended;
        let gpu = vgpu.gpu;
        self.publish_entitlements(gpu);
        Ok(())
    }

    /// Removes a virtual GPU; its processes are ended with `force`.
    pub(crate) fn remove(&mut self, name: &str, force: bool) -> Result<Vgpu, ApiError> {
        let vgpu = self.vgpu_mut(name)?;
        vgpu.programs.retain(Watched::alive);
        let running = self.programs_in(self.vgpu(name)?);
        if running > 0 && !force {
            return Err(error(
                "busy",
                match running {
                    1 => format!("a process runs in {name}"),
                    many => format!("{many} processes run in {name}"),
                },
                Some(match running {
                    1 => "end it, or remove the virtual GPU with --force".into(),
                    _ => "end them, or remove the virtual GPU with --force".into(),
                }),
            ));
        }
        if let (false, Some((pid, command))) = (force, self.vgpu(name)?.program_in_flight()) {
            return Err(error(
                "busy",
                format!("process {pid}, started in {name}, has not ended: {command}"),
                Some("end it, or remove the virtual GPU with --force".into()),
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
        vgpu.host_ledger.close_all();
        self.waiters.retain(|waiter| waiter.vgpu != name);
        self.detach_everything(name);
        if let Some(gpu) = self.gpus.get(vgpu.gpu) {
            for client in &vgpu.clients {
                gpu.thread.send(Change::ClientGone(*client));
            }
            gpu.thread.send(Change::TenantGone(vgpu.id));
        }
        self.publish_entitlements(vgpu.gpu);
        Ok(vgpu)
    }

    /// Whether the end of a process that has no connection would change anything.
    pub(crate) fn watches_processes(&self) -> bool {
        let watches = |vgpu: &Vgpu| vgpu.holder.is_some() || !vgpu.programs.is_empty();
        self.vgpus.values().any(watches)
    }

    /// Gives a worker that was started ahead and has joined its program; the sentence that tells so, unless the program
    /// is a probe of Mica's own.
    pub(crate) fn give_program(
        &mut self,
        worker: u64,
        program: Option<(u32, u64)>,
    ) -> Option<String> {
        let client = self.clients.get_mut(&worker)?;
        client.serves = program;
        let vgpu = self.vgpus.get(&client.vgpu)?;
        client.is_probe = program.is_some_and(|program| vgpu.is_probe(program));
        let words = || joined_words(Role::Worker, client.pid, program, &client.vgpu, false);
        (!client.is_probe).then(words)
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
                let is_worker = |id: &u64| vgpu.workers.values().any(|w| w.client == Some(*id));
                let in_use = vgpu.clients.iter().any(|client| !is_worker(client))
                    || !vgpu.programs.is_empty()
                    || vgpu.workers.values().any(|w| !w.pending.is_empty())
                    || vgpu.holder.is_some()
                    || vgpu.ledger.expects(None);
                let expected = !vgpu.ever_joined && vgpu.made.elapsed() < FIRST_PROCESS_WITHIN;
                (vgpu.spec.ephemeral && !in_use && !expected).then(|| vgpu.name.clone())
            })
            .collect()
    }

    /// Takes a client out of every table; everything it held is available again when this returns.
    pub(crate) fn client_gone(&mut self, id: u64) -> Option<Client> {
        let client = self.clients.remove(&id)?;
        self.waiters.retain(|waiter| waiter.client != id);
        if let Some(vgpu) = self.vgpus.get_mut(&client.vgpu) {
            vgpu.clients.remove(&id);
            if client.is_probe {
                client.governed.page.memory.denied.store(0, Relaxed);
            }
            vgpu.ledger.close(id);
            vgpu.host_ledger.close(id);
            vgpu.profiled.worker_gone(&client.told_profile);
            let moved = client.moved.moved_bytes;
            vgpu.turns.dead_moved_bytes = vgpu.turns.dead_moved_bytes.saturating_add(moved);
            let counters = &client.governed.page.counters;
            // Any value may stand in a page.
            let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
            add(&mut vgpu.dead_launches, counters.launches.load(Relaxed));
            add(
                &mut vgpu.dead_gate_wait_ns,
                counters.gate_wait_ns.load(Relaxed),
            );
            vgpu.dead_traffic = vgpu.dead_traffic.plus(Traffic::of(&client));
            // GPU time since the last look.
            let rest_ns = client.gpu_time_ns().saturating_sub(client.last_gpu_time_ns);
            vgpu.gpu_seconds += rest_ns as f64 / 1e9;
            if let Some(gpu) = self.gpus.get(vgpu.gpu) {
                gpu.thread.send(Change::ClientGone(id));
            }
        }
        Some(client)
    }
}
