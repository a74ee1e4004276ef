//! The counters as OpenMetrics text, which Prometheus reads.

use std::collections::HashMap;
use std::fmt::Result as Encoded;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use mica_control::api::{GpuInfo, VgpuInfo};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::tenant::Tenant;
use Value::{Real, Whole};

/// Upper bounds of the lease wait histogram, in seconds.
const BOUNDS: [f64; 10] = [
    0.000_1, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5,
];

/// How long tenants waited for leases.
#[derive(Debug, Default)]
pub(crate) struct LeaseWaits {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum_ns: AtomicU64,
}

impl LeaseWaits {
    pub(crate) fn add(&self, ns: u64) {
        let seconds = ns as f64 / 1e9;
        let bucket = BOUNDS
            .iter()
            .position(|b| seconds <= *b)
            .unwrap_or(BOUNDS.len());
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(ns, Relaxed);
    }

    fn encode(&self, mut metric: MetricEncoder) -> Encoded {
        // The library writes `+Inf` for the largest number.
        let bounds = BOUNDS.into_iter().chain([f64::MAX]);
        let counts = self.buckets.iter().map(|bucket| bucket.load(Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = self.sum_ns.load(Relaxed) as f64 / 1e9;
        metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}

/// A number, written as it is counted.
enum Value {
    Whole(u64),
    Real(f64),
}

/// One metric of everything of a kind.
struct Family<T> {
    /// Without the unit and without `_total`, which follow it in the text.
    name: &'static str,
    /// Base unit; empty for none.
    unit: &'static str,
    kind: MetricType,
    help: &'static str,
    value: fn(&T) -> Value,
}

const OF_VGPUS: &[Family<VgpuInfo>] = &[
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
        name: "mica_vgpu_degraded",
        unit: "",
        kind: MetricType::Gauge,
        help: "1 if something configured is not in force.",
        value: |v| Whole(u64::from(!v.reasons.is_empty())),
    },
];

const OF_GPUS: &[Family<GpuInfo>] = &[
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
];

impl<T> Family<T> {
    fn encode<L: EncodeLabelSet>(
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

/// A label's value with the escapes that the format wants; the library writes it as it is.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

type Labels<const N: usize> = [(&'static str, String); N];

fn labels_of_vgpu(vgpu: &VgpuInfo) -> Labels<2> {
    [("vgpu", escape(&vgpu.name)), ("gpu", vgpu.gpu.to_string())]
}

fn labels_of_gpu(gpu: &GpuInfo) -> Labels<3> {
    [
        ("gpu", gpu.index.to_string()),
        ("UUID", escape(&gpu.uuid)),
        ("kind", gpu.kind.to_string()),
    ]
}

/// What one page shows.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) vgpus: Vec<VgpuInfo>,
    pub(crate) gpus: Vec<GpuInfo>,
    /// The virtual GPUs' tenants by name.
    pub(crate) tenants: HashMap<String, Arc<Tenant>>,
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Encoded {
        for family in OF_VGPUS {
            family.encode(&mut encoder, &self.vgpus, labels_of_vgpu)?;
        }
        for family in OF_GPUS {
            family.encode(&mut encoder, &self.gpus, labels_of_gpu)?;
        }
        let mut family = encoder.encode_descriptor(
            "mica_vgpu_lease_wait",
            "Time from asking for a lease to its grant.",
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for vgpu in &self.vgpus {
            if let Some(tenant) = self.tenants.get(&vgpu.name) {
                let labels = labels_of_vgpu(vgpu);
                tenant.waits.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

impl Page {
    /// What [`Page::render`] makes, as HTTP names it.
    pub(crate) const CONTENT_TYPE: &str =
        "application/openmetrics-text; version=1.0.0; charset=utf-8";

    /// The page as text; nothing where it cannot be written, which a string never refuses.
    pub(crate) fn render(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut page = String::new();
        let _ = text::encode(&mut page, &registry);
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_of(name: &str) -> String {
        let vgpu = VgpuInfo {
            name: name.into(),
            memory_used_bytes: u64::MAX,
            launches_total: 7,
            gpu_seconds: 1.5,
            ..VgpuInfo::default()
        };
        let tenant = Tenant::default();
        for ns in [50_000, 3_000_000, 2_000_000_000] {
            tenant.waits.add(ns);
        }
        let page = Page {
            vgpus: vec![vgpu],
            gpus: vec![GpuInfo::default()],
            tenants: HashMap::from([(name.to_owned(), Arc::new(tenant))]),
        };
        page.render()
    }

    #[test]
    fn families_have_their_types_units_and_suffixes() {
        let page = page_of("a");
        for line in [
            "# TYPE mica_vgpu_memory_used_bytes gauge",
            "# UNIT mica_vgpu_memory_used_bytes bytes",
            "mica_vgpu_memory_used_bytes{vgpu=\"a\",gpu=\"0\"} 9223372036854775807",
            "# TYPE mica_vgpu_launches counter",
            "mica_vgpu_launches_total{vgpu=\"a\",gpu=\"0\"} 7",
            "# TYPE mica_vgpu_gpu_seconds counter",
            "mica_vgpu_gpu_seconds_total{vgpu=\"a\",gpu=\"0\"} 1.5",
            "mica_gpu_memory_total_bytes{gpu=\"0\",UUID=\"\",kind=\"software\"} 0",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is not in\n{page}");
        }
        assert!(page.ends_with("# EOF\n"), "{page}");
    }

    #[test]
    fn buckets_are_cumulative_and_end_with_all() {
        let page = page_of("a");
        let value = |start: &str| {
            let line = page.lines().find(|line| line.starts_with(start));
            line.and_then(|line| line.rsplit_once(' ')).map(|(_, n)| n)
        };
        let bucket = |le: &str| {
            let name = "mica_vgpu_lease_wait_seconds_bucket";
            value(&format!("{name}{{le=\"{le}\",vgpu=\"a\",gpu=\"0\"}}"))
        };
        assert_eq!(bucket("0.0001"), Some("1"));
        assert_eq!(bucket("0.005"), Some("2"));
        assert_eq!(bucket("0.5"), Some("2"));
        assert_eq!(bucket("+Inf"), Some("3"));
        assert_eq!(value("mica_vgpu_lease_wait_seconds_count"), Some("3"));
        assert_eq!(value("mica_vgpu_lease_wait_seconds_sum"), Some("2.00305"));
    }

    #[test]
    fn a_name_cannot_break_out_of_its_label() {
        let page = page_of("a\"}\\\n");
        let wanted = r#"mica_vgpu_launches_total{vgpu="a\"}\\\n",gpu="0"} 7"#;
        assert!(page.lines().any(|line| line == wanted), "{page}");
    }
}
