//! What a session holds of the device's memory, for those who look at it.

use mica_gpu::{DevicePtr, MemorySums};

use super::Session;
use crate::ranges::Owner;

/// What a piece of memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceKind {
    /// An allocation with memory of its own.
    Allocation,
    /// An allocation beside others in memory of the device's choice.
    Pooled,
    /// A mapped frame.
    Mapping,
    /// A variable of a module.
    Variable,
}

/// A piece of device memory of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First address.
    pub address: u64,
    /// What it is.
    pub kind: PieceKind,
    /// Bytes that were asked for.
    pub asked_bytes: u64,
    /// Bytes of the device that it takes alone.
    pub held_bytes: u64,
    /// Whether it is in host memory.
    pub away: bool,
    /// Why it cannot leave the device.
    pub pinned: Option<&'static str>,
}

impl Session {
    /// All its device memory, by address, and what the device says of all of it.
    pub fn memory_pieces(&self) -> (Vec<Piece>, MemorySums) {
        let ranges: Vec<(u64, u64, PieceKind)> = {
            let tables = self.read();
            let kind = |owner: &Owner| match owner {
                Owner::Allocation { .. } => Some(PieceKind::Allocation),
                Owner::Global(_) => Some(PieceKind::Variable),
                Owner::Mapping { .. } => Some(PieceKind::Mapping),
                Owner::Host { .. } => None,
            };
            let all = tables.ranges.0.iter();
            all.filter_map(|(at, range)| Some((*at, range.bytes, kind(&range.owner)?)))
                .collect()
        };
        let piece = |(address, asked_bytes, kind)| {
            let standing = self.gpu.memory_standing(DevicePtr(address));
            let kind = match (kind, standing) {
                (PieceKind::Allocation, Some(standing)) if standing.pooled => PieceKind::Pooled,
                (kind, _) => kind,
            };
            Piece {
                address,
                kind,
                asked_bytes,
                held_bytes: standing.map_or(asked_bytes, |standing| standing.held_bytes),
                away: standing.is_some_and(|standing| standing.away),
                pinned: standing.and_then(|standing| standing.pinned),
            }
        };
        let pieces = ranges.into_iter().map(piece).collect();
        (pieces, self.gpu.memory_sums())
    }
}
