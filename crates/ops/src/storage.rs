//! Device memory of tensors and workspaces, kept for the next one of its size.
//!
//! All work of a library object runs in one stream, so memory that a dropped tensor gives back may be
//! used by the next operation at once: the stream has passed the earlier one by then.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use mica::{DeviceBuffer, Vgpu};

use crate::Result;

/// Part of the virtual GPU's memory that is kept at most, beside what tensors hold. To free and allocate a large tensor takes
/// as long as many operations on it. What is kept goes back where the limit is in the way.
const KEPT_PART: u64 = 2;

/// A piece of device memory.
enum Piece {
    Buffer(DeviceBuffer<u8>),
    /// Of so many bytes, which nobody has: only counted.
    Counted(usize),
}

impl Piece {
    fn bytes(&self) -> usize {
        match self {
            Self::Buffer(buffer) => buffer.len(),
            Self::Counted(bytes) => *bytes,
        }
    }
}

#[derive(Default)]
struct Kept {
    by_size: HashMap<usize, Vec<Piece>>,
    bytes: u64,
    /// Bytes that were counted: now with what is kept, and at most.
    counted: u64,
    most_counted: u64,
}

/// Where counted pieces seem to be: aligned as memory is, and nobody's.
const NOWHERE: u64 = 1 << 46;

/// The memory of one library object.
pub(crate) struct Pool {
    vgpu: Vgpu,
    kept: Mutex<Kept>,
    most_kept: u64,
    /// Whether memory is only counted.
    is_counting: bool,
    this: Weak<Pool>,
}

/// Device memory; goes back to its pool when dropped.
pub(crate) struct Storage {
    piece: Option<Piece>,
    address: u64,
    pool: Weak<Pool>,
    /// What keeps memory of somebody else.
    _kept_by: Option<Arc<dyn Any + Send + Sync>>,
}

/// Sizes that memory is had in: steps of an eighth of the power of two below, at least 512 bytes.
fn class(bytes: usize) -> usize {
    let step = (bytes.max(512).next_power_of_two() / 16).max(512);
    bytes.max(1).div_ceil(step) * step
}

impl Pool {
    pub(crate) fn new(vgpu: &Vgpu) -> Result<Arc<Self>> {
        let limit = vgpu.memory()?.limit_bytes;
        Ok(Arc::new_cyclic(|this| Self {
            vgpu: vgpu.clone(),
            kept: Mutex::default(),
            most_kept: limit / KEPT_PART,
            is_counting: false,
            this: this.clone(),
        }))
    }

    /// One that counts what would be taken, and keeps what is given back.
    pub(crate) fn counting(vgpu: &Vgpu) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            vgpu: vgpu.clone(),
            kept: Mutex::default(),
            most_kept: u64::MAX,
            is_counting: true,
            this: this.clone(),
        })
    }

    /// The most that was taken, as far as it was counted.
    pub(crate) fn most_taken(&self) -> u64 {
        self.kept().most_counted
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn take(&self, bytes: usize) -> Result<Storage> {
        let size = class(bytes);
        let found = {
            let mut kept = self.kept();
            let found = kept.by_size.get_mut(&size).and_then(Vec::pop);
            if found.is_some() {
                kept.bytes -= size as u64;
            }
            found
        };
        let piece = match found {
            Some(piece) => piece,
            None if self.is_counting => self.count(size),
            None => Piece::Buffer(self.allocate(size)?),
        };
        Ok(Storage {
            address: match &piece {
                Piece::Buffer(buffer) => buffer.address(),
                Piece::Counted(_) => NOWHERE,
            },
            piece: Some(piece),
            pool: self.this.clone(),
            _kept_by: None,
        })
    }

    fn count(&self, size: usize) -> Piece {
        let mut kept = self.kept();
        kept.counted += size as u64;
        kept.most_counted = kept.most_counted.max(kept.counted);
        Piece::Counted(size)
    }

    /// New memory; what is kept goes back to the virtual GPU first where the limit is in the way.
    fn allocate(&self, size: usize) -> Result<DeviceBuffer<u8>> {
        match self.vgpu.alloc_unset(size) {
            Err(error) if error.is_out_of_memory() && self.trim() => {
                Ok(self.vgpu.alloc_unset(size)?)
            }
            other => Ok(other?),
        }
    }

    /// Gives kept memory back to the virtual GPU; whether there was any.
    pub(crate) fn trim(&self) -> bool {
        let mut kept = self.kept();
        let pieces = std::mem::take(&mut kept.by_size);
        let bytes = std::mem::take(&mut kept.bytes);
        if self.is_counting {
            kept.counted -= bytes;
        }
        drop(kept);
        drop(pieces);
        bytes > 0
    }
}

impl Storage {
    /// Memory of somebody else, who keeps it until `keeps` is dropped.
    pub(crate) fn adopted(address: u64, keeps: Arc<dyn Any + Send + Sync>) -> Self {
        Self {
            piece: None,
            address,
            pool: Weak::new(),
            _kept_by: Some(keeps),
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn buffer(&self) -> Option<&DeviceBuffer<u8>> {
        match &self.piece {
            Some(Piece::Buffer(buffer)) => Some(buffer),
            Some(Piece::Counted(_)) | None => None,
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        let (Some(piece), Some(pool)) = (self.piece.take(), self.pool.upgrade()) else {
            return;
        };
        let bytes = piece.bytes() as u64;
        let mut kept = pool.kept();
        if kept.bytes + bytes <= pool.most_kept {
            kept.bytes += bytes;
            kept.by_size.entry(piece.bytes()).or_default().push(piece);
        }
    }
}

impl std::fmt::Debug for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Storage({:#x})", self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::class;

    #[test]
    fn size_classes_waste_at_most_an_eighth() {
        for bytes in [
            1,
            511,
            512,
            513,
            4096,
            5000,
            1 << 20,
            (1 << 20) + 1,
            12_345_678,
        ] {
            let size = class(bytes);
            assert!(size >= bytes);
            assert!(
                size - bytes <= 512 || (size - bytes) * 8 <= bytes,
                "{bytes} {size}"
            );
            assert_eq!(class(size), size);
        }
    }
}
