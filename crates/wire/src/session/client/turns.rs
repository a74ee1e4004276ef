//! Whose turn it is on a stream: the place among a stream's work of copies that the program does itself.
//!
//! Such a copy is not in the ring. It begins when nothing of its stream is under way, and until its end
//! work for that stream is kept out of the ring, as is work for streams that wait for each other by the
//! rules of the default stream: so it comes wholly before or wholly after all else, as with a real
//! driver. Nobody waits for the device while a turn lasts. Owns who has a turn and which streams order
//! each other; the lock around it is that of the ring.

use std::collections::HashMap;

use super::super::calls::StreamOrder;
use super::super::transport::ClientTransport;

/// The turns of a session.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Streams that a thread of the program copies for, now.
    held: Vec<u64>,
    /// Streams that are not ordered against a default stream only.
    unusual: HashMap<u64, StreamOrder>,
}

impl Turns {
    /// Whether work for a stream must wait.
    #[inline]
    pub(super) fn must_wait(&self, stream: Option<u64>) -> bool {
        !self.held.is_empty() && stream.is_some_and(|stream| self.is_held(stream))
    }

    #[cold]
    fn is_held(&self, stream: u64) -> bool {
        let order = |stream: &u64| self.unusual.get(stream);
        let with_default = |a: &u64, b: &u64| {
            order(a) == Some(&StreamOrder::Default) && order(b) != Some(&StreamOrder::Alone)
        };
        (self.held.iter()).any(|held| {
            *held == stream || with_default(held, &stream) || with_default(&stream, held)
        })
    }

    pub(super) fn begin(&mut self, stream: u64) {
        self.held.push(stream);
    }

    pub(super) fn end(&mut self, stream: u64) {
        if let Some(at) = self.held.iter().position(|held| *held == stream) {
            self.held.swap_remove(at);
        }
    }

    /// Learns from an answer, or from a stream's end, how a stream is ordered.
    pub(super) fn note(&mut self, stream: u64, order: Option<StreamOrder>) {
        match order {
            Some(order) => self.unusual.insert(stream, order),
            None => self.unusual.remove(&stream),
        };
    }
}

/// A turn on a stream; given up when dropped.
pub(super) struct Turn<'a, T: ClientTransport>(pub(super) &'a T, pub(super) u64);

impl<T: ClientTransport> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        self.0.end_turn(self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_wait_for_their_own_copies_and_by_the_rules_of_the_default_stream() {
        const DEFAULT: u64 = 1;
        const ALONE: u64 = 2;
        const BLOCKING: u64 = 3;
        let mut turns = Turns::default();
        turns.note(DEFAULT, Some(StreamOrder::Default));
        turns.note(ALONE, Some(StreamOrder::Alone));
        let waiting = |turns: &Turns| {
            [DEFAULT, ALONE, BLOCKING, 4].map(|stream| turns.must_wait(Some(stream)))
        };
        assert_eq!(waiting(&turns), [false; 4]);
        for (held, expected) in [
            (DEFAULT, [true, false, true, true]),
            (ALONE, [false, true, false, false]),
            (BLOCKING, [true, false, true, false]),
        ] {
            turns.begin(held);
            assert_eq!(waiting(&turns), expected, "{held}");
            assert!(!turns.must_wait(None));
            turns.end(held);
        }
        assert_eq!(waiting(&turns), [false; 4]);
        turns.note(ALONE, None);
        turns.begin(DEFAULT);
        assert!(turns.must_wait(Some(ALONE)), "the number may be another's");
    }

    #[test]
    fn two_copies_for_one_stream_are_two_turns() {
        let mut turns = Turns::default();
        turns.begin(7);
        turns.begin(7);
        turns.end(7);
        assert!(turns.must_wait(Some(7)));
        turns.end(7);
        assert!(!turns.must_wait(Some(7)));
    }
}
