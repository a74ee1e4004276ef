//! Pages for machine code: written first, executable after that, never both at once.
//!
//! A process that confines itself reserves one range of addresses for code before ([`reserve_code_addresses`]), so that
//! the rules of its confinement can name the only addresses that may become executable. Others take pages anywhere.

use std::io;
use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Addresses reserved for code: more than the code caches of one worker ever hold.
const CODE_BYTES: usize = 2 << 30;
/// Code is mapped in whole pages.
const PAGE: usize = 4096;

static CODE: OnceLock<CodeRange> = OnceLock::new();

/// A reserved range and the parts of it that are free.
struct CodeRange {
    addresses: Range<usize>,
    free: Mutex<Vec<Range<usize>>>,
}

/// Reserves the addresses of all code that this process will compile; the same range when asked again. Takes no
/// memory.
///
/// # Errors
/// The system refuses the addresses.
pub fn reserve_code_addresses() -> io::Result<Range<usize>> {
    if let Some(code) = CODE.get() {
        return Ok(code.addresses.clone());
    }
    // As much again behind it, never used: a range that begins in the reserved one and is as long ends there,
    // and longer ranges are refused.
    let base = map(None, 2 * CODE_BYTES, libc::PROT_NONE)? as usize;
    let addresses = base..base + CODE_BYTES;
    let code = CODE.get_or_init(|| CodeRange {
        addresses: addresses.clone(),
        free: Mutex::new(vec![addresses]),
    });
    Ok(code.addresses.clone())
}

/// Pages that hold machine code, freed on drop.
pub(crate) struct Executable {
    base: *mut u8,
    size: usize,
}

// SAFETY: the pages are read-only and executable once made.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

impl Executable {
    /// Pages with this code, ready to run.
    pub(crate) fn new(code: &[u8]) -> io::Result<Self> {
        let bytes = code.len().max(1).next_multiple_of(PAGE);
        let pages = Self::writable(bytes)?;
        // SAFETY: the pages have room for all bytes and are nobody else's.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), pages.base, code.len()) };
        protect(pages.base, bytes, libc::PROT_READ | libc::PROT_EXEC)?;
        Ok(pages)
    }

    fn writable(bytes: usize) -> io::Result<Self> {
        let data = libc::PROT_READ | libc::PROT_WRITE;
        let Some(code) = CODE.get() else {
            let base = map(None, bytes, data)?;
            return Ok(Self { base, size: bytes });
        };
        let address = code.take(bytes).ok_or_else(|| {
            let text = format!("{CODE_BYTES} bytes of compiled code are in use");
            io::Error::new(io::ErrorKind::OutOfMemory, text)
        })?;
        let pages = Self {
            base: address as *mut u8,
            size: bytes,
        };
        protect(pages.base, bytes, data)?;
        Ok(pages)
    }

    /// Where the code starts.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// The pages' size.
    pub(crate) fn len(&self) -> usize {
        self.size
    }

    /// The code, and zeros up to the end of its last page.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the pages are readable, and nothing writes to them.
        unsafe { std::slice::from_raw_parts(self.base, self.size) }
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        match CODE
            .get()
            .filter(|r| r.addresses.contains(&(self.base as usize)))
        {
            Some(code) => {
                // A new mapping over the old one: its pages are gone, its addresses still reserved.
                if map(Some(self.base), self.size, libc::PROT_NONE).is_ok() {
                    code.give(self.base as usize..self.base as usize + self.size);
                }
            }
            None => {
                // SAFETY: our own mapping, and nobody can run it any more.
                unsafe { libc::munmap(self.base.cast(), self.size) };
            }
        }
    }
}

impl CodeRange {
    /// The first free addresses that are enough.
    fn take(&self, bytes: usize) -> Option<usize> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let found = free.iter().position(|range| range.len() >= bytes)?;
        let start = free[found].start;
        free[found].start += bytes;
        if free[found].is_empty() {
            free.remove(found);
        }
        Some(start)
    }

    /// Frees addresses, joined with their free neighbours.
    fn give(&self, range: Range<usize>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let at = free.partition_point(|other| other.start < range.start);
        free.insert(at, range);
        if at + 1 < free.len() && free[at].end == free[at + 1].start {
            free[at].end = free[at + 1].end;
            free.remove(at + 1);
        }
        if at > 0 && free[at - 1].end == free[at].start {
            free[at - 1].end = free[at].end;
            free.remove(at);
        }
    }
}

fn map(at: Option<*mut u8>, bytes: usize, protection: i32) -> io::Result<*mut u8> {
    let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    let at = at.unwrap_or(std::ptr::null_mut());
    // SAFETY: either no address is given, or one of pages that are ours and that nobody uses any more.
    let base = unsafe { libc::mmap(at.cast(), bytes, protection, flags, -1, 0) };
    match base {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        base => Ok(base.cast()),
    }
}

fn protect(base: *mut u8, bytes: usize, protection: i32) -> io::Result<()> {
    // SAFETY: our own pages; nothing runs in them yet.
    match unsafe { libc::mprotect(base.cast(), bytes, protection) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rights of the mapping that holds an address.
    fn rights(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let found = maps.lines().find_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let hex = |x| usize::from_str_radix(x, 16).ok();
            (hex(start)?..hex(end)?)
                .contains(&address)
                .then(|| rest[..4].to_owned())
        });
        found.expect("a mapping")
    }

    #[test]
    fn code_is_executable_and_not_writable() {
        let code = Executable::new(&[0xc3; 5000]).expect("maps");
        assert_eq!(code.len(), 8192);
        assert_eq!(&code.bytes()[4998..5002], [0xc3, 0xc3, 0, 0]);
        assert_eq!(rights(code.base() as usize), "r-xp");
        assert_eq!(rights(code.base() as usize + 8191), "r-xp");
    }

    #[test]
    fn freed_addresses_are_joined_and_used_again() {
        let code = CodeRange {
            addresses: 0..8 * PAGE,
            free: Mutex::new(std::iter::once(0..8 * PAGE).collect()),
        };
        let taken: Vec<usize> = (0..8).map(|_| code.take(PAGE).unwrap()).collect();
        assert_eq!(code.take(PAGE), None);
        for index in [3, 1, 2, 7, 0] {
            code.give(taken[index]..taken[index] + PAGE);
        }
        assert_eq!(
            *code.free.lock().unwrap(),
            [0..4 * PAGE, 7 * PAGE..8 * PAGE]
        );
        assert_eq!(code.take(2 * PAGE), Some(0));
    }
}
