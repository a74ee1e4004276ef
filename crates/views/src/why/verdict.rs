//! Why a virtual GPU is slow: a pure function of what was measured.
//!
//! Each cause that is found has a weight, the percent of the time that it explains. What neither runs on the GPU nor waits for
//! it is the host's part.

use mica_command::share::busy_host_words;
use mica_control::api::VgpuState;
use serde::Serialize;

/// What the GPU and the host did, measured over some seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Name of the virtual GPU.
    pub name: String,
    /// Seconds that the figures are of.
    pub measured_seconds: f64,
    /// Condition.
    pub state: VgpuState,
    /// Why it is degraded or lost.
    pub reasons: Vec<String>,
    /// Programs in it.
    pub processes: usize,
    /// Share in force.
    pub share_asked_percent: f64,
    /// Whether the share is a guarantee.
    pub share_reserved: bool,
    /// Whether it may not exceed its share.
    pub cap: bool,
    /// Percent of the GPU's time that it had.
    pub share_got_percent: f64,
    /// Time its threads waited for their turn, in percent, at most 100.
    pub waiting_percent: f64,
    /// How busy the GPU was.
    pub gpu_busy_percent: f64,
    /// Percent of the time of the software GPU's turns in which it had processors, where the host's other programs take
    /// many of them.
    pub processors_percent: Option<f64>,
    /// Other virtual GPUs on the same GPU that are more urgent and used it.
    pub more_urgent: Vec<String>,
    /// Submissions a second.
    pub launches_per_second: f64,
    /// GPU time of one submission, in microseconds, where there were some.
    pub launch_us: Option<f64>,
    /// Bytes copied between host and device, a second; not counted in direct mode.
    pub copied_bytes_per_second: f64,
    /// Memory in use.
    pub memory_used_bytes: u64,
    /// Memory limit.
    pub memory_limit_bytes: u64,
    /// Allocations refused.
    pub alloc_denied: u64,
    /// Programs whose work does not end when their turn does.
    pub undrained: usize,
    /// Percent of the time for which its memory was not on the GPU as a whole; of one that is swappable.
    pub away_percent: f64,
}

/// A cause of slowness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Its GPU is gone.
    Lost,
    /// It is suspended.
    Suspended,
    /// It was saved to a file.
    Snapshotted,
    /// No program uses it.
    NoProgram,
    /// Something configured is not in force.
    Degraded,
    /// It waits and gets less than its share.
    BelowShare,
    /// Other programs of the host have the processors that the software GPU computes with.
    BusyHost,
    /// It reached its cap.
    Capped,
    /// More urgent ones go first.
    OthersPriority,
    /// It waits for its turn, and has its share.
    WaitingForTurns,
    /// Memory was refused, or is almost full.
    MemoryShort,
    /// Its memory is in host memory while others have the GPU.
    MemoryAway,
    /// Its work runs on after its turns.
    DoesNotDrain,
    /// Most time goes into copies.
    CopyBound,
    /// Kernels are so short that submitting them takes the time.
    SmallKernels,
    /// The GPU waits for the program.
    HostBound,
    /// The GPU computes for it all the time.
    GpuBound,
}

/// A cause, how much it explains, and what to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The cause.
    pub cause: Cause,
    /// Percent of the time that it explains.
    pub weight_percent: f64,
    /// What was found, in a sentence.
    pub sentence: String,
    /// What to change.
    pub advice: String,
}

/// Below this, nothing is worth a word.
const WORTH_PERCENT: f64 = 5.0;
/// A share that is within this part of what was asked is held.
const HELD: f64 = 0.85;
/// Kernels shorter than this take about as long to submit.
const SMALL_US: f64 = 50.0;
/// Bytes that a fast link copies in a second.
const LINK_BYTES_PER_SECOND: f64 = 8e9;

/// Everything that slows it down, the most important first. Never empty.
pub fn findings(figures: &Figures) -> Vec<Finding> {
    if let Some(stopped) = stopped(figures) {
        return vec![stopped];
    }
    let mut all: Vec<Finding> = [
        degraded(figures),
        waiting(figures),
        away(figures),
        memory(figures),
        undrained(figures),
        host(figures),
    ]
    .into_iter()
    .flatten()
    .filter(|finding| finding.weight_percent >= WORTH_PERCENT)
    .collect();
    all.sort_by(|a, b| b.weight_percent.total_cmp(&a.weight_percent));
    if all.is_empty() || figures.share_got_percent >= 90.0 {
        all.push(computing(figures));
    }
    all.sort_by(|a, b| b.weight_percent.total_cmp(&a.weight_percent));
    all
}

fn finding(cause: Cause, weight_percent: f64, sentence: String, advice: String) -> Finding {
    Finding {
        cause,
        weight_percent: (weight_percent * 10.0).round() / 10.0,
        sentence,
        advice,
    }
}

/// What keeps it from running at all.
fn stopped(figures: &Figures) -> Option<Finding> {
    let name = &figures.name;
    let (cause, sentence, advice) = match figures.state {
        VgpuState::Lost => (
            Cause::Lost,
            format!("its GPU is lost: {}", figures.reasons.join("; ")),
            "see `mica gpus` and the system's log".to_owned(),
        ),
        VgpuState::Suspended => (
            Cause::Suspended,
            "it is suspended".to_owned(),
            format!("mica resume {name}"),
        ),
        VgpuState::Snapshotted => (
            Cause::Snapshotted,
            "it was saved to a file, and its program waits".to_owned(),
            "mica restore FILE".to_owned(),
        ),
        _ if figures.processes == 0 => (
            Cause::NoProgram,
            "no program uses it".to_owned(),
            format!("mica exec {name} -- CMD"),
        ),
        _ => return None,
    };
    Some(finding(cause, 100.0, sentence, advice))
}

fn degraded(figures: &Figures) -> Option<Finding> {
    (figures.state == VgpuState::Degraded).then(|| {
        finding(
            Cause::Degraded,
            WORTH_PERCENT,
            format!("something is not in force: {}", figures.reasons.join("; ")),
            format!("mica doctor {}", figures.name),
        )
    })
}

/// Whether the cap explains why the virtual GPU does not have more of the GPU.
fn capped(figures: &Figures) -> Option<Finding> {
    let (got, asked) = (figures.share_got_percent, figures.share_asked_percent);
    let waits = figures.waiting_percent.min(100.0);
    let wanted = (asked * 1.5).min(100.0);
    let name = &figures.name;
    let advice = format!("mica resize {name} --share {wanted:.0}, or --no-cap to use what is idle");
    if has_share(figures) && got < 97.0 {
        // A cap may be held without threads that wait: the rest of the time is what it costs.
        let weight = waits.max(100.0 - got);
        let sentence =
            format!("its cap holds it at {got:.0} % of the GPU, {asked:.0} % is the limit");
        return Some(finding(Cause::Capped, weight, sentence, advice));
    }
    // A cap counts whole turns, also the parts in which the GPU does not compute.
    (waits >= WORTH_PERCENT && used_by_others(figures) < WORTH_PERCENT).then(|| {
        let sentence = format!(
            "its cap of {asked:.0} % holds it: its threads wait {waits:.0} % of the time, and nobody else uses the GPU"
        );
        finding(Cause::Capped, waits, sentence, advice)
    })
}

fn has_share(figures: &Figures) -> bool {
    figures.share_got_percent >= figures.share_asked_percent * HELD
}

/// Whether it has less than its share because the host's other programs have the processors.
fn busy_host(figures: &Figures) -> Option<Finding> {
    let waits = figures.waiting_percent >= WORTH_PERCENT;
    let percent = figures
        .processors_percent
        .filter(|_| waits && !has_share(figures))?;
    let (got, asked) = (figures.share_got_percent, figures.share_asked_percent);
    let of_all = got / figures.gpu_busy_percent.max(got).max(0.1) * 100.0;
    Some(finding(
        Cause::BusyHost,
        100.0 - percent,
        format!(
            "{}: it has {of_all:.0} % of what all virtual GPUs have ({asked:.0} % is its share), which is {got:.1} % of the GPU",
            busy_host_words(percent)
        ),
        "end other programs on this machine, or give them fewer processors (taskset, nice)".into(),
    ))
}

/// Percent of the GPU's time that other virtual GPUs use.
fn used_by_others(figures: &Figures) -> f64 {
    (figures.gpu_busy_percent - figures.share_got_percent).max(0.0)
}

fn waiting(figures: &Figures) -> Option<Finding> {
    let (name, waits) = (&figures.name, figures.waiting_percent.min(100.0));
    let (got, asked) = (figures.share_got_percent, figures.share_asked_percent);
    let (others, has_share) = (used_by_others(figures), has_share(figures));
    if let Some(finding) = busy_host(figures) {
        return Some(finding);
    }
    if let Some(capped) = Some(figures).filter(|f| f.cap).and_then(capped) {
        return Some(capped);
    }
    if waits < WORTH_PERCENT {
        return None;
    }
    if !figures.more_urgent.is_empty() {
        let urgent = figures.more_urgent.join(", ");
        return Some(finding(
            Cause::OthersPriority,
            waits,
            format!("its threads wait {waits:.0} % of the time: {urgent} has a higher priority"),
            format!("mica resize {name} --priority high, or lower that of {urgent}"),
        ));
    }
    if !has_share && figures.share_reserved && is_exchanged(figures) {
        // It cannot run while its memory is away, which is a finding of its own.
        return None;
    }
    if !has_share && figures.share_reserved {
        return Some(finding(
            Cause::BelowShare,
            waits,
            format!(
                "it waits {waits:.0} % of the time and has {got:.0} % of the GPU, less than its share of {asked:.0} %"
            ),
            format!("mica doctor {name}: a share must hold while its threads wait"),
        ));
    }
    let more = (got * 1.5).clamp(asked + 5.0, 95.0);
    let reserve = match figures.share_reserved {
        true => format!("raise its share: mica resize {name} --share {more:.0}"),
        false => format!("reserve a share for it: mica resize {name} --share {more:.0}"),
    };
    Some(finding(
        Cause::WaitingForTurns,
        waits,
        format!(
            "its threads wait {waits:.0} % of the time for their turn: it has {got:.0} % of the GPU (its share is {asked:.0} %), others use {others:.0} %"
        ),
        reserve,
    ))
}

fn is_exchanged(figures: &Figures) -> bool {
    figures.away_percent >= WORTH_PERCENT
}

/// The time in which its memory was not on the GPU, because the memory of others was.
fn away(figures: &Figures) -> Option<Finding> {
    is_exchanged(figures).then(|| {
        let (name, away) = (&figures.name, figures.away_percent.min(100.0));
        finding(
            Cause::MemoryAway,
            away,
            format!("its memory is not on the GPU {away:.0} % of the time: that of others is"),
            format!(
                "less memory in use on this GPU, another GPU, or mica resize {name} --priority high"
            ),
        )
    })
}

fn memory(figures: &Figures) -> Option<Finding> {
    let used = figures.memory_used_bytes as f64 / figures.memory_limit_bytes.max(1) as f64;
    let name = &figures.name;
    if figures.alloc_denied > 0 {
        let denied = figures.alloc_denied;
        let requests = if denied == 1 {
            "request was"
        } else {
            "requests were"
        };
        return Some(finding(
            Cause::MemoryShort,
            60.0,
            format!(
                "{denied} {requests} refused: {:.0} % of its memory is in use",
                used * 100.0
            ),
            format!("more memory: mica resize {name} --memory SIZE, or smaller batches"),
        ));
    }
    (used >= 0.97).then(|| {
        finding(
            Cause::MemoryShort,
            10.0,
            format!(
                "{:.0} % of its memory is in use: programs that free and allocate again lose time",
                used * 100.0
            ),
            format!("mica resize {name} --memory SIZE"),
        )
    })
}

fn undrained(figures: &Figures) -> Option<Finding> {
    (figures.undrained > 0).then(|| {
        finding(
            Cause::DoesNotDrain,
            15.0,
            "its kernels run on after its turns, so it gets no turns for a while".to_owned(),
            "shorter kernels, or kernels that do not wait for the host".to_owned(),
        )
    })
}

/// The time in which it neither ran on the GPU nor waited for it.
fn host(figures: &Figures) -> Option<Finding> {
    let waits = figures.waiting_percent.min(100.0);
    let capped = figures.cap && figures.share_got_percent >= figures.share_asked_percent * HELD;
    // Threads may wait for a turn while the memory is away.
    let held = waits.max(figures.away_percent);
    let idle = 100.0 - figures.share_got_percent - held;
    if capped || idle < 20.0 {
        return None;
    }
    let rate = figures.launches_per_second;
    let copies = figures.copied_bytes_per_second / LINK_BYTES_PER_SECOND * 100.0;
    if copies >= 20.0 {
        let gib = figures.copied_bytes_per_second / (1_u64 << 30) as f64;
        return Some(finding(
            Cause::CopyBound,
            idle,
            format!(
                "it copies {gib:.1} GiB each second between host and GPU, and the GPU waits for that {idle:.0} % of the time"
            ),
            "keep data on the GPU, copy while kernels run (streams), use pinned memory".to_owned(),
        ));
    }
    if let Some(us) = figures
        .launch_us
        .filter(|us| *us < SMALL_US && rate >= 1000.0)
    {
        return Some(finding(
            Cause::SmallKernels,
            idle,
            format!(
                "its kernels are small: {rate:.0} submissions a second of {us:.0} µs each leave the GPU idle {idle:.0} % of the time"
            ),
            "CUDA graphs, larger batches, fused kernels (torch.compile)".to_owned(),
        ));
    }
    let sentence = match (rate < 1.0, figures.share_got_percent < 1.0) {
        (true, true) => format!("its programs submit no work {idle:.0} % of the time"),
        // Fills and copies are not kernels.
        (true, false) => format!("the GPU waits for the program {idle:.0} % of the time"),
        (false, _) => format!(
            "the GPU waits for the program {idle:.0} % of the time: meanwhile nothing of the program is queued; it submits {rate:.0} times a second"
        ),
    };
    Some(finding(
        Cause::HostBound,
        idle,
        sentence,
        "look at the host: data loading, one busy thread, synchronization after each step"
            .to_owned(),
    ))
}

/// Nothing holds it up but its own work.
fn computing(figures: &Figures) -> Finding {
    let got = figures.share_got_percent;
    finding(
        Cause::GpuBound,
        got,
        format!("nothing holds it up: the GPU computes for it {got:.0} % of the time"),
        "only faster kernels or a faster GPU would help".to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy() -> Figures {
        Figures {
            name: "a".into(),
            measured_seconds: 10.0,
            state: VgpuState::Active,
            processes: 1,
            share_asked_percent: 50.0,
            share_reserved: true,
            share_got_percent: 50.0,
            gpu_busy_percent: 100.0,
            launches_per_second: 200.0,
            launch_us: Some(2500.0),
            memory_used_bytes: 10,
            memory_limit_bytes: 100,
            ..Figures::default()
        }
    }

    fn first(figures: &Figures) -> Cause {
        let all = findings(figures);
        for finding in &all {
            assert!(!finding.sentence.is_empty() && !finding.advice.is_empty());
            assert!((0.0..=100.0).contains(&finding.weight_percent), "{all:?}");
        }
        all[0].cause
    }

    #[test]
    fn who_does_not_run_is_told_so_alone() {
        let none = Figures {
            processes: 0,
            ..busy()
        };
        assert_eq!(first(&none), Cause::NoProgram);
        for (state, cause) in [
            (VgpuState::Suspended, Cause::Suspended),
            (VgpuState::Snapshotted, Cause::Snapshotted),
            (VgpuState::Lost, Cause::Lost),
        ] {
            let stopped = Figures { state, ..busy() };
            assert_eq!(first(&stopped), cause);
            assert_eq!(findings(&stopped).len(), 1);
        }
    }

    #[test]
    fn on_a_busy_machine_neither_a_cap_nor_its_share_is_to_blame() {
        let starved = Figures {
            share_asked_percent: 20.0,
            share_got_percent: 2.0,
            waiting_percent: 90.0,
            gpu_busy_percent: 10.0,
            processors_percent: Some(11.0),
            cap: true,
            ..busy()
        };
        assert_eq!(first(&starved), Cause::BusyHost);
        let sentence = &findings(&starved)[0].sentence;
        let parts = [
            "has them 11 % of the time",
            "20 % of what",
            "2.0 % of the GPU",
        ];
        assert!(
            parts.iter().all(|part| sentence.contains(part)),
            "{sentence}"
        );
        let has_it = Figures {
            share_got_percent: 20.0,
            gpu_busy_percent: 40.0,
            ..starved
        };
        assert_ne!(first(&has_it), Cause::BusyHost);
    }

    #[test]
    fn one_that_has_its_share_and_waits_needs_a_larger_share() {
        let waits = Figures {
            waiting_percent: 48.0,
            ..busy()
        };
        assert_eq!(first(&waits), Cause::WaitingForTurns);
        let advice = &findings(&waits)[0].advice;
        assert!(advice.contains("mica resize a --share 75"), "{advice}");
        // Threads that wait together count once.
        let many = Figures {
            waiting_percent: 480.0,
            ..busy()
        };
        assert_eq!(findings(&many)[0].weight_percent, 100.0);
    }

    #[test]
    fn one_that_waits_and_lacks_its_share_is_a_fault_unless_others_go_first() {
        let starved = Figures {
            waiting_percent: 80.0,
            share_got_percent: 20.0,
            ..busy()
        };
        assert_eq!(first(&starved), Cause::BelowShare);
        let urgent = Figures {
            more_urgent: vec!["b".into()],
            ..starved.clone()
        };
        assert_eq!(first(&urgent), Cause::OthersPriority);
        let unreserved = Figures {
            share_reserved: false,
            ..starved
        };
        assert_eq!(first(&unreserved), Cause::WaitingForTurns);
    }

    #[test]
    fn memory_that_is_away_is_named_and_not_the_program_or_the_share() {
        let exchanged = Figures {
            share_got_percent: 7.0,
            gpu_busy_percent: 13.0,
            waiting_percent: 36.0,
            away_percent: 60.0,
            ..busy()
        };
        assert_eq!(first(&exchanged), Cause::MemoryAway);
        let causes: Vec<Cause> = findings(&exchanged).iter().map(|f| f.cause).collect();
        assert!(!causes.contains(&Cause::BelowShare), "{causes:?}");
    }

    #[test]
    fn one_that_waits_alone_on_the_gpu_is_held_by_its_cap() {
        let alone = Figures {
            cap: true,
            share_asked_percent: 10.0,
            share_got_percent: 4.0,
            gpu_busy_percent: 5.0,
            waiting_percent: 89.0,
            ..busy()
        };
        assert_eq!(first(&alone), Cause::Capped);
        let advice = &findings(&alone)[0].advice;
        assert!(advice.contains("--no-cap"), "{advice}");
        let crowded = Figures {
            gpu_busy_percent: 90.0,
            ..alone
        };
        assert_eq!(first(&crowded), Cause::BelowShare);
    }

    #[test]
    fn a_cap_is_named_also_where_no_thread_waits() {
        for waiting_percent in [0.0, 70.0] {
            let capped = Figures {
                cap: true,
                share_asked_percent: 25.0,
                share_got_percent: 24.0,
                waiting_percent,
                gpu_busy_percent: 24.0,
                ..busy()
            };
            assert_eq!(first(&capped), Cause::Capped);
            assert!(findings(&capped)[0].advice.contains("--no-cap"));
        }
        // A cap that is not reached slows nothing.
        let below = Figures {
            cap: true,
            share_asked_percent: 50.0,
            share_got_percent: 5.0,
            ..busy()
        };
        assert_eq!(first(&below), Cause::HostBound);
    }

    #[test]
    fn what_the_host_does_is_told_apart() {
        let idle = Figures {
            share_got_percent: 12.0,
            launches_per_second: 10.0,
            launch_us: Some(12_000.0),
            ..busy()
        };
        assert_eq!(first(&idle), Cause::HostBound);
        let small = Figures {
            launches_per_second: 20_000.0,
            launch_us: Some(6.0),
            ..idle.clone()
        };
        assert_eq!(first(&small), Cause::SmallKernels);
        let copies = Figures {
            copied_bytes_per_second: 4e9,
            ..idle
        };
        assert_eq!(first(&copies), Cause::CopyBound);
    }

    #[test]
    fn refused_memory_comes_before_a_short_wait() {
        let refused = Figures {
            alloc_denied: 2,
            waiting_percent: 30.0,
            ..busy()
        };
        let causes: Vec<Cause> = findings(&refused).iter().map(|f| f.cause).collect();
        assert_eq!(causes[..2], [Cause::MemoryShort, Cause::WaitingForTurns]);
    }

    #[test]
    fn one_that_has_the_gpu_to_itself_is_told_that_nothing_is_wrong() {
        let alone = Figures {
            share_got_percent: 99.0,
            ..busy()
        };
        assert_eq!(first(&alone), Cause::GpuBound);
    }
}
