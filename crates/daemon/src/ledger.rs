//! Keeps one virtual GPU within its memory limit.
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

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use mica_limits::SharedPage;

use crate::journal::{Entry, Journal};
use crate::registry::Watched;

/// Credit is granted in steps of this size while there is plenty.
pub(crate) const STEP_BYTES: u64 = 64 << 20;

/// A request that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{asked_bytes} bytes more do not fit: {used_bytes} of {limit_bytes} bytes are in use by {processes} processes, {unattributed_bytes} more by the driver for them"
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

#[derive(Debug)]
struct Account {
    page: Arc<SharedPage>,
    granted_bytes: u64,
    unattributed_bytes: u64,
    slot: u64,
    entry: Entry,
}

/// A process that an earlier daemon granted memory to.
#[derive(Debug)]
struct Absent {
    entry: Entry,
    slot: u64,
    process: Watched,
}

/// The books of one virtual GPU.
#[derive(Debug)]
pub(crate) struct Ledger {
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
            journal,
            absent: BTreeMap::new(),
            limit_bytes,
            accounts: BTreeMap::new(),
            peak_bytes: 0,
            charge_unattributed,
            denied_by_dead: 0,
        }
    }

    /// Opens an account; a process that was known to an earlier daemon brings what it was granted.
    pub(crate) fn open(&mut self, entry: Entry, page: Arc<SharedPage>) {
        let slot = self.journal.take_slot();
        self.journal.write(slot, &entry);
        page.commands.limit_bytes.store(self.limit_bytes, Release);
        page.commands
            .granted_bytes
            .store(entry.granted_bytes, Release);
        self.accounts.insert(
            entry.client,
            Account {
                page,
                granted_bytes: entry.granted_bytes,
                unattributed_bytes: 0,
                slot,
                entry,
            },
        );
    }

    /// Closes an account; everything it held is available again.
    pub(crate) fn close(&mut self, client: u64) {
        self.note_peak();
        if let Some(account) = self.accounts.remove(&client) {
            self.denied_by_dead += account.page.memory.denied.load(Acquire);
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

    /// Books what a living process was granted by an earlier daemon, until it comes back or dies: what it
    /// uses is in use whether or not it has said so yet.
    pub(crate) fn expect(&mut self, slot: u64, entry: Entry, process: Watched) {
        self.absent.insert(
            entry.client,
            Absent {
                entry,
                slot,
                process,
            },
        );
    }

    /// A process came back; what it was granted at most, if it was expected.
    pub(crate) fn returned(&mut self, client: u64) -> Option<u64> {
        let absent = self.absent.remove(&client)?;
        self.journal.clear(absent.slot);
        Some(absent.entry.granted_bytes)
    }

    /// Forgets expected processes that have died; returns whether any had.
    pub(crate) fn bury(&mut self) -> bool {
        let before = self.absent.len();
        let journal = &self.journal;
        self.absent.retain(|_, absent| {
            let alive = absent.process.alive();
            if !alive {
                journal.clear(absent.slot);
            }
            alive
        });
        self.absent.len() != before
    }

    /// Whether processes are expected back; those with this role, if one is given.
    pub(crate) fn expects(&self, role: Option<u32>) -> bool {
        self.absent
            .values()
            .any(|a| role.is_none_or(|role| role == a.entry.role))
    }

    /// The processes that are expected back.
    pub(crate) fn expected_pids(&self) -> impl Iterator<Item = u32> {
        self.absent.values().map(|absent| absent.entry.pid)
    }

    /// Ends the processes that are expected back.
    pub(crate) fn kill_expected(&self) {
        for absent in self.absent.values() {
            absent.process.kill();
        }
    }

    fn absent_bytes(&self) -> u64 {
        self.absent.values().map(|a| a.entry.granted_bytes).sum()
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
                a.page
                    .memory
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
        self.denied_by_dead
            + self
                .accounts
                .values()
                .map(|a| a.page.memory.denied.load(Acquire))
                .sum::<u64>()
    }

    /// Books what the driver reports beyond what a process was charged.
    pub(crate) fn set_unattributed(&mut self, client: u64, bytes: u64) {
        if let Some(account) = self.accounts.get_mut(&client) {
            account.unattributed_bytes = bytes;
        }
    }

    /// Seen by the driver, charged by nobody.
    pub(crate) fn unattributed_bytes(&self) -> u64 {
        self.accounts.values().map(|a| a.unattributed_bytes).sum()
    }

    /// The same for one process.
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
        let need_bytes = need_bytes.max(1);
        if self.available_bytes() < need_bytes {
            self.recall(need_bytes - self.available_bytes(), Some(client));
        }
        let available = self.available_bytes();
        let processes = self.accounts.len();
        let full = Full {
            asked_bytes: need_bytes,
            used_bytes: self.used_bytes(),
            limit_bytes: self.limit_bytes,
            processes,
            unattributed_bytes: self.unattributed_bytes(),
        };
        let Some(account) = self.accounts.get_mut(&client) else {
            return Err(full);
        };
        if available < need_bytes {
            return Err(full);
        }
        // Whole steps while every process could have some more; near the limit only what is needed, so
        // that no process sits on memory another one asks for.
        let stepped = need_bytes.next_multiple_of(STEP_BYTES);
        let plenty = stepped.saturating_add(STEP_BYTES * processes as u64) <= available;
        let amount = if plenty { stepped } else { need_bytes };
        account.granted_bytes += amount;
        account.entry.granted_bytes = account.granted_bytes;
        self.journal.write(account.slot, &account.entry);
        // The total first: if this daemon dies between the two stores its successor believes more is
        // granted than can be used, never less.
        let page = &account.page;
        page.commands
            .granted_bytes
            .store(account.granted_bytes, Release);
        page.memory.credit_bytes.fetch_add(amount, AcqRel);
        self.note_peak();
        Ok(amount)
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
                asked_bytes: 0,
                used_bytes: granted,
                limit_bytes,
                processes: self.accounts.len(),
                unattributed_bytes: self.unattributed_bytes(),
            });
        }
        for account in self.accounts.values() {
            account
                .page
                .commands
                .limit_bytes
                .store(limit_bytes, Release);
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

impl Account {
    fn used_bytes(&self) -> u64 {
        self.granted_bytes
            .saturating_sub(self.page.memory.credit_bytes.load(Acquire))
    }

    fn recall(&mut self, wanted_bytes: u64, journal: &Journal) -> u64 {
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

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1 << 30;

    fn ledger(dir: &std::path::Path) -> Ledger {
        let (journal, _) = Journal::open(&dir.join("grants")).unwrap();
        Ledger::new(LIMIT, true, Arc::new(journal))
    }

    fn entry(client: u64) -> Entry {
        Entry {
            client,
            pid: std::process::id(),
            role: 1,
            start: 0,
            token: [0; 16],
            granted_bytes: 0,
        }
    }

    /// A process takes from its credit as `PageQuota` does.
    fn take(page: &SharedPage, bytes: u64) -> bool {
        let take = |have: u64| have.checked_sub(bytes);
        let credit = &page.memory.credit_bytes;
        credit.fetch_update(AcqRel, Acquire, take).is_ok()
    }

    #[test]
    fn no_order_of_grants_recalls_releases_deaths_and_resizes_exceeds_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = ledger(dir.path());
        let mut processes: BTreeMap<u64, (Arc<SharedPage>, u64)> = BTreeMap::new();
        let mut seed = 99_u64;
        let mut random = |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        for step in 1..20_000 {
            let chosen = processes.keys().nth(random(4) as usize).copied();
            match (random(8), chosen) {
                (0, _) if processes.len() < 4 => {
                    let page = Arc::new(SharedPage::create().unwrap());
                    ledger.open(entry(step), page.clone());
                    processes.insert(step, (page, 0));
                }
                (1, Some(id)) if random(10) == 0 => {
                    ledger.close(id);
                    processes.remove(&id);
                }
                (2..=4, Some(id)) => {
                    let bytes = 1 + random(200 << 20);
                    let (page, held) = processes.get_mut(&id).unwrap();
                    let have = page.memory.credit_bytes.load(Acquire);
                    if take(page, bytes) {
                        *held += bytes;
                    } else if ledger.grant(id, bytes - have).is_ok() {
                        assert!(take(page, bytes), "a grant must be enough");
                        *held += bytes;
                    }
                }
                (5..=6, Some(id)) => {
                    let (page, held) = processes.get_mut(&id).unwrap();
                    let bytes = random(*held + 1);
                    *held -= bytes;
                    page.memory.credit_bytes.fetch_add(bytes, AcqRel);
                }
                (7, _) => {
                    let limit = LIMIT / 2 + random(LIMIT / 2);
                    let _ = ledger.resize(limit, false);
                }
                _ => {}
            }
            let held: u64 = processes.values().map(|(_, held)| held).sum();
            assert_eq!(ledger.used_bytes(), held);
            assert!(ledger.granted_bytes() <= ledger.limit_bytes());
        }
    }

    #[test]
    fn what_fits_only_without_the_siblings_credit_is_granted() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = ledger(dir.path());
        let pages = [1, 2].map(|client| {
            let page = Arc::new(SharedPage::create().unwrap());
            ledger.open(entry(client), page.clone());
            page
        });
        assert_eq!(ledger.grant(1, 1), Ok(STEP_BYTES));
        assert!(take(&pages[0], 1));
        assert_eq!(ledger.grant(2, LIMIT - 1), Ok(LIMIT - 1));
        assert_eq!(pages[0].memory.credit_bytes.load(Acquire), 0);
        assert!(take(&pages[1], LIMIT - 1));
        assert!(ledger.grant(1, 1).is_err());
    }

    #[test]
    fn memory_nobody_was_charged_for_cannot_be_granted() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = ledger(dir.path());
        ledger.open(entry(1), Arc::new(SharedPage::create().unwrap()));
        ledger.set_unattributed(1, LIMIT / 2);
        assert!(ledger.grant(1, LIMIT / 2 + 1).is_err());
        assert!(ledger.grant(1, LIMIT / 2).is_ok());
    }

    #[test]
    fn a_removed_virtual_gpu_leaves_nothing_in_the_journal() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = ledger(dir.path());
        ledger.open(entry(1), Arc::new(SharedPage::create().unwrap()));
        ledger.grant(1, 5).unwrap();
        let kept = Journal::open(&dir.path().join("grants")).unwrap().1;
        assert_eq!(kept[0].1.granted_bytes, STEP_BYTES);
        ledger.close_all();
        assert!(
            Journal::open(&dir.path().join("grants"))
                .unwrap()
                .1
                .is_empty()
        );
    }
}
