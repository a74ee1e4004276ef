//! An ivshmem file: all the memory that a program in a virtual machine and its worker share, behind a PCI device of QEMU.
//!
//! In a virtual machine the file is the memory of a PCI device (ivshmem), which the program maps; on the host the worker
//! maps the file itself. So the same ring runs through the wall.
//!
//! ```text
//!   0        header: who made the ivshmem file; written by the host before the machine starts
//!   2 MiB    the session's area: ring, reply slots, staging chunks
//!   22 MiB   heap: host memory that the device uses in place; the program says what is where
//!   …        windows on device memory, where the device has any; the worker says what is where
//! ```
//! The machine can write to all of it at any time: the worker reads nothing of the header, copies records out before it
//! looks at them, and keeps its own account of what lies where. The file is not sealed, because a virtual machine's
//! program (QEMU) opens it by its path: whoever has it open can cut it short, and then the worker of this session dies
//! by a signal, as it would if it were killed.

use std::ops::Range;
use std::os::fd::AsFd;

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, fstatfs};
use rustix::io::Errno;

use super::area::AREA_BYTES;

/// Where the session's area begins: the first huge page after the header.
pub const AREA_AT: u64 = 2 << 20;
/// Where the heap begins.
pub const HEAP_AT: u64 = (AREA_AT + AREA_BYTES as u64).next_multiple_of(2 << 20);
/// Least bytes of an ivshmem file: the memory of a PCI device is a power of two.
pub const LEAST_IVSHMEM_BYTES: u64 = 32 << 20;
/// Bytes of the header.
pub const IVSHMEM_HEADER_BYTES: usize = 24;
/// First bytes of the header, with the version of the layout.
const MAGIC: [u8; 8] = *b"micargn1";
/// `TMPFS_MAGIC`: files in memory.
const TMPFS: i64 = 0x0102_1994;

/// What an ivshmem file is called: random, so that no machine guesses another one's.
pub type IvshmemId = [u8; 16];

/// The header of an ivshmem file.
pub fn ivshmem_header(id: IvshmemId) -> [u8; IVSHMEM_HEADER_BYTES] {
    let mut header = [0; IVSHMEM_HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..].copy_from_slice(&id);
    header
}

/// The ivshmem file that a header names; `None` if it is none.
pub fn ivshmem_id(header: &[u8; IVSHMEM_HEADER_BYTES]) -> Option<IvshmemId> {
    let (magic, id) = header.split_at(8);
    (magic == MAGIC).then(|| id.try_into().ok()).flatten()
}

/// What lies where in an ivshmem file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IvshmemLayout {
    /// Host memory, by its place in the file.
    pub heap: Range<u64>,
    /// Windows on device memory; empty where there are none.
    pub windows: Range<u64>,
}

impl IvshmemLayout {
    /// The layout of an ivshmem file of so many bytes: windows have the upper half of what the area leaves.
    pub fn new(bytes: u64, has_windows: bool) -> Self {
        let end = bytes & !4095;
        let middle = match has_windows {
            true => (HEAP_AT + (end.saturating_sub(HEAP_AT)) / 2).next_multiple_of(2 << 20),
            false => end,
        };
        let middle = middle.clamp(HEAP_AT, end.max(HEAP_AT));
        Self {
            heap: HEAP_AT..middle,
            windows: middle..end.max(middle),
        }
    }

    /// Whether some bytes of the file are host memory.
    pub fn is_in_heap(&self, offset: u64, bytes: u64) -> bool {
        let end = offset.checked_add(bytes);
        bytes > 0
            && offset.is_multiple_of(4096)
            && offset >= self.heap.start
            && end.is_some_and(|end| end <= self.heap.end)
    }
}

/// Looks whether a file can stand behind an ivshmem device; its bytes.
///
/// # Errors
/// `INVAL` unless it is a file in memory, open for reading and writing, of a size that an ivshmem file has.
pub fn check_ivshmem(fd: impl AsFd) -> Result<u64, Errno> {
    let stat = fstat(&fd)?;
    let bytes = stat.st_size as u64;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let is_open = fcntl_getfl(&fd)?.contains(OFlags::RDWR);
    if !is_file
        || !is_open
        || fstatfs(&fd)?.f_type as i64 != TMPFS
        || bytes < LEAST_IVSHMEM_BYTES
        || !bytes.is_multiple_of(4096)
    {
        return Err(Errno::INVAL);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::create_sealed;

    #[test]
    fn a_layout_covers_the_file_and_nothing_else() {
        for bytes in [LEAST_IVSHMEM_BYTES, 64 << 20, 256 << 20, (1 << 30) + 4096] {
            for has_windows in [false, true] {
                let layout = IvshmemLayout::new(bytes, has_windows);
                assert_eq!(layout.heap.start, HEAP_AT);
                assert_eq!(layout.heap.end, layout.windows.start);
                assert_eq!(layout.windows.end, bytes);
                assert_eq!(layout.windows.is_empty(), !has_windows);
            }
        }
        let none = IvshmemLayout::new(4096, true);
        assert!(none.heap.is_empty() && none.windows.is_empty());
    }

    #[test]
    fn host_memory_outside_the_heap_is_refused() {
        let layout = IvshmemLayout::new(64 << 20, true);
        let end = layout.heap.end;
        assert!(layout.is_in_heap(HEAP_AT, end - HEAP_AT));
        for (offset, bytes) in [
            (HEAP_AT, end - HEAP_AT + 4096),
            (HEAP_AT - 4096, 4096),
            (HEAP_AT + 1, 4096),
            (HEAP_AT, 0),
            (end, 4096),
            (AREA_AT, 4096),
            (HEAP_AT, u64::MAX),
            (!4095, 8192),
        ] {
            assert!(!layout.is_in_heap(offset, bytes), "{offset:#x} {bytes:#x}");
        }
    }

    #[test]
    fn only_files_in_memory_are_ivshmem_files() {
        let good = create_sealed("ivshmem", LEAST_IVSHMEM_BYTES).unwrap();
        assert_eq!(check_ivshmem(&good), Ok(LEAST_IVSHMEM_BYTES));
        let short = create_sealed("ivshmem", LEAST_IVSHMEM_BYTES - 4096).unwrap();
        assert_eq!(check_ivshmem(&short), Err(Errno::INVAL));
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&good));
        let read_only = std::fs::File::open(path).unwrap();
        assert_eq!(check_ivshmem(&read_only), Err(Errno::INVAL));
        let device = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/zero");
        assert_eq!(check_ivshmem(device.unwrap()), Err(Errno::INVAL));
    }

    #[test]
    fn headers_name_an_ivshmem_file() {
        let id = *b"0123456789abcdef";
        let mut header = ivshmem_header(id);
        assert_eq!(ivshmem_id(&header), Some(id));
        header[0] ^= 1;
        assert_eq!(ivshmem_id(&header), None);
    }
}
