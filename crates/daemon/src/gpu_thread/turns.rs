//! Who had the GPU when: a bounded log of turns, for those who watch.
//!
//! Under leases a turn is a lease, from its grant to its return. Without leases the log holds what each look at the
//! clients' pages tells: that a process had work since the last look, and how much GPU time it used if it is a worker.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mica_control::api::TurnKind;
use mica_scheduler::arbiter::Input;

use crate::tenant::Governed;

/// Turns that are remembered: half a minute of leases of the usual length, or some seconds of the shortest.
const REMEMBERED: usize = 4096;
/// Longest open turn in one record, so that whoever watches sees it grow.
const OPEN_NS: u64 = 100_000_000;

/// One turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TurnRecord {
    pub(crate) sequence: u64,
    pub(crate) tenant: u64,
    client: u64,
    pub(crate) kind: TurnKind,
    pub(crate) start_ns: u64,
    /// 0 while it goes on.
    pub(crate) end_ns: u64,
    pub(crate) waited_ns: u64,
    pub(crate) busy_ns: Option<u64>,
}

#[derive(Debug, Default)]
struct Records {
    ring: VecDeque<TurnRecord>,
    /// Sequence number of the last record.
    last: u64,
    /// Sequence number of the lease in force; 0: none.
    lease: u64,
}

/// The turns of one GPU.
#[derive(Debug, Default)]
pub(crate) struct TurnLog(Mutex<Records>);

impl TurnLog {
    /// A client was granted the lease.
    pub(super) fn begin(&self, tenant: u64, client: u64, now_ns: u64, waited_ns: u64) {
        let mut records = self.records();
        let record = TurnRecord {
            sequence: 0,
            tenant,
            client,
            kind: TurnKind::Lease,
            start_ns: now_ns,
            end_ns: 0,
            waited_ns,
            busy_ns: None,
        };
        records.lease = records.push(record);
    }

    /// A client's gate is closed or open for all: its lease is over, if it had it.
    pub(super) fn end(&self, client: u64, now_ns: u64) {
        let mut records = self.records();
        let lease = records.lease;
        if let Some(record) = records.get(lease)
            && record.client == client
        {
            record.end_ns = now_ns;
            records.lease = 0;
        }
    }

    /// Turns after a sequence number, the lease in force, how many were forgotten, and the number to ask after next.
    ///
    /// An open turn may still grow: the last one of every client is told again.
    pub(crate) fn after(&self, after: u64) -> (Vec<TurnRecord>, u64, u64) {
        let records = self.records();
        let first = records.ring.front().map_or(records.last + 1, |r| r.sequence);
        let missed = first.saturating_sub(after.min(records.last) + 1);
        let grows = |r: &TurnRecord| {
            r.end_ns == 0 || (r.kind == TurnKind::Open && r.end_ns - r.start_ns < OPEN_NS)
        };
        let wanted = |r: &&TurnRecord| r.sequence > after || grows(r);
        let from = after.saturating_sub(first.saturating_sub(1)).min(records.ring.len() as u64);
        // Records that grow are among the newest; a few hundred before the number asked for hold them all.
        let from = (from as usize).saturating_sub(256);
        let found = records.ring.iter().skip(from).filter(wanted).copied();
        let mut found: Vec<TurnRecord> = found.collect();
        if let Some(index) = records.index(records.lease)
            && index < from
        {
            found.insert(0, records.ring[index]);
        }
        (found, missed, records.last)
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Records {
    fn push(&mut self, record: TurnRecord) -> u64 {
        if self.ring.len() == REMEMBERED {
            self.ring.pop_front();
        }
        self.last += 1;
        let sequence = self.last;
        self.ring.push_back(TurnRecord { sequence, ..record });
        sequence
    }

    fn index(&self, sequence: u64) -> Option<usize> {
        let first = self.ring.front()?.sequence;
        let index = usize::try_from(sequence.checked_sub(first)?).ok()?;
        (index < self.ring.len()).then_some(index)
    }

    fn get(&mut self, sequence: u64) -> Option<&mut TurnRecord> {
        let index = self.index(sequence)?;
        self.ring.get_mut(index)
    }
}

/// What was seen of a client at the last look.
#[derive(Debug)]
struct Seen {
    looked_ns: u64,
    gpu_time_ns: u64,
    launches: u64,
    /// Sequence number of its open turn; 0: none.
    turn: u64,
}

/// Clients whose gates are open.
#[derive(Debug, Default)]
pub(super) struct OpenTurns(BTreeMap<u64, Seen>);

impl OpenTurns {
    /// Writes down what a client did since the last look, if its gate was open.
    pub(super) fn look(&mut self, log: &TurnLog, governed: &Governed, input: &Input, open: bool, now_ns: u64) {
        let seen = Seen {
            looked_ns: now_ns,
            gpu_time_ns: input.gpu_time_ns,
            launches: input.launches,
            turn: 0,
        };
        let Some(last) = self.0.get_mut(&governed.id) else {
            self.0.insert(governed.id, seen);
            return;
        };
        let last = std::mem::replace(last, seen);
        let busy_ns = input.gpu_time_ns.saturating_sub(last.gpu_time_ns);
        let worked = busy_ns > 0 || input.launches != last.launches || input.syncing > 0;
        if !open || !worked {
            return;
        }
        let busy_ns = (input.gpu_time_ns > 0).then_some(busy_ns);
        let turn = log.extend(governed, last.turn, (last.looked_ns, now_ns), busy_ns);
        if let Some(seen) = self.0.get_mut(&governed.id) {
            seen.turn = turn;
        }
    }

    /// A client is gone.
    pub(super) fn forget(&mut self, client: u64) {
        self.0.remove(&client);
    }
}

impl TurnLog {
    /// Prolongs an open turn, or begins one.
    fn extend(&self, governed: &Governed, turn: u64, (from_ns, to_ns): (u64, u64), busy_ns: Option<u64>) -> u64 {
        let mut records = self.records();
        if let Some(record) = records.get(turn)
            && record.end_ns == from_ns
            && record.end_ns - record.start_ns < OPEN_NS
        {
            record.end_ns = to_ns;
            record.busy_ns = record.busy_ns.map(|busy| busy + busy_ns.unwrap_or(0));
            return turn;
        }
        records.push(TurnRecord {
            sequence: 0,
            tenant: governed.tenant.id,
            client: governed.id,
            kind: TurnKind::Open,
            start_ns: from_ns,
            end_ns: to_ns,
            waited_ns: 0,
            busy_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_lease_is_told_while_it_lasts_and_once_more_when_it_ends() {
        let log = TurnLog::default();
        log.begin(7, 1, 10 * MS, 2 * MS);
        let (turns, missed, next) = log.after(0);
        assert_eq!((turns.len(), missed, next), (1, 0, 1));
        assert_eq!((turns[0].end_ns, turns[0].waited_ns), (0, 2 * MS));
        let (again, _, _) = log.after(1);
        assert_eq!(again.len(), 1, "it goes on");
        // Another client's gate is nothing to it.
        log.end(2, 15 * MS);
        assert_eq!(log.after(1).0[0].end_ns, 0);
        log.end(1, 18 * MS);
        let (told, _, next) = log.after(0);
        assert_eq!((told[0].end_ns, next), (18 * MS, 1));
        assert_eq!(log.after(1).0, []);
    }

    #[test]
    fn the_log_is_bounded_and_counts_what_it_forgot() {
        let log = TurnLog::default();
        let many = REMEMBERED as u64 + 100;
        for turn in 0..many {
            log.begin(1, 1, turn * MS, 0);
            log.end(1, turn * MS + MS / 2);
        }
        let (turns, missed, next) = log.after(0);
        assert_eq!((turns.len(), missed, next), (REMEMBERED, 100, many));
        let (turns, missed, _) = log.after(many - 5);
        assert_eq!((turns.len(), missed), (5, 0));
        let (turns, missed, next) = log.after(u64::MAX);
        assert_eq!((turns.len(), missed, next), (0, 0, many));
    }

    #[test]
    fn a_long_lease_is_told_however_many_open_turns_follow_it() {
        let log = TurnLog::default();
        log.begin(1, 1, 0, 0);
        let mut records = log.records();
        for turn in 1..600 {
            let record = records.ring[0];
            records.push(TurnRecord {
                kind: TurnKind::Open,
                end_ns: turn + OPEN_NS,
                start_ns: turn,
                ..record
            });
        }
        drop(records);
        let (turns, _, next) = log.after(600);
        assert_eq!(next, 600);
        assert_eq!(turns.len(), 1);
        assert_eq!((turns[0].sequence, turns[0].end_ns), (1, 0));
    }
}
