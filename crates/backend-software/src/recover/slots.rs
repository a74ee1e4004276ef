//! Which threads are inside [`super::run`], in a form a signal handler may read.
//!
//! Thread-local storage of a library that was loaded at run time may allocate on first use, which a
//! handler must not; so the handler looks its thread number up in a fixed table instead.

use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

const SLOTS: usize = 8192;

/// One thread's place in the table.
pub(super) struct Slot {
    thread: AtomicI32,
    /// The innermost `Armed` of the thread, or null.
    pub(super) armed: AtomicPtr<()>,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        thread: AtomicI32::new(0),
        armed: AtomicPtr::new(std::ptr::null_mut()),
    }
}; SLOTS];
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

fn thread_number() -> i32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

struct Claim(Option<&'static Slot>);

impl Claim {
    fn new() -> Self {
        let me = thread_number();
        for (index, slot) in TABLE.iter().enumerate() {
            let free = slot
                .thread
                .compare_exchange(0, me, Ordering::AcqRel, Ordering::Relaxed);
            if free.is_ok() {
                HIGHEST.fetch_max(index + 1, Ordering::AcqRel);
                return Self(Some(slot));
            }
        }
        Self(None)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.armed.store(std::ptr::null_mut(), Ordering::Release);
            slot.thread.store(0, Ordering::Release);
        }
    }
}

thread_local! {
    static CLAIM: Claim = Claim::new();
}

/// This thread's slot; `None` when the table is full or the thread is ending.
pub(super) fn mine() -> Option<&'static Slot> {
    CLAIM.try_with(|claim| claim.0).ok().flatten()
}

/// This thread's slot, for the handler: only reads the table.
pub(super) fn find_in_handler() -> Option<&'static Slot> {
    let me = thread_number();
    TABLE[..HIGHEST.load(Ordering::Acquire).min(SLOTS)]
        .iter()
        .find(|slot| slot.thread.load(Ordering::Acquire) == me)
}

/// A stack for the handler, so that it works when the thread's own is exhausted.
pub(crate) struct AlternateStack {
    memory: *mut libc::c_void,
    previous: libc::stack_t,
}

const STACK_BYTES: usize = 64 << 10;

impl AlternateStack {
    /// Installs one for this thread; `None` leaves the thread with what it had.
    pub(crate) fn install() -> Option<Self> {
        // SAFETY: a new mapping.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                STACK_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return None;
        }
        let stack = libc::stack_t {
            ss_sp: memory,
            ss_flags: 0,
            ss_size: STACK_BYTES,
        };
        let mut previous = libc::stack_t {
            ss_sp: std::ptr::null_mut(),
            ss_flags: libc::SS_DISABLE,
            ss_size: 0,
        };
        // SAFETY: both are valid; the memory lives until `drop`, which restores the old stack.
        unsafe { libc::sigaltstack(&stack, &mut previous) };
        Some(Self { memory, previous })
    }
}

impl Drop for AlternateStack {
    fn drop(&mut self) {
        // SAFETY: restores what was there, on the thread that installed it (the type is not Send).
        unsafe { libc::sigaltstack(&self.previous, std::ptr::null_mut()) };
        // SAFETY: ours, and no longer the handler's stack.
        unsafe { libc::munmap(self.memory, STACK_BYTES) };
    }
}
