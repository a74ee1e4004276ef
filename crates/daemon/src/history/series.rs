//! The numbers of series: who the records of the history are about.

use std::collections::HashMap;
use std::io::Result;
use std::path::Path;

use super::record::{IDENTITY_BYTES, Identity};
use super::ring::{Opened, Ring};

/// Identities that are kept; with more, those that were not seen for the longest time are forgotten.
pub(crate) const CAPACITY: u64 = 16_384;
/// An identity in use is written again before it would be overwritten.
const MARGIN: u64 = 1024;

/// All series that are known.
#[derive(Debug, Default)]
pub(crate) struct Series {
    ring: Option<Ring>,
    /// Number of the next record in the file.
    next_record: u64,
    next_series: u32,
    numbers: HashMap<Identity, u32>,
    known: HashMap<u32, Known>,
}

#[derive(Debug)]
struct Known {
    identity: Identity,
    /// Number of its newest record.
    record: u64,
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
            ring: Some(ring),
            next_record: all.len() as u64,
            ..Self::default()
        };
        for (record, (number, identity)) in all.into_iter().rev().enumerate() {
            series.next_series = series.next_series.max(number.wrapping_add(1));
            series.insert(number, identity, record as u64);
        }
        Ok((series, opened))
    }

    fn insert(&mut self, number: u32, identity: Identity, record: u64) {
        self.numbers.insert(identity.clone(), number);
        self.known.insert(number, Known { identity, record });
    }

    /// The number of a series, a new one if needed; it is in use now.
    pub(crate) fn number_of(&mut self, identity: Identity) -> Result<u32> {
        let identity = identity.fitted();
        let number = self.numbers.get(&identity).copied();
        let record = number.and_then(|number| Some(self.known.get(&number)?.record));
        let is_safe = |record: u64| self.next_record - record < CAPACITY - MARGIN;
        if let (Some(number), Some(true)) = (number, record.map(is_safe)) {
            return Ok(number);
        }
        let number = number.unwrap_or_else(|| self.fresh());
        let bytes = identity.encode(number);
        self.insert(number, identity, self.next_record);
        self.next_record += 1;
        self.forget_overwritten();
        match &mut self.ring {
            Some(ring) => ring.append(&bytes).map(|()| number),
            None => Ok(number),
        }
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

    fn forget_overwritten(&mut self) {
        // Not at each new one: all are looked at.
        if self.known.len() as u64 <= CAPACITY + MARGIN {
            return;
        }
        let oldest = self.next_record.saturating_sub(CAPACITY);
        self.known.retain(|_, known| known.record >= oldest);
        let Self { numbers, known, .. } = self;
        numbers.retain(|_, number| known.contains_key(number));
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
        assert!(series.iter().count() as u64 <= CAPACITY + MARGIN);
        let (mut series, _) = Series::open(&path).unwrap();
        assert_eq!(series.number_of(named("kept")).unwrap(), kept);
        assert!(series.iter().all(|(_, identity)| identity.name != "job-0"));
    }
}
