//! Host memory in an ivshmem file: which part of its heap the program uses for what.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::session::ivshmem::IvshmemLayout;
use crate::session::memfd::{MappedBytes, create_sealed};
use crate::session::{SessionError, ivshmem};

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: u32 = 2;
/// Pieces of this size and more begin on a huge page.
const HUGE: u64 = 2 << 20;

/// The heap of an ivshmem file, as the program divides it.
#[derive(Debug)]
pub struct IvshmemHeap {
    file: OwnedFd,
    layout: IvshmemLayout,
    /// Free ranges by their place in the file, in order, none beside another.
    free: Mutex<Vec<(u64, u64)>>,
}

impl IvshmemHeap {
    pub(super) fn new(file: OwnedFd, bytes: u64, has_windows: bool) -> Self {
        let layout = ivshmem::IvshmemLayout::new(bytes, has_windows);
        let free = match layout.heap.is_empty() {
            true => Vec::new(),
            false => vec![(layout.heap.start, layout.heap.end)],
        };
        Self {
            file,
            layout,
            free: Mutex::new(free),
        }
    }

    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }

    pub(super) fn has_windows(&self) -> bool {
        !self.layout.windows.is_empty()
    }

    fn free(&self) -> MutexGuard<'_, Vec<(u64, u64)>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes so many bytes, whole pages, from the first place where they fit.
    fn take(&self, bytes: u64) -> Option<u64> {
        let align = if bytes >= HUGE { HUGE } else { 4096 };
        let mut free = self.free();
        let (index, start) = free.iter().enumerate().find_map(|(index, (from, to))| {
            let start = from.checked_next_multiple_of(align)?;
            (start.checked_add(bytes)? <= *to).then_some((index, start))
        })?;
        let (from, to) = free.remove(index);
        let rest = [(from, start), (start + bytes, to)];
        let rest = rest.into_iter().filter(|(from, to)| from < to);
        free.splice(index..index, rest);
        Some(start)
    }

    fn give(&self, offset: u64, bytes: u64) {
        let mut free = self.free();
        let index = free.partition_point(|(from, _)| *from < offset);
        let mut range = (offset, offset + bytes);
        if free.get(index).is_some_and(|next| next.0 == range.1) {
            range.1 = free.remove(index).1;
        }
        match index.checked_sub(1) {
            Some(before) if free[before].1 == range.0 => free[before].1 = range.1,
            _ => free.insert(index, range),
        }
    }
}

/// Memory that a program and its worker can both map, and that is nothing else's: a file of its own, or a part of the
/// session's ivshmem file, which is given back when this is dropped.
#[derive(Debug)]
pub struct HostPiece {
    kind: PieceKind,
    bytes: u64,
}

#[derive(Debug)]
enum PieceKind {
    File(OwnedFd),
    InIvshmem(Arc<IvshmemHeap>, u64),
}

impl HostPiece {
    /// Whole pages, at least so many bytes.
    pub(super) fn new(heap: Option<&Arc<IvshmemHeap>>, bytes: u64) -> Result<Self, SessionError> {
        let Some(heap) = heap else {
            let fd =
                create_sealed("mica-host", bytes).map_err(SessionError::system("memfd_create"))?;
            return Ok(Self {
                kind: PieceKind::File(fd),
                bytes,
            });
        };
        let full = || SessionError::Refused {
            code: OUT_OF_MEMORY,
            message: format!(
                "no room for {bytes} bytes of host memory in the machine's shared-memory device: \
                 its ivshmem file is too small"
            ),
        };
        let bytes = bytes.checked_next_multiple_of(4096).ok_or_else(full)?;
        let offset = heap.take(bytes).ok_or_else(full)?;
        let piece = Self {
            kind: PieceKind::InIvshmem(Arc::clone(heap), offset),
            bytes,
        };
        // Others' bytes may be there. Writing also gives the machine its pages, so that the worker need not.
        let mapped = piece.map(0)?;
        // SAFETY: a mapping of so many bytes, which nobody else uses.
        unsafe { std::ptr::write_bytes(mapped.as_ptr(), 0, mapped.len()) };
        Ok(piece)
    }

    /// The file it lies in.
    pub fn file(&self) -> &OwnedFd {
        match &self.kind {
            PieceKind::File(fd) => fd,
            PieceKind::InIvshmem(heap, _) => heap.file(),
        }
    }

    /// Where in the file it begins.
    pub fn offset(&self) -> u64 {
        match &self.kind {
            PieceKind::File(_) => 0,
            PieceKind::InIvshmem(_, offset) => *offset,
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it is a part of the session's ivshmem file.
    pub fn is_in_ivshmem(&self) -> bool {
        matches!(self.kind, PieceKind::InIvshmem(..))
    }

    /// Maps it, at `address` if that is not 0 and nothing is there.
    pub(crate) fn map(&self, address: usize) -> Result<MappedBytes, SessionError> {
        MappedBytes::map(self.file(), self.offset(), self.bytes as usize, address)
            .map_err(SessionError::system("mmap"))
    }
}

impl Drop for HostPiece {
    fn drop(&mut self) {
        if let PieceKind::InIvshmem(heap, offset) = &self.kind {
            heap.give(*offset, self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::ivshmem::{HEAP_AT, LEAST_IVSHMEM_BYTES};

    fn heap() -> Arc<IvshmemHeap> {
        let file = create_sealed("ivshmem", LEAST_IVSHMEM_BYTES).unwrap();
        Arc::new(IvshmemHeap::new(file, LEAST_IVSHMEM_BYTES, false))
    }

    #[test]
    fn pieces_do_not_overlap_and_come_back() {
        let heap = heap();
        let whole = LEAST_IVSHMEM_BYTES - HEAP_AT;
        let mut pieces: Vec<HostPiece> = Vec::new();
        let mut seed = 1_u64;
        for round in 0..2000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            let bytes = 4096 * (1 + (seed >> 33) % 700);
            if let Ok(piece) = HostPiece::new(Some(&heap), bytes) {
                assert!(piece.offset() >= HEAP_AT);
                assert!(piece.offset() + bytes <= LEAST_IVSHMEM_BYTES);
                for other in &pieces {
                    let apart = piece.offset() + piece.bytes() <= other.offset()
                        || other.offset() + other.bytes() <= piece.offset();
                    assert!(apart, "round {round}");
                }
                pieces.push(piece);
            } else {
                assert!(!pieces.is_empty());
                pieces.swap_remove(round % pieces.len());
            }
        }
        pieces.clear();
        let all = HostPiece::new(Some(&heap), whole).unwrap();
        assert_eq!(all.offset(), HEAP_AT);
        let full = HostPiece::new(Some(&heap), 4096).unwrap_err();
        assert_eq!(full.cuda_code(), OUT_OF_MEMORY);
    }

    #[test]
    fn a_piece_never_shows_what_was_there_before() {
        let heap = heap();
        let piece = HostPiece::new(Some(&heap), 8192).unwrap();
        piece.map(0).unwrap().write(0, b"secret");
        drop(piece);
        let piece = HostPiece::new(Some(&heap), 8192).unwrap();
        let mut seen = [1; 6];
        piece.map(0).unwrap().read(0, &mut seen);
        assert_eq!(seen, [0; 6]);
    }
}
