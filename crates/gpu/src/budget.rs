//! What is held for one session besides the memory it allocates.
//!
//! A program can make its worker hold bytes in many ways: images and their decompressed text, compiled
//! modules, graphs, kernel output, objects. [`SessionBudget`] counts all of them against one limit. Whoever
//! keeps bytes for a session keeps a [`Share`] beside them, which gives them back when dropped. Device memory
//! that a device takes without `memory_alloc` (heap, local memory) is charged to the virtual GPU's limit
//! through the same type.
//!
//! It waits for nobody: what does not fit is refused with `CUDA_ERROR_OUT_OF_MEMORY`.

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

/// Charges device memory that a device takes on a session's behalf.
pub trait DeviceCharge: Send + Sync {
    /// Takes `bytes`, or refuses and takes nothing. Never waits.
    fn charge(&self, bytes: u64) -> Result<()>;
    /// Gives back what [`DeviceCharge::charge`] took.
    fn release(&self, bytes: u64);
}

/// Bytes that may be held for one session.
pub struct SessionBudget {
    limit_bytes: u64,
    used_bytes: AtomicU64,
    peak_bytes: AtomicU64,
    /// The budget that this one is a part of: what all sessions of a virtual GPU hold together.
    parent: Option<Arc<SessionBudget>>,
    device: Option<Box<dyn DeviceCharge>>,
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
            device: None,
        }
    }

    /// A part of another budget: what is taken here is taken there too.
    #[must_use]
    pub fn within(mut self, parent: Arc<SessionBudget>) -> Self {
        self.parent = Some(parent);
        self
    }

    /// Charges device memory here.
    #[must_use]
    pub fn with_device(mut self, device: Box<dyn DeviceCharge>) -> Self {
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
        let whole = self
            .parent
            .as_ref()
            .map_or(Ok(()), |parent| parent.add(bytes, what));
        match &whole {
            Ok(()) => self.peak_bytes.fetch_max(self.used_bytes(), AcqRel),
            Err(_) => self.used_bytes.fetch_sub(bytes, AcqRel),
        };
        whole
    }

    fn give(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, AcqRel);
        if let Some(parent) = &self.parent {
            parent.give(bytes);
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
