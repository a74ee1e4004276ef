//! A device whose memory can leave: what it consists of, and its moves step by step.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use mica_cuda_abi::CuResult;
use mica_gpu::{Gpu, Launch, Result, SessionBudget, StreamId};

use crate::alloc::Maker;
use crate::backing_store::BackingStore;
use crate::books::{Books, Sums};
use crate::contexts::Contexts;
use crate::door::Door;
use crate::growth::Growth;
use crate::guard::{Tell, kernel_name};
use crate::moving::{Mover, Step};

/// A device whose memory can leave; made by [`crate::Swapper::wrap`].
pub struct SwapGpu {
    pub(crate) inner: Arc<dyn Gpu>,
    pub(crate) door: Arc<Door>,
    growth: Arc<Growth>,
    books: Mutex<Books>,
    /// Held by whoever begins or ends copies of frames. Taken before the books.
    moves: Mutex<()>,
    pub(crate) store: BackingStore,
    /// Who is told what a kernel touched, where allocations are guarded.
    pub(crate) guard: Option<Tell>,
    pub(crate) contexts: Contexts,
    pub(crate) budget: OnceLock<Arc<SessionBudget>>,
    /// Allocations so far, and how many there were when somebody looked last.
    allocations: AtomicU64,
    looked_at: AtomicU64,
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
    /// `standing`: host memory is pinned ahead, as a driver likes it.
    pub(crate) fn new(
        inner: Arc<dyn Gpu>,
        door: Arc<Door>,
        growth: Arc<Growth>,
        standing: bool,
        guard: Option<Tell>,
    ) -> Self {
        Self {
            inner,
            door,
            growth,
            books: Mutex::default(),
            moves: Mutex::default(),
            store: BackingStore::new(standing),
            guard,
            contexts: Contexts::default(),
            budget: OnceLock::new(),
            allocations: AtomicU64::new(0),
            looked_at: AtomicU64::new(0),
            over: AtomicBool::new(false),
        }
    }

    pub(crate) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn maker(&self) -> Maker<'_> {
        Maker {
            gpu: &*self.inner,
            store: &self.store,
            budget: self.budget.get(),
            guarded: self.guard.is_some(),
        }
    }

    fn mover(&self) -> Mover<'_> {
        Mover {
            gpu: &*self.inner,
            store: &self.store,
            context: self.contexts.any(),
        }
    }

    pub(crate) fn sums(&self) -> Sums {
        self.books().sums()
    }

    /// Bytes of host memory that it holds for memory that is away, and bytes of them in use.
    pub fn store_bytes(&self) -> (u64, u64) {
        self.store.bytes()
    }

    /// Has host memory stand ready for all that can leave, and for so many bytes more. Devices that copy with the processor
    /// need none.
    pub(crate) fn grow_store(&self, ahead_bytes: u64) -> Result<()> {
        if !self.store.is_standing() {
            return Ok(());
        }
        let sums = self.sums();
        let wanted = sums.here + sums.out + ahead_bytes;
        self.store
            .grow_to(&*self.inner, self.contexts.any(), wanted)
    }

    /// Whether memory moves, so that whoever makes host memory ready waits until it does not.
    pub(crate) fn set_hurry(&self, hurry: bool) {
        if self.store.set_hurry(hurry) && !hurry {
            self.note_growth();
        }
    }

    /// Gives back the chunks of its pool that have no pieces, and host memory beyond what can leave and so many bytes more.
    pub(crate) fn compact(&self, ahead_bytes: u64) {
        self.trim();
        let sums = self.sums();
        let wanted = sums.here + sums.out + ahead_bytes;
        self.store.shrink_to(&*self.inner, wanted);
    }

    pub(crate) fn note_allocation(&self) {
        self.allocations.fetch_add(1, Relaxed);
    }

    /// Gives back the chunks of its pool that have no pieces, if nothing was allocated since the last call.
    pub(crate) fn trim_if_idle(&self) {
        let allocations = self.allocations.load(Relaxed);
        if self.looked_at.swap(allocations, Relaxed) == allocations {
            self.trim();
        }
    }

    /// Says that there is more to save than before.
    pub(crate) fn note_growth(&self) {
        if self.store.is_standing() {
            self.growth.note();
        }
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
        let _moves = self.moves();
        self.mover().out(&mut self.books())
    }

    pub(crate) fn step_back(&self, room: u64) -> Result<Step> {
        let _moves = self.moves();
        self.mover().back(&mut self.books(), room)
    }

    /// Starts a kernel. Where allocations are guarded its end is waited for, and a fault is told with what it touched.
    pub(crate) fn guarded(
        &self,
        stream: StreamId,
        launch: &Launch<'_>,
        start: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let Some(tell) = &self.guard else {
            return start();
        };
        let kernel = kernel_name(&*self.inner, launch);
        start()?;
        if let Err(error) = self.inner.stream_synchronize(stream)
            && error.code == CuResult::IllegalAddress
        {
            tell(&self.books().blame(&kernel, launch.params, &error));
        }
        // The stream's error is told to whoever waits for it, as without a guard.
        Ok(())
    }

    fn moves(&self) -> MutexGuard<'_, ()> {
        self.moves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for all copies of frames; none begins while the answer is held.
    pub(crate) fn hold_moves(&self) -> MutexGuard<'_, ()> {
        let moves = self.moves();
        self.mover().settle(&mut self.books());
        moves
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
                let _ = books.drop_mapped(&*self.inner, &self.store, at, number);
            }
            let _ = books.release(&*self.inner, &self.store, number);
        }
        for old in books.freed.drain() {
            let _ = self
                .inner
                .address_free(mica_gpu::DevicePtr(old.base), old.reserved);
        }
    }
}

#[cfg(test)]
mod tests;
