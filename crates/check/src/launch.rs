//! What was found in one launch: merged, sorted, bounded.

use std::sync::{Mutex, PoisonError};

use crate::finding::Finding;

/// Different findings that are kept of one launch; the rest is counted.
pub const MOST_FINDINGS: usize = 100;

/// The number of a block in its grid, along x, y, z.
pub type BlockNumber = u64;

/// What blocks of a launch have found so far.
#[derive(Debug, Default)]
pub struct LaunchFindings {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    findings: Vec<((BlockNumber, u32), Finding)>,
    left_out: u64,
}

impl LaunchFindings {
    /// Adds a finding of a thread. Of equal ones the lowest block and thread stays, so that the order in which
    /// blocks run does not matter.
    pub fn add(&self, block: BlockNumber, thread: u32, finding: Finding) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Kept { findings, left_out } = &mut *kept;
        let at = (block, thread);
        if let Some((first, known)) = (findings.iter_mut()).find(|(_, f)| f.key() == finding.key())
        {
            let count = known.count + finding.count;
            if at < *first {
                (*first, *known) = (at, finding);
            }
            known.count = count;
            return;
        }
        match findings.len() < MOST_FINDINGS {
            true => findings.push((at, finding)),
            false => *left_out += finding.count,
        }
    }

    /// All of them, in the order of blocks and threads, and how many were left out.
    pub fn take(&self) -> (Vec<Finding>, u64) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Kept { findings, left_out } = std::mem::take(&mut *kept);
        let mut findings = findings;
        findings.sort_by(|(a, x), (b, y)| {
            (x.tool, a, &x.kind)
                .cmp(&(y.tool, b, &y.kind))
                .then_with(|| x.key().2.cmp(&y.key().2))
        });
        (findings.into_iter().map(|(_, f)| f).collect(), left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Party, Place, Severity, Tool};

    fn finding(line: u32, block: u32) -> Finding {
        Finding {
            tool: Tool::Memcheck,
            kind: "out-of-bounds".into(),
            severity: Severity::Error,
            message: String::new(),
            kernel: "k".into(),
            space: "global".into(),
            address: None,
            parties: vec![Party {
                access: "read".into(),
                bytes: 4,
                block: [block, 0, 0],
                thread: [0; 3],
                place: Place {
                    line,
                    ..Place::default()
                },
            }],
            allocation: None,
            count: 1,
        }
    }

    #[test]
    fn order_of_arrival_does_not_matter() {
        let orders = [[2, 0, 1], [1, 2, 0], [0, 1, 2]];
        let seen = orders.map(|order| {
            let launch = LaunchFindings::default();
            for block in order {
                launch.add(u64::from(block), 0, finding(7, block));
                launch.add(u64::from(block), 0, finding(9, block));
            }
            launch.take()
        });
        assert_eq!(seen[0], seen[1]);
        assert_eq!(seen[1], seen[2]);
        let (findings, left_out) = &seen[0];
        assert_eq!((findings.len(), *left_out), (2, 0));
        assert_eq!(
            (findings[0].count, findings[0].parties[0].block),
            (3, [0, 0, 0])
        );
    }

    #[test]
    fn the_number_of_findings_is_bounded() {
        let launch = LaunchFindings::default();
        (0..1000).for_each(|line| launch.add(0, 0, finding(line, 0)));
        let (findings, left_out) = launch.take();
        assert_eq!((findings.len(), left_out), (MOST_FINDINGS, 900));
        assert_eq!(launch.take(), (vec![], 0));
    }
}
