//! Which pieces travel as their hash, and those that the far end may still ask for.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::Near;
use crate::frame::{Draft, Header, Kind};
use crate::pieces::{Hash, PIECE_BYTES, hash_of, prefix};
use crate::rate::Rate;
use crate::{TunnelError, lock};

/// Pieces that are sent before the far end is asked which it has: their list would cost more than a program saves that sends no more.
const ASK_AFTER: u32 = 16;
/// A link that takes more bytes a second is not slow: a busy machine without any network in between would count as one, and hashing and
/// keeping would only add to its load.
const SLOW: u64 = 200 << 20;
/// Hashing pays where it is so many times faster than the link: at both ends it costs a part of the time that a piece is under way.
const FASTER: u64 = 3;
/// How often hashing is timed while it does not pay.
const TIMED_EVERY: u32 = 64;
/// Most pieces of which this end remembers that the far end has them.
const MOST_KNOWN: usize = 1 << 20;

/// Pieces of a session.
#[derive(Default)]
pub(super) struct Pieces {
    /// The far end keeps pieces.
    is_offered: bool,
    is_asked: bool,
    /// Pieces that were sent, until the far end is asked.
    sent: u32,
    /// Prefixes of what the far end has, once it has told.
    known: Option<HashSet<u64>>,
    /// What was left out and may be asked for, the oldest first.
    held: VecDeque<(Hash, Vec<u8>)>,
    /// How many have left `held`.
    found: u64,
    hash_rate: Rate,
    untimed: u32,
}

impl Pieces {
    /// Pieces of a session whose far end was asked.
    pub(super) fn that_has_asked() -> Self {
        Self {
            is_offered: true,
            is_asked: true,
            ..Self::default()
        }
    }

    /// Whether the far end should be asked now; true once.
    fn should_ask(&mut self, link_rate: u64) -> bool {
        if !self.is_offered || self.is_asked {
            return false;
        }
        self.sent += 1;
        self.is_asked = self.sent > ASK_AFTER && (1..SLOW).contains(&link_rate);
        self.is_asked
    }

    /// Whether a piece is worth hashing on a link that takes so many bytes a second.
    fn pays(&mut self, link_rate: u64) -> bool {
        if self.known.is_none() || !(1..SLOW).contains(&link_rate) {
            return false;
        }
        let hash_rate = self.hash_rate.get();
        if hash_rate == 0 || link_rate.saturating_mul(FASTER) <= hash_rate {
            return true;
        }
        // The processor may have been busy.
        self.untimed = (self.untimed + 1) % TIMED_EVERY;
        self.untimed == 0
    }

    /// Notes how long hashing a piece took.
    fn hashed(&mut self, took: Duration) {
        self.hash_rate.note(PIECE_BYTES, took);
    }

    fn has(&self, hash: &Hash) -> bool {
        (self.known.as_ref()).is_some_and(|known| known.contains(&prefix(hash)))
    }

    /// The far end has told of pieces.
    pub(super) fn told(&mut self, prefixes: &[u8]) -> Result<(), TunnelError> {
        let (prefixes, rest) = prefixes.as_chunks();
        if !rest.is_empty() || !self.is_asked {
            let text = "a list of pieces that makes no sense";
            return Err(TunnelError::protocol(text));
        }
        if !self.is_offered {
            return Ok(());
        }
        let known = self.known.get_or_insert_default();
        if known.len() + prefixes.len() <= MOST_KNOWN {
            known.extend(prefixes.iter().map(|prefix| u64::from_le_bytes(*prefix)));
        }
        Ok(())
    }

    /// The far end keeps pieces.
    pub(super) fn offered(&mut self) {
        self.is_offered = true;
    }

    /// The far end is slower than the link.
    pub(super) fn stop(&mut self) {
        (self.is_offered, self.known) = (false, None);
    }

    /// The far end has found so many known pieces in all.
    pub(super) fn found(&mut self, count: u64) {
        while self.found < count && self.held.pop_front().is_some() {
            self.found += 1;
        }
    }

    /// A piece that was left out.
    pub(super) fn held(&self, hash: &[u8]) -> Result<Vec<u8>, TunnelError> {
        let found = self.held.iter().find(|(held, _)| held == hash);
        found
            .map(|(_, bytes)| bytes.clone())
            .ok_or_else(|| TunnelError::protocol("a piece that was not named"))
    }
}

impl Near {
    /// Asks the far end for its pieces, if that is due before so many bytes are sent.
    pub(super) fn ask_for_pieces(&self, bytes: usize, out: &mut Vec<u8>) {
        if bytes < PIECE_BYTES {
            return;
        }
        let link_rate = self.compressor.rate();
        if lock(&self.pieces).should_ask(link_rate) {
            Header::new(Kind::PiecesAsk, link_rate, 0).put(out, &[]);
        }
    }

    /// Ends a frame whose last `bytes` of data may be a piece: with them, or with the hash instead.
    pub(super) fn end_with_bytes(
        &self,
        mut draft: Draft,
        bytes: usize,
        may_pack: bool,
        out: &mut Vec<u8>,
    ) {
        let piece = &out[out.len() - bytes..];
        let hash = self.hash_piece(piece);
        match hash {
            Some(hash) if lock(&self.pieces).has(&hash) => {
                let piece = piece.to_vec();
                lock(&self.pieces).held.push_back((hash, piece));
                self.left_out.fetch_add(bytes, Relaxed);
                (self.stats.saved_bytes).fetch_add(bytes as u64, Relaxed);
                draft.leave_piece_out(bytes, &hash, out);
            }
            hash => {
                if may_pack {
                    draft.pack(bytes, &self.compressor, out);
                }
                if let Some(hash) = hash {
                    draft.name_piece(&hash, out);
                }
            }
        }
        draft.end(out);
    }

    /// The hash of a piece, if the far end keeps pieces and hashing pays.
    fn hash_piece(&self, piece: &[u8]) -> Option<Hash> {
        let pays = piece.len() == PIECE_BYTES && lock(&self.pieces).pays(self.compressor.rate());
        pays.then(|| {
            let began = Instant::now();
            let hash = hash_of(piece);
            lock(&self.pieces).hashed(began.elapsed());
            hash
        })
    }

    /// Sends a piece that the far end has not after all.
    pub(super) fn send_piece(&self, piece: &[u8]) -> Result<(), TunnelError> {
        let mut out = Vec::new();
        Header::new(Kind::PieceData, 0, 0).put(&mut out, &[piece]);
        let bytes = out.len() as u64;
        self.carrier
            .send_whole(&mut out)
            .map_err(TunnelError::Lost)?;
        self.stats.sent_bytes.fetch_add(bytes, Relaxed);
        self.stats
            .saved_bytes
            .fetch_sub(piece.len() as u64, Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashing_pays_where_the_link_is_much_slower() {
        let mut pieces = Pieces::default();
        assert!(!pieces.should_ask(1), "nothing was offered");
        pieces.offered();
        for _ in 0..ASK_AFTER {
            assert!(!pieces.should_ask(1), "little was sent");
        }
        assert!(!pieces.should_ask(0) && !pieces.should_ask(SLOW));
        assert!(pieces.should_ask(SLOW - 1));
        assert!(!pieces.should_ask(1), "asked once");
        assert!(!pieces.pays(1 << 20), "nothing was told");
        pieces.told(&[]).unwrap();
        assert!(pieces.pays(1 << 20) && !pieces.pays(0));
        for _ in 0..40 {
            pieces.hashed(Duration::from_millis(1));
        }
        assert!(pieces.pays(80_000_000) && !pieces.pays(SLOW));
        let timed = (0..2 * TIMED_EVERY).filter(|_| pieces.pays(100_000_000));
        assert_eq!(timed.count(), 2);
        pieces.stop();
        // What was on its way changes nothing.
        pieces.told(&[]).unwrap();
        assert!(!pieces.pays(1 << 20) && !pieces.should_ask(1));
    }

    #[test]
    fn what_the_far_end_tells_is_checked() {
        assert!(Pieces::default().told(&[]).is_err(), "nobody asked");
        let mut pieces = Pieces::that_has_asked();
        assert!(pieces.told(&[1; 7]).is_err() && pieces.told(&[1; 16]).is_ok());
        assert!(pieces.has(&[1; 32]) && !pieces.has(&[2; 32]));
        for number in 0..3 {
            (pieces.held).push_back(([number; 32], vec![number; 10]));
        }
        pieces.found(1);
        assert!(pieces.held(&[0; 32]).is_err() && pieces.held(&[1; 31]).is_err());
        assert_eq!(pieces.held(&[1; 32]).unwrap(), [1; 10]);
        pieces.found(0);
        pieces.found(u64::MAX);
        assert!(pieces.held.is_empty());
    }
}
