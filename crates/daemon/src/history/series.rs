//! The numbers of series: who the records of the history are about.
//!
//! A bounded number is known. When a new one needs room, the user with the most series loses the one that was not seen for the
//! longest time: nobody pushes out what others had by making virtual GPUs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Result;
use std::path::Path;

use mica_control::api::Subject;

use super::record::{IDENTITY_BYTES, Identity};
use super::ring::{Opened, Ring};

/// Records in the file.
pub(crate) const CAPACITY: u64 = 16_384;
/// Series that are known. The rest of the file is room: a series that is known is written again before it would be
/// overwritten.
pub(crate) const MOST: usize = 15_360;

/// Whose series count together.
type Owner = (Subject, u32);

/// All series that are known.
#[derive(Debug, Default)]
pub(crate) struct Series {
    ring: Option<Ring>,
    /// Number of the next record in the file.
    next_record: u64,
    next_series: u32,
    numbers: HashMap<Identity, u32>,
    known: HashMap<u32, Known>,
    /// The series whose newest record has this number.
    by_record: BTreeMap<u64, u32>,
    /// Each owner's series, by when they were asked for last.
    owners: HashMap<Owner, BTreeSet<(u64, u32)>>,
    /// How often a series was asked for.
    asked: u64,
}

#[derive(Debug)]
struct Known {
    identity: Identity,
    /// Number of its newest record.
    record: u64,
    /// When it was asked for last.
    seen: u64,
}

fn owner(identity: &Identity) -> Owner {
    (identity.subject, identity.owner_uid)
}

impl Series {
    /// Reads the file.
    pub(crate) fn open(path: &Path) -> Result<(Self, Opened)> {
        let (ring, opened) = Ring::open(path, IDENTITY_BYTES, CAPACITY)?;
        let mut all = Vec::new();
        ring.snapshot().newest_first(|payload| {
            all.extend(payload.try_into().ok().and_then(Identity::decode));
            true
        })?;
        let mut series = Self {
            // Damaged records are left out of `all`, and still have their place.
            next_record: ring.next(),
            ring: Some(ring),
            ..Self::default()
        };
        let first = series.next_record.saturating_sub(all.len() as u64);
        for (record, (number, identity)) in (first..).zip(all.into_iter().rev()) {
            series.next_series = series.next_series.max(number.wrapping_add(1));
            series.forget(number);
            if let Some(same) = series.numbers.get(&identity).copied() {
                series.forget(same);
            }
            series.asked += 1;
            series.insert(number, identity, record);
        }
        series.make_room(MOST);
        Ok((series, opened))
    }

    fn insert(&mut self, number: u32, identity: Identity, record: u64) {
        let seen = self.asked;
        let owned = self.owners.entry(owner(&identity)).or_default();
        owned.insert((seen, number));
        self.numbers.insert(identity.clone(), number);
        self.by_record.insert(record, number);
        let known = Known {
            identity,
            record,
            seen,
        };
        self.known.insert(number, known);
    }

    fn forget(&mut self, number: u32) {
        let Some(known) = self.known.remove(&number) else {
            return;
        };
        self.numbers.remove(&known.identity);
        self.by_record.remove(&known.record);
        let owner = owner(&known.identity);
        if let Some(owned) = self.owners.get_mut(&owner) {
            owned.remove(&(known.seen, number));
            if owned.is_empty() {
                self.owners.remove(&owner);
            }
        }
    }

    /// Forgets until at most so many are known.
    fn make_room(&mut self, most: usize) {
        while self.known.len() > most {
            let largest = self.owners.values().max_by_key(|owned| owned.len());
            let Some((_, oldest)) = largest.and_then(|owned| owned.first().copied()) else {
                return;
            };
            self.forget(oldest);
        }
    }

    /// The number of a series, a new one if needed; it is in use now.
    pub(crate) fn number_of(&mut self, identity: Identity) -> Result<u32> {
        let identity = identity.fitted();
        self.asked += 1;
        if let Some(number) = self.numbers.get(&identity).copied() {
            self.see(number);
            return self.write_again_if_old(number).map(|()| number);
        }
        self.make_room(MOST - 1);
        let number = self.fresh();
        let kept = self.keep_next_record();
        let bytes = identity.encode(number);
        self.insert(number, identity, self.next_record);
        kept.and(self.append(&bytes)).map(|()| number)
    }

    /// Writes a series in use again before its record is among the oldest: after a restart those say what was not in use.
    fn write_again_if_old(&mut self, number: u32) -> Result<()> {
        let record = self.known.get(&number).map(|known| known.record);
        let is_old = |record: &u64| self.next_record.saturating_sub(*record) >= CAPACITY / 2;
        let Some(record) = record.filter(is_old) else {
            return Ok(());
        };
        self.by_record.remove(&record);
        let kept = self.keep_next_record();
        kept.and(self.write_again(number))
    }

    /// Notes that a series is in use.
    fn see(&mut self, number: u32) {
        let Some(known) = self.known.get_mut(&number) else {
            return;
        };
        let before = std::mem::replace(&mut known.seen, self.asked);
        if let Some(owned) = self.owners.get_mut(&owner(&known.identity)) {
            owned.remove(&(before, number));
            owned.insert((self.asked, number));
        }
    }

    /// Writes a series again whose newest record lies where the next one goes, until there is a place that is free. Fewer series
    /// are known than the file has places.
    fn keep_next_record(&mut self) -> Result<()> {
        let mut kept = Ok(());
        while let Some(oldest) = self.next_record.checked_sub(CAPACITY) {
            let Some(number) = self.by_record.remove(&oldest) else {
                break;
            };
            kept = kept.and(self.write_again(number));
        }
        kept
    }

    /// Writes a series as the next record.
    fn write_again(&mut self, number: u32) -> Result<()> {
        let Some(known) = self.known.get_mut(&number) else {
            return Ok(());
        };
        known.record = self.next_record;
        self.by_record.insert(self.next_record, number);
        let bytes = known.identity.encode(number);
        self.append(&bytes)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(ring) = &mut self.ring else {
            self.next_record += 1;
            return Ok(());
        };
        let written = ring.append(bytes);
        self.next_record = ring.next();
        written
    }

    /// A number that no known series has. A damaged file may hold any number.
    fn fresh(&mut self) -> u32 {
        let mut number = self.next_series;
        while self.known.contains_key(&number) {
            number = number.wrapping_add(1);
        }
        self.next_series = number.wrapping_add(1);
        number
    }

    /// Whether a series is known.
    pub(crate) fn knows(&self, number: u32) -> bool {
        self.known.contains_key(&number)
    }

    /// All series by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Identity)> {
        self.known
            .iter()
            .map(|(number, known)| (*number, &known.identity))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Identity {
        Identity {
            name: name.into(),
            ..Identity::default()
        }
    }

    #[test]
    fn a_series_keeps_its_number_over_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("series");
        let (mut series, _) = Series::open(&path).unwrap();
        let a = series.number_of(named("a")).unwrap();
        let b = series.number_of(named("b")).unwrap();
        assert_ne!(a, b);
        assert_eq!(series.number_of(named("a")).unwrap(), a);
        let (mut series, _) = Series::open(&path).unwrap();
        assert_eq!(series.number_of(named("b")).unwrap(), b);
        assert_ne!(series.number_of(named("c")).unwrap(), a);
        assert_eq!(series.iter().count(), 3);
    }

    #[test]
    fn one_that_is_in_use_outlives_thousands_that_come_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("series");
        let (mut series, _) = Series::open(&path).unwrap();
        let kept = series.number_of(named("kept")).unwrap();
        for round in 0..CAPACITY + 5000 {
            series.number_of(named(&format!("job-{round}"))).unwrap();
            assert_eq!(series.number_of(named("kept")).unwrap(), kept);
        }
        assert!(series.iter().count() <= MOST);
        let (mut series, _) = Series::open(&path).unwrap();
        assert_eq!(series.number_of(named("kept")).unwrap(), kept);
        assert!(series.iter().all(|(_, identity)| identity.name != "job-0"));
    }

    #[test]
    fn a_user_with_many_pushes_out_only_own_ones() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("series");
        let (mut series, _) = Series::open(&path).unwrap();
        let of = |owner_uid: u32, name: String| Identity {
            owner_uid,
            ..named(&name)
        };
        let quiet: Vec<u32> = (0..300)
            .map(|i| series.number_of(of(7, format!("was-{i}"))).unwrap())
            .collect();
        let in_use = series.number_of(of(8, "in-use".into())).unwrap();
        for i in 0..2 * CAPACITY {
            series.number_of(of(8, format!("job-{i}"))).unwrap();
            assert_eq!(series.number_of(of(8, "in-use".into())).unwrap(), in_use);
        }
        for _ in 0..2 {
            assert!(series.iter().count() <= MOST);
            let found: HashMap<u32, &Identity> = series.iter().collect();
            for (i, number) in quiet.iter().enumerate() {
                assert_eq!(found[number].name, format!("was-{i}"));
            }
            assert_eq!(found[&in_use].name, "in-use");
            assert!(found.values().all(|identity| identity.name != "job-0"));
            series = Series::open(&path).unwrap().0;
        }
    }
}
