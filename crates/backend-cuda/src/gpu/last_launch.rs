//! What a thread's last launch looked up, so that the next one on the same stream of the same module looks nothing up.
//!
//! Two tables with their locks and two counts of references cost a tenth of a microsecond, and a batch of launches is as
//! fast as this thread is. What was found stays valid until anything is taken out of its table, which a count tells.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use mica_gpu::{ModuleId, Result, StreamId};

use super::modules::Module;
use super::{CudaGpu, Stream};

/// Both ends of a launch.
#[derive(Clone)]
pub(super) struct LaunchEnds {
    pub(super) stream: Stream,
    pub(super) module: Arc<Module>,
}

struct Found {
    /// Of which GPU object, stream and module.
    key: (u64, StreamId, ModuleId),
    /// Removals from both tables before the look.
    removals: (u64, u64),
    ends: LaunchEnds,
}

thread_local! {
    static LAST: RefCell<Option<Found>> = const { RefCell::new(None) };
}

/// A number for each GPU object of this process.
pub(super) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

impl CudaGpu {
    /// Calls `launch` with a stream and a module.
    ///
    /// # Errors
    /// There is no such stream or module; or that of `launch`.
    pub(super) fn with_ends(
        &self,
        stream: StreamId,
        module: ModuleId,
        launch: impl FnOnce(&LaunchEnds) -> Result<()>,
    ) -> Result<()> {
        let key = (self.number, stream, module);
        let removals = (self.streams.removals(), self.modules.removals());
        LAST.with_borrow_mut(|last| {
            if let Some(found) = last
                && (found.key, found.removals) == (key, removals)
            {
                return launch(&found.ends);
            }
            let ends = LaunchEnds {
                stream: self.stream(stream)?,
                module: self.module(module)?,
            };
            let found = last.insert(Found {
                key,
                removals,
                ends,
            });
            launch(&found.ends)
        })
    }
}
