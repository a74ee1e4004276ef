//! The metrics of virtual GPUs and of GPUs: names, units, words and values.

use std::fmt::Result as Encoded;

use mica_control::api::{GpuInfo, VgpuInfo, VgpuState};
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use Value::{Real, Whole};

/// A number, written as it is counted.
enum Value {
    Whole(u64),
    Real(f64),
}

/// One metric of everything of a kind.
pub(super) struct Family<T> {
    /// Without the unit and without `_total`, which follow it in the text.
    name: &'static str,
    /// Base unit; empty for none.
    unit: &'static str,
    kind: MetricType,
    help: &'static str,
    value: fn(&T) -> Value,
}

pub(super) const OF_VGPUS: &[Family<VgpuInfo>] = &[
    Family {
        name: "mica_vgpu_memory_used",
        unit: "bytes",
        kind: MetricType::Gauge,
        help: "Memory in use: charged, and what the driver holds beyond it.",
        value: |v| Whole(v.memory_used_bytes),
    },
    Family {
        name: "mica_vgpu_memory_limit",
        unit: "bytes",
        kind: MetricType::Gauge,
        help: "Memory limit.",
        value: |v| Whole(v.memory_limit_bytes),
    },
    Family {
        name: "mica_vgpu_memory_peak",
        unit: "bytes",
        kind: MetricType::Gauge,
        help: "Most memory ever in use.",
        value: |v| Whole(v.memory_peak_bytes),
    },
    Family {
        name: "mica_vgpu_memory_unattributed",
        unit: "bytes",
        kind: MetricType::Gauge,
        help: "Memory the driver reports beyond what was charged.",
        value: |v| Whole(v.memory_unattributed_bytes),
    },
    Family {
        name: "mica_vgpu_gpu",
        unit: "seconds",
        kind: MetricType::Counter,
        help: "GPU time.",
        value: |v| Real(v.gpu_seconds),
    },
    Family {
        name: "mica_vgpu_share",
        unit: "ratio",
        kind: MetricType::Gauge,
        help: "Share in force.",
        value: |v| Real(v.share_percent.as_ratio()),
    },
    Family {
        name: "mica_vgpu_share_reserved",
        unit: "",
        kind: MetricType::Gauge,
        help: "1 if the share is a guarantee, 0 if nobody asked for one.",
        value: |v| Whole(u64::from(v.share_reserved)),
    },
    Family {
        name: "mica_vgpu_share_measured",
        unit: "ratio",
        kind: MetricType::Gauge,
        help: "Share of the GPU's time over the last second.",
        value: |v| Real(v.share_measured_percent / 100.0),
    },
    Family {
        name: "mica_vgpu_throttled",
        unit: "seconds",
        kind: MetricType::Counter,
        help: "Time threads waited at the gate.",
        value: |v| Real(v.throttled_seconds),
    },
    Family {
        name: "mica_vgpu_alloc_denied",
        unit: "",
        kind: MetricType::Counter,
        help: "Allocations refused.",
        value: |v| Whole(v.alloc_denied_total),
    },
    Family {
        name: "mica_vgpu_launches",
        unit: "",
        kind: MetricType::Counter,
        help: "Submissions.",
        value: |v| Whole(v.launches_total),
    },
    Family {
        name: "mica_vgpu_to_device",
        unit: "bytes",
        kind: MetricType::Counter,
        help: "Bytes copied from the host to the device.",
        value: |v| Whole(v.to_device_bytes_total),
    },
    Family {
        name: "mica_vgpu_from_device",
        unit: "bytes",
        kind: MetricType::Counter,
        help: "Bytes copied from the device to the host.",
        value: |v| Whole(v.from_device_bytes_total),
    },
    Family {
        name: "mica_vgpu_faults",
        unit: "",
        kind: MetricType::Counter,
        help: "Contexts that faulted.",
        value: |v| Whole(v.faults_total),
    },
    Family {
        name: "mica_vgpu_memory_resident",
        unit: "bytes",
        kind: MetricType::Gauge,
        help: "Memory on the GPU; less than what is in use while memory of a swappable virtual GPU is away.",
        value: |v| {
            Whole(
                v.residency
                    .map_or(v.memory_used_bytes, |r| r.resident_bytes),
            )
        },
    },
    Family {
        name: "mica_vgpu_memory_away",
        unit: "bytes",
        kind: MetricType::Gauge,
        help: "Memory that is in host memory instead of on the GPU.",
        value: |v| Whole(v.residency.map_or(0, |r| r.away_bytes)),
    },
    Family {
        name: "mica_vgpu_swap_moved",
        unit: "bytes",
        kind: MetricType::Counter,
        help: "Bytes moved between the GPU and host memory, in both directions together.",
        value: |v| Whole(v.residency.map_or(0, |r| r.moved_bytes_total)),
    },
    Family {
        name: "mica_vgpu_swap_exchanges",
        unit: "",
        kind: MetricType::Counter,
        help: "Times its memory was told to leave the GPU.",
        value: |v| Whole(v.residency.map_or(0, |r| r.exchanges_total)),
    },
    Family {
        name: "mica_vgpu_swap_away",
        unit: "seconds",
        kind: MetricType::Counter,
        help: "Time for which its memory was not on the GPU as a whole.",
        value: |v| Real(v.residency.map_or(0.0, |r| r.away_seconds)),
    },
    Family {
        name: "mica_vgpu_processes",
        unit: "",
        kind: MetricType::Gauge,
        help: "Processes.",
        value: |v| Whole(v.processes.len() as u64),
    },
    Family {
        name: "mica_vgpu_suspended",
        unit: "",
        kind: MetricType::Gauge,
        help: "1 if its processes are held.",
        value: |v| Whole(u64::from(v.state == VgpuState::Suspended)),
    },
    Family {
        name: "mica_vgpu_degraded",
        unit: "",
        kind: MetricType::Gauge,
        help: "1 if something configured is not in force.",
        value: |v| Whole(u64::from(!v.reasons.is_empty())),
    },
];

pub(super) const OF_GPUS: &[Family<GpuInfo>] = &[
    Family {
        name: "mica_gpu_memory_total",
        unit: "bytes",
        kind: MetricType::Gauge,
        help: "Memory of the device.",
        value: |g| Whole(g.memory_total_bytes),
    },
    Family {
        name: "mica_gpu_memory_reserved",
        unit: "bytes",
        kind: MetricType::Gauge,
        help: "Memory limits given out.",
        value: |g| Whole(g.memory_reserved_bytes),
    },
    Family {
        name: "mica_gpu_utilization",
        unit: "ratio",
        kind: MetricType::Gauge,
        help: "Busy part of the last second.",
        value: |g| Real(g.utilization_percent / 100.0),
    },
    Family {
        name: "mica_gpu_memory_used",
        unit: "bytes",
        kind: MetricType::Gauge,
        help: "Charged memory in use by virtual GPUs.",
        value: |g| Whole(g.memory_used_bytes),
    },
    Family {
        name: "mica_gpu_share_reserved",
        unit: "ratio",
        kind: MetricType::Gauge,
        help: "Sum of guaranteed shares.",
        value: |g| Real(g.share_reserved_percent.as_ratio()),
    },
    Family {
        name: "mica_gpu_xid_errors",
        unit: "",
        kind: MetricType::Counter,
        help: "Faults that the driver has reported (Xid) since the daemon started.",
        value: |g| Whole(g.xid_errors_total),
    },
    Family {
        name: "mica_gpu_usable",
        unit: "",
        kind: MetricType::Gauge,
        help: "0 if the GPU is lost, must be reset (after an Xid, say) or cannot be shared.",
        value: |g| {
            let troubles = [&g.lost, &g.drained, &g.unshareable];
            Whole(u64::from(troubles.iter().all(|trouble| trouble.is_none())))
        },
    },
];

impl<T> Family<T> {
    pub(super) fn encode<L: EncodeLabelSet>(
        &self,
        encoder: &mut DescriptorEncoder,
        all: &[T],
        labels: impl Fn(&T) -> L,
    ) -> Encoded {
        let unit = (!self.unit.is_empty()).then(|| Unit::Other(self.unit.into()));
        let mut family =
            encoder.encode_descriptor(self.name, self.help, unit.as_ref(), self.kind)?;
        for one in all {
            let labels = labels(one);
            let mut metric = family.encode_family(&labels)?;
            match (self.kind, (self.value)(one)) {
                (MetricType::Counter, Whole(n)) => {
                    metric.encode_counter::<NoLabelSet, _, u64>(&n, None)?;
                }
                (MetricType::Counter, Real(n)) => {
                    metric.encode_counter::<NoLabelSet, _, u64>(&n, None)?;
                }
                // The library has no larger whole numbers in gauges, and would give up the page.
                (_, Whole(n)) => metric.encode_gauge(&n.min(i64::MAX as u64))?,
                (_, Real(n)) => metric.encode_gauge(&n)?,
            }
        }
        Ok(())
    }
}
