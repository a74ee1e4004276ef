//! Requests for maps of memory that workers have not answered yet.
//!
//! A worker answers piece by piece and then with sums. The daemon believes neither: it keeps a bounded number of pieces.

use mica_wire::host::message::{MAP_PIECES, MemorySums, Piece};

use crate::open_requests::OpenRequests;

/// What a worker tells of its memory.
pub(crate) type Told = (Vec<Piece>, MemorySums);

/// The requests that are open.
pub(crate) type Maps = OpenRequests<Vec<Piece>, Told>;

impl Maps {
    /// Takes one piece of a client's map. A piece that no request waits for, and a piece beyond the bound, is dropped.
    pub(crate) fn piece(&self, client: u64, request: u64, piece: Piece) {
        self.take_part(client, request, |pieces| {
            if pieces.len() < MAP_PIECES {
                pieces.push(piece);
            }
        });
    }

    /// Takes the end of a client's map.
    pub(crate) fn ended(&self, client: u64, request: u64, sums: MemorySums) {
        self.end(client, request, |pieces| (pieces, sums));
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
            ..MemorySums::NONE
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
