//! The rows of the table: virtual GPUs in the chosen order, and below each its processes, by container.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use mica_control::api::{ProcessInfo, VgpuInfo};

use super::state::{RowKey, Sort, State};

/// One row.
#[derive(Clone, Debug)]
pub(crate) enum Row<'a> {
    Vgpu(&'a VgpuInfo),
    Container {
        vgpu: &'a VgpuInfo,
        name: &'a str,
        processes: usize,
        is_last: bool,
    },
    Process {
        vgpu: &'a VgpuInfo,
        process: &'a ProcessInfo,
        /// Whether it is in a container, and whether lines go on below that container.
        below: Option<bool>,
        is_last: bool,
    },
}

impl Row<'_> {
    pub(crate) fn key(&self) -> RowKey {
        match self {
            Self::Vgpu(vgpu) => RowKey::Vgpu(vgpu.name.clone()),
            Self::Container { vgpu, name, .. } => {
                RowKey::Container(vgpu.name.clone(), (*name).to_owned())
            }
            Self::Process { vgpu, process, .. } => RowKey::Process(vgpu.name.clone(), process.pid),
        }
    }
}

/// All rows that the filter lets through.
pub(crate) fn rows(state: &State) -> Vec<Row<'_>> {
    let mut vgpus: Vec<&VgpuInfo> = state.stats.vgpus.iter().collect();
    vgpus.retain(|vgpu| matches(state, vgpu));
    vgpus.sort_by(|a, b| {
        let order = order(state, a, b).then_with(|| a.name.cmp(&b.name));
        if state.reversed {
            order.reverse()
        } else {
            order
        }
    });
    let mut rows = Vec::new();
    for vgpu in vgpus {
        rows.push(Row::Vgpu(vgpu));
        if !state.folded.contains(&vgpu.name) {
            add_processes(&mut rows, vgpu);
        }
    }
    rows
}

/// Names grow, figures shrink: who uses most is first.
fn order(state: &State, a: &VgpuInfo, b: &VgpuInfo) -> Ordering {
    let waiting = |vgpu: &VgpuInfo| state.rate(&vgpu.name).waiting_percent;
    match state.sort {
        Sort::Name => a.name.cmp(&b.name),
        Sort::Share => b
            .share_measured_percent
            .total_cmp(&a.share_measured_percent),
        Sort::Waiting => waiting(b).total_cmp(&waiting(a)),
        Sort::Memory => b.memory_used_bytes.cmp(&a.memory_used_bytes),
        Sort::GpuTime => b.gpu_seconds.total_cmp(&a.gpu_seconds),
    }
}

/// Whether a virtual GPU, or something in it, contains the letters of the filter.
fn matches(state: &State, vgpu: &VgpuInfo) -> bool {
    let wanted = state.filter.to_lowercase();
    let has = |text: &str| text.to_lowercase().contains(&wanted);
    let in_process = |process: &ProcessInfo| {
        has(&process.name)
            || has(&process.command)
            || has(&process.pid.to_string())
            || process.container.as_deref().is_some_and(has)
            || process.uid.is_some_and(|uid| has(&state.user(uid)))
    };
    has(&vgpu.name)
        || has(&vgpu.state.to_string())
        || has(&state.user(vgpu.owner_uid))
        || vgpu.processes.iter().any(in_process)
}

fn add_processes<'a>(rows: &mut Vec<Row<'a>>, vgpu: &'a VgpuInfo) {
    let mut by_container: BTreeMap<&str, Vec<&ProcessInfo>> = BTreeMap::new();
    for process in &vgpu.processes {
        let container = process.container.as_deref().unwrap_or_default();
        by_container.entry(container).or_default().push(process);
    }
    let last = by_container.len();
    for (place, (name, mut processes)) in by_container.into_iter().enumerate() {
        processes.sort_by_key(|process| process.pid);
        let is_last_group = place + 1 == last;
        let contained = !name.is_empty();
        if contained {
            rows.push(Row::Container {
                vgpu,
                name,
                processes: processes.len(),
                is_last: is_last_group,
            });
        }
        let count = processes.len();
        for (place, process) in processes.into_iter().enumerate() {
            rows.push(Row::Process {
                vgpu,
                process,
                below: contained.then_some(!is_last_group),
                is_last: place + 1 == count && (contained || is_last_group),
            });
        }
    }
}
