//! The end of a connection: what is given back, and which events are logged.

use std::sync::atomic::Ordering::Relaxed;

use mica_control::api::{GpuKind, Severity};
use mica_wire::host::message::Role;

use crate::daemon::Daemon;
use crate::registry::Client;
use crate::watched::Watched;

impl Daemon {
    /// Forgets a process whose connection closed.
    pub(crate) fn client_gone(&self, id: u64) {
        let client = self.registry().client_gone(id);
        let Some(mut client) = client else { return };
        self.cancels.client_gone(id);
        self.maps.client_gone(id);
        self.snapshots.client_gone(id);
        self.lent_files.client_gone(id);
        match client.role {
            Role::Worker => self.worker_gone(id, &mut client),
            Role::Direct | Role::Program if !client.is_probe => self.process_gone(&client),
            Role::Direct | Role::Program | Role::Monitor => {}
        }
        self.collect_abandoned();
    }

    fn worker_gone(&self, id: u64, client: &mut Client) {
        // Sessions that the worker has not taken cannot be served any more.
        if let Some(process) = client.process.take() {
            process.kill();
            let registry = self.registry();
            let gpu = registry.gpus.get(client.gpu);
            if gpu.is_some_and(|gpu| gpu.facts.kind == GpuKind::Nvidia) {
                self.endings.watch(process, client.vgpu.clone(), client.gpu);
            }
        }
        let is_alive = {
            let mut registry = self.registry();
            let Ok(vgpu) = registry.vgpu_mut(&client.vgpu) else {
                // It was ended with its virtual GPU, whose removal is an event already.
                return;
            };
            if vgpu.is_spare(id) {
                // No program came for it.
                vgpu.workers.retain(|_, slot| slot.client != Some(id));
                return;
            }
            vgpu.workers.retain(|_, slot| slot.client != Some(id));
            if vgpu.park_again(client.serves) {
                self.dirty.store(true, Relaxed);
            }
            let served = |p: &&Watched| Some((p.pid, p.start)) == client.serves;
            let program = vgpu.programs.iter().find(served);
            // One that was parked waits for another worker, and has lost nothing; of one that was being saved, whoever saves it
            // tells.
            if vgpu.parked.is_some() || vgpu.is_moving {
                return;
            }
            program.is_some_and(Watched::alive)
        };
        // A worker of the doctor's process is not the tenant's.
        if client.is_probe {
            return;
        }
        let (name, worker) = (&client.vgpu, client.pid);
        let pid = client.serves.map(|(pid, _)| pid);
        let program = pid.map_or("a program".into(), |pid| format!("process {pid}"));
        let (severity, kind, text) = match is_alive {
            true => (
                Severity::Warning,
                "worker_ended",
                format!("worker {worker} of {name} ended: the GPU work of {program} is lost"),
            ),
            false => (
                Severity::Info,
                "process_left",
                format!("{program} left {name}"),
            ),
        };
        let pid = pid.or(Some(worker));
        self.events.add(severity, kind, Some(name), pid, text);
    }

    fn process_gone(&self, client: &Client) {
        let mut text = format!("process {} left {}", client.pid, client.vgpu);
        // It may have been gone before anybody looked.
        let overruns = client.governed.overruns.load(Relaxed);
        if overruns > 0 {
            text += &format!("; {overruns} of its leases were taken away, its work ran on");
        }
        let (vgpu, pid) = (Some(&*client.vgpu), Some(client.pid));
        let (severity, kind) = (Severity::Info, "process_left");
        self.events.add(severity, kind, vgpu, pid, text);
    }
}
