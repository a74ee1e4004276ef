//! `--leaks` of `mica run` and `mica exec`: what a program had not freed when it ended, and who had allocated it.
//!
//! The library in the program remembers the callers of each allocation and tells what is left after the program's own exit
//! handlers. It works on every GPU, in isolated mode.

use std::collections::BTreeMap;

use anyhow::Result;
use mica_check::Finding;
use mica_check::report::Suppressions;
use mica_command::size::show_bytes;

use super::follow::{self, Seen};
use super::{CheckEnvironment, report_file};

/// Most groups that are told.
const MOST_GROUPS: usize = 20;

/// Runs a program by `run`, and tells what it has not freed; its exit code.
pub(crate) fn around(run: impl FnOnce(CheckEnvironment) -> Result<i32>) -> Result<i32> {
    let (file, environment) = report_file("leakcheck".to_owned())?;
    let follower = follow::start(file, Suppressions::default(), |_| {})?;
    let code = run(environment);
    let seen = follower.finish();
    // A program that did not start has no report.
    let code = code?;
    for line in report(&seen) {
        errln!("{line}");
    }
    Ok(code)
}

fn report(seen: &Seen) -> Vec<String> {
    if seen.findings.is_empty() {
        let nothing = match (seen.allocations, seen.ended, seen.faulted) {
            (0, _, _) => "the program allocated no memory",
            (_, _, 1..) => "not known: after the fault of a kernel a program can free nothing",
            (_, 0, 0) => "not known: the program ended before it could say what it had not freed",
            (_, _, 0) => "none, all memory was freed",
        };
        return vec![format!("mica: leaks: {nothing}")];
    }
    let bytes = |finding: &Finding| finding.allocation.as_ref().map_or(0, |a| a.bytes);
    let count = match seen.findings.len() {
        1 => "1 allocation was".to_owned(),
        n => format!("{n} allocations were"),
    };
    let all = show_bytes(seen.findings.iter().map(bytes).sum());
    let mut lines = vec![format!("mica: leaks: {count} not freed, {all} in all")];
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

/// Allocations of one kind that were made at one place.
struct Group<'a> {
    what: &'a str,
    stack: &'a [String],
    pieces: u64,
    bytes: u64,
}

impl Group<'_> {
    fn line(&self) -> String {
        let bytes = show_bytes(self.bytes);
        let pieces = match self.pieces {
            1 => String::new(),
            n => format!(" in {n} pieces"),
        };
        let made = if self.stack.is_empty() {
            ""
        } else {
            ", allocated at"
        };
        format!("  {bytes} of {}{pieces}{made}", self.what)
    }
}

/// The largest first.
fn groups(findings: &[Finding]) -> Vec<Group<'_>> {
    let mut by_place: BTreeMap<(&str, &[String]), (u64, u64)> = BTreeMap::new();
    for allocation in findings.iter().filter_map(|one| one.allocation.as_ref()) {
        let what = match allocation.what.as_str() {
            "" => "memory",
            what => what,
        };
        let (pieces, bytes) = by_place.entry((what, &allocation.stack)).or_default();
        *pieces += 1;
        *bytes += allocation.bytes;
    }
    let group = |((what, stack), (pieces, bytes))| Group {
        what,
        stack,
        pieces,
        bytes,
    };
    let mut groups: Vec<Group<'_>> = by_place.into_iter().map(group).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.bytes));
    groups
}

#[cfg(test)]
mod tests {
    use mica_check::{Allocation, AllocationState, Severity, Tool};

    use super::*;

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
        assert!(told(3, 1, 0).ends_with("none, all memory was freed"));
        assert!(told(0, 1, 0).ends_with("allocated no memory"));
        assert!(told(3, 0, 0).contains("ended before it could say"));
        assert!(told(3, 1, 1).contains("fault"));
    }
}
