//! Where the memory of a virtual GPU is, piece by piece.

use serde::{Deserialize, Serialize};

/// What a piece of device memory is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum PieceKind {
    /// An allocation with memory of its own.
    #[default]
    Allocation,
    /// An allocation in a pool, beside others.
    Pooled,
    /// Memory that the program mapped itself.
    Mapping,
    /// A variable of a module.
    Variable,
}

impl std::fmt::Display for PieceKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Allocation => "allocation",
            Self::Pooled => "pooled",
            Self::Mapping => "mapping",
            Self::Variable => "variable",
        })
    }
}

/// A piece of device memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct MemoryPiece {
    /// Address as the program sees it.
    pub address: u64,
    /// What it is.
    pub kind: PieceKind,
    /// Bytes that the program asked for.
    pub asked_bytes: u64,
    /// Bytes of the device that it takes alone; 0 where it shares them with others.
    pub held_bytes: u64,
    /// Whether it is in host memory now.
    pub away: bool,
    /// Why it cannot leave the GPU; nothing where it can, or where nothing leaves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned: Option<String>,
}

/// Small allocations, which lie side by side in frames of 2 MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct PoolFigures {
    /// Bytes of the device that the pool holds.
    pub held_bytes: u64,
    /// Bytes of them that the program asked for.
    pub asked_bytes: u64,
    /// Bytes that are given out: what was asked for, rounded up.
    pub given_bytes: u64,
    /// Largest piece that can be given out without more memory of the device.
    pub largest_free_bytes: u64,
    /// Pieces given out.
    pub pieces: u64,
    /// Percent of the free bytes that the largest request could not have.
    pub fragmentation_percent: f64,
    /// Percent of the held bytes that nobody asked for.
    pub waste_percent: f64,
}

/// The memory of one program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct ProgramMemory {
    /// Process of the program, or of its worker where the program is not known.
    pub pid: u32,
    /// Command name.
    pub name: String,
    /// Pieces in all.
    pub pieces_total: u64,
    /// Bytes that the program asked for, in all of them.
    pub asked_bytes: u64,
    /// Bytes of device memory in host memory now.
    pub away_bytes: u64,
    /// Bytes that cannot leave the GPU.
    pub pinned_bytes: u64,
    /// Host memory that stands ready for memory that leaves.
    pub arena_bytes: u64,
    /// The pool of small allocations.
    pub pool: PoolFigures,
    /// The largest pieces, by address.
    pub pieces: Vec<MemoryPiece>,
    /// The worker did not answer: its other figures are 0.
    pub unanswered: bool,
}

/// The memory of a virtual GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct MemoryMap {
    /// Name of the virtual GPU.
    pub name: String,
    /// Its limit.
    pub limit_bytes: u64,
    /// Memory in use.
    pub used_bytes: u64,
    /// Largest allocation that its limit still allows. Frames lie anywhere, so it is all that is free, in whole frames;
    /// nothing where memory cannot be mapped freely.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest_free_bytes: Option<u64>,
    /// Its programs.
    pub programs: Vec<ProgramMemory>,
}
