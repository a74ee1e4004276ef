//! The state of an `mbarrier` object: 64 bits in shared memory, opaque to programs.
//!
//! ```text
//!   63      phase (counts completed phases, modulo 2)
//!   62..42  bytes still expected by transactions, signed
//!   41..21  arrivals pending in this phase
//!   20..0   arrivals expected in each phase
//! ```

const FIELD: u64 = (1 << 21) - 1;

/// The largest count that `mbarrier.init` accepts.
pub const MAX_COUNT: u32 = (1 << 20) - 1;

fn parts(state: u64) -> (bool, i64, i64, i64) {
    let tx = ((state << 1) as i64) >> 43;
    (
        state >> 63 == 1,
        tx,
        (state >> 21 & FIELD) as i64,
        (state & FIELD) as i64,
    )
}

fn join(phase: bool, tx: i64, pending: i64, expected: i64) -> u64 {
    u64::from(phase) << 63
        | (tx as u64 & FIELD) << 42
        | (pending as u64 & FIELD) << 21
        | expected as u64 & FIELD
}

/// Ends the phase when nothing is pending any more.
fn settle(phase: bool, tx: i64, pending: i64, expected: i64) -> u64 {
    if pending <= 0 && tx == 0 {
        join(!phase, 0, expected, expected)
    } else {
        join(phase, tx, pending.max(0), expected)
    }
}

/// `mbarrier.init`.
pub fn init(count: u32) -> u64 {
    let count = i64::from(count.min(MAX_COUNT));
    join(false, 0, count, count)
}

/// `mbarrier.arrive` of `count` threads; `drop` lowers what later phases expect.
pub fn arrive(state: u64, count: u32, drop: bool) -> u64 {
    let (phase, tx, pending, expected) = parts(state);
    let count = i64::from(count);
    let expected = if drop {
        (expected - count).max(0)
    } else {
        expected
    };
    settle(phase, tx, pending - count, expected)
}

/// `mbarrier.expect_tx`.
pub fn expect_tx(state: u64, bytes: u32) -> u64 {
    let (phase, tx, pending, expected) = parts(state);
    join(phase, tx + i64::from(bytes), pending, expected)
}

/// `mbarrier.complete_tx`, and what asynchronous copies do when they are done.
pub fn complete_tx(state: u64, bytes: u32) -> u64 {
    let (phase, tx, pending, expected) = parts(state);
    settle(phase, tx - i64::from(bytes), pending, expected)
}

/// One more arrival is pending (`cp.async.mbarrier.arrive` without `.noinc`).
pub fn increment(state: u64) -> u64 {
    let (phase, tx, pending, expected) = parts(state);
    join(phase, tx, pending + 1, expected)
}

/// Whether the phase that `token` (a state that `arrive` gave) was in is over.
pub fn is_complete(state: u64, token: u64) -> bool {
    state >> 63 != token >> 63
}

/// Whether the phase of this parity is over.
pub fn is_parity_complete(state: u64, parity: u32) -> bool {
    state >> 63 != u64::from(parity & 1)
}

/// `mbarrier.pending_count` of a token.
pub fn pending_count(token: u64) -> u32 {
    (token >> 21 & FIELD) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_turn_when_all_arrived() {
        let start = init(2);
        let one = arrive(start, 1, false);
        assert!(!is_complete(one, start));
        assert_eq!(pending_count(one), 1);
        let two = arrive(one, 1, false);
        assert!(is_complete(two, start) && is_parity_complete(two, 0));
        assert!(!is_parity_complete(two, 1));
        assert_eq!(pending_count(two), 2);
    }

    #[test]
    fn transactions_hold_the_phase_open() {
        let start = expect_tx(init(1), 128);
        let arrived = arrive(start, 1, false);
        assert!(!is_complete(arrived, start));
        let half = complete_tx(arrived, 64);
        assert!(!is_complete(half, start));
        assert!(is_complete(complete_tx(half, 64), start));
        // Bytes may complete before they are expected.
        let early = complete_tx(init(1), 32);
        assert!(is_complete(arrive(expect_tx(early, 32), 1, false), start));
    }

    #[test]
    fn dropping_lowers_later_phases() {
        let state = arrive(init(2), 1, true);
        let next = arrive(state, 1, false);
        assert_eq!(pending_count(next), 1);
        assert_eq!(pending_count(increment(next)), 2);
    }
}
