//! `--leaks` of `mica run` and `mica exec`: what a program had not freed or destroyed when it ended, and who had made it.
//!
//! The library in the program remembers the callers that made memory, streams, events, modules, arrays, graphs and pools,
//! and tells what is left after the program's own exit handlers, as records of `mica check`. It works on every GPU, in
//! isolated mode.

use std::collections::BTreeMap;

use anyhow::Result;
use mica_check::report::Suppressions;
use mica_check::{Allocation, Finding};
use mica_command::size::show_bytes;

use super::follow::{self, OBJECT, Seen};
use super::{CheckEnvironment, report_file, write};
use crate::args::WatchArgs;

/// Most groups that are told.
const MOST_GROUPS: usize = 20;

/// Runs a program by `run`, and tells what it has not freed; its exit code, or the one that was asked for if it ended well
/// and left something.
pub(crate) fn around(
    args: &WatchArgs,
    run: impl FnOnce(CheckEnvironment) -> Result<i32>,
) -> Result<i32> {
    if let Some(path) = &args.leaks_json {
        // What would fail at the end fails before the program runs.
        write(path, "")?;
    }
    let (file, environment) = report_file("leakcheck,objects".to_owned())?;
    let follower = follow::start(file, Suppressions::default(), |_| {})?;
    let code = run(environment);
    let seen = follower.finish();
    // A program that did not start has no report.
    let code = code?;
    for line in report(&seen) {
        errln!("{line}");
    }
    if let Some(path) = &args.leaks_json {
        write(path, &serde_json::to_string_pretty(&json(&seen))?)?;
    }
    Ok(match (code, args.leaks_exitcode) {
        (0, Some(wanted)) if verdict(&seen) != Verdict::Clean => wanted,
        _ => code,
    })
}

/// What can be said of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Clean,
    Leaks,
    /// It could not tell.
    Unknown,
}

fn verdict(seen: &Seen) -> Verdict {
    match (
        seen.findings.len(),
        seen.allocations,
        seen.ended,
        seen.faulted,
    ) {
        (1.., ..) => Verdict::Leaks,
        (0, 0, _, _) => Verdict::Clean,
        (0, _, _, 1..) | (0, _, 0, 0) => Verdict::Unknown,
        (0, _, _, 0) => Verdict::Clean,
    }
}

/// The report for programs: the same facts, one by one.
fn json(seen: &Seen) -> serde_json::Value {
    let left = || {
        seen.findings
            .iter()
            .filter_map(|one| Some((one, one.allocation.as_ref()?)))
    };
    let leaks: Vec<_> = left()
        .map(|(finding, one)| {
            serde_json::json!({
                "kind": if is_object(finding) { "object" } else { "memory" },
                "what": what(one),
                "address": one.address,
                "bytes": one.bytes,
                "made_seconds": one.made_ms.map(|ms| ms as f64 / 1e3),
                "stack": one.stack,
            })
        })
        .collect();
    serde_json::json!({
        "verdict": match verdict(seen) {
            Verdict::Clean => "clean",
            Verdict::Leaks => "leaks",
            Verdict::Unknown => "unknown",
        },
        "made": seen.allocations,
        "bytes": left().filter(|(finding, _)| !is_object(finding)).map(|(_, one)| one.bytes).sum::<u64>(),
        "leaks": leaks,
    })
}

fn is_object(finding: &Finding) -> bool {
    finding.kind == OBJECT
}

fn what(allocation: &Allocation) -> &str {
    match allocation.what.as_str() {
        "" => "memory",
        what => what,
    }
}

fn report(seen: &Seen) -> Vec<String> {
    if seen.findings.is_empty() {
        let nothing = match (seen.allocations, seen.ended, seen.faulted) {
            (0, _, _) => "the program allocated no memory and made no objects",
            (_, _, 1..) => "not known: after the fault of a kernel a program can free nothing",
            (_, 0, 0) => "not known: the program ended before it could say what it had not freed",
            (_, _, 0) => "none, all memory was freed and all objects destroyed",
        };
        return vec![format!("mica: leaks: {nothing}")];
    }
    let mut lines = vec![headline(&seen.findings)];
    let groups = groups(&seen.findings);
    for group in groups.iter().take(MOST_GROUPS) {
        lines.push(group.line());
        let frames = group.stack.iter();
        lines.extend(frames.map(|frame| format!("      {frame}")));
    }
    if let Some(more @ 1..) = groups.len().checked_sub(MOST_GROUPS) {
        lines.push(format!("  and {more} more places"));
    }
    lines
}

fn headline(findings: &[Finding]) -> String {
    let (objects, memory): (Vec<_>, Vec<_>) = findings.iter().partition(|one| is_object(one));
    let bytes = |one: &&Finding| one.allocation.as_ref().map_or(0, |a| a.bytes);
    let all = show_bytes(memory.iter().map(bytes).sum());
    let mut parts = Vec::new();
    match memory.len() {
        0 => {}
        1 => parts.push(format!("1 allocation was not freed, {all} in all")),
        n => parts.push(format!("{n} allocations were not freed, {all} in all")),
    }
    match objects.len() {
        0 => {}
        1 => parts.push("1 object was not destroyed".to_owned()),
        n => parts.push(format!("{n} objects were not destroyed")),
    }
    format!("mica: leaks: {}", parts.join("; "))
}

/// What was made at one place, of one kind.
struct Group<'a> {
    what: &'a str,
    is_object: bool,
    stack: &'a [String],
    pieces: u64,
    bytes: u64,
    /// When the first of them was made.
    first_ms: Option<u64>,
}

impl Group<'_> {
    fn line(&self) -> String {
        let (bytes, what, n) = (show_bytes(self.bytes), self.what, self.pieces);
        let it = match (self.is_object, n) {
            (true, 1) => what.to_owned(),
            (true, n) => format!("{what}: {n} of them"),
            (false, 1) => format!("{bytes} of {what}"),
            (false, n) => format!("{bytes} of {what} in {n} pieces"),
        };
        let when = match (self.first_ms, n) {
            (None, _) => String::new(),
            (Some(ms), 1) => format!(" after {:.1} s", ms as f64 / 1e3),
            (Some(ms), _) => format!(", the first after {:.1} s", ms as f64 / 1e3),
        };
        let verb = if self.is_object { "made" } else { "allocated" };
        match (self.stack.is_empty(), when.is_empty()) {
            (true, true) => format!("  {it}"),
            (true, false) => format!("  {it}, {verb}{when}"),
            (false, _) if n > 1 => format!("  {it}{when}, {verb} at"),
            (false, _) => format!("  {it}, {verb}{when} at"),
        }
    }
}

/// Memory first, and the largest first.
fn groups(findings: &[Finding]) -> Vec<Group<'_>> {
    type Key<'a> = (bool, &'a str, &'a [String]);
    let mut by_place: BTreeMap<Key<'_>, Group<'_>> = BTreeMap::new();
    for finding in findings {
        let Some(one) = &finding.allocation else {
            continue;
        };
        let (is_object, what) = (is_object(finding), what(one));
        let key = (is_object, what, one.stack.as_slice());
        let group = by_place.entry(key).or_insert(Group {
            what,
            is_object,
            stack: &one.stack,
            pieces: 0,
            bytes: 0,
            first_ms: one.made_ms,
        });
        group.pieces += 1;
        group.bytes += one.bytes;
        group.first_ms = match (group.first_ms, one.made_ms) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
    let mut groups: Vec<Group<'_>> = by_place.into_values().collect();
    groups.sort_by_key(|group| {
        (
            group.is_object,
            std::cmp::Reverse((group.bytes, group.pieces)),
        )
    });
    groups
}

#[cfg(test)]
mod tests {
    use mica_check::{Allocation, AllocationState, Severity, Tool};

    use super::*;

    fn object(address: u64, what: &str, made_ms: u64) -> Finding {
        let mut finding = leak(address, 0, "c+0x3");
        finding.kind = OBJECT.into();
        if let Some(allocation) = &mut finding.allocation {
            allocation.what = what.into();
            allocation.made_ms = Some(made_ms);
        }
        finding
    }

    fn leak(address: u64, bytes: u64, place: &str) -> Finding {
        Finding {
            tool: Tool::Leakcheck,
            kind: "leak".into(),
            severity: Severity::Error,
            message: String::new(),
            kernel: String::new(),
            space: String::new(),
            address: None,
            parties: vec![],
            allocation: Some(Allocation {
                address,
                bytes,
                state: AllocationState::Live,
                distance: 0,
                what: "device memory".into(),
                made_ms: None,
                stack: vec![place.into()],
            }),
            count: 1,
        }
    }

    #[test]
    fn leaks_of_one_place_are_told_together_and_the_largest_first() {
        let seen = Seen {
            findings: vec![
                leak(1, 512, "a+0x1"),
                leak(2, 4096, "b+0x2"),
                leak(3, 512, "a+0x1"),
            ],
            allocations: 9,
            ended: 1,
            ..Seen::default()
        };
        let told = report(&seen);
        assert_eq!(
            told,
            [
                "mica: leaks: 3 allocations were not freed, 5 KiB in all",
                "  4 KiB of device memory, allocated at",
                "      b+0x2",
                "  1 KiB of device memory in 2 pieces, allocated at",
                "      a+0x1",
            ]
        );
    }

    #[test]
    fn objects_are_told_after_memory_with_the_time_when_they_were_made() {
        let seen = Seen {
            findings: vec![
                object(7, "stream", 2500),
                object(8, "stream", 1200),
                object(9, "event", 40),
                leak(1, 512, "a+0x1"),
            ],
            allocations: 9,
            ended: 1,
            ..Seen::default()
        };
        assert_eq!(
            report(&seen),
            [
                "mica: leaks: 1 allocation was not freed, 512 B in all; 3 objects were not destroyed",
                "  512 B of device memory, allocated at",
                "      a+0x1",
                "  stream: 2 of them, the first after 1.2 s, made at",
                "      c+0x3",
                "  event, made after 0.0 s at",
                "      c+0x3",
            ]
        );
        let told = json(&seen);
        assert_eq!(told["verdict"], "leaks");
        assert_eq!(told["bytes"], 512);
        assert_eq!(told["leaks"][0]["kind"], "object");
        assert_eq!(told["leaks"][0]["made_seconds"], 2.5);
        assert_eq!(told["leaks"][3]["made_seconds"], serde_json::Value::Null);
    }

    #[test]
    fn only_what_said_that_nothing_is_left_is_clean() {
        let of = |allocations, ended, faulted| {
            verdict(&Seen {
                allocations,
                ended,
                faulted,
                ..Seen::default()
            })
        };
        assert_eq!([of(0, 0, 0), of(0, 1, 0), of(3, 1, 0)], [Verdict::Clean; 3]);
        assert_eq!([of(3, 0, 0), of(3, 1, 1)], [Verdict::Unknown; 2]);
    }

    #[test]
    fn a_program_that_could_not_tell_is_not_called_clean() {
        let told = |allocations, ended, faulted| {
            let seen = Seen {
                allocations,
                ended,
                faulted,
                ..Seen::default()
            };
            report(&seen).remove(0)
        };
        assert!(told(3, 1, 0).ends_with("all memory was freed and all objects destroyed"));
        assert!(told(0, 1, 0).ends_with("allocated no memory and made no objects"));
        assert!(told(3, 0, 0).contains("ended before it could say"));
        assert!(told(3, 1, 1).contains("fault"));
    }
}
