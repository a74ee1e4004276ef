//! What is held for one session besides the memory it allocates.
//!
//! A program can make its worker hold bytes in many ways: images and their decompressed text, compiled
//! modules, graphs, kernel output, objects. [`SessionBudget`] counts all of them against one limit. Whoever
//! keeps bytes for a session keeps a [`Share`] beside them, which gives them back when dropped. Device memory
//! that a device takes without `memory_alloc` (heap, local memory) is charged to the virtual GPU's limit
//! through the same type.
//!
//! Nobody waits for bytes that others hold: what does not fit is refused with `CUDA_ERROR_OUT_OF_MEMORY`.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use mica_cuda_abi::CuResult;

use crate::{GpuError, Result};

/// Most operations that wait in the streams of one session. A submission beyond that waits for room.
pub const QUEUE_ENTRIES: usize = 1 << 16;
/// Most bytes that those operations hold: parameters and data on their way.
pub const QUEUE_BYTES: u64 = 64 << 20;
/// Most contexts of one session: each may have a thread of its own for callbacks.
pub const CONTEXTS: usize = 256;
/// Host bytes that are counted for one object of any kind, with its entries in all tables.
pub const OBJECT_BYTES: u64 = 512;

/// Charges bytes to a limit that is kept elsewhere.
pub trait Charging: Send + Sync {
    /// Takes `bytes`, or refuses and takes nothing. Never waits until others give bytes back.
    fn charge(&self, bytes: u64) -> Result<()>;
    /// Gives back what [`Charging::charge`] took.
    fn release(&self, bytes: u64);
}

/// Bytes that may be held for one session.
pub struct SessionBudget {
    limit_bytes: u64,
    used_bytes: AtomicU64,
    peak_bytes: AtomicU64,
    /// The budget that this one is a part of: what all sessions of a worker hold together.
    parent: Option<Arc<SessionBudget>>,
    /// Where host bytes are charged too: what all workers of a virtual GPU hold together.
    outer: Option<Box<dyn Charging>>,
    device: Option<Box<dyn Charging>>,
}

impl std::fmt::Debug for SessionBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionBudget")
            .field("limit_bytes", &self.limit_bytes)
            .field("used_bytes", &self.used_bytes())
            .finish_non_exhaustive()
    }
}

impl SessionBudget {
    /// A budget of so many host bytes.
    pub fn new(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            used_bytes: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
            parent: None,
            outer: None,
            device: None,
        }
    }

    /// A part of another budget: what is taken here is taken there too.
    #[must_use]
    pub fn within(mut self, parent: Arc<SessionBudget>) -> Self {
        self.parent = Some(parent);
        self
    }

    /// Charges host bytes here too.
    #[must_use]
    pub fn with_outer(mut self, outer: Box<dyn Charging>) -> Self {
        self.outer = Some(outer);
        self
    }

    /// Charges device memory here.
    #[must_use]
    pub fn with_device(mut self, device: Box<dyn Charging>) -> Self {
        self.device = Some(device);
        self
    }

    /// Host bytes held now.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Acquire)
    }

    /// Most host bytes that were held at once.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Acquire)
    }

    /// Most host bytes that may be.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Takes host bytes; `what` names them in the refusal.
    ///
    /// # Errors
    /// `OutOfMemory` if they do not fit.
    pub fn take(self: &Arc<Self>, bytes: u64, what: &str) -> Result<Share> {
        self.add(bytes, what)?;
        Ok(Share {
            budget: Arc::clone(self),
            bytes,
            kind: ShareKind::Host,
        })
    }

    /// Takes device memory; without a limit on it, nothing is charged.
    ///
    /// # Errors
    /// If the virtual GPU's limit does not allow it.
    pub fn take_device(self: &Arc<Self>, bytes: u64) -> Result<Share> {
        if let Some(device) = &self.device {
            device.charge(bytes)?;
        }
        Ok(Share {
            budget: Arc::clone(self),
            bytes,
            kind: ShareKind::Device,
        })
    }

    fn add(&self, bytes: u64, what: &str) -> Result<()> {
        let limit = self.limit_bytes;
        let add = |used: u64| used.checked_add(bytes).filter(|total| *total <= limit);
        if let Err(used) = self.used_bytes.fetch_update(AcqRel, Acquire, add) {
            return Err(GpuError::new(
                CuResult::OutOfMemory,
                format!(
                    "{bytes} bytes of host memory for {what}: {used} of {limit} bytes are in use"
                ),
            ));
        }
        let whole = match (&self.parent, &self.outer) {
            (Some(parent), _) => parent.add(bytes, what),
            (None, Some(outer)) => outer.charge(bytes).map_err(|refused| {
                let why = refused.message;
                let text = format!("{bytes} bytes of host memory for {what}: {why}");
                GpuError::new(refused.code, text)
            }),
            (None, None) => Ok(()),
        };
        match &whole {
            Ok(()) => self.peak_bytes.fetch_max(self.used_bytes(), AcqRel),
            Err(_) => self.used_bytes.fetch_sub(bytes, AcqRel),
        };
        whole
    }

    fn give(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, AcqRel);
        match (&self.parent, &self.outer) {
            (Some(parent), _) => parent.give(bytes),
            (None, Some(outer)) => outer.release(bytes),
            (None, None) => {}
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShareKind {
    Host,
    Device,
}

/// Bytes taken from a [`SessionBudget`]; given back when dropped.
#[derive(Debug)]
#[must_use = "the bytes are given back when this is dropped"]
pub struct Share {
    budget: Arc<SessionBudget>,
    bytes: u64,
    kind: ShareKind,
}

impl Share {
    /// How many bytes it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the bytes of another share of the same kind and budget over.
    pub fn absorb(&mut self, mut other: Self) {
        debug_assert!(self.kind == other.kind && Arc::ptr_eq(&self.budget, &other.budget));
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Takes more, or gives some back, so that it is `bytes` afterwards.
    ///
    /// # Errors
    /// If more do not fit; it is what it was then.
    pub fn resize(&mut self, bytes: u64, what: &str) -> Result<()> {
        match (bytes.checked_sub(self.bytes), self.kind) {
            (None, kind) => release(&self.budget, self.bytes - bytes, kind),
            (Some(more), ShareKind::Host) => self.budget.add(more, what)?,
            (Some(more), ShareKind::Device) => {
                if let Some(device) = &self.budget.device {
                    device.charge(more)?;
                }
            }
        }
        self.bytes = bytes;
        Ok(())
    }
}

fn release(budget: &SessionBudget, bytes: u64, kind: ShareKind) {
    match kind {
        ShareKind::Host => budget.give(bytes),
        ShareKind::Device => {
            if let Some(device) = &budget.device {
                device.release(bytes);
            }
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.bytes > 0 {
            release(&self.budget, self.bytes, self.kind);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_come_back_and_the_limit_holds() {
        let budget = Arc::new(SessionBudget::new(100));
        let mut first = budget.take(60, "a").unwrap();
        let refused = budget.take(41, "a test").unwrap_err();
        assert_eq!(refused.code, CuResult::OutOfMemory);
        assert!(refused.message.contains("a test"), "{refused}");
        first.resize(100, "a").unwrap();
        assert!(first.resize(101, "a").is_err());
        first.resize(10, "a").unwrap();
        assert_eq!(budget.used_bytes(), 10);
        drop(first);
        assert_eq!(budget.used_bytes(), 0);
        assert!(budget.take(u64::MAX, "a").is_err());
    }

    /// A limit kept elsewhere.
    struct Elsewhere(Arc<SessionBudget>);

    impl Charging for Elsewhere {
        fn charge(&self, bytes: u64) -> Result<()> {
            self.0.add(bytes, "a worker")
        }

        fn release(&self, bytes: u64) {
            self.0.give(bytes);
        }
    }

    #[test]
    fn what_one_worker_holds_counts_for_the_others() {
        let all = Arc::new(SessionBudget::new(100));
        let worker = || {
            let outer = Box::new(Elsewhere(Arc::clone(&all)));
            let sessions = Arc::new(SessionBudget::new(100).with_outer(outer));
            Arc::new(SessionBudget::new(100).within(sessions))
        };
        let (a, b) = (worker(), worker());
        let mut held = a.take(80, "a").unwrap();
        let refused = b.take(30, "a test").unwrap_err();
        assert!(refused.message.contains("a test"), "{refused}");
        assert_eq!((b.used_bytes(), all.used_bytes()), (0, 80));
        held.resize(70, "a").unwrap();
        let _held = b.take(30, "b").unwrap();
        drop(held);
        assert_eq!(all.used_bytes(), 30);
    }

    #[test]
    fn what_one_session_holds_counts_for_all() {
        let all = Arc::new(SessionBudget::new(100));
        let part = || Arc::new(SessionBudget::new(80).within(Arc::clone(&all)));
        let (a, b) = (part(), part());
        let held = a.take(80, "a").unwrap();
        assert!(b.take(30, "b").is_err());
        assert_eq!(b.used_bytes(), 0, "a refusal takes nothing");
        drop(held);
        let _held = b.take(30, "b").unwrap();
        assert_eq!(all.used_bytes(), 30);
    }
}
