//! What one process was granted.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use mica_limits::SharedPage;

use crate::journal::{Entry, Journal};

#[derive(Debug)]
pub(super) struct Account {
    pub(super) page: Arc<SharedPage>,
    pub(super) granted_bytes: u64,
    pub(super) unattributed_bytes: u64,
    pub(super) slot: u64,
    pub(super) entry: Entry,
}

impl Account {
    pub(super) fn used_bytes(&self) -> u64 {
        self.granted_bytes
            .saturating_sub(self.page.memory.credit_bytes.load(Acquire))
    }

    pub(super) fn recall(&mut self, wanted_bytes: u64, journal: &Journal) -> u64 {
        let credit = &self.page.memory.credit_bytes;
        let mut have = credit.load(Acquire);
        loop {
            // A client that wrote more into its page than it was granted gains nothing by it.
            let take = have.min(wanted_bytes).min(self.granted_bytes);
            if take == 0 {
                return 0;
            }
            match credit.compare_exchange_weak(have, have - take, AcqRel, Acquire) {
                Ok(_) => {
                    self.granted_bytes -= take;
                    let granted = &self.page.commands.granted_bytes;
                    granted.store(self.granted_bytes, Release);
                    self.entry.granted_bytes = self.granted_bytes;
                    journal.write(self.slot, &self.entry);
                    return take;
                }
                Err(now) => have = now,
            }
        }
    }
}
