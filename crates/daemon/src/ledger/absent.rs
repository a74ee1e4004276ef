//! Processes that an earlier daemon granted memory to and that have not come back yet.

use super::Ledger;
use crate::journal::Entry;
use crate::watched::Watched;

/// A process that an earlier daemon granted memory to.
#[derive(Debug)]
pub(super) struct Absent {
    pub(super) entry: Entry,
    pub(super) slot: u64,
    pub(super) process: Watched,
}

impl Ledger {
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

    /// A process came back; what it was granted at most, if it is the process that was expected. The number that it claims is
    /// its own word: process, start time, role and user must be those in the journal.
    pub(crate) fn returned(&mut self, claimed: &Entry) -> Option<u64> {
        let absent = self.absent.get(&claimed.client)?;
        if !absent.entry.is_same_process(claimed) {
            return None;
        }
        let absent = self.absent.remove(&claimed.client)?;
        self.journal.clear(absent.slot);
        Some(absent.entry.granted_bytes)
    }

    /// The process that is expected back under a number that another process claims.
    pub(crate) fn belongs_to_another(&self, claimed: &Entry) -> Option<u32> {
        let absent = self.absent.get(&claimed.client)?;
        (!absent.entry.is_same_process(claimed)).then_some(absent.entry.pid)
    }

    /// Whether a worker with this process number and start time is expected back.
    pub(crate) fn expects_worker(&self, pid: u32, start: u64) -> bool {
        let role = mica_wire::host::message::Role::Worker as u32;
        let mut entries = self.absent.values().map(|absent| &absent.entry);
        entries.any(|entry| (entry.role, entry.pid, entry.start) == (role, pid, start))
    }

    /// Whether a worker is expected back that lives.
    pub(crate) fn expects_living_worker(&self) -> bool {
        let role = mica_wire::host::message::Role::Worker as u32;
        let mut workers = self.absent.values().filter(|a| a.entry.role == role);
        workers.any(|absent| absent.process.alive())
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

    pub(super) fn absent_bytes(&self) -> u64 {
        self.absent.values().map(|a| a.entry.granted_bytes).sum()
    }
}
