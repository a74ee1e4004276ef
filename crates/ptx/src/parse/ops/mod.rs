//! Families of instructions: each reads its modifiers and operands.

pub(super) mod address;
pub(super) mod bits;
pub(super) mod control;
pub(super) mod convert;
pub(super) mod copy;
pub(super) mod float;
pub(super) mod integer;
pub(super) mod matrix;
pub(super) mod mbarrier;
pub(super) mod memory;
pub(super) mod sync;
pub(super) mod texture;
pub(super) mod video;
pub(super) mod wgmma;
pub(super) mod wmma;
