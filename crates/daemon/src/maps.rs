//! Requests for maps of memory that workers have not answered yet.
//!
//! A worker answers piece by piece and then with sums; both are its own word, so the pieces are counted.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mica_wire::host::message::{MAP_PIECES, MemorySums, Piece};
use tokio::sync::oneshot::{Receiver, Sender, channel};

/// What a worker tells of its memory.
pub(crate) type Told = (Vec<Piece>, MemorySums);

#[derive(Debug)]
struct Open {
    client: u64,
    request: u64,
    pieces: Vec<Piece>,
    answer: Sender<Told>,
}

/// The requests that are open.
#[derive(Debug, Default)]
pub(crate) struct Maps {
    next: AtomicU64,
    open: Mutex<Vec<Open>>,
}

impl Maps {
    /// Opens a request to a client: its number, and what brings the answer. The answer fails when the client goes.
    pub(crate) fn expect(&self, client: u64) -> (u64, Receiver<Told>) {
        let request = self.next.fetch_add(1, Relaxed);
        let (answer, receiver) = channel();
        let mut open = self.lock();
        open.retain(|request| !request.answer.is_closed());
        open.push(Open {
            client,
            request,
            pieces: Vec::new(),
            answer,
        });
        (request, receiver)
    }

    /// Takes one piece of a client's map; one that nobody waits for, or one too many, is dropped.
    pub(crate) fn piece(&self, client: u64, request: u64, piece: Piece) {
        let mut open = self.lock();
        let is_it = |open: &&mut Open| open.client == client && open.request == request;
        if let Some(open) = open.iter_mut().find(is_it)
            && open.pieces.len() < MAP_PIECES
        {
            open.pieces.push(piece);
        }
    }

    /// Takes the end of a client's map.
    pub(crate) fn ended(&self, client: u64, request: u64, sums: MemorySums) {
        let mut open = self.lock();
        let is_it = |open: &Open| open.client == client && open.request == request;
        if let Some(index) = open.iter().position(is_it) {
            let Open { pieces, answer, .. } = open.swap_remove(index);
            let _ = answer.send((pieces, sums));
        }
    }

    /// Forgets what was asked of a client that is gone.
    pub(crate) fn client_gone(&self, client: u64) {
        self.lock().retain(|open| open.client != client);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use mica_wire::host::message::PieceKind;

    use super::*;

    #[test]
    fn pieces_come_before_the_sums_and_only_from_whoever_was_asked() {
        let maps = Maps::default();
        let (request, mut map) = maps.expect(1);
        let at = |address| Piece {
            address,
            kind: PieceKind::Allocation,
            asked_bytes: 1,
            held_bytes: 1,
            away: false,
            pinned: "".into(),
        };
        let piece = at(4096);
        let sums = || MemorySums {
            pieces: 1,
            asked_bytes: 1,
            away_bytes: 0,
            pinned_bytes: 0,
            arena_bytes: 0,
            pool_held_bytes: 0,
            pool_asked_bytes: 0,
            pool_given_bytes: 0,
            pool_largest_free_bytes: 0,
            pool_pieces: 0,
        };
        maps.piece(2, request, at(0));
        maps.piece(1, request, piece.clone());
        for _ in 0..2 * MAP_PIECES {
            maps.piece(1, request, at(0));
        }
        maps.ended(2, request, sums());
        assert!(map.try_recv().is_err(), "another client cannot answer");
        maps.ended(1, request, sums());
        let (pieces, _) = map.try_recv().unwrap();
        assert_eq!((&pieces[0], pieces.len()), (&piece, MAP_PIECES));
        let (_, mut gone) = maps.expect(1);
        maps.client_gone(1);
        assert!(gone.try_recv().is_err());
    }
}
