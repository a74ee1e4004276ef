//! Reads records while the program writes them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use mica_check::report::Suppressions;
use mica_check::{Finding, Record};

use super::frames::Stacks;

const PAUSE: Duration = Duration::from_millis(50);

/// What the records said.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) findings: Vec<Finding>,
    pub(super) suppressed: usize,
    /// Launches that ended.
    pub(super) kernels: u64,
    /// Lines that are no record: the program can write into the file too.
    pub(super) unreadable: u64,
}

/// A thread that reads what is appended to a file.
pub(super) struct Follower {
    thread: JoinHandle<Seen>,
    over: Arc<AtomicBool>,
}

impl Follower {
    /// Begins reading; `show` is called for every finding that is not suppressed.
    pub(super) fn start(
        file: File,
        suppressions: Suppressions,
        show: impl Fn(&Finding) + Send + 'static,
    ) -> Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let last = Arc::clone(&over);
        let read = move || {
            let mut reader = Reader {
                file,
                at: 0,
                rest: Vec::new(),
                stacks: Stacks::default(),
                suppressions,
                seen: Seen::default(),
            };
            loop {
                // Asked first, so that what was written before the end is read.
                let is_over = last.load(Ordering::Acquire);
                reader.read(&show);
                if is_over {
                    return reader.seen;
                }
                std::thread::sleep(PAUSE);
            }
        };
        let thread = std::thread::Builder::new()
            .name("check-report".into())
            .spawn(read)
            .context("a thread for the report")?;
        Ok(Self { thread, over })
    }

    /// Reads the rest.
    pub(super) fn finish(self) -> Seen {
        self.over.store(true, Ordering::Release);
        self.thread.join().unwrap_or_default()
    }
}

struct Reader {
    file: File,
    at: u64,
    /// The beginning of a line whose end was not written yet.
    rest: Vec<u8>,
    stacks: Stacks,
    suppressions: Suppressions,
    seen: Seen,
}

impl Reader {
    fn read(&mut self, show: &impl Fn(&Finding)) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(n @ 1..) = self.file.read_at(&mut buffer, self.at) {
            self.at += n as u64;
            self.rest.extend_from_slice(&buffer[..n]);
            while let Some(end) = self.rest.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                self.take(&line, show);
            }
        }
    }

    fn take(&mut self, line: &[u8], show: &impl Fn(&Finding)) {
        let Ok(record) = serde_json::from_slice(line) else {
            self.seen.unreadable += 1;
            return;
        };
        match record {
            Record::Allocation {
                address,
                bytes,
                frames,
            } => self.stacks.add(address, bytes, frames),
            Record::Kernel { .. } => self.seen.kernels += 1,
            Record::Finding(mut finding) => {
                if let Some(allocation) = &mut finding.allocation {
                    allocation.stack = self.stacks.of(allocation.address);
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
            known.count += finding.count;
            return;
        }
        show(&finding);
        self.seen.findings.push(finding);
    }
}
