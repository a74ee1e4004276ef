//! What a program's allocator asks for, recorded on a card and asked again here: how much memory is held for it, and how large
//! the largest piece is that could still be had.
//!
//! The recordings (`tests/traces`, made by `tests/gpu/tools/record_traces.py`) are what PyTorch's caching allocator was asked
//! for, request by request, without its own cache: each one goes to the device. What that cache held at the same moments stands
//! in the recording.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use mica_command::size::show_bytes;
use mica_gpu::{DevicePtr, Gpu};

use super::device::Subject;
use super::{MIB, Scale};
use crate::report::{Line, Report};

/// Names and texts.
const TRACES: [(&str, &str); 3] = [
    (
        "training",
        include_str!("../../../../tests/traces/training.trace"),
    ),
    (
        "lengths",
        include_str!("../../../../tests/traces/lengths.trace"),
    ),
    (
        "inference",
        include_str!("../../../../tests/traces/inference.trace"),
    ),
];
/// Most of what is held that nobody asked for, in percent.
const MOST_WASTE: f64 = 3.0;
/// Least of what is free that can be had in one piece, in percent.
const LEAST_PIECE: f64 = 99.0;
/// Memory beside what a recording asks for at most: for the context, and for what is rounded up.
const ROOM_BYTES: u64 = 1024 * MIB;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Ask(u64),
    Free(usize),
}

/// What PyTorch said of itself at the peak or at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Own {
    requested_bytes: u64,
    reserved_bytes: u64,
    free_bytes: u64,
    largest_free_bytes: u64,
}

/// A recording.
#[derive(Debug, Default)]
struct Trace {
    what: String,
    events: Vec<Event>,
    peak: Own,
    end: Own,
    /// The number of the event after which most was asked for.
    peak_at: usize,
    peak_bytes: u64,
}

impl Trace {
    fn parse(text: &str) -> Result<Self> {
        let mut trace = Self::default();
        let (mut sizes, mut asked) = (Vec::new(), 0_u64);
        for (number, line) in text.lines().enumerate() {
            let wrong = || format!("line {} of a recording: {line:?}", number + 1);
            let Some(kind) = line.chars().next() else {
                continue;
            };
            let rest = &line[1..];
            match kind {
                '#' => trace.note(rest.trim()),
                // Segments are PyTorch's own answer to the requests.
                '*' | '/' => {}
                '+' => {
                    let bytes: u64 = rest.parse().with_context(wrong)?;
                    sizes.push(bytes);
                    asked += bytes;
                    trace.events.push(Event::Ask(bytes));
                }
                '-' => {
                    let index: usize = rest.parse().with_context(wrong)?;
                    let bytes = sizes.get(index).copied().with_context(wrong)?;
                    asked = asked.checked_sub(bytes).with_context(wrong)?;
                    trace.events.push(Event::Free(index));
                }
                _ => bail!(wrong()),
            }
            if asked > trace.peak_bytes {
                (trace.peak_bytes, trace.peak_at) = (asked, trace.events.len());
            }
        }
        ensure!(!trace.events.is_empty(), "a recording without requests");
        Ok(trace)
    }

    fn note(&mut self, text: &str) {
        let figures = |text: &str| {
            let words: Vec<&str> = text.split_whitespace().collect();
            let value = |name: &str| {
                let at = words.iter().position(|word| *word == name)?;
                words.get(at + 1)?.parse().ok()
            };
            Own {
                requested_bytes: value("requested").unwrap_or(0),
                reserved_bytes: value("reserved").unwrap_or(0),
                free_bytes: value("free").unwrap_or(0),
                largest_free_bytes: value("largest_free").unwrap_or(0),
            }
        };
        match text.split_once(": ") {
            Some(("peak", rest)) => self.peak = figures(rest),
            Some(("end", rest)) => self.end = figures(rest),
            _ if self.what.is_empty() => text.clone_into(&mut self.what),
            _ => {}
        }
    }
}

/// What a device held for a recording.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// Where most was asked for.
    peak_bytes: u64,
    end_bytes: u64,
    /// Mean over all requests, in percent of what was held.
    mean_waste: f64,
    /// Of what was held at the end, free in pools: no other request of any size could have it.
    pooled_free_bytes: u64,
    seconds: f64,
}

/// Asks a device for all of it. What it holds is told by its own figure of free memory, where `looks` says so after each request.
fn replay(device: &dyn Gpu, subject: &Subject, trace: &Trace, looks: bool) -> Result<Held> {
    let free = || -> Result<u64> { Ok(device.memory_info()?.0) };
    let before = free()?;
    let mut live: HashMap<usize, DevicePtr> = HashMap::new();
    let (mut asked, mut sizes, mut held) = (0_u64, Vec::new(), Held::default());
    let (mut sum, mut looked) = (0.0, 0_u32);
    let began = Instant::now();
    for (number, event) in trace.events.iter().enumerate() {
        match *event {
            Event::Ask(bytes) => {
                live.insert(sizes.len(), device.memory_alloc(subject.context, bytes)?);
                sizes.push(bytes);
                asked += bytes;
            }
            Event::Free(index) => {
                let address = live.remove(&index).context("freed twice")?;
                device.memory_free(subject.context, address)?;
                asked -= sizes[index];
            }
        }
        if number + 1 == trace.peak_at {
            held.peak_bytes = before - free()?;
        }
        if looks {
            let now = before - free()?;
            sum += percent(now.saturating_sub(asked), now);
            looked += 1;
        }
    }
    held.seconds = began.elapsed().as_secs_f64();
    held.end_bytes = before - free()?;
    held.mean_waste = sum / f64::from(looked.max(1));
    let sums = device.memory_sums();
    held.pooled_free_bytes = sums.pool_held_bytes.saturating_sub(sums.pool_given_bytes);
    for address in live.into_values() {
        device.memory_free(subject.context, address)?;
    }
    device.trim();
    Ok(held)
}

fn percent(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => 100.0 * part as f64 / whole as f64,
    }
}

pub(super) fn traces(scale: &Scale, report: &mut Report) -> Result<()> {
    for (name, text) in TRACES {
        let trace = Trace::parse(text).with_context(|| format!("the recording {name}"))?;
        one(name, &trace, scale, report)?;
    }
    Ok(())
}

fn one(name: &str, trace: &Trace, scale: &Scale, report: &mut Report) -> Result<()> {
    let subject = Subject::open(scale.gpu, trace.peak_bytes + ROOM_BYTES)?;
    let swappable = &*subject.swappable;
    let bare = replay(&*subject.plain, &subject, trace, false)?;
    let timed = replay(swappable, &subject, trace, false)?;
    let held = replay(swappable, &subject, trace, true)?;
    let wasted = |held: u64| percent(held.saturating_sub(trace.peak_bytes), held);
    let waste = wasted(held.peak_bytes);
    let torch = percent(
        trace
            .peak
            .reserved_bytes
            .saturating_sub(trace.peak.requested_bytes),
        trace.peak.reserved_bytes,
    );
    report.add(Line {
        what: format!(
            "{name}: held for {} at the peak and not asked for",
            show_bytes(trace.peak_bytes)
        ),
        native: format!(
            "PyTorch {torch:.2} %, the driver {:.2} %",
            wasted(bare.peak_bytes)
        ),
        mica: format!("{waste:.2} %"),
        goal: format!("≤ {MOST_WASTE} %"),
        reached: Some(waste <= MOST_WASTE),
    });
    let requests = trace.events.len();
    report.row(
        &format!("{name}: the same, mean over {requests} requests"),
        "-".into(),
        format!("{:.2} %", held.mean_waste),
        "-",
        None,
    );
    largest_piece(name, trace, &held, report);
    let each = |seconds: f64| 1e6 * seconds / requests as f64;
    report.row(
        &format!("{name}: a request"),
        format!("the driver {:.2} µs", each(bare.seconds)),
        format!("{:.2} µs", each(timed.seconds)),
        "-",
        None,
    );
    Ok(())
}

fn largest_piece(name: &str, trace: &Trace, held: &Held, report: &mut Report) {
    // Of as much memory as PyTorch has at the end.
    let total = trace.end.reserved_bytes.max(held.end_bytes);
    let device_free = total - held.end_bytes;
    let piece = percent(device_free, device_free + held.pooled_free_bytes);
    let torch = percent(trace.end.largest_free_bytes, trace.end.free_bytes);
    report.add(Line {
        what: format!(
            "{name}: largest free piece at the end, of {} free",
            show_bytes(device_free + held.pooled_free_bytes)
        ),
        native: format!("PyTorch {torch:.1} %"),
        mica: format!("{piece:.2} %"),
        goal: format!("≥ {LEAST_PIECE} %"),
        reached: Some(piece >= LEAST_PIECE),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_are_read_with_what_pytorch_said_of_itself() {
        let text = "# small\n# PyTorch 2\n# peak: requested 30 allocated 40 reserved 50 by_trace 30\n# end: requested 10 allocated 20 \
                    reserved 50 free 30 largest_free 20 by_trace 10\n*50\n+10\n+20\n-1\n";
        let trace = Trace::parse(text).unwrap();
        assert_eq!(
            (&*trace.what, trace.peak_bytes, trace.peak_at),
            ("small", 30, 2)
        );
        assert_eq!(
            trace.events,
            [Event::Ask(10), Event::Ask(20), Event::Free(1)]
        );
        assert_eq!(
            (trace.peak.reserved_bytes, trace.end.largest_free_bytes),
            (50, 20)
        );
        for wrong in ["", "+x", "-0", "+1\n-0\n-0", "?1"] {
            assert!(Trace::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn recordings_ask_for_as_much_as_pytorch_says() {
        for (name, text) in TRACES {
            let trace = Trace::parse(text).unwrap();
            assert_eq!(trace.peak_bytes, trace.peak.requested_bytes, "{name}");
        }
    }
}
