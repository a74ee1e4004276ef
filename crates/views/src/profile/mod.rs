//! `mica profile`: which kernels, copies and waits took the time.
//!
//! Owns what is read of a profile (`spans`), what follows from it (`gaps`) and how it is shown. Running a program is the
//! command's business.

mod gaps;
mod spans;
mod trace;

pub use gaps::{Gap, Occupation, Reason, occupation};
pub use spans::{MOST_SPANS, Recorded, Span};
pub use trace::write as write_trace;

use std::fmt::Write;

use mica_command::table::Table;
use mica_control::api::{ProfileActivity, ProfileLine, VgpuProfile};
use mica_wire::host::printable::printable;
use serde::Serialize;

/// One line of a report, as JSON has it.
#[derive(Debug, Serialize)]
struct ShownLine<'a> {
    #[serde(flatten)]
    line: &'a ProfileLine,
    average_ns: u64,
    /// Part of the time of all kernels, copies and fills; nothing for a wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    share_percent: Option<f64>,
    /// Bytes moved in a second, where both are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    gigabytes_per_second: Option<f64>,
}

/// A report, as JSON has it.
#[derive(Debug, Serialize)]
struct Report<'a> {
    lines: Vec<ShownLine<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    occupation: Option<&'a Occupation>,
    lost_spans: u64,
    unreadable_lines: u64,
}

fn is_work(activity: ProfileActivity) -> bool {
    use ProfileActivity::{Copy, Fill, Kernel};
    matches!(activity, Kernel | Copy | Fill)
}

fn shown(lines: &[ProfileLine]) -> Vec<ShownLine<'_>> {
    let work = lines.iter().filter(|line| is_work(line.activity));
    let all_ns = (work.map(|line| line.total_ns)).fold(0, u64::saturating_add);
    let one = |line| -> ShownLine<'_> {
        let line: &ProfileLine = line;
        let share = line.total_ns as f64 * 100.0 / all_ns.max(1) as f64;
        let rate = line.bytes as f64 / line.total_ns.max(1) as f64;
        ShownLine {
            line,
            average_ns: line.total_ns / line.calls.max(1),
            share_percent: is_work(line.activity).then_some(share),
            gigabytes_per_second: (line.bytes > 0).then_some(rate),
        }
    };
    lines.iter().map(one).collect()
}

/// What is shown of a recorded program, as JSON.
pub fn json(recorded: &Recorded) -> serde_json::Result<String> {
    let lines = recorded.lines();
    let occupation = occupation(recorded);
    serde_json::to_string_pretty(&Report {
        lines: shown(&lines),
        occupation: Some(&occupation),
        lost_spans: recorded.lost().saturating_add(recorded.not_kept),
        unreadable_lines: recorded.unreadable,
    })
}

/// The profile of a virtual GPU, as JSON.
pub fn json_of_vgpu(profile: &VgpuProfile) -> serde_json::Result<String> {
    let lines = shown(&profile.lines);
    let value = serde_json::json!({
        "name": profile.name,
        "level": profile.level,
        "seconds": profile.seconds,
        "lines": lines,
    });
    serde_json::to_string_pretty(&value)
}

/// What is shown of a recorded program, as text; `top` lines of work at most.
pub fn text(recorded: &Recorded, top: usize) -> String {
    let lines = recorded.lines();
    if lines.is_empty() {
        return "the program did no work on the GPU that was recorded\n".to_owned();
    }
    let occupation = occupation(recorded);
    let (wall, busy) = (occupation.wall_ns, occupation.busy_ns);
    let mut text = format!(
        "{} from the first work to the last; the GPU had work for {} of it ({:.1} %)\n\n",
        short(wall),
        short(busy),
        busy as f64 * 100.0 / wall.max(1) as f64
    );
    text += &table(&lines, top);
    text += &gaps_text(&occupation);
    let left_out = recorded.lost().saturating_add(recorded.not_kept);
    if left_out > 0 {
        let _ = writeln!(
            text,
            "\n{left_out} single launches and copies came too fast to be kept: sums count them, gaps and traces do not"
        );
    }
    if recorded.unreadable > 0 {
        let _ = writeln!(text, "{} lines make no sense", recorded.unreadable);
    }
    text
}

fn gaps_text(occupation: &Occupation) -> String {
    if occupation.gaps == 0 {
        return String::new();
    }
    let idle = occupation.wall_ns - occupation.busy_ns;
    let gaps = match occupation.gaps {
        1 => "1 gap".to_owned(),
        n => format!("{n} gaps"),
    };
    let mut text = format!(
        "\n{gaps} without work, {} in all. The longest:\n",
        short(idle)
    );
    for gap in &occupation.longest {
        let _ = writeln!(
            text,
            "  {} at {:.3} s, after {} and before {}: {}",
            short(gap.ns),
            gap.at_seconds,
            printable(&gap.after),
            printable(&gap.before),
            gap.reason.words()
        );
    }
    text
}

/// A table of the lines: work first, `top` lines of it at most, then what was waited for.
pub fn table(lines: &[ProfileLine], top: usize) -> String {
    let mut work: Vec<ShownLine<'_>> = shown(lines);
    work.retain(|line| line.share_percent.is_some());
    work.sort_by_key(|line| std::cmp::Reverse(line.line.total_ns));
    let titles = [
        "SHARE", "TOTAL", "CALLS", "AVERAGE", "LONGEST", "GB/S", "WHAT",
    ];
    let mut table = Table::new(&titles).cut(6);
    for line in work.iter().take(top) {
        table.row(cells(line));
    }
    let mut text = match table.is_empty() {
        true => String::new(),
        false => table.render(),
    };
    if work.len() > top {
        let rest = work[top..].iter().map(|line| line.line.total_ns);
        let rest = rest.fold(0, u64::saturating_add);
        let _ = writeln!(text, "and {} more, {}", work.len() - top, short(rest));
    }
    let other = shown(lines);
    let mut table = Table::new(&["WAITED", "CALLS", "AVERAGE", "LONGEST", "FOR"]).cut(4);
    for line in other.iter().filter(|line| line.share_percent.is_none()) {
        let ProfileLine {
            activity,
            name,
            calls,
            ..
        } = line.line;
        table.row(vec![
            short(line.line.total_ns),
            calls.to_string(),
            short(line.average_ns),
            short(line.line.most_ns),
            match activity {
                ProfileActivity::Turn => "its turn".to_owned(),
                ProfileActivity::Compile => format!("compiling {}", printable(name)),
                _ => printable(name).into_owned(),
            },
        ]);
    }
    if !table.is_empty() {
        text.push('\n');
        text += &table.render();
    }
    text
}

fn cells(line: &ShownLine<'_>) -> Vec<String> {
    let ProfileLine {
        activity,
        name,
        calls,
        total_ns,
        most_ns,
        ..
    } = line.line;
    let rate = line.gigabytes_per_second;
    let name = printable(name);
    vec![
        format!("{:.1}%", line.share_percent.unwrap_or_default()),
        short(*total_ns),
        calls.to_string(),
        short(line.average_ns),
        short(*most_ns),
        rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.2}")),
        match activity {
            ProfileActivity::Copy => format!("copy {name}"),
            _ => name.into_owned(),
        },
    ]
}

/// A time with three digits.
pub fn short(ns: u64) -> String {
    let digits = |value: f64| match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    };
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..999_500 => format!("{} µs", digits(ns as f64 / 1e3)),
        999_500..999_500_000 => format!("{} ms", digits(ns as f64 / 1e6)),
        _ => format!("{} s", digits(ns as f64 / 1e9)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        let shown = [
            0,
            999,
            1_000,
            45_678,
            999_499,
            999_500,
            12_345_678,
            61_000_000_000,
        ];
        let words = shown.map(short);
        assert_eq!(
            words,
            [
                "0 ns", "999 ns", "1.00 µs", "45.7 µs", "999 µs", "1.00 ms", "12.3 ms", "61.0 s"
            ]
        );
    }

    #[test]
    fn a_report_has_shares_rates_waits_and_gaps() {
        let mut recorded = Recorded::default();
        for line in [
            r#"["process",7]"#,
            r#"["compile","saxpy",1,0,0,1000000,0]"#,
            r#"["kernel","saxpy",1,1000000,1000000,4000000,0]"#,
            r#"["copy","host to device",1,5000000,5000000,6000000,2000000]"#,
            r#"["wait","cuCtxSynchronize",0,1000000,1000000,4000000,0]"#,
        ] {
            recorded.take(line.as_bytes());
        }
        let shown = text(&recorded, 10);
        let expected = "\
5.00 ms from the first work to the last; the GPU had work for 4.00 ms of it (80.0 %)

SHARE  TOTAL    CALLS  AVERAGE  LONGEST  GB/S  WHAT
75.0%  3.00 ms  1      3.00 ms  3.00 ms  -     saxpy
25.0%  1.00 ms  1      1.00 ms  1.00 ms  2.00  copy host to device

WAITED   CALLS  AVERAGE  LONGEST  FOR
1.00 ms  1      1.00 ms  1.00 ms  compiling saxpy
3.00 ms  1      3.00 ms  3.00 ms  cuCtxSynchronize

1 gap without work, 1.00 ms in all. The longest:
  1.00 ms at 0.003 s, after saxpy and before host to device: the program submitted nothing
";
        assert_eq!(shown, expected);
        let value: serde_json::Value = serde_json::from_str(&json(&recorded).unwrap()).unwrap();
        assert_eq!(value["lines"][0]["share_percent"], 75.0);
        assert_eq!(value["occupation"]["busy_ns"], 4_000_000);
    }
}
