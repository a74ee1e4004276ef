//! Memory of a test's device, between pages that nobody may touch: compiled code that leaves it ends the
//! test program instead of writing into something else.

/// What an address that is wrong by a 32-bit offset or an index would hit.
const GUARD: usize = 4 << 30;

/// Words of zeros, on a page boundary.
pub struct Arena {
    base: *mut u64,
    words: usize,
}

// SAFETY: it owns its memory, and gives out pointers only.
unsafe impl Send for Arena {}

impl Arena {
    /// `words` must fill whole pages.
    pub fn new(words: usize) -> Arena {
        // SAFETY: a fresh reservation; no existing mapping is touched.
        let all = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                2 * GUARD + 8 * words,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert_ne!(all, libc::MAP_FAILED, "no address space");
        let base = all.cast::<u8>().wrapping_add(GUARD);
        // SAFETY: inside the reservation, on page boundaries.
        let failed = unsafe {
            libc::mprotect(base.cast(), 8 * words, libc::PROT_READ | libc::PROT_WRITE) != 0
        };
        assert!(!failed, "no memory");
        Arena {
            base: base.cast(),
            words,
        }
    }

    pub fn as_ptr(&self) -> *const u64 {
        self.base
    }

    pub fn as_mut_ptr(&mut self) -> *mut u64 {
        self.base
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let all = self.base.cast::<u8>().wrapping_sub(GUARD);
        // SAFETY: the whole reservation, which nothing uses any more.
        unsafe { libc::munmap(all.cast(), 2 * GUARD + 8 * self.words) };
    }
}
