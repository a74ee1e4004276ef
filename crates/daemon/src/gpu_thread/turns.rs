//! Who had the GPU when: a bounded log of turns, for viewers.
//!
//! Under leases a turn is a lease, from its grant to its return, with the GPU time that was used under it where the device
//! meters it: a program that thinks between two kernels holds the lease and uses nothing. Without leases the log holds what each look at the
//! clients' pages tells: that a process had work since the last look, and how much GPU time it used if it is a worker.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mica_control::api::TurnKind;
use mica_scheduler::arbiter::Input;

use crate::tenant::Governed;

/// Turns that are remembered: half a minute of leases of the usual length, or some seconds of the shortest.
const REMEMBERED: usize = 4096;
/// Longest open turn in one record, so that a viewer sees it grow.
const OPEN_NS: u64 = 100_000_000;

/// One turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TurnRecord {
    pub(crate) sequence: u64,
    /// Grows with every change of any record.
    revision: u64,
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
    /// Revision of the last change.
    revision: u64,
    /// The highest revision of a record that is forgotten.
    forgotten: u64,
    /// Sequence number of the lease in force; 0: none.
    lease: u64,
    /// The last lease of each metered client: its sequence number, and the GPU time used before it.
    metered: BTreeMap<u64, (u64, u64)>,
}

/// The turns of one GPU.
#[derive(Debug, Default)]
pub(crate) struct TurnLog(Mutex<Records>);

impl TurnLog {
    /// A client was granted the lease; `used_ns` is the GPU time that it has used, where that is metered.
    pub(super) fn begin(
        &self,
        (tenant, client): (u64, u64),
        now_ns: u64,
        waited_ns: u64,
        used_ns: Option<u64>,
    ) {
        let mut records = self.records();
        // What ran on after the lease before is known by now.
        records.meter(client, used_ns);
        let record = TurnRecord {
            sequence: 0,
            revision: 0,
            tenant,
            client,
            kind: TurnKind::Lease,
            start_ns: now_ns,
            end_ns: 0,
            waited_ns,
            busy_ns: None,
        };
        let lease = records.push(record);
        records.lease = lease;
        if let Some(used_ns) = used_ns {
            records.metered.insert(client, (lease, used_ns));
        }
    }

    /// A client's gate is closed or open for all: its lease is over, if it had it.
    pub(super) fn end(&self, client: u64, now_ns: u64, used_ns: Option<u64>) {
        let mut records = self.records();
        let lease = records.lease;
        if records
            .get(lease)
            .is_some_and(|record| record.client == client)
            && let Some(record) = records.change(lease)
        {
            record.end_ns = now_ns;
            records.lease = 0;
            records.meter(client, used_ns);
        }
    }

    /// A client is gone, and its lease with it.
    pub(super) fn forget(&self, client: u64, now_ns: u64, used_ns: Option<u64>) {
        self.end(client, now_ns, used_ns);
        self.records().metered.remove(&client);
    }

    /// Turns that began, grew or ended after a revision; whether some of them are forgotten; the revision to ask after
    /// next.
    pub(crate) fn after(&self, after: u64) -> (Vec<TurnRecord>, bool, u64) {
        let records = self.records();
        // A number of an earlier daemon: everything is news.
        let after = if after > records.revision { 0 } else { after };
        let news = records.ring.iter().filter(|record| record.revision > after);
        let forgotten = records.forgotten > after;
        (news.copied().collect(), forgotten, records.revision)
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Records {
    fn push(&mut self, record: TurnRecord) -> u64 {
        if self.ring.len() == REMEMBERED
            && let Some(old) = self.ring.pop_front()
        {
            self.forgotten = self.forgotten.max(old.revision);
        }
        self.last += 1;
        self.revision += 1;
        let (sequence, revision) = (self.last, self.revision);
        self.ring.push_back(TurnRecord {
            sequence,
            revision,
            ..record
        });
        sequence
    }

    /// Notes the GPU time that a client's last lease used so far.
    fn meter(&mut self, client: u64, used_ns: Option<u64>) {
        let (Some(used_ns), Some((lease, before_ns))) = (used_ns, self.metered.get(&client)) else {
            return;
        };
        let (lease, busy_ns) = (*lease, used_ns.saturating_sub(*before_ns));
        let is_news = |record: &TurnRecord| record.busy_ns != Some(busy_ns);
        if self.get(lease).is_some_and(is_news)
            && let Some(record) = self.change(lease)
        {
            record.busy_ns = Some(busy_ns);
        }
    }

    fn index(&self, sequence: u64) -> Option<usize> {
        let first = self.ring.front()?.sequence;
        let index = usize::try_from(sequence.checked_sub(first)?).ok()?;
        (index < self.ring.len()).then_some(index)
    }

    fn get(&self, sequence: u64) -> Option<&TurnRecord> {
        self.ring.get(self.index(sequence)?)
    }

    /// A record that is about to change.
    fn change(&mut self, sequence: u64) -> Option<&mut TurnRecord> {
        let index = self.index(sequence)?;
        self.revision += 1;
        let record = self.ring.get_mut(index)?;
        record.revision = self.revision;
        Some(record)
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
    pub(super) fn look(
        &mut self,
        log: &TurnLog,
        governed: &Governed,
        input: &Input,
        open: bool,
        now_ns: u64,
    ) {
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
    fn extend(
        &self,
        governed: &Governed,
        turn: u64,
        (from_ns, to_ns): (u64, u64),
        busy_ns: Option<u64>,
    ) -> u64 {
        let mut records = self.records();
        let goes_on = |record: &TurnRecord| {
            record.end_ns == from_ns && record.end_ns - record.start_ns < OPEN_NS
        };
        if records.get(turn).is_some_and(goes_on)
            && let Some(record) = records.change(turn)
        {
            record.end_ns = to_ns;
            record.busy_ns = record.busy_ns.map(|busy| busy + busy_ns.unwrap_or(0));
            return turn;
        }
        records.push(TurnRecord {
            sequence: 0,
            revision: 0,
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
    fn a_lease_is_told_when_it_begins_and_when_it_ends() {
        let log = TurnLog::default();
        log.begin((7, 1), 10 * MS, 2 * MS, None);
        let (turns, forgotten, next) = log.after(0);
        assert_eq!((turns.len(), forgotten), (1, false));
        assert_eq!((turns[0].end_ns, turns[0].waited_ns), (0, 2 * MS));
        assert_eq!(log.after(next).0, [], "nothing has changed");
        // Another client's gate is nothing to it.
        log.end(2, 15 * MS, None);
        assert_eq!(log.after(next).0, []);
        log.end(1, 18 * MS, None);
        let (told, _, later) = log.after(next);
        assert_eq!(
            (told.len(), told[0].sequence, told[0].end_ns),
            (1, 1, 18 * MS)
        );
        assert_eq!(log.after(later).0, []);
    }

    #[test]
    fn a_metered_lease_is_told_with_what_it_used_also_when_work_ran_on() {
        let log = TurnLog::default();
        log.begin((7, 1), 10 * MS, 0, Some(100 * MS));
        log.end(1, 20 * MS, Some(104 * MS));
        let (told, _, next) = log.after(0);
        assert_eq!(told[0].busy_ns, Some(4 * MS));
        // Its last block ended after the lease; the next lease is granted to another first.
        log.begin((8, 2), 20 * MS, 0, Some(0));
        log.end(2, 30 * MS, Some(10 * MS));
        log.begin((7, 1), 30 * MS, 0, Some(105 * MS));
        let (told, ..) = log.after(next);
        let busy: Vec<_> = told
            .iter()
            .map(|turn| (turn.sequence, turn.busy_ns))
            .collect();
        assert_eq!(busy, [(1, Some(5 * MS)), (2, Some(10 * MS)), (3, None)]);
        log.forget(1, 33 * MS, Some(107 * MS));
        let last = log.after(0).0[2];
        assert_eq!((last.end_ns, last.busy_ns), (33 * MS, Some(2 * MS)));
        assert!(!log.records().metered.contains_key(&1));
    }

    #[test]
    fn the_log_is_bounded_and_says_that_it_forgot() {
        let log = TurnLog::default();
        let many = REMEMBERED as u64 + 100;
        for turn in 0..many {
            log.begin((1, 1), turn * MS, 0, None);
            log.end(1, turn * MS + MS / 2, None);
        }
        let (turns, forgotten, next) = log.after(0);
        assert_eq!((turns.len(), forgotten, next), (REMEMBERED, true, 2 * many));
        let (turns, forgotten, _) = log.after(2 * (many - 5));
        assert_eq!((turns.len(), forgotten), (5, false));
        let (turns, forgotten, _) = log.after(u64::MAX);
        assert_eq!(
            (turns.len(), forgotten),
            (REMEMBERED, true),
            "another daemon's number"
        );
    }
}
