//! `ls`, `stats`, `gpus`, `show`, `events`, `doctor`: what is, for people and for programs.
//!
//! `ls` says what there is and what it may have, `stats` what it uses. Both fit 80 columns; `show` has the rest.

mod card;
mod doctor;
mod events;
mod memory;

use anyhow::Result;
use mica_control::api::{GpuInfo, ResidencyInfo, ResidencyState, VgpuInfo, VgpuState};
use mica_wire::host::printable::printable_lines;

use crate::args::{JsonArgs, ListArgs, OutputArg, StatsArgs};
use crate::control::connect;
pub(crate) use mica_command::output::print_json;
use mica_command::output::{hanging, terminal_columns};
use mica_command::refusal::explain;
use mica_command::share::{busy_host_words, share_words, short_of_processors};
use mica_command::size::show_bytes;
use mica_command::table::{Paint, Table};

pub(crate) use card::show;
pub(crate) use doctor::doctor;
pub(crate) use events::events;
pub(crate) use memory::memory;

pub(crate) fn list(args: &ListArgs) -> Result<()> {
    let vgpus = connect()?.list().map_err(explain)?;
    if args.json || args.output == Some(OutputArg::Json) {
        return print_json(&vgpus);
    }
    let wide = args.output == Some(OutputArg::Wide);
    print_vgpus(&vgpus, &limits_table(&vgpus, wide));
    Ok(())
}

fn print_vgpus(vgpus: &[VgpuInfo], table: &Table) {
    if table.is_empty() {
        outln!("no virtual GPUs; make one with `mica create NAME -m 8GiB -s 30`");
    } else {
        out!("{}", table.render());
    }
    warn_degraded(vgpus);
}

/// What there is, and what it may have.
fn limits_table(vgpus: &[VgpuInfo], wide: bool) -> Table {
    let mut titles = vec!["NAME", "STATE", "GPU", "MEMORY", "SHARE", "PROGRAMS"];
    let contained = vgpus.iter().any(|vgpu| !vgpu.containers().is_empty());
    if contained {
        titles.push("CONTAINERS");
    }
    if wide {
        titles.extend(["KIND", "MODE", "PRIORITY", "MECHANISM", "NOTE"]);
    }
    let mut table = Table::new(&titles);
    for vgpu in vgpus {
        let used = show_bytes(vgpu.memory_used_bytes);
        let limit = show_bytes(vgpu.memory_limit_bytes);
        let mut row = vec![
            vgpu.name.clone(),
            state_words(vgpu),
            vgpu.gpu.to_string(),
            format!("{used} of {limit}"),
            share_words(vgpu),
            vgpu.processes.len().to_string(),
        ];
        if contained {
            row.push(vgpu.containers().join(", "));
        }
        if wide {
            row.extend([
                vgpu.gpu_kind.to_string(),
                format!("{:?}", vgpu.mode).to_lowercase(),
                format!("{:?}", vgpu.priority).to_lowercase(),
                vgpu.mechanism.clone(),
                vgpu.note.clone().unwrap_or_default(),
            ]);
        }
        table.row(row);
    }
    match wide {
        true => table.cut(titles.len() - 1),
        false => table,
    }
}

/// The state, and where its memory is if that is not on the GPU: `away`, `leaving 40 %`, `suspended, away`.
fn state_words(vgpu: &VgpuInfo) -> String {
    let place = vgpu.residency.as_ref().and_then(place_words);
    match (vgpu.state, place) {
        (VgpuState::Active, Some(place)) => place,
        (VgpuState::Suspended, Some(place)) => format!("{}, {place}", vgpu.state),
        _ => vgpu.state.to_string(),
    }
}

/// Where memory is that is not on the GPU as a whole, and how far its way out is.
pub(crate) fn place_words(residency: &ResidencyInfo) -> Option<String> {
    match residency.state {
        ResidencyState::Resident => None,
        ResidencyState::Leaving => {
            let out = residency.away_bytes as f64;
            let all = (out + residency.to_move_bytes as f64).max(1.0);
            let percent = (out / all * 100.0).floor();
            Some(format!("{} {percent:.0} %", residency.state))
        }
        ResidencyState::Away | ResidencyState::Returning => Some(residency.state.to_string()),
    }
}

/// A limit that is not in force is said below every listing, never only in a column.
fn warn_degraded(vgpus: &[VgpuInfo]) {
    let paint = Paint::stdout();
    for vgpu in vgpus {
        if matches!(vgpu.state, VgpuState::Degraded | VgpuState::Lost) {
            for reason in &vgpu.reasons {
                let line = format!("{} is {}: {reason}", vgpu.name, vgpu.state);
                outln!("{}", paint.bad(&hanging(&line, 0, terminal_columns())));
            }
        }
    }
}

pub(crate) fn gpus(args: &JsonArgs) -> Result<()> {
    let gpus = connect()?.gpus().map_err(explain)?;
    if args.json {
        return print_json(&gpus);
    }
    let mut table = Table::new(&[
        "GPU", "KIND", "MEMORY", "RESERVED", "USED", "SHARES", "BUSY", "NAME",
    ])
    .cut(7);
    for gpu in &gpus {
        table.row(gpu_row(gpu));
    }
    out!("{}", table.render());
    let paint = Paint::stdout();
    for gpu in &gpus {
        let wrong = gpu.lost.iter().map(|reason| ("is lost", reason));
        let wrong = wrong.chain(gpu.unshareable.iter().map(|why| ("cannot be shared", why)));
        let wrong = wrong.chain(gpu.drained.iter().map(|why| ("takes no new programs", why)));
        for (what, reason) in wrong {
            let line = format!("GPU {} {what}: {reason}", gpu.index);
            outln!("{}", paint.bad(&line));
        }
    }
    Ok(())
}

fn gpu_row(gpu: &GpuInfo) -> Vec<String> {
    vec![
        gpu.index.to_string(),
        gpu.kind.to_string(),
        show_bytes(gpu.memory_total_bytes),
        show_bytes(gpu.memory_reserved_bytes),
        show_bytes(gpu.memory_used_bytes),
        format!("{} %", gpu.share_reserved_percent),
        format!("{:.0} %", gpu.utilization_percent),
        gpu.name.clone(),
    ]
}

pub(crate) fn stats(args: &StatsArgs) -> Result<()> {
    let client = connect()?;
    let name = args.name.as_deref();
    if let Some(since) = args.since {
        return mica_views::accounts::past(&client, since.0, name, args.json);
    }
    if args.prometheus {
        let metrics = client.metrics().map_err(explain)?;
        out!("{}", printable_lines(&metrics));
        return Ok(());
    }
    let mut stats = client.stats().map_err(explain)?;
    if let Some(name) = name {
        // Its full name, or the refusal that says there is none.
        let wanted = client.get(name).map_err(explain)?.name;
        stats.vgpus.retain(|vgpu| vgpu.name == wanted);
    }
    if args.json {
        return print_json(&stats);
    }
    print_vgpus(&stats.vgpus, &use_table(&stats.vgpus));
    if let Some(percent) = stats.vgpus.iter().find_map(short_of_processors) {
        let words = hanging(&busy_host_words(percent), 0, terminal_columns());
        outln!("{}", Paint::stdout().warn(&words));
    }
    for vgpu in &stats.vgpus {
        if let Some(line) = trouble(vgpu) {
            outln!("{}", Paint::stdout().warn(&line));
        }
    }
    Ok(())
}

/// What is used, as measured.
fn use_table(vgpus: &[VgpuInfo]) -> Table {
    let mut table = Table::new(&[
        "NAME", "USES", "SHARE", "MEMORY", "GPU TIME", "WAITED", "LAUNCHES",
    ]);
    for vgpu in vgpus {
        table.row(vec![
            vgpu.name.clone(),
            format!("{:.1} %", vgpu.share_measured_percent),
            share_words(vgpu),
            show_bytes(vgpu.memory_used_bytes),
            format!("{:.1} s", vgpu.gpu_seconds),
            format!("{:.1} s", vgpu.throttled_seconds),
            vgpu.launches_total.to_string(),
        ]);
    }
    table
}

/// What went wrong in a virtual GPU so far, if anything did.
fn trouble(vgpu: &VgpuInfo) -> Option<String> {
    let counted = |number: u64, one: &str, many: &str| match number {
        0 => None,
        1 => Some(format!("1 {one}")),
        number => Some(format!("{number} {many}")),
    };
    let refused = counted(
        vgpu.alloc_denied_total,
        "allocation was refused",
        "allocations were refused",
    );
    let faults = counted(vgpu.faults_total, "context faulted", "contexts faulted");
    let all: Vec<String> = refused.into_iter().chain(faults).collect();
    (!all.is_empty()).then(|| format!("{}: {}", vgpu.name, all.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(name: &str) -> VgpuInfo {
        VgpuInfo {
            name: name.into(),
            state: VgpuState::Suspended,
            memory_used_bytes: 123 << 29,
            memory_peak_bytes: 123 << 29,
            memory_limit_bytes: 125 << 29,
            share_percent: 66.into(),
            share_measured_percent: 100.0,
            gpu_seconds: 12_345.6,
            throttled_seconds: 123.4,
            launches_total: 123_456_789,
            alloc_denied_total: 1,
            faults_total: 2,
            ..VgpuInfo::default()
        }
    }

    #[test]
    fn listings_fit_eighty_columns() {
        let vgpus = [busy("team-a"), busy("vgpu-12")];
        for table in [limits_table(&vgpus, false), use_table(&vgpus)] {
            for line in table.render().lines() {
                let columns = line.chars().count();
                assert!(columns <= 80, "{columns} columns: {line}");
            }
        }
    }

    #[test]
    fn trouble_is_counted_in_words() {
        let words = "a: 1 allocation was refused, 2 contexts faulted";
        assert_eq!(trouble(&busy("a")).as_deref(), Some(words));
        assert_eq!(trouble(&VgpuInfo::default()), None);
    }
}
