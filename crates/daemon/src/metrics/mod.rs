//! The counters as OpenMetrics text, which Prometheus reads.

mod families;
mod format;

use std::collections::{BTreeSet, HashMap};
use std::fmt::Result as Encoded;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use mica_control::api::{GpuInfo, VgpuInfo};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::tenant::Tenant;
use crate::users::UserNames;
use families::{OF_GPUS, OF_VGPUS};
pub(crate) use format::Format;
use format::in_older_format;

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

/// A label's value with the escapes that the format wants; the library writes it as it is.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

type Labels<const N: usize> = [(&'static str, String); N];

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
    /// Names of the owners.
    pub(crate) users: UserNames,
    /// When the daemon started, in seconds since the epoch.
    pub(crate) started_seconds: f64,
    /// Events so far by severity.
    pub(crate) events: [(&'static str, u64); 3],
}

impl Page {
    fn labels_of_vgpu(&self, vgpu: &VgpuInfo) -> Labels<4> {
        [
            ("vgpu", escape(&vgpu.name)),
            ("user", escape(&self.users.name_of(vgpu.owner_uid))),
            ("gpu", vgpu.gpu.to_string()),
            ("UUID", escape(&vgpu.gpu_uuid)),
        ]
    }

    /// Containers as a metric of their own: they come and go with programs, and would break the other metrics' series.
    fn encode_containers(&self, encoder: &mut DescriptorEncoder) -> Encoded {
        let help = "1 for each container whose programs use the virtual GPU now.";
        let name = "mica_vgpu_container_info";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for vgpu in &self.vgpus {
            let all = vgpu
                .processes
                .iter()
                .filter_map(|process| process.container.as_ref());
            for container in all.collect::<BTreeSet<_>>() {
                // Kubernetes's containers are named POD/CONTAINER; no other engine has a slash in its names.
                let (pod, name) = container.split_once('/').unwrap_or(("", container));
                let labels = [
                    ("vgpu", escape(&vgpu.name)),
                    ("container", escape(name)),
                    ("pod", escape(pod)),
                ];
                family.encode_family(&labels)?.encode_gauge(&1_i64)?;
            }
        }
        Ok(())
    }

    fn encode_daemon(&self, encoder: &mut DescriptorEncoder) -> Encoded {
        let gauge = MetricType::Gauge;
        let about =
            encoder.encode_descriptor("mica_daemon_info", "The version that runs.", None, gauge);
        let labels = [("version", env!("CARGO_PKG_VERSION"))];
        about?.encode_family(&labels)?.encode_gauge(&1_i64)?;
        let help = "When the daemon started, in seconds since the epoch.";
        let unit = Some(&Unit::Seconds);
        let mut start = encoder.encode_descriptor("mica_daemon_start_time", help, unit, gauge)?;
        start.encode_gauge(&self.started_seconds)?;
        let help = "Events, as `mica events` tells them.";
        let counter = MetricType::Counter;
        let mut events = encoder.encode_descriptor("mica_events", help, None, counter)?;
        for (severity, count) in self.events {
            let labels = [("severity", severity)];
            let mut event = events.encode_family(&labels)?;
            event.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        Ok(())
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Encoded {
        for family in OF_VGPUS {
            family.encode(&mut encoder, &self.vgpus, |vgpu| self.labels_of_vgpu(vgpu))?;
        }
        for family in OF_GPUS {
            family.encode(&mut encoder, &self.gpus, labels_of_gpu)?;
        }
        self.encode_containers(&mut encoder)?;
        self.encode_daemon(&mut encoder)?;
        let mut family = encoder.encode_descriptor(
            "mica_vgpu_lease_wait",
            "Time from asking for a lease to its grant.",
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for vgpu in &self.vgpus {
            if let Some(tenant) = self.tenants.get(&vgpu.name) {
                let labels = self.labels_of_vgpu(vgpu);
                tenant.waits.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

impl Page {
    /// The page as text; nothing where it cannot be written, which a string never refuses.
    pub(crate) fn render(self, format: Format) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut page = String::new();
        let _ = text::encode(&mut page, &registry);
        match format {
            Format::OpenMetrics => page,
            Format::Prometheus => in_older_format(&page),
        }
    }
}

#[cfg(test)]
mod tests {
    use mica_control::api::ProcessInfo;

    use super::*;

    fn page_of(name: &str) -> String {
        let inside = |container: &str| ProcessInfo {
            container: Some(container.into()),
            ..ProcessInfo::default()
        };
        let vgpu = VgpuInfo {
            name: name.into(),
            processes: vec![inside("web"), inside("job-1/train"), inside("web")],
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
            users: UserNames::default(),
            started_seconds: 1.5,
            events: [("info", 3), ("warning", 2), ("error", 1)],
        };
        page.render(Format::OpenMetrics)
    }

    #[test]
    fn families_have_their_types_units_and_suffixes() {
        let page = page_of("a");
        for line in [
            "# TYPE mica_vgpu_memory_used_bytes gauge",
            "# UNIT mica_vgpu_memory_used_bytes bytes",
            "mica_vgpu_memory_used_bytes{vgpu=\"a\",user=\"0\",gpu=\"0\",UUID=\"\"} 9223372036854775807",
            "# TYPE mica_vgpu_launches counter",
            "mica_vgpu_launches_total{vgpu=\"a\",user=\"0\",gpu=\"0\",UUID=\"\"} 7",
            "# TYPE mica_vgpu_gpu_seconds counter",
            "mica_vgpu_gpu_seconds_total{vgpu=\"a\",user=\"0\",gpu=\"0\",UUID=\"\"} 1.5",
            "mica_gpu_memory_total_bytes{gpu=\"0\",UUID=\"\",kind=\"software\"} 0",
            "mica_gpu_xid_errors_total{gpu=\"0\",UUID=\"\",kind=\"software\"} 0",
            "mica_vgpu_container_info{vgpu=\"a\",container=\"web\",pod=\"\"} 1",
            "mica_vgpu_container_info{vgpu=\"a\",container=\"train\",pod=\"job-1\"} 1",
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
            value(&format!(
                "{name}{{le=\"{le}\",vgpu=\"a\",user=\"0\",gpu=\"0\",UUID=\"\"}}"
            ))
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
        let wanted = r#"mica_vgpu_launches_total{vgpu="a\"}\\\n",user="0",gpu="0",UUID=""} 7"#;
        assert!(page.lines().any(|line| line == wanted), "{page}");
    }
}
