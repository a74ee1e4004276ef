//! A device whose memory can leave: what it consists of, and its moves step by step.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use mica_gpu::{Gpu, Result, SessionBudget};
use mica_memory::Figures;

use crate::alloc::Maker;
use crate::arena::Arena;
use crate::books::{Books, Sums};
use crate::contexts::Contexts;
use crate::door::Door;
use crate::moving::{Mover, Step};

/// A device whose memory can leave; made by [`crate::Swapper::wrap`].
pub struct SwapGpu {
    pub(crate) inner: Arc<dyn Gpu>,
    pub(crate) door: Arc<Door>,
    books: Mutex<Books>,
    pub(crate) arena: Arena,
    pub(crate) contexts: Contexts,
    pub(crate) budget: OnceLock<Arc<SessionBudget>>,
    /// The session ends: nobody waits for the door any more.
    pub(crate) over: AtomicBool,
}

impl std::fmt::Debug for SwapGpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SwapGpu")
            .field("sums", &self.sums())
            .finish_non_exhaustive()
    }
}

impl SwapGpu {
    pub(crate) fn new(inner: Arc<dyn Gpu>, door: Arc<Door>) -> Self {
        let standing = inner.has_driver();
        Self {
            inner,
            door,
            books: Mutex::default(),
            arena: Arena::new(standing),
            contexts: Contexts::default(),
            budget: OnceLock::new(),
            over: AtomicBool::new(false),
        }
    }

    pub(crate) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn maker(&self) -> Maker<'_> {
        Maker {
            gpu: &*self.inner,
            arena: &self.arena,
            budget: self.budget.get(),
        }
    }

    fn mover(&self) -> Mover<'_> {
        Mover {
            gpu: &*self.inner,
            arena: &self.arena,
            context: self.contexts.any(),
        }
    }

    pub(crate) fn sums(&self) -> Sums {
        self.books().sums()
    }

    /// Sums over its pool of small allocations.
    pub fn pool_figures(&self) -> Figures {
        self.books().pool.figures()
    }

    /// Bytes of host memory that it holds for memory that is away, and bytes of them in use.
    pub fn arena_bytes(&self) -> (u64, u64) {
        self.arena.bytes()
    }

    /// Has host memory stand ready for all that can leave. Devices that copy with the processor need none.
    pub(crate) fn grow_arena(&self) -> Result<()> {
        if !self.inner.has_driver() {
            return Ok(());
        }
        let wanted = self.sums().here;
        self.arena
            .grow_to(&*self.inner, self.contexts.any(), wanted)
    }

    pub(crate) fn hold(&self) -> Result<()> {
        self.contexts.hold(&*self.inner)
    }

    /// Whether it has work that was stopped on the way.
    pub(crate) fn has_work(&self) -> bool {
        // A driver's work has drained.
        !self.inner.has_driver() && !self.inner.is_idle()
    }

    /// Says that the memory is wanted if it is away and work waits for it.
    pub(crate) fn want_for_work(&self) {
        if !self.door.is_open() && self.has_work() {
            self.door.want();
        }
    }

    pub(crate) fn release(&self) {
        self.contexts.release(&*self.inner);
    }

    pub(crate) fn step_out(&self) -> Result<Step> {
        self.mover().out(&mut self.books())
    }

    pub(crate) fn step_back(&self, room: u64) -> Result<Step> {
        self.mover().back(&mut self.books(), room)
    }
}

impl Drop for SwapGpu {
    fn drop(&mut self) {
        // The device behind may serve others: nothing of this one stays in it.
        let frames: Vec<(u64, Vec<u64>)> = {
            let books = self.books();
            let frames = books.frames.iter();
            frames
                .map(|(number, frame)| {
                    (*number, frame.mappings.iter().map(|(at, _)| *at).collect())
                })
                .collect()
        };
        let mut books = self.books();
        for (number, mappings) in frames {
            for at in mappings {
                let _ = books.drop_mapped(&*self.inner, &self.arena, at, number);
            }
            let _ = books.release(&*self.inner, &self.arena, number);
        }
    }
}
