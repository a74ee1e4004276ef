//! The picture: GPUs, virtual GPUs and processes in boxes, as nvidia-smi draws them. 91 columns, as there.

use mica_control::api::{GpuInfo, Stats, VgpuInfo};

/// Columns between the outer bars.
const INNER: usize = 89;

/// The whole picture.
pub(super) fn render(stats: &Stats, time: &str) -> String {
    let mut text = format!("{time}\n");
    let driver = stats.gpus.iter().find_map(|gpu| gpu.driver.clone());
    let driver = driver.unwrap_or_else(|| "N/A".to_owned());
    text += &rule("-");
    let version = format!("MICA-SMI {}", stats.daemon.version);
    text += &line(&format!("{version:<34}Driver Version: {driver:<20}"));
    text += &heads(&[
        ["GPU  Name", "Temp   Pwr:Usage", "GPU-Util   Shares"],
        ["", "Memory-Usage", "vGPUs"],
    ]);
    text += &bars("=");
    for gpu in &stats.gpus {
        text += &gpu_lines(gpu);
        text += &bars("-");
    }
    text.push('\n');
    text += &rule("-");
    let legend = legend(&stats.vgpus);
    text += &line(&format!("{:<63}{legend:>24}", "Virtual GPUs:"));
    text += &heads(&[["GPU  Name", "Memory-Usage", "Util / Share  State"]]);
    text += &bars("=");
    if stats.vgpus.is_empty() {
        text += &line("  No virtual GPUs found");
    }
    for vgpu in &stats.vgpus {
        text += &vgpu_line(vgpu);
    }
    text += &rule("-");
    text.push('\n');
    text += &rule("-");
    text += &line("Processes:");
    text += &line(&format!(
        "{:<6}{:<20}{:>8}  {:<36}{:>12}",
        "GPU", "vGPU", "PID", "Process name", "GPU Memory"
    ));
    text += &line_of("=");
    let processes: Vec<String> = stats.vgpus.iter().flat_map(process_lines).collect();
    match processes.is_empty() {
        true => text += &line("  No running processes found"),
        false => text += &processes.concat(),
    }
    text += &rule("-");
    text
}

fn gpu_lines(gpu: &GpuInfo) -> String {
    let temperature = gpu
        .temperature_celsius
        .map_or("N/A".to_owned(), |t| format!("{t}C"));
    let power = gpu
        .power_watts
        .map_or("N/A".to_owned(), |watts| format!("{watts:.0}W"));
    let memory = memory(gpu.memory_used_bytes, gpu.memory_total_bytes);
    let busy = format!("{:.0}%", gpu.utilization_percent);
    let shares = format!("{}%", gpu.share_reserved_percent);
    let first = cells([
        format!("{:>3}  {}", gpu.index, gpu.name),
        format!("{temperature:>4}   {power:>9}"),
        format!("{busy:>8}   {shares:>6}"),
    ]);
    let state = match (&gpu.lost, &gpu.drained, &gpu.unshareable) {
        (Some(_), ..) => "LOST",
        (_, Some(_), _) => "NO NEW PROGRAMS",
        (.., Some(_)) => "cannot be shared",
        _ => "",
    };
    let second = cells([
        format!("     {}", super::uuid(gpu)),
        memory,
        format!("{:>5}  {state}", gpu.vgpus),
    ]);
    first + &second
}

fn vgpu_line(vgpu: &VgpuInfo) -> String {
    let used = format!("{:.0}%", vgpu.share_measured_percent);
    let mark = mark(vgpu);
    let share = match vgpu.share_reserved {
        // It changes with every virtual GPU that comes or goes: hundredths say nothing.
        false => format!("{mark}{:.0}%", vgpu.share_percent.as_f64()),
        true => format!("{mark}{}%", vgpu.share_percent),
    };
    cells([
        format!("{:>3}  {}", vgpu.gpu, vgpu.name),
        memory(vgpu.memory_used_bytes, vgpu.memory_limit_bytes),
        format!("{used:>4} / {share:<6} {}", vgpu.state),
    ])
}

/// What a share is, in one letter, as in `mica top`.
fn mark(vgpu: &VgpuInfo) -> &'static str {
    match (vgpu.share_reserved, vgpu.cap) {
        (false, _) => "~",
        (true, true) => "^",
        (true, false) => "",
    }
}

/// What the marks mean, where there are any.
fn legend(vgpus: &[VgpuInfo]) -> String {
    let has = |wanted: &str| vgpus.iter().any(|vgpu| mark(vgpu) == wanted);
    let words = [("~", "~ not reserved"), ("^", "^ cap")];
    let shown = words.iter().filter(|(mark, _)| has(mark));
    shown.map(|(_, word)| *word).collect::<Vec<_>>().join(", ")
}

fn process_lines(vgpu: &VgpuInfo) -> Vec<String> {
    let one = |process: &mica_control::api::ProcessInfo| {
        let name = match process.command.is_empty() {
            true => &process.name,
            false => &process.command,
        };
        let memory = format!("{}MiB", process.memory_used_bytes >> 20);
        let (gpu, pid) = (format!("{:>3}", vgpu.gpu), process.pid);
        line(&format!(
            "{gpu:<6}{:<20}{pid:>8}  {:<36}{memory:>12}",
            cut(&vgpu.name, 19),
            cut(name, 35)
        ))
    };
    vgpu.processes.iter().map(one).collect()
}

fn memory(used: u64, total: u64) -> String {
    let used = format!("{}MiB", used >> 20);
    let total = format!("{}MiB", total >> 20);
    format!("{used:>10} /{total:>10}")
}

/// Columns of the three cells, without the space before each and the bars.
/// The last one has room for `suspended` after a share, and for `cannot be shared` after a number.
const CELLS: [usize; 3] = [35, 23, 23];

fn cells(texts: [String; 3]) -> String {
    let mut text = "|".to_owned();
    for (cell, width) in texts.iter().zip(CELLS) {
        text += &format!(" {:<width$} |", cut(cell, width));
    }
    text.push('\n');
    text
}

fn heads(lines: &[[&str; 3]]) -> String {
    let lines = lines.iter().map(|texts| cells(texts.map(str::to_owned)));
    bars("-") + &lines.collect::<String>()
}

/// A line of `+---+---+`.
fn bars(with: &str) -> String {
    let (left, right) = if with == "=" { ("|", "|") } else { ("+", "+") };
    let parts: Vec<String> = CELLS.iter().map(|width| with.repeat(width + 2)).collect();
    format!("{left}{}{right}\n", parts.join("+"))
}

fn rule(with: &str) -> String {
    format!("+{}+\n", with.repeat(INNER))
}

fn line_of(with: &str) -> String {
    format!("|{}|\n", with.repeat(INNER))
}

fn line(text: &str) -> String {
    format!("| {:<width$} |\n", cut(text, INNER - 2), width = INNER - 2)
}

fn cut(text: &str, most: usize) -> String {
    let text = mica_wire::host::printable::printable(text);
    match text.chars().count() > most {
        true => text
            .chars()
            .take(most.saturating_sub(3))
            .chain("...".chars())
            .collect(),
        false => text.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mica_control::api::{GpuKind, ProcessInfo, VgpuState};

    #[test]
    fn all_lines_are_as_long_as_nvidia_smis() {
        let process = ProcessInfo {
            pid: 4711,
            command: "python3 train.py --with --a --very --long --command line".into(),
            memory_used_bytes: 3 << 30,
            ..ProcessInfo::default()
        };
        let stats = Stats {
            gpus: vec![GpuInfo {
                name: "NVIDIA H200 NVL with a name that is much longer than its cell".into(),
                kind: GpuKind::Nvidia,
                uuid: "GPU-0f1e2d3c-0000-1111-2222-333344445555".into(),
                memory_total_bytes: 141 << 30,
                ..GpuInfo::default()
            }],
            vgpus: vec![VgpuInfo {
                name: "team-a".into(),
                state: VgpuState::Suspended,
                memory_limit_bytes: 70 << 30,
                memory_used_bytes: 3 << 30,
                share_percent: 33.into(),
                cap: true,
                share_reserved: true,
                processes: vec![process],
                ..VgpuInfo::default()
            }],
            ..Stats::default()
        };
        let mut lost = stats.clone();
        lost.gpus[0].lost = Some("gone".into());
        let mut unshareable = stats.clone();
        unshareable.gpus[0].unshareable = Some("MIG".into());
        let mut owed = stats.clone();
        owed.vgpus[0].share_reserved = false;
        for (stats, word) in [
            (&stats, "suspended |"),
            (&stats, "/ ^33%"),
            (&stats, " ^ cap |"),
            (&owed, "/ ~33%"),
            (&owed, " ~ not reserved |"),
            (&lost, "LOST "),
            (&unshareable, "cannot be shared |"),
        ] {
            let text = render(stats, "");
            assert!(text.contains(word), "{text}");
        }
        for stats in [stats, Stats::default()] {
            let text = render(&stats, "2026-01-31 14:30:00");
            for line in text.lines().skip(1).filter(|line| !line.is_empty()) {
                assert_eq!(line.chars().count(), INNER + 2, "{line}\n{text}");
            }
        }
    }
}
