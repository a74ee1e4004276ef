//! Keeps one virtual GPU within a limit of memory: the device's, or the host's that its workers hold besides.
//!
//! Owns the sum: what was granted to all its processes never exceeds the limit. A process holds credit in
//! its page and takes from it with one atomic; what it has not taken can be recalled at any moment.
//! Does not know sockets, waiting or who may ask.
//!
//! ```text
//!   limit ─┬─ granted to process 1 ─┬─ in use            (the process's business)
//!          │                        └─ credit            (recallable, compare-and-swap)
//!          ├─ granted to process 2 …
//!          ├─ granted by an earlier daemon to a process that has not come back yet
//!          ├─ unattributed: seen by the driver, charged by nobody
//!          └─ available
//! ```

mod absent;
mod account;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use mica_limits::{SharedPage, vgpu_host_bytes};
use mica_wire::host::page;

use crate::journal::{Entry, Journal};
use crate::placement::size;
use absent::Absent;
use account::Account;

/// Credit of device memory is granted in steps of this size while there is plenty.
const STEPS: [u64; 1] = [64 << 20];
/// Step of grants of host memory, which many workers take in small pieces: smaller while less is left.
const HOST_STEPS: [u64; 3] = [64 << 20, 1 << 20, 64 << 10];

/// A request that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} more do not fit: {} of {} are in use{}",
    size(*asked_bytes),
    size(*used_bytes),
    size(*limit_bytes),
    self.by_whom()
)]
pub(crate) struct Full {
    /// Asked for.
    pub(crate) asked_bytes: u64,
    /// In use.
    pub(crate) used_bytes: u64,
    /// Limit.
    pub(crate) limit_bytes: u64,
    /// Processes.
    pub(crate) processes: usize,
    /// Held by the driver beyond what was charged.
    pub(crate) unattributed_bytes: u64,
}

impl Full {
    fn by_whom(&self) -> String {
        let mut text = match self.processes {
            0 | 1 => String::new(),
            many => format!(" by {many} processes"),
        };
        if self.unattributed_bytes > 0 {
            let bytes = size(self.unattributed_bytes);
            text += &format!(", and {bytes} more by the driver for them");
        }
        text
    }
}

/// The books of one virtual GPU.
#[derive(Debug)]
pub(crate) struct Ledger {
    account: page::Account,
    limit_bytes: u64,
    accounts: BTreeMap<u64, Account>,
    peak_bytes: u64,
    charge_unattributed: bool,
    denied_by_dead: u64,
    journal: Arc<Journal>,
    absent: BTreeMap<u64, Absent>,
}

impl Ledger {
    /// Books with nothing granted.
    pub(crate) fn new(limit_bytes: u64, charge_unattributed: bool, journal: Arc<Journal>) -> Self {
        Self {
            account: page::Account::Device,
            journal,
            absent: BTreeMap::new(),
            limit_bytes,
            accounts: BTreeMap::new(),
            peak_bytes: 0,
            charge_unattributed,
            denied_by_dead: 0,
        }
    }

    /// A ledger of the host memory that workers hold for programs of a virtual GPU with this limit of device memory.
    pub(crate) fn of_host(memory_limit_bytes: u64, journal: Arc<Journal>) -> Self {
        let limit_bytes = vgpu_host_bytes(memory_limit_bytes);
        Self {
            account: page::Account::Host,
            ..Self::new(limit_bytes, false, journal)
        }
    }

    /// Opens an account; a process that was known to an earlier daemon brings what it was granted.
    pub(crate) fn open(&mut self, entry: Entry, page: Arc<SharedPage>) {
        let account = self.account;
        let entry = Entry { account, ..entry };
        let slot = self.journal.take_slot();
        self.journal.write(slot, &entry);
        page.limit_of(account).store(self.limit_bytes, Release);
        page.granted_of(account).store(entry.granted_bytes, Release);
        self.accounts.insert(
            entry.client,
            Account {
                page,
                granted_bytes: entry.granted_bytes,
                unattributed_bytes: 0,
                out_bytes: 0,
                driver_bytes: None,
                unlisted: 0,
                used_before_look: 0,
                slot,
                entry,
            },
        );
    }

    /// Closes an account; everything it held is available again.
    pub(crate) fn close(&mut self, client: u64) {
        self.note_peak();
        if let Some(account) = self.accounts.remove(&client) {
            let denied = account.memory().denied.load(Acquire);
            self.denied_by_dead = self.denied_by_dead.saturating_add(denied);
            self.journal.clear(account.slot);
        }
    }

    /// Closes every account: the virtual GPU is removed.
    pub(crate) fn close_all(&mut self) {
        for (_, account) in std::mem::take(&mut self.accounts) {
            self.journal.clear(account.slot);
        }
        for (_, absent) in std::mem::take(&mut self.absent) {
            self.journal.clear(absent.slot);
        }
    }

    /// The limit.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Granted to all processes.
    pub(crate) fn granted_bytes(&self) -> u64 {
        let present: u64 = self.accounts.values().map(|a| a.granted_bytes).sum();
        present + self.absent_bytes()
    }

    /// Granted and not recallable now: in use, or about to be.
    pub(crate) fn used_bytes(&self) -> u64 {
        let present: u64 = self.accounts.values().map(Account::used_bytes).sum();
        present + self.absent_bytes()
    }

    /// What one process uses.
    pub(crate) fn used_by(&self, client: u64) -> u64 {
        self.accounts.get(&client).map_or(0, Account::used_bytes)
    }

    /// Most ever in use, as far as it was looked at.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.peak_bytes.max(self.used_bytes())
    }

    /// Looks at the use now, for the peak.
    pub(crate) fn note_peak(&mut self) {
        let own = self
            .accounts
            .values()
            .map(|a| {
                a.memory()
                    .peak_bytes
                    .load(Acquire)
                    .min(a.granted_bytes.max(self.limit_bytes))
            })
            .max()
            .unwrap_or(0);
        self.peak_bytes = self.peak_bytes.max(self.used_bytes()).max(own);
    }

    /// Allocations refused, living and dead processes together.
    pub(crate) fn denied_total(&self) -> u64 {
        // Any value may stand in a page.
        self.accounts
            .values()
            .map(|a| a.memory().denied.load(Acquire))
            .fold(self.denied_by_dead, u64::saturating_add)
    }

    /// The driver is about to be asked what the processes hold.
    pub(crate) fn begin_look(&mut self) {
        self.accounts.values_mut().for_each(Account::begin_look);
    }

    /// Books what the driver reports beyond what a process was charged.
    pub(crate) fn end_look(&mut self, client: u64, driver_bytes: u64) {
        if let Some(account) = self.accounts.get_mut(&client) {
            account.end_look(driver_bytes);
        }
    }

    /// The driver was asked and does not know the process.
    pub(crate) fn not_listed(&mut self, client: u64) {
        if let Some(account) = self.accounts.get_mut(&client) {
            account.not_listed();
        }
    }

    /// What the driver reported for a process last, if it ever did.
    pub(crate) fn driver_bytes(&self, client: u64) -> Option<u64> {
        self.accounts.get(&client)?.driver_bytes
    }

    /// Seen by the driver, charged by nobody.
    pub(crate) fn unattributed_bytes(&self) -> u64 {
        self.accounts.values().map(|a| a.unattributed_bytes).sum()
    }

    /// As above, for one process.
    pub(crate) fn unattributed_by(&self, client: u64) -> u64 {
        self.accounts
            .get(&client)
            .map_or(0, |a| a.unattributed_bytes)
    }

    /// What can be granted without recalling anything.
    pub(crate) fn available_bytes(&self) -> u64 {
        let unattributed = if self.charge_unattributed {
            self.unattributed_bytes()
        } else {
            0
        };
        self.limit_bytes
            .saturating_sub(self.granted_bytes())
            .saturating_sub(unattributed)
    }

    /// Grants at least `need_bytes` to a process and returns how much, or nothing at all.
    pub(crate) fn grant(&mut self, client: u64, need_bytes: u64) -> Result<u64, Full> {
        self.grant_within(client, need_bytes, u64::MAX)
    }

    /// Whether the limit leaves a process these bytes. Unused credit of other processes is recalled for them.
    pub(crate) fn check(&mut self, client: u64, need_bytes: u64) -> Result<(), Full> {
        if self.available_bytes() < need_bytes {
            self.recall(need_bytes - self.available_bytes(), Some(client));
        }
        match self.available_bytes() < need_bytes {
            true => Err(self.full(need_bytes)),
            false => Ok(()),
        }
    }

    /// Credit of a process.
    pub(crate) fn credit_of(&self, client: u64) -> u64 {
        self.accounts.get(&client).map_or(0, Account::credit_bytes)
    }

    /// Granted to one process.
    pub(crate) fn granted_to(&self, client: u64) -> u64 {
        self.accounts
            .get(&client)
            .map_or(0, |account| account.granted_bytes)
    }

    /// Notes how many of a process's charged bytes are in host memory.
    pub(crate) fn set_out(&mut self, client: u64, bytes: u64) {
        if let Some(account) = self.accounts.get_mut(&client) {
            account.out_bytes = bytes;
        }
    }

    /// As [`Ledger::grant`], but no more than `most_bytes` unless more are needed.
    pub(crate) fn grant_within(
        &mut self,
        client: u64,
        need_bytes: u64,
        most_bytes: u64,
    ) -> Result<u64, Full> {
        let need_bytes = need_bytes.max(1);
        if self.available_bytes() < need_bytes {
            self.recall(need_bytes - self.available_bytes(), Some(client));
        }
        let available = self.available_bytes();
        let processes = self.accounts.len();
        let full = self.full(need_bytes);
        let Some(account) = self.accounts.get_mut(&client) else {
            return Err(full);
        };
        if available < need_bytes {
            return Err(full);
        }
        // Whole steps while every process could have some more; near the limit only what is needed, so
        // that no process sits on memory another one asks for.
        let steps = match self.account {
            page::Account::Device => &STEPS[..],
            page::Account::Host => &HOST_STEPS[..],
        };
        let in_steps_of = |step: &u64| {
            let stepped = need_bytes.next_multiple_of(*step);
            let plenty = stepped.saturating_add(*step * processes as u64) <= available;
            (plenty && stepped <= most_bytes).then_some(stepped)
        };
        let amount = steps.iter().find_map(in_steps_of).unwrap_or(need_bytes);
        account.granted_bytes += amount;
        account.entry.granted_bytes = account.granted_bytes;
        self.journal.write(account.slot, &account.entry);
        // The total first: if this daemon dies between the two stores its successor believes more is
        // granted than can be used, never less.
        let page = &account.page;
        page.granted_of(self.account)
            .store(account.granted_bytes, Release);
        let credit = &page.memory_of(self.account).credit_bytes;
        credit.fetch_add(amount, AcqRel);
        self.note_peak();
        Ok(amount)
    }

    /// Why these bytes cannot be granted.
    pub(crate) fn full(&self, asked_bytes: u64) -> Full {
        Full {
            asked_bytes,
            used_bytes: self.used_bytes(),
            limit_bytes: self.limit_bytes,
            processes: self.accounts.len(),
            unattributed_bytes: self.unattributed_bytes(),
        }
    }

    /// Grants as [`Ledger::grant`] does to a process that had so much credit when it asked. What it has freed since is its own
    /// already, and need not be granted.
    pub(crate) fn grant_beyond(
        &mut self,
        client: u64,
        need_bytes: u64,
        had_bytes: u64,
    ) -> Result<u64, Full> {
        let credit = self.accounts.get(&client).map_or(0, Account::credit_bytes);
        match need_bytes.saturating_sub(credit.saturating_sub(had_bytes)) {
            0 => Ok(need_bytes),
            rest => self.grant(client, rest),
        }
    }

    /// Takes unused credit back, up to `wanted_bytes`, from everybody but `except`; returns how much.
    pub(crate) fn recall(&mut self, wanted_bytes: u64, except: Option<u64>) -> u64 {
        let mut got = 0;
        for (id, account) in &mut self.accounts {
            if got >= wanted_bytes {
                break;
            }
            if Some(*id) != except {
                got += account.recall(wanted_bytes - got, &self.journal);
            }
        }
        got
    }

    /// Changes the limit of host memory with that of the device's. What workers hold beyond it stays until they let go.
    pub(crate) fn follow(&mut self, memory_limit_bytes: u64) {
        let _ = self.resize(vgpu_host_bytes(memory_limit_bytes), true);
    }

    /// Changes the limit.
    ///
    /// # Errors
    /// If more is in use and `drain` is not set; nothing changes then but unused credit may have been
    /// recalled.
    pub(crate) fn resize(&mut self, limit_bytes: u64, drain: bool) -> Result<(), Full> {
        let old = std::mem::replace(&mut self.limit_bytes, limit_bytes);
        self.trim();
        let granted = self.granted_bytes();
        if granted > limit_bytes && !drain {
            self.limit_bytes = old;
            return Err(Full {
                used_bytes: granted,
                limit_bytes,
                ..self.full(0)
            });
        }
        for account in self.accounts.values() {
            let limit = account.page.limit_of(self.account);
            limit.store(limit_bytes, Release);
        }
        Ok(())
    }

    /// Recalls credit while more is granted than the limit allows (after a resize, or as use the driver
    /// reports grows).
    pub(crate) fn trim(&mut self) {
        let unattributed = if self.charge_unattributed {
            self.unattributed_bytes()
        } else {
            0
        };
        let over = self
            .granted_bytes()
            .saturating_add(unattributed)
            .saturating_sub(self.limit_bytes);
        if over > 0 {
            self.recall(over, None);
        }
    }
}
