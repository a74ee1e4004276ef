//! Reads records while the program writes them.

use std::fs::File;

use anyhow::Result;
use mica_check::report::Suppressions;
use mica_check::{Finding, Record};

use super::frames::Stacks;
use crate::follower::{Follower, Lines};

/// What findings are called that are about streams, events and the like.
pub(super) const OBJECT: &str = "object";
/// The longest line that makes sense.
const LONGEST_LINE: usize = 1 << 20;

/// What the records said.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) findings: Vec<Finding>,
    pub(super) suppressed: usize,
    /// Launches that ended.
    pub(super) kernels: u64,
    /// Allocations that were made.
    pub(super) allocations: u64,
    /// Programs that have said what they have not freed, and those that could not because a kernel had faulted.
    pub(super) ended: u64,
    pub(super) faulted: u64,
    /// Lines that are not records: the program can write into the file too.
    pub(super) unreadable: u64,
}

/// Begins reading what is appended to a file; `show` is called for every finding that is not suppressed.
pub(super) fn start(
    file: File,
    suppressions: Suppressions,
    show: impl Fn(&Finding) + Send + 'static,
) -> Result<Follower<Seen>> {
    let reader = Reader {
        stacks: Stacks::default(),
        suppressions,
        seen: Seen::default(),
    };
    let reader = (Lines::new(file, LONGEST_LINE), reader);
    let read = move |(lines, reader): &mut (Lines, Reader)| {
        lines.read(|line| reader.take(line, &show));
    };
    Follower::start("check-report", reader, read, |(_, reader)| reader.seen)
}

struct Reader {
    stacks: Stacks,
    suppressions: Suppressions,
    seen: Seen,
}

impl Reader {
    fn take(&mut self, line: &[u8], show: &impl Fn(&Finding)) {
        let Ok(record) = serde_json::from_slice(line) else {
            self.seen.unreadable += 1;
            return;
        };
        match record {
            Record::Allocation {
                address,
                what,
                frames,
                ..
            } => {
                self.seen.allocations += 1;
                self.stacks.add(what, address, frames);
            }
            Record::Ended { faulted: false } => self.seen.ended += 1,
            Record::Ended { faulted: true } => self.seen.faulted += 1,
            Record::Kernel { .. } => self.seen.kernels += 1,
            Record::Finding(mut finding) => {
                let is_object = finding.kind == OBJECT;
                if let Some(allocation) = &mut finding.allocation {
                    // Memory is known by its address alone: a fault does not say what kind it is.
                    let what = if is_object { &*allocation.what } else { "" };
                    allocation.stack = self.stacks.of(what, allocation.address);
                }
                self.add(finding, show);
            }
        }
    }

    fn add(&mut self, finding: Finding, show: &impl Fn(&Finding)) {
        if self.suppressions.hide(&finding) {
            self.seen.suppressed += 1;
            return;
        }
        let same = |known: &&mut Finding| known.is_same(&finding);
        if let Some(known) = self.seen.findings.iter_mut().find(same) {
            // A later launch of the same kernel: counted, not shown again.
            known.count = known.count.saturating_add(finding.count);
            return;
        }
        show(&finding);
        self.seen.findings.push(finding);
    }
}
