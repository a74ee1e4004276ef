//! Memory for machine code: the only place that maps any.
//!
//! Owns the rule that no page is writable and executable at once: code is copied into fresh pages, which
//! lose the right to be written before they gain the right to be executed, and never get it back.

use std::io;

/// Machine code that can be run. Freed on drop.
pub(crate) struct CodeMemory {
    base: *mut u8,
    len: usize,
}

// SAFETY: nothing writes to the mapping once it is made.
unsafe impl Send for CodeMemory {}
// SAFETY: as above.
unsafe impl Sync for CodeMemory {}

impl CodeMemory {
    /// Copies `bytes` into memory that can be executed and not written.
    ///
    /// # Errors
    /// When the system refuses to map the memory or to make it executable.
    pub(crate) fn new(bytes: &[u8]) -> io::Result<CodeMemory> {
        let len = bytes.len().max(1).next_multiple_of(4096);
        // SAFETY: a fresh private mapping.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = CodeMemory {
            base: base.cast(),
            len,
        };
        // SAFETY: the mapping has room for all bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.base, bytes.len()) };
        // SAFETY: our own mapping; nothing runs in it yet.
        if unsafe { libc::mprotect(base, len, libc::PROT_READ | libc::PROT_EXEC) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(memory)
    }

    /// Where the code starts.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Mapped bytes, whole pages.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The code, and zeros up to the end of its last page.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is readable, and nothing writes to it.
        unsafe { std::slice::from_raw_parts(self.base, self.len) }
    }
}

impl Drop for CodeMemory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nobody can run it any more.
        unsafe { libc::munmap(self.base.cast(), self.len) };
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
        let code = CodeMemory::new(&[0xc3; 5000]).expect("maps");
        assert_eq!(code.len(), 8192);
        assert_eq!(&code.bytes()[4998..5002], [0xc3, 0xc3, 0, 0]);
        assert_eq!(rights(code.base() as usize), "r-xp");
        assert_eq!(rights(code.base() as usize + 8191), "r-xp");
    }
}
