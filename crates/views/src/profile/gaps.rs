//! When the GPU had nothing of a program to do, and what the program did meanwhile.

use mica_control::api::ProfileActivity;
use serde::Serialize;

use super::spans::{Recorded, Span};

/// Gaps that are shown.
const MOST_SHOWN: usize = 5;

/// Why nothing ran in a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Work was there and waited for the virtual GPU's turn.
    Turn,
    /// A kernel was compiled for the software GPU.
    Compile,
    /// Work was there, and the device or its threads had not begun it.
    Queue,
    /// The program had submitted nothing.
    Program,
}

impl Reason {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Turn => "waited for its turn",
            Self::Compile => "a kernel was compiled",
            Self::Queue => "work was queued and not begun",
            Self::Program => "the program submitted nothing",
        }
    }
}

/// A time without a running kernel or copy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gap {
    /// Seconds since the first work.
    pub at_seconds: f64,
    /// How long it was.
    pub ns: u64,
    /// What ended before it.
    pub after: String,
    /// What began after it.
    pub before: String,
    /// Why.
    pub reason: Reason,
}

/// When work ran, and when it did not.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Occupation {
    /// From the first work to the last.
    pub wall_ns: u64,
    /// Time in which at least one kernel, copy or fill ran.
    pub busy_ns: u64,
    /// Number of gaps.
    pub gaps: u64,
    /// The longest gaps, longest first.
    pub longest: Vec<Gap>,
}

pub(super) fn is_work(span: &Span) -> bool {
    use ProfileActivity::{Copy, Fill, Kernel};
    matches!(span.activity, Kernel | Copy | Fill)
}

/// Looks at all spans that were kept.
pub fn occupation(recorded: &Recorded) -> Occupation {
    let mut work: Vec<&Span> = recorded.spans.iter().filter(|span| is_work(span)).collect();
    work.sort_unstable_by_key(|span| (span.begin_ns, span.end_ns));
    let Some(first) = work.first() else {
        return Occupation::default();
    };
    let mut found = Occupation::default();
    let mut last = first;
    let mut busy_since = first.begin_ns;
    let mut gaps: Vec<(u64, &Span, &Span)> = Vec::new();
    for span in &work {
        if span.begin_ns > last.end_ns {
            found.busy_ns += last.end_ns - busy_since;
            busy_since = span.begin_ns;
            found.gaps += 1;
            gaps.push((span.begin_ns - last.end_ns, last, span));
            // A few more than are shown, so that sorting is rare.
            if gaps.len() > 64 {
                longest_first(&mut gaps);
            }
        }
        if span.end_ns >= last.end_ns {
            last = span;
        }
    }
    found.busy_ns += last.end_ns - busy_since;
    found.wall_ns = last.end_ns - first.begin_ns;
    longest_first(&mut gaps);
    let name = |span: &Span| {
        let name = recorded.names.get(span.name as usize);
        name.map_or_else(String::new, Clone::clone)
    };
    let shown = |(ns, before, after): &(u64, &Span, &Span)| Gap {
        at_seconds: (before.end_ns - first.begin_ns) as f64 / 1e9,
        ns: *ns,
        after: name(before),
        before: name(after),
        reason: reason(recorded, before.end_ns, after),
    };
    found.longest = gaps.iter().map(shown).collect();
    found
}

fn longest_first(gaps: &mut Vec<(u64, &Span, &Span)>) {
    gaps.sort_by_key(|(ns, ..)| std::cmp::Reverse(*ns));
    gaps.truncate(MOST_SHOWN);
}

/// What most of the time before some work was spent on.
fn reason(recorded: &Recorded, from_ns: u64, after: &Span) -> Reason {
    let to_ns = after.begin_ns;
    let spent = |activity: ProfileActivity| -> u64 {
        let own = recorded.spans.iter().filter(|s| s.activity == activity);
        own.map(|s| s.end_ns.min(to_ns).saturating_sub(s.begin_ns.max(from_ns)))
            .fold(0, u64::saturating_add)
    };
    let half = (to_ns - from_ns) / 2;
    match (
        spent(ProfileActivity::Turn),
        spent(ProfileActivity::Compile),
    ) {
        (turn, _) if turn > half => Reason::Turn,
        (_, compile) if compile > half => Reason::Compile,
        _ if after.queued_ns < from_ns + half => Reason::Queue,
        _ => Reason::Program,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn occupied(lines: &[&str]) -> Occupation {
        let mut recorded = Recorded::default();
        lines.iter().for_each(|line| recorded.take(line.as_bytes()));
        occupation(&recorded)
    }

    #[test]
    fn work_at_the_same_time_is_busy_once_and_gaps_have_reasons() {
        let found = occupied(&[
            r#"["kernel","a",1,0,100,200,0]"#,
            r#"["kernel","b",2,0,150,250,0]"#,
            r#"["kernel","inside",2,0,160,170,0]"#,
            r#"["turn","turn",0,250,260,340,0]"#,
            r#"["kernel","c",1,0,350,400,0]"#,
            r#"["wait","cuCtxSynchronize",0,0,0,1000,0]"#,
            r#"["copy","host to device",1,408,410,420,0]"#,
            r#"["fill","fill",1,420,450,451,0]"#,
        ]);
        assert_eq!((found.wall_ns, found.busy_ns, found.gaps), (351, 211, 3));
        let gap = &found.longest[0];
        assert_eq!((gap.ns, gap.reason), (100, Reason::Turn));
        assert_eq!((gap.after.as_str(), gap.before.as_str()), ("b", "c"));
        assert_eq!(found.longest[1].reason, Reason::Queue);
        assert_eq!(found.longest[2].reason, Reason::Program);
    }

    #[test]
    fn times_at_both_ends_of_the_clock_overflow_nothing() {
        let most = u64::MAX;
        let found = occupied(&[
            &format!(r#"["kernel","a",1,0,0,{most},{most}]"#),
            &format!(r#"["kernel","b",1,{most},{most},{most},0]"#),
            &format!(r#"["turn","turn",0,0,0,{most},0]"#),
            &format!(r#"["turn","turn",0,0,0,{most},0]"#),
        ]);
        assert_eq!((found.wall_ns, found.gaps), (most, 0));
        let apart = occupied(&[
            r#"["kernel","a",1,0,0,1,0]"#,
            &format!(r#"["kernel","b",1,{most},{most},{most},0]"#),
            &format!(r#"["turn","turn",0,0,0,{most},0]"#),
            &format!(r#"["turn","turn",0,0,0,{most},0]"#),
        ]);
        assert_eq!(apart.longest[0].reason, Reason::Turn);
    }

    #[test]
    fn without_work_there_is_nothing() {
        assert_eq!(occupied(&[]), Occupation::default());
        let only = occupied(&[r#"["wait","cuInit",0,0,0,1000,0]"#]);
        assert_eq!(only, Occupation::default());
    }
}
