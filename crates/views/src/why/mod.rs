//! `mica why`: on one screen, why a virtual GPU is slow and what to change.

mod verdict;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use mica_command::output::{hanging, print_json, terminal_columns};
use mica_command::refusal::explain;
use mica_command::share::short_of_processors;
use mica_command::size::show_bytes;
use mica_control::api::{Point, Stats, Subject, Timelines, VgpuInfo};
use mica_control::client::{ControlClient, Span};
use mica_wire::host::printable::printable_lines;
use serde::Serialize;

use crate::args::WhyArgs;
pub use verdict::{Cause, Figures, Finding, findings};

/// Seconds for which the exchanges of a swappable virtual GPU are watched at most.
const EXCHANGE_SECONDS: u32 = 5;

/// The answer as JSON.
#[derive(Debug, Serialize)]
struct Explanation<'a> {
    name: &'a str,
    cause: Cause,
    findings: &'a [Finding],
    figures: &'a Figures,
}

/// Measures for a second or a few, reads the history, and prints what was found.
///
/// # Errors
/// The virtual GPU does not exist, or the daemon does not answer.
pub fn run(client: &ControlClient, args: &WhyArgs) -> Result<()> {
    let before = client.get(&args.name).map_err(explain)?;
    let began = Instant::now();
    // Memory is exchanged in turns of seconds: one of them alone would say all or nothing.
    let wait = match before.residency {
        Some(_) => u64::from(args.seconds.min(EXCHANGE_SECONDS)),
        None => 1,
    };
    std::thread::sleep(Duration::from_secs(wait));
    let stats = client.stats().map_err(explain)?;
    let seconds = began.elapsed().as_secs_f64();
    let after = client.get(&before.name).map_err(explain)?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let span = Span {
        since_seconds: now.as_secs().saturating_sub(args.seconds.into()),
        until_seconds: None,
        step_seconds: Some(1),
    };
    let history = client
        .timelines(&span, Some(&before.name))
        .map_err(explain)?;
    let figures = figures(&before, &after, seconds, &stats, &history);
    let findings = findings(&figures);
    if args.json {
        let explanation = Explanation {
            name: &figures.name,
            cause: findings[0].cause,
            findings: &findings,
            figures: &figures,
        };
        return print_json(&explanation);
    }
    out!(
        "{}",
        printable_lines(&page(&figures, &findings, terminal_columns()))
    );
    Ok(())
}

/// Sums of measured seconds.
#[derive(Default)]
struct Sums {
    seconds: f64,
    gpu_seconds: f64,
    waited_seconds: f64,
    launches: u64,
    denied: u64,
}

impl Sums {
    fn of<'a>(points: impl Iterator<Item = &'a Point>) -> Self {
        points.fold(Self::default(), |mut sums, point| {
            let seconds = f64::from(point.measured_seconds);
            sums.seconds += seconds;
            sums.gpu_seconds += point.gpu_seconds();
            sums.waited_seconds += f64::from(point.waiting_percent) / 100.0 * seconds;
            sums.launches += point.launches;
            sums.denied += point.alloc_denied;
            sums
        })
    }

    fn percent(&self, seconds: f64) -> f64 {
        match self.seconds > 0.0 {
            true => seconds / self.seconds * 100.0,
            false => 0.0,
        }
    }
}

/// What was measured: the history's seconds, and what was copied in the last one.
fn figures(
    before: &VgpuInfo,
    after: &VgpuInfo,
    seconds: f64,
    stats: &Stats,
    history: &Timelines,
) -> Figures {
    let lines = |subject: Subject| {
        let all = history.timelines.iter();
        all.filter(move |line| line.subject == subject)
    };
    let own = Sums::of(lines(Subject::Vgpu).flat_map(|line| &line.points));
    let of_gpu = lines(Subject::Gpu).filter(|line| line.gpu == after.gpu);
    let gpu = Sums::of(of_gpu.flat_map(|line| &line.points));
    let copied = |vgpu: &VgpuInfo| vgpu.to_device_bytes_total + vgpu.from_device_bytes_total;
    let away = |vgpu: &VgpuInfo| vgpu.residency.map_or(0.0, |r| r.away_seconds);
    let neighbours = stats.vgpus.iter().filter(|other| other.gpu == after.gpu);
    let more_urgent = neighbours.filter(|other| {
        let urgent = other.priority > after.priority;
        urgent && other.name != after.name && other.share_measured_percent >= 5.0
    });
    Figures {
        name: after.name.clone(),
        measured_seconds: own.seconds,
        state: after.state,
        reasons: after.reasons.clone(),
        processes: after.processes.len(),
        share_asked_percent: after.share_percent.as_f64(),
        share_reserved: after.share_reserved,
        cap: after.cap,
        share_got_percent: own.percent(own.gpu_seconds),
        waiting_percent: own.percent(own.waited_seconds).min(100.0),
        gpu_busy_percent: gpu.percent(gpu.gpu_seconds),
        processors_percent: short_of_processors(after),
        more_urgent: more_urgent.map(|other| other.name.clone()).collect(),
        launches_per_second: own.launches as f64 / own.seconds.max(0.001),
        launch_us: (own.launches > 0).then(|| own.gpu_seconds / own.launches as f64 * 1e6),
        copied_bytes_per_second: copied(after).saturating_sub(copied(before)) as f64 / seconds,
        memory_used_bytes: after.memory_used_bytes,
        memory_limit_bytes: after.memory_limit_bytes,
        alloc_denied: own.denied,
        undrained: after.processes.iter().filter(|p| p.does_not_drain).count(),
        away_percent: (away(after) - away(before)).max(0.0) / seconds * 100.0,
    }
}

/// Columns before the words of a finding.
const INDENT: usize = 9;

fn page(figures: &Figures, findings: &[Finding], columns: Option<usize>) -> String {
    let columns = Some(columns.unwrap_or(80).min(100));
    let mut text = format!("{}: {}\n\n", figures.name, headline(findings));
    for finding in findings {
        let sentence = hanging(&finding.sentence, INDENT, columns);
        text += &format!("  {:>3.0} %  {sentence}\n", finding.weight_percent);
        let advice = hanging(
            &format!("to change that: {}", finding.advice),
            INDENT,
            columns,
        );
        text += &format!("{}{advice}\n", " ".repeat(INDENT));
    }
    text += &format!("\nmeasured over {:.0} s\n", figures.measured_seconds);
    for (label, value) in measured(figures) {
        text += &format!("  {label:<8}{value}\n");
    }
    text
}

/// What was measured, with labels.
fn measured(figures: &Figures) -> [(&'static str, String); 6] {
    let asked = match (figures.cap, figures.share_reserved) {
        (true, _) => "cap",
        (false, true) => "reserved",
        (false, false) => "not reserved",
    };
    let (got, owed) = (figures.share_got_percent, figures.share_asked_percent);
    let launches = figures.launches_per_second;
    let launch = figures
        .launch_us
        .map_or_else(String::new, |us| format!(" of {us:.0} µs each"));
    let copied = show_bytes(figures.copied_bytes_per_second as u64);
    let used = show_bytes(figures.memory_used_bytes);
    let limit = show_bytes(figures.memory_limit_bytes);
    let denied = figures.alloc_denied;
    let (waiting, busy) = (figures.waiting_percent, figures.gpu_busy_percent);
    [
        ("share", format!("{got:.1} %, {owed:.0} % {asked}")),
        ("waits", format!("{waiting:.0} % of the time for its turn")),
        ("GPU", format!("{busy:.0} % busy")),
        (
            "work",
            format!("{launches:.0} submissions a second{launch}"),
        ),
        ("copies", format!("{copied} a second")),
        (
            "memory",
            format!("{used} of {limit}, {denied} requests refused"),
        ),
    ]
}

/// The first cause in a few words.
fn headline(findings: &[Finding]) -> &'static str {
    match findings.first().map(|finding| finding.cause) {
        Some(Cause::Lost) => "its GPU is lost",
        Some(Cause::Suspended) => "suspended",
        Some(Cause::Snapshotted) => "snapshotted",
        Some(Cause::NoProgram) => "no program uses it",
        Some(Cause::Degraded) => "a limit is not in force",
        Some(Cause::BelowShare) => "it waits and gets less than its share",
        Some(Cause::BusyHost) => "the machine's processors are busy with other programs",
        Some(Cause::Capped) => "its cap holds it",
        Some(Cause::OthersPriority) => "more urgent virtual GPUs go first",
        Some(Cause::WaitingForTurns) => "it waits for its turn",
        Some(Cause::MemoryShort) => "it is short of memory",
        Some(Cause::MemoryAway) => "its memory is not on the GPU",
        Some(Cause::DoesNotDrain) => "its work runs on after its turns",
        Some(Cause::CopyBound) => "it copies more than it computes",
        Some(Cause::SmallKernels) => "its kernels are too small to keep the GPU busy",
        Some(Cause::HostBound) => "the GPU waits for the program",
        Some(Cause::GpuBound) | None => "nothing holds it up",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mica_control::api::{Priority, Timeline, VgpuState};

    fn line(subject: Subject, got: f32, waiting: f32) -> Timeline {
        let points = (0..10).map(|second| Point {
            time_seconds: 100 + second,
            measured_seconds: 1.0,
            share_got_percent: got,
            waiting_percent: waiting,
            launches: 50,
            ..Point::default()
        });
        Timeline {
            subject,
            points: points.collect(),
            ..Timeline::default()
        }
    }

    #[test]
    fn figures_are_averages_of_the_history_and_fit_a_screen() {
        let before = VgpuInfo {
            name: "a".into(),
            state: VgpuState::Active,
            share_percent: 30.into(),
            share_reserved: true,
            processes: vec![Default::default()],
            priority: Priority::Normal,
            ..VgpuInfo::default()
        };
        let after = VgpuInfo {
            to_device_bytes_total: 2_000_000,
            ..before.clone()
        };
        let urgent = VgpuInfo {
            name: "b".into(),
            priority: Priority::High,
            share_measured_percent: 60.0,
            ..VgpuInfo::default()
        };
        let stats = Stats {
            vgpus: vec![after.clone(), urgent],
            ..Stats::default()
        };
        let history = Timelines {
            timelines: vec![
                line(Subject::Vgpu, 25.0, 70.0),
                line(Subject::Gpu, 90.0, 0.0),
            ],
            ..Timelines::default()
        };
        let figures = figures(&before, &after, 2.0, &stats, &history);
        assert_eq!(figures.share_got_percent.round(), 25.0);
        assert_eq!(figures.gpu_busy_percent.round(), 90.0);
        assert_eq!(figures.launch_us.unwrap().round(), 5000.0);
        assert_eq!(figures.copied_bytes_per_second, 1e6);
        assert_eq!(figures.more_urgent, ["b"]);
        let findings = findings(&figures);
        let page = page(&figures, &findings, Some(80));
        assert!(
            page.starts_with("a: more urgent virtual GPUs go first\n"),
            "{page}"
        );
        assert!(page.lines().count() <= 24, "{page}");
        for line in page.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
