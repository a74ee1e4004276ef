//! `ls`, `show`, `gpus`, `stats`, `events`, `doctor`: what is, for people and for programs.

use anyhow::Result;
use mica_daemon::api::{
    Check, ConfinementInfo, Doctor, Event, GpuInfo, OnFull, PrecisionPolicy, Severity, Verdict,
    VgpuInfo, VgpuState,
};
use mica_wire::host::printable::{printable, printable_json, printable_lines};
use serde::Serialize;

use crate::args::{DoctorArgs, EventsArgs, JsonArgs, ListArgs, NameArgs, OutputArg, StatsArgs};
use crate::control::{connect, explain};
use crate::size::show_bytes;
use crate::table::{Paint, Table};

/// Prints any answer as JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    let json = serde_json::to_string_pretty(value)?;
    println!("{}", printable_json(&json));
    Ok(())
}

pub(crate) fn list(args: &ListArgs) -> Result<()> {
    let vgpus = connect()?.list().map_err(explain)?;
    if args.json || args.output == Some(OutputArg::Json) {
        return print_json(&vgpus);
    }
    print_vgpus(&vgpus, args.output == Some(OutputArg::Wide));
    Ok(())
}

fn print_vgpus(vgpus: &[VgpuInfo], wide: bool) {
    let table = vgpu_table(vgpus, wide);
    if table.is_empty() {
        println!("no virtual GPUs; make one with `mica create NAME -m 8GiB -s 30`");
    } else {
        print!("{}", table.render());
    }
    warn_degraded(vgpus);
}

fn vgpu_table(vgpus: &[VgpuInfo], wide: bool) -> Table {
    let mut titles = vec![
        "NAME",
        "STATE",
        "GPU",
        "MEMORY",
        "LIMIT",
        "SHARE",
        "MEASURED",
        "PROCESSES",
    ];
    if wide {
        titles.extend([
            "PEAK",
            "UNATTRIBUTED",
            "PRIORITY",
            "MODE",
            "MECHANISM",
            "GPU TIME",
            "NOTE",
        ]);
    }
    let mut table = Table::new(&titles);
    for vgpu in vgpus {
        let cap = if vgpu.cap { " cap" } else { "" };
        let mut row = vec![
            vgpu.name.clone(),
            vgpu.state.to_string(),
            format!("{} {}", vgpu.gpu, vgpu.gpu_kind),
            show_bytes(vgpu.memory_used_bytes),
            show_bytes(vgpu.memory_limit_bytes),
            format!("{} %{cap}", vgpu.share_percent),
            format!("{:.1} %", vgpu.share_measured_percent),
            vgpu.processes.len().to_string(),
        ];
        if wide {
            row.extend([
                show_bytes(vgpu.memory_peak_bytes),
                show_bytes(vgpu.memory_unattributed_bytes),
                format!("{:?}", vgpu.priority).to_lowercase(),
                format!("{:?}", vgpu.mode).to_lowercase(),
                vgpu.mechanism.clone(),
                format!("{:.1} s", vgpu.gpu_seconds),
                vgpu.note.clone().unwrap_or_default(),
            ]);
        }
        table.row(row);
    }
    table
}

/// A limit that is not in force is said below every listing, never only in a column.
fn warn_degraded(vgpus: &[VgpuInfo]) {
    let paint = Paint::stdout();
    for vgpu in vgpus {
        if matches!(vgpu.state, VgpuState::Degraded | VgpuState::Lost) {
            for reason in &vgpu.reasons {
                println!(
                    "{}",
                    paint.bad(&format!("{} is {}: {reason}", vgpu.name, vgpu.state))
                );
            }
        }
    }
}

/// What no column has room for.
fn limits_in_words(vgpu: &VgpuInfo) -> String {
    let full = match vgpu.on_full {
        OnFull::Fail => "fails at once".to_owned(),
        OnFull::Wait { timeout_ms } => format!("waits up to {} s", timeout_ms as f64 / 1e3),
    };
    let streams = match vgpu.max_streams {
        Some(most) => format!("at most {most} streams"),
        None => "any number of streams".to_owned(),
    };
    let tensor_cores = match vgpu.tensor_cores {
        true => "tensor cores allowed",
        false => "no tensor cores",
    };
    let precision = match vgpu.precision_policy {
        PrecisionPolicy::AsAsked => "precision as asked",
        PrecisionPolicy::Full => "full precision",
        PrecisionPolicy::Reduced => "reduced precision allowed",
    };
    format!("{streams}, {tensor_cores}, {precision}; an allocation that does not fit {full}")
}

pub(crate) fn show(args: &NameArgs) -> Result<()> {
    let vgpu = connect()?.get(&args.name).map_err(explain)?;
    if args.json {
        return print_json(&vgpu);
    }
    print!("{}", vgpu_table(std::slice::from_ref(&vgpu), true).render());
    println!("\n{}", limits_in_words(&vgpu));
    if vgpu.processes.is_empty() {
        println!("\nno processes");
    } else {
        let mut table = Table::new(&[
            "PID",
            "PROGRAM",
            "ROLE",
            "MEMORY",
            "SLICE",
            "READ BACK",
            "MECHANISM",
            "LAUNCHES",
            "WAITED",
        ]);
        for process in &vgpu.processes {
            let slice = |us: u64| {
                if us == 0 {
                    "-".to_owned()
                } else {
                    format!("{us} µs")
                }
            };
            table.row(vec![
                process.pid.to_string(),
                process.name.clone(),
                process.role.clone(),
                show_bytes(process.memory_used_bytes),
                slice(process.slice_us),
                slice(process.slice_read_us),
                match process.does_not_drain {
                    true => format!("{} (does not drain)", process.mechanism),
                    false => process.mechanism.clone(),
                },
                process.launches_total.to_string(),
                format!("{:.2} s", process.gate_wait_seconds),
            ]);
        }
        print!("\n{}", table.render());
    }
    for worker in &vgpu.processes {
        if let Some(confinement) = &worker.confinement {
            println!("\n{}", confinement_in_words(worker.pid, confinement));
        }
    }
    warn_degraded(std::slice::from_ref(&vgpu));
    Ok(())
}

/// What confines a worker, and what does not.
fn confinement_in_words(pid: u32, confinement: &ConfinementInfo) -> String {
    let mut text = format!(
        "worker {pid} is confined by: {}",
        confinement.applied.join(", ")
    );
    for missing in &confinement.missing {
        text += &format!("\n  not by {}: {}", missing.layer, missing.reason);
    }
    text
}

pub(crate) fn gpus(args: &JsonArgs) -> Result<()> {
    let gpus = connect()?.gpus().map_err(explain)?;
    if args.json {
        return print_json(&gpus);
    }
    let mut table = Table::new(&[
        "GPU", "KIND", "NAME", "MEMORY", "RESERVED", "USED", "SHARES", "BUSY", "VGPUS",
    ]);
    for gpu in &gpus {
        table.row(gpu_row(gpu));
    }
    print!("{}", table.render());
    let paint = Paint::stdout();
    for gpu in &gpus {
        let wrong = gpu.lost.iter().map(|reason| ("is lost", reason));
        let wrong = wrong.chain(gpu.unshareable.iter().map(|why| ("cannot be shared", why)));
        for (what, reason) in wrong {
            let line = format!("GPU {} {what}: {reason}", gpu.index);
            println!("{}", paint.bad(&line));
        }
    }
    Ok(())
}

fn gpu_row(gpu: &GpuInfo) -> Vec<String> {
    vec![
        gpu.index.to_string(),
        gpu.kind.to_string(),
        gpu.name.clone(),
        show_bytes(gpu.memory_total_bytes),
        show_bytes(gpu.memory_reserved_bytes),
        show_bytes(gpu.memory_used_bytes),
        format!("{} %", gpu.share_reserved_percent),
        format!("{:.0} %", gpu.utilization_percent),
        gpu.vgpus.to_string(),
    ]
}

pub(crate) fn stats(args: &StatsArgs) -> Result<()> {
    let client = connect()?;
    if args.prometheus {
        let metrics = client.metrics().map_err(explain)?;
        print!("{}", printable_lines(&metrics));
        return Ok(());
    }
    let stats = client.stats().map_err(explain)?;
    if args.json {
        return print_json(&stats);
    }
    print_vgpus(&stats.vgpus, true);
    Ok(())
}

pub(crate) fn events(args: &EventsArgs) -> Result<()> {
    let client = connect()?;
    let past = client.past_events().map_err(explain)?;
    let last = past.last().map(|event| event.sequence);
    for event in &past {
        print_event(event, args.json)?;
    }
    if args.follow {
        for event in client.events(last).map_err(explain)? {
            print_event(&event.map_err(explain)?, args.json)?;
        }
    }
    Ok(())
}

fn print_event(event: &Event, json: bool) -> Result<()> {
    if json {
        println!("{}", printable_json(&serde_json::to_string(event)?));
        return Ok(());
    }
    let paint = Paint::stdout();
    let seconds = event.time_seconds as u64 % 86_400;
    let time = format!(
        "{:02}:{:02}:{:02}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    );
    let message = match event.severity {
        Severity::Info => printable(&event.message).into_owned(),
        Severity::Warning => paint.warn(&event.message),
        Severity::Error => paint.bad(&event.message),
    };
    let vgpu = printable(event.vgpu.as_deref().unwrap_or("-"));
    let kind = printable(&event.kind);
    println!("{}  {kind:<16} {vgpu:<12} {message}", paint.dim(&time));
    Ok(())
}

/// Returns whether everything that was checked is in force.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<bool> {
    let client = connect()?;
    let report = client.doctor(args.name.as_deref()).map_err(explain)?;
    let mut checks = vec![crate::examine::libraries()];
    checks.extend(report.checks);
    for vgpu in client.list().map_err(explain)? {
        if args.name.as_ref().is_none_or(|name| *name == vgpu.name) {
            checks.push(crate::examine::limit(&client, &vgpu));
            if args.probe {
                checks.push(crate::examine::limit_on_gpu(&vgpu));
            }
        }
    }
    let report = Doctor::of(checks);
    if args.json {
        print_json(&report)?;
        return Ok(report.healthy);
    }
    for check in &report.checks {
        print_check(check);
    }
    let paint = Paint::stdout();
    if report.healthy {
        println!(
            "{}",
            paint.good("every limit that can be checked now is in force")
        );
    } else {
        println!("{}", paint.bad("something is not in force"));
    }
    Ok(report.healthy)
}

fn print_check(check: &Check) {
    let paint = Paint::stdout();
    let verdict = match check.verdict {
        Verdict::Ok => paint.good("ok     "),
        Verdict::Unknown => paint.dim("unknown"),
        Verdict::Warning => paint.warn("warning"),
        Verdict::Failed => paint.bad("FAILED "),
    };
    let subject = check
        .vgpu
        .as_deref()
        .map(|vgpu| format!("{vgpu}: "))
        .unwrap_or_default();
    println!(
        "{verdict}  {}{}\n         {}",
        printable(&subject),
        printable(&check.what),
        paint.dim(&check.evidence)
    );
}
