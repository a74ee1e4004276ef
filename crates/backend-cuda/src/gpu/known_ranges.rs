//! Ranges of memory that were found whole, so that a copy need not ask the driver about both of its ends again.
//!
//! The driver answers four questions for one copy, which together cost more than the copy of a few pages. Each thread
//! remembers the last ranges it has asked about; whoever gives memory back makes all threads forget theirs.

use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// Ranges that a thread remembers: both ends of a copy, and those of the next.
const KEPT: usize = 4;

/// How often memory was given back, from 1.
static CHANGES: AtomicU64 = AtomicU64::new(1);

#[derive(Clone, Copy)]
struct Known {
    changes: u64,
    context: usize,
    start: u64,
    end: u64,
}

const NOTHING: Known = Known {
    changes: 0,
    context: 0,
    start: 0,
    end: 0,
};

thread_local! {
    static RANGES: Cell<([Known; KEPT], usize)> = const { Cell::new(([NOTHING; KEPT], 0)) };
}

/// A moment before the driver is asked about a range: what it says is remembered only if no memory is given back
/// meanwhile.
#[derive(Clone, Copy)]
pub(super) struct Asked(u64);

pub(super) fn asking() -> Asked {
    Asked(CHANGES.load(Acquire))
}

/// Whether all bytes from `start` to `end` are known to be memory of one range.
pub(super) fn holds(context: usize, start: u64, end: u64) -> bool {
    let changes = CHANGES.load(Acquire);
    let covers = |known: &Known| {
        (known.changes, known.context) == (changes, context)
            && known.start <= start
            && end <= known.end
    };
    RANGES.get().0.iter().any(covers)
}

/// Remembers a range that the driver has described.
pub(super) fn remember(asked: Asked, context: usize, start: u64, end: u64) {
    let (mut ranges, next) = RANGES.get();
    ranges[next % KEPT] = Known {
        changes: asked.0,
        context,
        start,
        end,
    };
    RANGES.set((ranges, (next + 1) % KEPT));
}

/// Has all threads forget what they know, now and when the value is dropped: memory is given back in between.
pub(super) fn giving_back() -> GivingBack {
    forget();
    GivingBack
}

/// See [`giving_back`].
pub(super) struct GivingBack;

impl Drop for GivingBack {
    fn drop(&mut self) {
        forget();
    }
}

fn forget() {
    CHANGES.fetch_add(1, AcqRel);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_known_until_memory_is_given_back() {
        let asked = asking();
        remember(asked, 7, 0x1000, 0x3000);
        assert!(holds(7, 0x1000, 0x3000) && holds(7, 0x2000, 0x2001));
        assert!(!holds(8, 0x1000, 0x2000), "another context");
        assert!(!holds(7, 0x2000, 0x3001), "beyond its end");
        drop(giving_back());
        assert!(!holds(7, 0x1000, 0x3000));
        remember(asked, 7, 0x1000, 0x3000);
        assert!(
            !holds(7, 0x1000, 0x3000),
            "asked before memory was given back"
        );
    }
}
