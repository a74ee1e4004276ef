//! Tells the daemon where the worker's memory is, piece by piece.

use mica_limits::HostLink;
use mica_vgpu::{Piece as Held, PieceKind as Kind};
use mica_wire::host::message::{ClientMessage, MAP_PIECES, MemorySums, Piece, PieceKind};

use crate::Worker;

/// Answers a request for the map: the largest pieces, then sums over all.
pub(crate) fn answer(worker: &Worker, link: &HostLink, request: u64) {
    let mut pieces = Vec::new();
    let mut sums = MemorySums::NONE;
    for (held, device) in worker.vgpu.memory_pieces() {
        sums.away_bytes += device.away_bytes;
        sums.pinned_bytes += device.pinned_bytes;
        sums.store_bytes += device.store_bytes;
        sums.pool_held_bytes += device.pool_held_bytes;
        sums.pool_asked_bytes += device.pool_asked_bytes;
        sums.pool_given_bytes += device.pool_given_bytes;
        sums.pool_largest_free_bytes =
            (sums.pool_largest_free_bytes).max(device.pool_largest_free_bytes);
        sums.pool_pieces += device.pool_pieces;
        pieces.extend(held);
    }
    sums.pieces = pieces.len() as u64;
    sums.asked_bytes = pieces.iter().map(|piece| piece.asked_bytes).sum();
    pieces.sort_by_key(|piece| std::cmp::Reverse(piece.asked_bytes));
    pieces.truncate(MAP_PIECES);
    for held in pieces {
        let piece = piece_of(&held);
        link.report(&ClientMessage::MapPiece { request, piece });
    }
    link.report(&ClientMessage::MapEnd { request, sums });
}

fn piece_of(held: &Held) -> Piece {
    Piece {
        address: held.address,
        kind: match held.kind {
            Kind::Allocation => PieceKind::Allocation,
            Kind::Pooled => PieceKind::Pooled,
            Kind::Mapping => PieceKind::Mapping,
            Kind::Variable => PieceKind::Variable,
        },
        asked_bytes: held.asked_bytes,
        held_bytes: held.held_bytes,
        away: held.away,
        pinned: held.pinned.unwrap_or_default().into(),
    }
}
