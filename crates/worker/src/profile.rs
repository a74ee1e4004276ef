//! A worker's profile: sums for the daemon, single spans for the program's library.
//!
//! ```text
//!   device, gate, waits ──► Recorder ──► sums, once a second ──► daemon
//!                               └──────► spans as lines ──► output of the session ──► file of `mica profile`
//! ```
//! A line is an array of JSON: `["n",NUMBER,"NAME"]` tells a name, `["kernel",NAME,STREAM,QUEUED,BEGIN,END,BYTES]` is a
//! span (and so for other activities), `["lost",COUNT]` says how many spans were lost so far, and then
//! `["sum",ACTIVITY,NAME,CALLS,TOTAL,MOST,BYTES]` has what is exact all the same. Times are nanoseconds of the monotonic
//! clock.

use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mica_gpu::profile::{Activity, Recorder, Span, Sum};
use mica_limits::{HostLink, monotonic_ns};
use mica_wire::host::message::ProfileRow;

/// Names that the daemon hears of, for each activity.
pub(crate) const MOST_TOLD: usize = 64;
/// How often the daemon hears of them.
const EVERY: Duration = Duration::from_secs(1);
/// Spans that are told at once: about a mebibyte of lines.
const SPANS_AT_ONCE: usize = 16 << 10;

/// Spans that nobody has taken, as lines; empty if there are none.
pub(crate) fn lines(recorder: &Recorder) -> Vec<u8> {
    let taken = recorder.take(SPANS_AT_ONCE);
    let mut text = String::with_capacity(taken.spans.len() * 72);
    for (number, name) in &taken.names {
        let _ = writeln!(text, "[\"n\",{number},{}]", quoted(name));
    }
    for span in &taken.spans {
        let Span {
            activity,
            name,
            stream,
            queued_ns,
            begin_ns,
            end_ns,
            bytes,
        } = span;
        let word = activity.word();
        let _ = writeln!(
            text,
            "[\"{word}\",{name},{stream},{queued_ns},{begin_ns},{end_ns},{bytes}]"
        );
    }
    if taken.lost > 0 && !taken.spans.is_empty() {
        let _ = writeln!(text, "[\"lost\",{}]", taken.lost);
        for sum in recorder.sums(usize::MAX).1 {
            let word = sum.activity.word();
            let _ = writeln!(
                text,
                "[\"sum\",\"{word}\",{},{},{},{},{}]",
                quoted(&sum.name),
                sum.calls,
                sum.total_ns,
                sum.most_ns,
                sum.bytes
            );
        }
    }
    text.into_bytes()
}

/// A string of JSON.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Runs something that waits, and records it if it took time.
pub(crate) fn waiting<T>(
    recorder: &Recorder,
    activity: Activity,
    name: &str,
    stream: u64,
    wait: impl FnOnce() -> T,
) -> T {
    if !recorder.is_on() {
        return wait();
    }
    let began_ns = monotonic_ns();
    let result = wait();
    waited_since(recorder, activity, name, stream, began_ns);
    result
}

/// Records something that waited since `began_ns`.
pub(crate) fn waited_since(
    recorder: &Recorder,
    activity: Activity,
    name: &str,
    stream: u64,
    began_ns: u64,
) {
    let span = Span {
        activity,
        name: 0,
        stream,
        queued_ns: began_ns,
        begin_ns: began_ns,
        end_ns: monotonic_ns(),
        bytes: 0,
    };
    recorder.record(name, span);
}

/// Tells the daemon of the sums now and then.
#[derive(Debug, Default)]
pub(crate) struct Reporter(Mutex<Told>);

/// What was told last, and when.
#[derive(Debug, Default)]
struct Told {
    at: Option<Instant>,
    version: u64,
}

impl Reporter {
    /// Tells what is new if it is time, or the last chance.
    pub(crate) fn tell(&self, recorder: &Recorder, link: &HostLink, last_chance: bool) {
        if !recorder.is_on() {
            return;
        }
        // Held to the end, so that the lines of two reports do not mix.
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !last_chance && told.at.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        told.at = Some(Instant::now());
        let (version, sums) = recorder.sums(MOST_TOLD);
        if version == told.version {
            return;
        }
        told.version = version;
        for (at, sum) in sums.iter().enumerate() {
            link.profiled(row(sum, sums.len() - at - 1));
        }
    }
}

fn row(sum: &Sum, rest: usize) -> ProfileRow {
    let number = Activity::ALL
        .iter()
        .position(|known| *known == sum.activity);
    ProfileRow {
        rest: rest as u64,
        activity: number.unwrap_or_default() as u64,
        calls: sum.calls,
        total_ns: sum.total_ns,
        most_ns: sum.most_ns,
        bytes: sum.bytes,
        name: sum.name.as_str().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mica_gpu::profile::{MOST_SPANS, RecordLevel};

    #[test]
    fn lines_tell_names_first_and_sums_when_spans_were_lost() {
        let recorder = Recorder::default();
        assert!(lines(&recorder).is_empty());
        recorder.set_level(RecordLevel::Spans);
        let span = Span {
            activity: Activity::Copy,
            name: 0,
            stream: 3,
            queued_ns: 1,
            begin_ns: 2,
            end_ns: 5,
            bytes: 64,
        };
        recorder.record("a \"b\"\n", span);
        let text = String::from_utf8(lines(&recorder)).unwrap();
        assert_eq!(
            text,
            "[\"n\",0,\"a \\\"b\\\"\\u000a\"]\n[\"copy\",0,3,1,2,5,64]\n"
        );
        for _ in 0..MOST_SPANS + 7 {
            recorder.record("k", span);
        }
        let text = String::from_utf8(lines(&recorder)).unwrap();
        assert!(text.contains("[\"lost\",7]\n"));
        let exact = format!("[\"sum\",\"copy\",\"k\",{},", MOST_SPANS + 7);
        assert!(text.contains(&exact));
    }
}
