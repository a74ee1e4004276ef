//! `mica show`: one virtual GPU as a card of labelled lines.

use anyhow::Result;
use mica_control::api::{
    ContainerInfo, LinkInfo, OnFull, PrecisionPolicy, ProcessInfo, ResidencyInfo, VgpuInfo,
};
use mica_wire::host::printable::printable;

use super::{place_words, print_json, warn_degraded};
use crate::args::NameArgs;
use crate::control::connect;
use mica_command::output::{terminal_columns, wrap};
use mica_command::refusal::explain;
use mica_command::share::{share_words, short_of_processors};
use mica_command::size::show_bytes;
use mica_command::users::user_name;
use mica_command::when::date_and_time;
use mica_views::profile::table;

/// Columns of a card, also in files and pipes; a narrow terminal has fewer.
const COLUMNS: usize = 80;
/// Kernels and copies that a card lists of a virtual GPU that is profiled.
const MOST_KERNELS: usize = 10;
/// Columns before a value.
const INDENT: usize = 14;

pub(crate) fn show(args: &NameArgs) -> Result<()> {
    let client = connect()?;
    let vgpu = client.get(&args.name).map_err(explain)?;
    if args.json {
        return print_json(&vgpu);
    }
    let columns = terminal_columns().map_or(COLUMNS, |columns| columns.min(COLUMNS));
    out!("{}", card(&vgpu, columns));
    if vgpu.profiled {
        let profile = client.profile(&vgpu.name).map_err(explain)?;
        outln!("\nprofiled for {:.1} s", profile.seconds);
        out!("{}", table(&profile.lines, MOST_KERNELS));
    }
    warn_degraded(std::slice::from_ref(&vgpu));
    Ok(())
}

/// The whole card.
fn card(vgpu: &VgpuInfo, columns: usize) -> String {
    let mut card = Card {
        text: format!("{}\n", printable(&vgpu.name)),
        room: columns.saturating_sub(INDENT).max(20),
    };
    card.line("state", &vgpu.state.to_string());
    card.line(
        "GPU",
        &format!("{} ({}, {})", vgpu.gpu, vgpu.gpu_kind, word(&vgpu.mode)),
    );
    card.memory(vgpu);
    card.sharing(vgpu);
    card.policies(vgpu);
    let lives = match (&vgpu.made_for, vgpu.ephemeral) {
        (Some(_), _) => "; removed with its container",
        (None, true) => "; removed with its last program",
        (None, false) => "",
    };
    let made = date_and_time(vgpu.created_at_seconds as f64);
    card.line(
        "created",
        &format!("{made} by {}{lives}", user_name(vgpu.owner_uid)),
    );
    if let Some(container) = &vgpu.made_for {
        card.line("made for", &container_words(container));
    }
    if let Some(link) = &vgpu.link {
        card.line("link", &link_words(link));
    }
    if let Some(note) = &vgpu.note {
        card.line("note", note);
    }
    if vgpu.processes.is_empty() {
        card.text += "\nno programs\n";
    }
    for process in &vgpu.processes {
        card.program(process);
    }
    card.text
}

/// The way to programs on another machine.
fn link_words(link: &LinkInfo) -> String {
    let mut words = vec![link.peer.clone()];
    if link.round_trip_us > 0 {
        words.push(format!(
            "round trip {:.2} ms",
            link.round_trip_us as f64 / 1e3
        ));
    }
    if link.bytes_per_second > 0 {
        words.push(format!("takes {}/s", show_bytes(link.bytes_per_second)));
    }
    if link.resumed_total > 0 {
        let breaks = if link.resumed_total == 1 {
            "break"
        } else {
            "breaks"
        };
        words.push(format!(
            "{} {breaks} without a lost call",
            link.resumed_total
        ));
    }
    if link.saved_bytes_total > 0 {
        let saved = show_bytes(link.saved_bytes_total);
        words.push(format!("{saved} not sent again"));
    }
    words.join(", ")
}

struct Card {
    text: String,
    /// Columns of a value.
    room: usize,
}

impl Card {
    /// A label and its value; what does not fit goes below the value.
    fn line(&mut self, label: &str, value: &str) {
        let value = printable(value);
        for (index, part) in wrap(&value, self.room).iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            let line = format!("  {label:<width$}{part}", width = INDENT - 2);
            self.text += line.trim_end();
            self.text.push('\n');
        }
    }

    fn memory(&mut self, vgpu: &VgpuInfo) {
        let used = show_bytes(vgpu.memory_used_bytes);
        let limit = show_bytes(vgpu.memory_limit_bytes);
        let peak = show_bytes(vgpu.memory_peak_bytes);
        self.line("memory", &format!("{used} of {limit} in use, peak {peak}"));
        if vgpu.memory_unattributed_bytes > 0 {
            let beyond = show_bytes(vgpu.memory_unattributed_bytes);
            self.line("", &format!("{beyond} of it taken by the driver unasked"));
        }
        if let Some(residency) = &vgpu.residency {
            self.residency(residency);
        }
        let full = match vgpu.on_full {
            OnFull::Fail => "fails at once".to_owned(),
            OnFull::Wait { timeout_ms } => format!("waits up to {} s", timeout_ms as f64 / 1e3),
        };
        self.line(
            "when full",
            &format!("an allocation that does not fit {full}"),
        );
    }

    /// Where the memory of a swappable virtual GPU is.
    fn residency(&mut self, residency: &ResidencyInfo) {
        let [here, away, moved] = [
            residency.resident_bytes,
            residency.away_bytes,
            residency.moved_bytes_total,
        ]
        .map(show_bytes);
        let place = place_words(residency).unwrap_or_else(|| residency.state.to_string());
        let line = format!("{place}, {here} on the GPU, {away} in host memory");
        self.line("swappable", &line);
        if residency.exchanges_total > 0 {
            let (times, seconds) = (residency.exchanges_total, residency.away_seconds);
            let line = format!("left {times} times, away for {seconds:.1} s, {moved} moved");
            self.line("", &line);
        }
        if residency.waits_seconds > 0.0 {
            let line = format!(
                "has waited {:.1} s for room on the GPU",
                residency.waits_seconds
            );
            self.line("", &line);
        }
    }

    fn sharing(&mut self, vgpu: &VgpuInfo) {
        let uses = vgpu.share_measured_percent;
        self.line("share", &format!("{}, uses {uses:.1} %", share_words(vgpu)));
        if let Some(percent) = short_of_processors(vgpu) {
            let words = format!("{percent:.0} % of the time; the rest is other programs' time");
            self.line("processors", &words);
        }
        self.line("sharing", mechanism_words(&vgpu.mechanism));
        self.line("priority", &word(&vgpu.priority));
        let waited = vgpu.throttled_seconds;
        let time = format!(
            "{:.1} s, waited {waited:.1} s for its turn",
            vgpu.gpu_seconds
        );
        self.line("GPU time", &time);
        self.line("launches", &vgpu.launches_total.to_string());
    }

    fn policies(&mut self, vgpu: &VgpuInfo) {
        let streams = match vgpu.max_streams {
            Some(most) => format!("at most {most}"),
            None => "any number".to_owned(),
        };
        self.line("streams", &streams);
        let tensor_cores = match vgpu.tensor_cores {
            true => "tensor cores allowed",
            false => "no tensor cores",
        };
        let precision = match vgpu.precision_policy {
            PrecisionPolicy::AsAsked => "precision as asked",
            PrecisionPolicy::Full => "full precision",
            PrecisionPolicy::Reduced => "reduced precision allowed",
        };
        self.line("arithmetic", &format!("{precision}, {tensor_cores}"));
    }

    /// A program and what it has; of a worker only what confines it.
    fn program(&mut self, process: &ProcessInfo) {
        let command = match process.command.is_empty() {
            true => &process.name,
            false => &process.command,
        };
        let what = match process.role.as_str() {
            "worker" => "worker",
            _ => "process",
        };
        self.text += &format!("\n{what} {}\n", process.pid);
        self.line("command", command);
        if let Some(container) = &process.container {
            self.line("container", container);
        }
        let used = show_bytes(process.memory_used_bytes);
        let peak = show_bytes(process.memory_peak_bytes);
        self.line("memory", &format!("{used}, peak {peak}"));
        self.line("GPU time", &format!("{:.1} s", process.gpu_seconds));
        let launches = process.launches_total;
        let waited = process.gate_wait_seconds;
        self.line("launches", &format!("{launches}, waited {waited:.1} s"));
        let undrained = match process.does_not_drain {
            true => " (its work does not drain)",
            false => "",
        };
        let mechanism = mechanism_words(&process.mechanism);
        self.line("sharing", &format!("{mechanism}{undrained}"));
        if process.slice_us > 0 {
            let (asked, read) = (process.slice_us, process.slice_read_us);
            self.line("slice", &format!("{asked} µs asked, {read} µs read back"));
        }
        if let Some(worker) = process.worker_pid {
            self.line("worker", &format!("process {worker}"));
        }
        if let Some(confinement) = &process.confinement {
            self.line("confined by", &confinement.applied.join(", "));
            for missing in &confinement.missing {
                self.line("", &format!("not by {}: {}", missing.layer, missing.reason));
            }
        }
    }
}

/// A container's name, id and engine.
fn container_words(container: &ContainerInfo) -> String {
    let id: String = container.id.chars().take(12).collect();
    let of = [container.engine.as_str(), id.as_str()];
    let of: Vec<&str> = of.into_iter().filter(|word| !word.is_empty()).collect();
    match of.is_empty() {
        true => container.name.clone(),
        false => format!("{} ({})", container.name, of.join(", ")),
    }
}

/// What divides the GPU's time, in words.
fn mechanism_words(mechanism: &str) -> &str {
    match mechanism {
        "alone" => "has the GPU to itself now",
        "none" => "by nothing: no mechanism reaches it",
        "leases" => "by leases",
        "hardware slices" => "by hardware slices",
        "hardware slices and leases" => "by hardware slices and leases",
        other => other,
    }
}

/// A value's name as people write it.
fn word(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mica_control::api::{ConfinementInfo, GpuKind, Mode, VgpuState};

    #[test]
    fn a_card_has_labelled_lines_that_fit() {
        let process = ProcessInfo {
            pid: 4711,
            command: "python3 train.py --epochs 10 --batch-size 64 --learning-rate 0.001 --seed 17"
                .into(),
            role: "program".into(),
            worker_pid: Some(4712),
            memory_used_bytes: 12 << 20,
            memory_peak_bytes: 20 << 20,
            mechanism: "leases".into(),
            launches_total: 17,
            confinement: Some(ConfinementInfo {
                applied: vec!["user".into(), "seccomp".into()],
                missing: Vec::new(),
            }),
            ..ProcessInfo::default()
        };
        let vgpu = VgpuInfo {
            name: "team-a".into(),
            state: VgpuState::Active,
            gpu_kind: GpuKind::Software,
            mode: Mode::Isolated,
            memory_limit_bytes: 64 << 20,
            memory_used_bytes: 12 << 20,
            memory_peak_bytes: 20 << 20,
            share_percent: 70.into(),
            mechanism: "leases".into(),
            link: Some(LinkInfo {
                peer: "laptop at 192.0.2.7:40312".into(),
                round_trip_us: 1240,
                bytes_per_second: 96 << 20,
                resumed_total: 2,
                saved_bytes_total: 256 << 20,
            }),
            processes: vec![process],
            ..VgpuInfo::default()
        };
        let card = card(&vgpu, 80);
        for line in card.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        for line in [
            "team-a",
            "  state       active",
            "  GPU         0 (software, isolated)",
            "  memory      12 MiB of 64 MiB in use, peak 20 MiB",
            "  share       70 % not reserved, uses 0.0 %",
            "  link        laptop at 192.0.2.7:40312, round trip 1.24 ms, takes 96 MiB/s, 2",
            "              breaks without a lost call, 256 MiB not sent again",
            "process 4711",
            "  command     python3 train.py --epochs 10 --batch-size 64 --learning-rate 0.001",
            "              --seed 17",
            "  worker      process 4712",
            "  confined by user, seccomp",
        ] {
            assert!(
                card.lines().any(|l| l == line),
                "{line:?} is not in\n{card}"
            );
        }
    }
}
