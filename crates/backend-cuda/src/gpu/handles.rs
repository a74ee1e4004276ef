//! Numbers that stand for driver objects.
//!
//! A number is a place and the count of its reuses, so a stale or invented one finds nothing: the
//! driver never sees a pointer that did not come from it.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::{PoisonError, RwLock};

/// Objects of one kind.
#[derive(Debug)]
pub(super) struct Handles<T> {
    slots: RwLock<Slots<T>>,
    /// How often objects were taken out.
    removals: AtomicU64,
}

#[derive(Debug)]
struct Slots<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self {
            slots: RwLock::new(Slots {
                places: Vec::new(),
                free: Vec::new(),
            }),
            removals: AtomicU64::new(0),
        }
    }
}

impl<T: Clone> Handles<T> {
    /// Keeps an object; its number is never 0.
    pub(super) fn add(&self, value: T) -> u64 {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = slots.free.pop()
            && let Some(place) = slots.places.get_mut(index as usize)
        {
            place.1 = Some(value);
            return number(index, place.0);
        }
        let index = slots.places.len() as u32;
        slots.places.push((0, Some(value)));
        number(index, 0)
    }

    /// The object of a number.
    pub(super) fn get(&self, handle: u64) -> Option<T> {
        let (index, uses) = parts(handle)?;
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        match slots.places.get(index as usize)? {
            (found, value) if *found == uses => value.clone(),
            _ => None,
        }
    }

    /// How often objects were taken out: what was found before a number that is still the same is still there.
    #[inline]
    pub(super) fn removals(&self) -> u64 {
        self.removals.load(Acquire)
    }

    /// Takes an object out; its number is dead from then on.
    pub(super) fn remove(&self, handle: u64) -> Option<T> {
        let (index, uses) = parts(handle)?;
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        // With the lock: whoever sees the new number looks an object up after it is gone.
        self.removals.fetch_add(1, AcqRel);
        let place = slots.places.get_mut(index as usize)?;
        if place.0 != uses {
            return None;
        }
        let value = place.1.take()?;
        place.0 = place.0.wrapping_add(1);
        slots.free.push(index);
        Some(value)
    }

    /// Takes out all objects that match.
    pub(super) fn remove_where(&self, matches: impl Fn(&T) -> bool) -> Vec<T> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        self.removals.fetch_add(1, AcqRel);
        let Slots { places, free } = &mut *slots;
        let mut removed = Vec::new();
        for (index, place) in places.iter_mut().enumerate() {
            if place.1.as_ref().is_some_and(&matches) {
                removed.extend(place.1.take());
                place.0 = place.0.wrapping_add(1);
                free.push(index as u32);
            }
        }
        removed
    }

    /// All live objects.
    pub(super) fn all(&self) -> Vec<T> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let live = slots.places.iter().filter_map(|(_, value)| value.clone());
        live.collect()
    }

    /// Some live object.
    pub(super) fn any(&self) -> Option<T> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.places.iter().find_map(|(_, value)| value.clone())
    }
}

fn number(index: u32, uses: u32) -> u64 {
    u64::from(uses) << 32 | u64::from(index + 1)
}

fn parts(handle: u64) -> Option<(u32, u32)> {
    let index = (handle as u32).checked_sub(1)?;
    Some((index, (handle >> 32) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_and_invented_numbers_find_nothing() {
        let handles = Handles::default();
        let first = handles.add("first");
        assert_eq!(handles.remove(first), Some("first"));
        let second = handles.add("second");
        assert_ne!(first, second);
        assert_eq!(handles.get(first), None);
        assert_eq!(handles.remove(first), None);
        assert_eq!(handles.get(second), Some("second"));
        for invented in [0, 2, u64::MAX, 1 << 63] {
            assert_eq!(handles.get(invented), None);
        }
    }

    #[test]
    fn removals_are_counted_and_additions_are_not() {
        let handles = Handles::default();
        let one = handles.add("one");
        let before = handles.removals();
        handles.add("two");
        assert_eq!(handles.removals(), before);
        handles.remove(one);
        let after = handles.removals();
        assert_ne!(after, before);
        handles.remove_where(|_| true);
        assert_ne!(handles.removals(), after);
    }

    #[test]
    fn all_that_match_go() {
        let handles = Handles::default();
        let kept = handles.add(1);
        let gone = handles.add(2);
        assert_eq!(handles.remove_where(|value| *value == 2), [2]);
        assert_eq!((handles.get(kept), handles.get(gone)), (Some(1), None));
        assert_eq!((handles.any(), handles.all()), (Some(1), vec![1]));
    }
}
