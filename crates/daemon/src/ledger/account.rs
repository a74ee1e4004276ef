//! What one process was granted.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use mica_limits::SharedPage;
use mica_wire::host::page::Memory;

use crate::journal::{Entry, Journal};

#[derive(Debug)]
pub(super) struct Account {
    pub(super) page: Arc<SharedPage>,
    pub(super) granted_bytes: u64,
    pub(super) unattributed_bytes: u64,
    /// Charged bytes that are in host memory now.
    pub(super) out_bytes: u64,
    /// What the driver reported for the process last.
    pub(super) driver_bytes: Option<u64>,
    /// Looks in a row in which the driver did not name the process.
    pub(super) unlisted: u32,
    /// What was in use when the driver began to be asked.
    pub(super) used_before_look: u64,
    pub(super) slot: u64,
    pub(super) entry: Entry,
}

impl Account {
    /// The driver is about to be asked what the process holds.
    pub(super) fn begin_look(&mut self) {
        self.page.memory.window_peak_bytes.store(0, Release);
        self.used_before_look = self.used_bytes();
    }

    /// The driver's answer. Memory is charged before it is taken and given back after it is freed, so
    /// at the moment of the answer the process had been charged for no more than its peak since the
    /// look began, and for no less than it was at its ends: what is unattributed lies between. A process
    /// that allocates and frees all the time must not be held to a sum of two different moments.
    pub(super) fn end_look(&mut self, driver_bytes: u64) {
        let ends = [self.used_before_look, self.used_bytes()];
        let page_peak = self.page.memory.window_peak_bytes.load(Acquire);
        let most = page_peak.min(self.granted_bytes).max(ends[0]).max(ends[1]);
        let least = ends[0].min(ends[1]);
        let uncounted = self.page.memory.uncounted_bytes.load(Acquire);
        let uncounted = uncounted.saturating_add(self.out_bytes);
        let beyond = |charged: u64| driver_bytes.saturating_sub(charged.saturating_sub(uncounted));
        let bounds = [beyond(most), beyond(least)];
        self.unattributed_bytes = self.unattributed_bytes.clamp(bounds[0], bounds[1]);
        self.driver_bytes = Some(driver_bytes);
        self.unlisted = 0;
    }

    /// The driver does not name the process. One that it did name has ended its contexts, and holds nothing
    /// any more; once may be chance.
    pub(super) fn not_listed(&mut self) {
        self.unlisted += 1;
        if self.unlisted > 1 && self.driver_bytes.is_some() {
            self.driver_bytes = Some(0);
            self.unattributed_bytes = 0;
        }
    }

    /// The credit in the page.
    pub(super) fn memory(&self) -> &Memory {
        self.page.memory_of(self.entry.account)
    }

    /// Granted and not in use.
    pub(super) fn credit_bytes(&self) -> u64 {
        self.memory().credit_bytes.load(Acquire)
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.granted_bytes.saturating_sub(self.credit_bytes())
    }

    pub(super) fn recall(&mut self, wanted_bytes: u64, journal: &Journal) -> u64 {
        let page = Arc::clone(&self.page);
        let credit = &page.memory_of(self.entry.account).credit_bytes;
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
                    let granted = page.granted_of(self.entry.account);
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
