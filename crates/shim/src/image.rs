//! Images of device code in the program's memory.
//!
//! CUDA hands over addresses without lengths, and the image's own headers say how long it is. The kernel is asked whether so
//! much can be read before it is read: a malformed image is an error of the call, and no fault of the program.

use mica_fatbin::Region;

const PAGE: u64 = 4096;
/// A range for which the pages are asked about all at once.
const LARGE: u64 = 1 << 20;
/// Pages that one system call asks about.
const BATCH: usize = 128;

/// Reads the program's memory up to the end of a page; 0 where it cannot be read.
pub(crate) fn read_memory(address: u64, into: &mut [u8]) -> usize {
    let len = (into.len() as u64).min(PAGE - address % PAGE);
    if !is_readable(address, len) {
        return 0;
    }
    // SAFETY: the kernel could just read the page that these bytes lie in, and the program says that an image is there.
    unsafe { std::ptr::copy_nonoverlapping(address as *const u8, into.as_mut_ptr(), len as usize) };
    len as usize
}

/// The bytes of an image; `None` where the image says that it is longer than what can be read.
pub(crate) fn bytes_of(region: &Region) -> Option<&'static [u8]> {
    let len = usize::try_from(region.len).ok()?;
    // SAFETY: every page of it can be read, and the program must keep an image in place while it is being loaded.
    is_readable(region.address, region.len)
        .then(|| unsafe { std::slice::from_raw_parts(region.address as *const u8, len) })
}

/// Whether all bytes of a range can be read.
fn is_readable(address: u64, len: u64) -> bool {
    let Some(end) = address.checked_add(len) else {
        return false;
    };
    if len > LARGE
        && let Some(readable) = populate(address, end)
    {
        return readable;
    }
    let mut at = address;
    while at < end {
        let mut places = [0; BATCH];
        let mut count = 0;
        while count < BATCH && at < end {
            places[count] = at;
            count += 1;
            at = (at | (PAGE - 1)).saturating_add(1);
        }
        let places = &places[..count];
        let readable = read_bytes(places).unwrap_or_else(|| places.iter().all(|at| peek(*at)));
        if !readable {
            return false;
        }
    }
    true
}

/// Has the kernel make all pages of a range ready to be read, and says whether it could; `None` where it does not say. Pages
/// that are there take a third of the time that reading a byte of each takes.
fn populate(address: u64, end: u64) -> Option<bool> {
    let start = address & !(PAGE - 1);
    // SAFETY: reads nothing and changes no content; the kernel checks the range.
    let done = unsafe {
        let len = (end - start) as usize;
        libc::madvise(start as *mut _, len, libc::MADV_POPULATE_READ)
    };
    if done == 0 {
        return Some(true);
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::ENOMEM | libc::EFAULT) => Some(false),
        // A kernel older than 5.14, or pages that may not be read.
        _ => None,
    }
}

/// Whether a byte at each address can be read; `None` where a sandbox forbids the question.
fn read_bytes(places: &[u64]) -> Option<bool> {
    let mut bytes = [0_u8; BATCH];
    let local = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: places.len().min(BATCH),
    };
    let mut remote = [libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 1,
    }; BATCH];
    for (piece, place) in remote.iter_mut().zip(places) {
        piece.iov_base = *place as *mut _;
    }
    // SAFETY: `local` describes `bytes`, and as many pieces of `remote` as are passed have been filled; the kernel checks
    // the addresses in them.
    let got = unsafe {
        let count = local.iov_len as libc::c_ulong;
        libc::process_vm_readv(libc::getpid(), &local, 1, remote.as_ptr(), count, 0)
    };
    if got >= 0 {
        return Some(got as usize == local.iov_len);
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EFAULT) => Some(false),
        _ => None,
    }
}

/// Whether the word around an address can be read, asked by a futex that never waits: no sandbox forbids those.
fn peek(address: u64) -> bool {
    let at_once = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel checks the address, and reads one aligned word of it.
    let answer = unsafe {
        let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        libc::syscall(libc::SYS_futex, address & !3, wait, 0, &at_once, 0, 0)
    };
    let error = std::io::Error::last_os_error().raw_os_error();
    answer == 0 || matches!(error, Some(libc::EAGAIN | libc::ETIMEDOUT | libc::EINTR))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three pages, of which the middle one can be read.
    fn island() -> u64 {
        let size = 3 * PAGE as usize;
        // SAFETY: a new mapping, of which one page is made readable; it is never unmapped.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let at = libc::mmap(std::ptr::null_mut(), size, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            let middle = at.byte_add(PAGE as usize);
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            assert_eq!(libc::mprotect(middle, PAGE as usize, rights), 0);
            middle as u64
        }
    }

    #[test]
    fn only_what_is_mapped_to_be_read_is_read() {
        let island = island();
        for (at, len, readable) in [
            (island, PAGE, true),
            (island + PAGE - 1, 1, true),
            (island, PAGE + 1, false),
            (island - 1, 2, false),
            (0, 1, false),
            (u64::MAX, 1, false),
            (island, 1 << 40, false),
        ] {
            assert_eq!(is_readable(at, len), readable, "{at:#x} {len}");
        }
        // Larger ranges are asked about in another way.
        assert_ne!(populate(island, island + PAGE), Some(false));
        assert_ne!(populate(island + 1, island + PAGE), Some(false));
        assert_ne!(populate(island, island + 2 * PAGE), Some(true));
        assert_ne!(populate(1 << 46, (1 << 46) + PAGE), Some(true));
        // What is asked where a sandbox forbids the other way.
        assert!(peek(island + PAGE - 1));
        assert!(!peek(island - 1) && !peek(island + PAGE) && !peek(0));
        // SAFETY: the first word of the page that can be written.
        unsafe { (island as *mut u32).write(7) };
        assert!(peek(island));
    }

    #[test]
    fn an_image_that_claims_more_than_is_mapped_has_no_bytes() {
        let island = island();
        let mut header = [0; 16];
        header[..4].copy_from_slice(&0xba55_ed50_u32.to_le_bytes());
        header[4..8].copy_from_slice(&[1, 0, 16, 0]);
        header[8..].copy_from_slice(&(2 * PAGE).to_le_bytes());
        // SAFETY: the page can be written.
        unsafe { std::ptr::copy_nonoverlapping(header.as_ptr(), island as *mut u8, 16) };
        let located = mica_fatbin::locate(&read_memory, island).unwrap();
        assert_eq!(located[0].len, 2 * PAGE + 16);
        assert_eq!(bytes_of(&located[0]), None);
        let shorter = Region {
            len: PAGE,
            ..located[0]
        };
        assert_eq!(bytes_of(&shorter).map(<[u8]>::len), Some(PAGE as usize));
        // Headers and texts that end in the middle, and pointers to nothing.
        for at in [island + PAGE - 8, island + PAGE, 8, u64::MAX - 3] {
            assert!(mica_fatbin::locate(&read_memory, at).is_err(), "{at:#x}");
        }
        // SAFETY: as above.
        unsafe { (island as *mut u8).write_bytes(b'x', PAGE as usize) };
        assert!(mica_fatbin::locate(&read_memory, island).is_err());
    }
}
