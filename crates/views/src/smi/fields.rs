//! The fields that can be queried, with the names that nvidia-smi gives them.

use anyhow::{Result, bail};
use mica_control::api::{GpuInfo, VgpuInfo};

use super::uuid;

/// A field of a GPU or a virtual GPU.
pub(super) struct Field<T> {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    /// `None` where it is not known.
    pub(super) value: fn(&T) -> Option<String>,
}

/// A virtual GPU and its GPU, if that is there.
pub(super) type OfVgpu = (Option<GpuInfo>, VgpuInfo);

fn mebibytes(bytes: u64) -> Option<String> {
    Some((bytes >> 20).to_string())
}

fn whole(number: f64) -> Option<String> {
    Some(format!("{number:.0}"))
}

const fn field<T>(
    name: &'static str,
    unit: &'static str,
    value: fn(&T) -> Option<String>,
) -> Field<T> {
    Field { name, unit, value }
}

/// Fields of GPUs.
pub(super) const GPU_FIELDS: &[Field<GpuInfo>] = &[
    field("index", "", |g| Some(g.index.to_string())),
    field("name", "", |g| Some(g.name.clone())),
    field("uuid", "", |g| Some(uuid(g))),
    field("kind", "", |g| Some(g.kind.to_string())),
    field("driver_version", "", |g| g.driver.clone()),
    field("memory.total", "MiB", |g| mebibytes(g.memory_total_bytes)),
    field("memory.used", "MiB", |g| mebibytes(g.memory_used_bytes)),
    field("memory.free", "MiB", |g| {
        let unused = || g.memory_total_bytes.saturating_sub(g.memory_used_bytes);
        mebibytes(g.memory_free_bytes.unwrap_or_else(unused))
    }),
    field("memory.reserved", "MiB", |g| {
        mebibytes(g.memory_reserved_bytes)
    }),
    field("utilization.gpu", "%", |g| whole(g.utilization_percent)),
    field("utilization.memory", "%", |g| {
        let total = g.memory_total_bytes.max(1);
        whole(g.memory_used_bytes as f64 / total as f64 * 100.0)
    }),
    field("share.reserved", "%", |g| {
        Some(g.share_reserved_percent.to_string())
    }),
    field("temperature.gpu", "", |g| {
        Some(g.temperature_celsius?.to_string())
    }),
    field("power.draw", "W", |g| {
        Some(format!("{:.2}", g.power_watts?))
    }),
    field("vgpus", "", |g| Some(g.vgpus.to_string())),
    field("state", "", |g| {
        let state = match (&g.lost, &g.drained, &g.unshareable) {
            (Some(_), ..) => "lost",
            (_, Some(_), _) => "drained",
            (.., Some(_)) => "unshareable",
            _ => "ok",
        };
        Some(state.to_owned())
    }),
];

/// Fields of virtual GPUs.
pub(super) const VGPU_FIELDS: &[Field<OfVgpu>] = &[
    field("name", "", |(_, v)| Some(v.name.clone())),
    field("state", "", |(_, v)| Some(v.state.to_string())),
    field("gpu", "", |(_, v)| Some(v.gpu.to_string())),
    field("gpu.name", "", |(gpu, _)| Some(gpu.as_ref()?.name.clone())),
    field("gpu.uuid", "", |(gpu, _)| gpu.as_ref().map(uuid)),
    field("mode", "", |(_, v)| {
        Some(format!("{:?}", v.mode).to_lowercase())
    }),
    field("owner", "", |(_, v)| Some(v.owner_uid.to_string())),
    field("memory.total", "MiB", |(_, v)| {
        mebibytes(v.memory_limit_bytes)
    }),
    field("memory.limit", "MiB", |(_, v)| {
        mebibytes(v.memory_limit_bytes)
    }),
    field("memory.used", "MiB", |(_, v)| {
        mebibytes(v.memory_used_bytes)
    }),
    field("memory.free", "MiB", |(_, v)| {
        mebibytes(v.memory_limit_bytes.saturating_sub(v.memory_used_bytes))
    }),
    field("memory.peak", "MiB", |(_, v)| {
        mebibytes(v.memory_peak_bytes)
    }),
    field("utilization.gpu", "%", |(_, v)| {
        whole(v.share_measured_percent)
    }),
    field("share", "%", |(_, v)| Some(v.share_percent.to_string())),
    field("share.reserved", "", |(_, v)| Some(yes(v.share_reserved))),
    field("cap", "", |(_, v)| Some(yes(v.cap))),
    field("priority", "", |(_, v)| {
        Some(format!("{:?}", v.priority).to_lowercase())
    }),
    field("mechanism", "", |(_, v)| Some(v.mechanism.clone())),
    field("processes", "", |(_, v)| {
        Some(v.processes.len().to_string())
    }),
    field("launches", "", |(_, v)| Some(v.launches_total.to_string())),
    field("gpu.time", "s", |(_, v)| {
        Some(format!("{:.1}", v.gpu_seconds))
    }),
    field("waiting.time", "s", |(_, v)| {
        Some(format!("{:.1}", v.throttled_seconds))
    }),
    field("alloc.denied", "", |(_, v)| {
        Some(v.alloc_denied_total.to_string())
    }),
    field("faults", "", |(_, v)| Some(v.faults_total.to_string())),
];

fn yes(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

/// The fields that a list names. The error names every unknown field, and lists the known ones.
pub(super) fn fields<T>(
    option: &str,
    names: &str,
    known: &'static [Field<T>],
) -> Result<Vec<&'static Field<T>>> {
    let mut found = Vec::new();
    let mut unknown = Vec::new();
    for name in names.split(',').map(str::trim) {
        match known.iter().find(|field| field.name == name) {
            Some(field) => found.push(field),
            None => unknown.push(format!("{name:?} is not a field{}", meant(name, known))),
        }
    }
    if unknown.is_empty() {
        return Ok(found);
    }
    let list: Vec<&str> = known.iter().map(|field| field.name).collect();
    let (unknown, list) = (unknown.join(", "), list.join(", "));
    bail!("{option}: {unknown}\n  fields: {list}")
}

/// The field that somebody may have meant: a short word has little in common with everything.
fn meant<T>(name: &str, known: &[Field<T>]) -> String {
    let near = known.iter().min_by_key(|field| distance(field.name, name));
    let most = 3.min(name.chars().count() / 2);
    let near = near.filter(|field| distance(field.name, name) <= most);
    near.map_or_else(String::new, |field| {
        format!("; did you mean {}?", field.name)
    })
}

/// Letters to change, add or remove to get from one word to another.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, right) in b.iter().enumerate() {
            let change = corner + usize::from(left != *right);
            corner = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}
