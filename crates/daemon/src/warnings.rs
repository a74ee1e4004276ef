//! Thresholds of use: staying above or below one for a while is an event, and so is its end.
//!
//! Owns the watching: the monitor gives it what was measured each second. A warning is an event and a line of the log, and goes
//! to a webhook where one is configured ([`crate::webhook`]).

use std::collections::HashMap;

use mica_control::api::{Point, Severity, Subject};

use crate::config::WarningsSection;
use crate::history::Identity;

/// A warning is over when the figure is this many points on the good side.
const BACK_POINTS: f32 = 5.0;

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Figure {
    Memory,
    Waiting,
    IdleShare,
    GpuBusy,
}

/// Something to tell: how bad it is, its kind, its virtual GPU, and a sentence.
pub(crate) type Warning = (Severity, &'static str, Option<String>, String);

/// Who has been beyond a threshold, and for how long.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    beyond: HashMap<(Figure, Identity), Beyond>,
}

#[derive(Debug, Default)]
struct Beyond {
    seconds: f32,
    told: bool,
}

impl Warnings {
    /// Takes what was measured in the last second; what must be told now.
    pub(crate) fn watch(
        &mut self,
        limits: &WarningsSection,
        measured: &[(Identity, Point)],
    ) -> Vec<Warning> {
        let mut news = Vec::new();
        let mut before = std::mem::take(&mut self.beyond);
        for (identity, point) in measured {
            for (figure, excess) in figures(limits, identity, point) {
                let key = (figure, identity.clone());
                let mut beyond = before.remove(&key).unwrap_or_default();
                if excess >= 0.0 {
                    beyond.seconds += point.measured_seconds;
                } else if !beyond.told {
                    continue;
                } else if excess <= -BACK_POINTS {
                    news.push(over(figure, identity));
                    continue;
                }
                if !beyond.told && beyond.seconds >= limits.for_seconds as f32 {
                    beyond.told = true;
                    news.push(begun(figure, identity, point, limits.for_seconds));
                }
                self.beyond.insert(key, beyond);
            }
        }
        // A removed virtual GPU, or one whose threshold was switched off, gets no further event.
        news
    }
}

/// Points beyond each threshold that is set; negative below it.
fn figures(
    limits: &WarningsSection,
    identity: &Identity,
    point: &Point,
) -> impl Iterator<Item = (Figure, f32)> {
    let memory = point.memory_used_bytes as f64 / point.memory_limit_bytes.max(1) as f64 * 100.0;
    let above = |figure, value: f32, threshold: u32| {
        (threshold > 0).then_some((figure, value - threshold as f32))
    };
    let unused = 100.0 - point.share_got_percent / point.share_asked_percent.max(1.0) * 100.0;
    let has_programs = point.processes > 0;
    let all = match identity.subject {
        Subject::Vgpu => [
            above(Figure::Memory, memory as f32, limits.memory_percent),
            above(
                Figure::Waiting,
                point.waiting_percent,
                limits.waiting_percent,
            ),
            above(Figure::IdleShare, unused, limits.idle_share_percent).filter(|_| has_programs),
        ],
        Subject::Gpu => [
            above(Figure::GpuBusy, point.share_got_percent, limits.gpu_percent),
            None,
            None,
        ],
    };
    all.into_iter().flatten()
}

fn subject(identity: &Identity) -> (Option<String>, String) {
    match identity.subject {
        Subject::Vgpu => (Some(identity.name.clone()), identity.name.clone()),
        Subject::Gpu => (None, format!("GPU {}", identity.gpu)),
    }
}

fn begun(figure: Figure, identity: &Identity, point: &Point, seconds: u64) -> Warning {
    let (vgpu, name) = subject(identity);
    let text = match figure {
        Figure::Memory => {
            let part = point.memory_used_bytes as f64 / point.memory_limit_bytes.max(1) as f64;
            format!(
                "{name} has used {:.0} % of its memory for {seconds} s",
                part * 100.0
            )
        }
        Figure::Waiting => format!(
            "{name} has waited for its turn {:.0} % of the time for {seconds} s",
            point.waiting_percent
        ),
        Figure::IdleShare => format!(
            "{name} has programs and uses {:.0} % of the GPU, {:.0} % is its share{}, for {seconds} s",
            point.share_got_percent,
            point.share_asked_percent,
            match point.share_unreserved_percent > 0.0 {
                true => " (not reserved)",
                false => "",
            }
        ),
        Figure::GpuBusy => {
            format!(
                "{name} has been {:.0} % busy for {seconds} s",
                point.share_got_percent
            )
        }
    };
    (Severity::Warning, kind(figure), vgpu, text)
}

fn over(figure: Figure, identity: &Identity) -> Warning {
    let (vgpu, name) = subject(identity);
    let what = match figure {
        Figure::Memory => "memory",
        Figure::Waiting => "waiting",
        Figure::IdleShare => "unused share",
        Figure::GpuBusy => "use",
    };
    let text = format!("{name}: the warning about its {what} is over");
    (Severity::Info, "warning_over", vgpu, text)
}

fn kind(figure: Figure) -> &'static str {
    match figure {
        Figure::Memory => "memory_high",
        Figure::Waiting => "waiting_high",
        Figure::IdleShare => "share_unused",
        Figure::GpuBusy => "gpu_busy",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> WarningsSection {
        WarningsSection {
            memory_percent: 90,
            for_seconds: 3,
            ..WarningsSection::default()
        }
    }

    fn at(percent: u64) -> Vec<(Identity, Point)> {
        let identity = Identity {
            name: "a".into(),
            ..Identity::default()
        };
        let point = Point {
            measured_seconds: 1.0,
            memory_used_bytes: percent,
            memory_limit_bytes: 100,
            processes: 1,
            share_asked_percent: 50.0,
            ..Point::default()
        };
        vec![(identity, point)]
    }

    fn kinds(warnings: &mut Warnings, limits: &WarningsSection, percent: u64) -> Vec<&'static str> {
        let news = warnings.watch(limits, &at(percent));
        news.into_iter().map(|(_, kind, ..)| kind).collect()
    }

    #[test]
    fn a_warning_comes_once_after_a_while_and_goes_once() {
        let mut warnings = Warnings::default();
        let mut say = |percent| kinds(&mut warnings, &limits(), percent);
        assert_eq!((say(95), say(95)), (vec![], vec![]));
        // A moment below starts the time again.
        assert_eq!((say(80), say(95), say(95)), (vec![], vec![], vec![]));
        assert_eq!(say(95), ["memory_high"]);
        assert_eq!(
            (say(99), say(88)),
            (vec![], vec![]),
            "near the threshold nothing flaps"
        );
        assert_eq!(say(85), ["warning_over"]);
        assert_eq!(say(50), Vec::<&str>::new());
    }

    #[test]
    fn nothing_is_said_by_default_and_of_what_is_gone() {
        let mut warnings = Warnings::default();
        for _ in 0..100 {
            assert_eq!(
                kinds(&mut warnings, &WarningsSection::default(), 100),
                Vec::<&str>::new()
            );
        }
        for _ in 0..4 {
            kinds(&mut warnings, &limits(), 100);
        }
        assert!(warnings.watch(&limits(), &[]).is_empty());
        assert!(warnings.beyond.is_empty());
    }

    #[test]
    fn a_share_that_programs_leave_unused_is_told_of() {
        let limits = WarningsSection {
            idle_share_percent: 80,
            for_seconds: 1,
            ..WarningsSection::default()
        };
        let news = Warnings::default().watch(&limits, &at(1));
        assert_eq!(news[0].1, "share_unused");
        assert_eq!(news[0].2.as_deref(), Some("a"));
        let mut idle = at(1);
        idle[0].1.processes = 0;
        assert!(Warnings::default().watch(&limits, &idle).is_empty());
    }
}
