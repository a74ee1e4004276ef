//! The counters in Prometheus's text format.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use mica_control::api::{GpuInfo, VgpuInfo};

use crate::tenant::Tenant;

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
}

/// One line of text per label value, quoted as the format wants.
fn quote(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

struct Page(String);

impl Page {
    fn family(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        lines: impl IntoIterator<Item = (String, f64)>,
    ) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in lines {
            let _ = writeln!(self.0, "{name}{{{labels}}} {value}");
        }
    }

    fn histogram(&mut self, name: &str, labels: &str, waits: &LeaseWaits) {
        let mut count = 0;
        let bounds = BOUNDS.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bucket, bound) in waits.buckets.iter().zip(bounds) {
            count += bucket.load(Relaxed);
            let _ = writeln!(self.0, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}");
        }
        let sum = waits.sum_ns.load(Relaxed) as f64 / 1e9;
        let _ = writeln!(self.0, "{name}_sum{{{labels}}} {sum}");
        let _ = writeln!(self.0, "{name}_count{{{labels}}} {count}");
    }
}

fn labels_of(vgpu: &VgpuInfo) -> String {
    format!("vgpu=\"{}\",gpu=\"{}\"", quote(&vgpu.name), vgpu.gpu)
}

/// The whole page; `waits` are the virtual GPUs' tenants by name.
pub(crate) fn render(
    vgpus: &[VgpuInfo],
    gpus: &[GpuInfo],
    waits: &HashMap<String, Arc<Tenant>>,
) -> String {
    let mut page = Page(String::new());
    let mut vgpu = |name: &str, kind: &str, help: &str, value: &dyn Fn(&VgpuInfo) -> f64| {
        page.family(
            name,
            kind,
            help,
            vgpus.iter().map(|v| (labels_of(v), value(v))),
        );
    };
    vgpu(
        "mica_vgpu_memory_used_bytes",
        "gauge",
        "Memory in use: charged, and what the driver holds beyond it.",
        &|v| v.memory_used_bytes as f64,
    );
    vgpu(
        "mica_vgpu_memory_limit_bytes",
        "gauge",
        "Memory limit.",
        &|v| v.memory_limit_bytes as f64,
    );
    vgpu(
        "mica_vgpu_memory_peak_bytes",
        "gauge",
        "Most memory ever in use.",
        &|v| v.memory_peak_bytes as f64,
    );
    vgpu(
        "mica_vgpu_memory_unattributed_bytes",
        "gauge",
        "Memory the driver reports beyond what was charged.",
        &|v| v.memory_unattributed_bytes as f64,
    );
    vgpu(
        "mica_vgpu_gpu_seconds_total",
        "counter",
        "GPU time.",
        &|v| v.gpu_seconds,
    );
    vgpu("mica_vgpu_share_ratio", "gauge", "Share in force.", &|v| {
        v.share_percent.as_ratio()
    });
    vgpu(
        "mica_vgpu_share_reserved",
        "gauge",
        "1 if the share is a guarantee, 0 if nobody asked for one.",
        &|v| f64::from(u8::from(v.share_reserved)),
    );
    vgpu(
        "mica_vgpu_share_measured_ratio",
        "gauge",
        "Share of the GPU's time over the last second.",
        &|v| v.share_measured_percent / 100.0,
    );
    vgpu(
        "mica_vgpu_throttled_seconds_total",
        "counter",
        "Time threads waited at the gate.",
        &|v| v.throttled_seconds,
    );
    vgpu(
        "mica_vgpu_alloc_denied_total",
        "counter",
        "Allocations refused.",
        &|v| v.alloc_denied_total as f64,
    );
    vgpu(
        "mica_vgpu_launches_total",
        "counter",
        "Submissions.",
        &|v| v.launches_total as f64,
    );
    vgpu(
        "mica_vgpu_to_device_bytes_total",
        "counter",
        "Bytes copied from the host to the device.",
        &|v| v.to_device_bytes_total as f64,
    );
    vgpu(
        "mica_vgpu_from_device_bytes_total",
        "counter",
        "Bytes copied from the device to the host.",
        &|v| v.from_device_bytes_total as f64,
    );
    vgpu(
        "mica_vgpu_faults_total",
        "counter",
        "Contexts that faulted.",
        &|v| v.faults_total as f64,
    );
    vgpu("mica_vgpu_processes", "gauge", "Processes.", &|v| {
        v.processes.len() as f64
    });
    vgpu(
        "mica_vgpu_degraded",
        "gauge",
        "1 if something configured is not in force.",
        &|v| f64::from(u8::from(!v.reasons.is_empty())),
    );
    let mut gpu = |name: &str, help: &str, value: &dyn Fn(&GpuInfo) -> f64| {
        page.family(
            name,
            "gauge",
            help,
            gpus.iter().map(|g| {
                let labels = format!(
                    "gpu=\"{}\",UUID=\"{}\",kind=\"{}\"",
                    g.index, g.uuid, g.kind
                );
                (labels, value(g))
            }),
        );
    };
    gpu(
        "mica_gpu_memory_total_bytes",
        "Memory of the device.",
        &|g| g.memory_total_bytes as f64,
    );
    gpu(
        "mica_gpu_memory_reserved_bytes",
        "Memory limits given out.",
        &|g| g.memory_reserved_bytes as f64,
    );
    gpu(
        "mica_gpu_utilization_ratio",
        "Busy part of the last second.",
        &|g| g.utilization_percent / 100.0,
    );
    let name = "mica_vgpu_lease_wait_seconds";
    let _ = writeln!(
        page.0,
        "# HELP {name} Time from asking for a lease to its grant.\n# TYPE {name} histogram"
    );
    for vgpu in vgpus {
        if let Some(tenant) = waits.get(&vgpu.name) {
            page.histogram(name, &labels_of(vgpu), &tenant.waits);
        }
    }
    page.0
}
