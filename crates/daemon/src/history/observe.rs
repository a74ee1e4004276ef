//! One second of every GPU and virtual GPU, as the monitor has just measured it.

use std::collections::HashMap;

use mica_control::api::{Point, Subject};
use mica_wire::host::message::Role;

use super::Identity;
use crate::registry::{Registry, Vgpu};

/// Counters as they were a second ago.
#[derive(Debug)]
pub(crate) struct Observer {
    /// When this daemon began to measure.
    began: u64,
    last: HashMap<u64, Last>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Last {
    denied: u64,
    peak_bytes: u64,
}

impl Observer {
    /// Begins now.
    pub(crate) fn new(now: u64) -> Self {
        Self {
            began: now,
            last: HashMap::new(),
        }
    }

    /// Everything that is now; `seconds` have passed since the last call.
    pub(crate) fn observe(
        &mut self,
        registry: &Registry,
        now: u64,
        seconds: f64,
    ) -> Vec<(Identity, Point)> {
        let mut last = std::mem::take(&mut self.last);
        let mut of_gpus: Vec<Point> = vec![Point::default(); registry.gpus.len()];
        let mut all = Vec::with_capacity(registry.vgpus.len() + registry.gpus.len());
        for vgpu in registry.vgpus.values() {
            let known = last.remove(&vgpu.id);
            let point = self.vgpu_point(registry, vgpu, known, now, seconds);
            if let Some(sum) = of_gpus.get_mut(vgpu.gpu) {
                sum.waiting_percent += point.waiting_percent;
                sum.memory_used_bytes += point.memory_used_bytes;
                sum.processes += point.processes;
                sum.alloc_denied += point.alloc_denied;
                sum.launches += point.launches;
            }
            all.push((vgpu_identity(registry, vgpu), point));
        }
        for (index, sum) in of_gpus.into_iter().enumerate() {
            all.push(gpu_point(registry, index, sum, now, seconds));
        }
        all
    }

    fn vgpu_point(
        &mut self,
        registry: &Registry,
        vgpu: &Vgpu,
        known: Option<Last>,
        now: u64,
        seconds: f64,
    ) -> Point {
        let denied = registry.denied_total(vgpu);
        let peak_bytes = vgpu.ledger.peak_bytes();
        // What an earlier daemon has counted is in the history already.
        let is_new = vgpu.created_at_seconds >= self.began;
        let before = known.unwrap_or(match is_new {
            true => Last::default(),
            false => Last { denied, peak_bytes },
        });
        self.last.insert(vgpu.id, Last { denied, peak_bytes });
        let used = vgpu.ledger.used_bytes() + vgpu.ledger.unattributed_bytes();
        // A peak that has grown was reached within this second.
        let peak = match peak_bytes > before.peak_bytes {
            true => peak_bytes.max(used),
            false => used,
        };
        let sample = vgpu.history.back().copied().unwrap_or_default();
        let members = vgpu
            .clients
            .iter()
            .filter_map(|id| registry.clients.get(id));
        let processes = members
            .filter(|client| client.role != Role::Monitor)
            .count();
        let share = registry.share_percent(vgpu).as_f64() as f32;
        Point {
            time_seconds: now,
            measured_seconds: seconds as f32,
            share_asked_percent: share,
            share_unreserved_percent: match vgpu.spec.share_percent {
                Some(_) => 0.0,
                None => share,
            },
            share_got_percent: vgpu.measured_percent as f32,
            waiting_percent: sample.gate_wait_percent,
            memory_used_bytes: used,
            memory_peak_bytes: peak,
            memory_limit_bytes: vgpu.ledger.limit_bytes(),
            processes: processes as u32,
            alloc_denied: denied.saturating_sub(before.denied),
            launches: sample.launches.into(),
        }
    }
}

fn vgpu_identity(registry: &Registry, vgpu: &Vgpu) -> Identity {
    Identity {
        subject: Subject::Vgpu,
        name: vgpu.name.clone(),
        gpu: u32::try_from(vgpu.gpu).unwrap_or(u32::MAX),
        gpu_uuid: gpu_key(registry, vgpu.gpu).unwrap_or_else(|| vgpu.gpu_key.clone()),
        owner_uid: vgpu.owner_uid,
        container: vgpu.container.clone().unwrap_or_default(),
    }
}

fn gpu_key(registry: &Registry, index: usize) -> Option<String> {
    Some(registry.gpus.get(index)?.facts.key())
}

fn gpu_point(
    registry: &Registry,
    index: usize,
    sum: Point,
    now: u64,
    seconds: f64,
) -> (Identity, Point) {
    let info = registry.gpu_info(index);
    let key = gpu_key(registry, index).unwrap_or_default();
    let used = match info.memory_free_bytes {
        Some(free) => info.memory_total_bytes.saturating_sub(free),
        None => sum.memory_used_bytes,
    };
    let identity = Identity {
        subject: Subject::Gpu,
        name: key.clone(),
        gpu: info.index,
        gpu_uuid: key,
        ..Identity::default()
    };
    let point = Point {
        time_seconds: now,
        measured_seconds: seconds as f32,
        share_asked_percent: info.share_reserved_percent.as_f64() as f32,
        share_got_percent: info.utilization_percent as f32,
        memory_used_bytes: used,
        memory_peak_bytes: used,
        memory_limit_bytes: info.memory_total_bytes,
        ..sum
    };
    (identity, point)
}
