//! Says, once, that host memory is copied where a program may rely on its being shared.
//!
//! Over a network, and in a virtual machine without a shared-memory device, the GPU's machine has a copy of pinned and
//! registered memory, which is made equal at launches and waits. A kernel that waits for a word of the program, or a
//! program that waits for a word of a running kernel, would wait for ever. The device's attributes say so
//! (`CanMapHostMemory`); a program that has not asked finds this line on its standard error. Managed memory is left out:
//! programs that touch it while a kernel runs must ask first, with every driver.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use super::AllocationKind::{Pinned, Registered};
use crate::isolated::state::{State, warn};
use crate::log;

const TEXT: &str = "memory that is mapped into the GPU is copied at launches and waits over this connection: \
    a kernel that waits for the program, or a program that waits for a running kernel, does not see what the other writes";

/// Whether that is still to be said.
pub(crate) struct Copied(AtomicBool);

impl Copied {
    pub(crate) fn new(copies_host_memory: bool) -> Self {
        Self(AtomicBool::new(copies_host_memory))
    }

    /// The program has asked for memory that a kernel can use in place.
    #[inline]
    pub(crate) fn mapped(&self) {
        if self.0.load(Relaxed) {
            self.say();
        }
    }

    /// A kernel is given these parameters, or a stream waits for what they name. One load where memory is shared.
    #[inline]
    pub(crate) fn given(&self, state: &State, params: &[u8]) {
        if self.0.load(Relaxed) {
            self.look(state, params);
        }
    }

    #[cold]
    fn look(&self, state: &State, params: &[u8]) {
        let words = params.as_chunks().0.iter();
        let is_host = |word: &[u8; 8]| {
            let found = state.memory.find_host_of_device(u64::from_le_bytes(*word));
            found.is_some_and(|kind| [Pinned, Registered].contains(&kind))
        };
        if state.memory.has_host() && words.into_iter().any(is_host) {
            self.say();
        }
    }

    #[cold]
    fn say(&self) {
        if self.0.swap(false, Relaxed) {
            log::line(TEXT);
            warn(TEXT);
        }
    }
}
