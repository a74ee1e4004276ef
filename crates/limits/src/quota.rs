//! Whether memory may be had.
//!
//! Every byte is charged before the device is asked for it, and given back after the device has
//! freed it, so what is in use never exceeds what was granted, however threads and processes
//! interleave.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use mica_wire::host::page::{Account, Memory};

use crate::HostLink;

/// Host bytes of a session beside as many as the virtual GPU has memory.
const SESSION_HOST_BYTES: u64 = 1 << 30;

/// Host bytes that a worker may hold for one session of a virtual GPU with this memory limit.
pub fn session_host_bytes(memory_limit_bytes: u64) -> u64 {
    memory_limit_bytes.saturating_add(SESSION_HOST_BYTES)
}

/// Host bytes that all workers of such a virtual GPU may hold together.
pub fn vgpu_host_bytes(memory_limit_bytes: u64) -> u64 {
    session_host_bytes(memory_limit_bytes).saturating_mul(2)
}

/// A charge that the limit does not allow.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{asked_bytes} bytes asked, refused: {reason}")]
pub struct Denied {
    /// What was asked for.
    pub asked_bytes: u64,
    /// The ledger's sentence.
    pub reason: String,
}

/// What `cuMemGetInfo` shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryView {
    /// The virtual GPU's limit.
    pub limit_bytes: u64,
    /// Used by the whole virtual GPU.
    pub used_bytes: u64,
    /// Free on the physical device, where known; what is free to the virtual GPU is never more.
    pub device_free_bytes: Option<u64>,
}

impl MemoryView {
    /// Bytes that can still be had.
    pub fn free_bytes(&self) -> u64 {
        let free = self.limit_bytes.saturating_sub(self.used_bytes);
        self.device_free_bytes
            .map_or(free, |device| free.min(device))
    }
}

/// Charges memory against a limit.
pub trait Quota: Send + Sync {
    /// Takes `bytes`, or refuses and takes nothing.
    fn charge(&self, bytes: u64) -> Result<(), Denied>;
    /// As [`Quota::charge`], for callers that must not wait until memory comes back.
    fn charge_now(&self, bytes: u64) -> Result<(), Denied> {
        self.charge(bytes)
    }
    /// Gives back what a charge took.
    fn release(&self, bytes: u64);
    /// The limit and its use now.
    fn view(&self) -> MemoryView;
}

/// A limit within one process.
#[derive(Debug)]
pub struct LocalQuota {
    limit_bytes: AtomicU64,
    used_bytes: AtomicU64,
}

impl LocalQuota {
    /// A limit in bytes.
    pub fn new(limit_bytes: u64) -> Self {
        Self {
            limit_bytes: limit_bytes.into(),
            used_bytes: 0.into(),
        }
    }

    /// Changes the limit.
    ///
    /// # Errors
    /// If more than the new limit is in use; nothing changes then.
    pub fn resize(&self, limit_bytes: u64) -> Result<(), Denied> {
        // Lower the limit first so that no charge can slip between the check and the change.
        let old = self.limit_bytes.swap(limit_bytes, AcqRel);
        let used = self.used_bytes.load(Acquire);
        if used > limit_bytes {
            self.limit_bytes.store(old, Relaxed);
            return Err(Denied {
                asked_bytes: limit_bytes,
                reason: format!("{used} bytes are in use, more than a limit of {limit_bytes}"),
            });
        }
        Ok(())
    }
}

impl Quota for LocalQuota {
    fn charge(&self, bytes: u64) -> Result<(), Denied> {
        let mut used = self.used_bytes.load(Acquire);
        loop {
            let limit = self.limit_bytes.load(Acquire);
            let wanted = used.checked_add(bytes).filter(|total| *total <= limit);
            let Some(wanted) = wanted else {
                return Err(Denied {
                    asked_bytes: bytes,
                    reason: format!("{used} of {limit} bytes are in use"),
                });
            };
            match self
                .used_bytes
                .compare_exchange_weak(used, wanted, AcqRel, Acquire)
            {
                Ok(_) => return Ok(()),
                Err(now) => used = now,
            }
        }
    }

    fn release(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, AcqRel);
    }

    fn view(&self) -> MemoryView {
        MemoryView {
            limit_bytes: self.limit_bytes.load(Acquire),
            used_bytes: self.used_bytes.load(Acquire),
            device_free_bytes: None,
        }
    }
}

/// A limit kept by the daemon, through credit in the shared page.
#[derive(Clone, Debug)]
pub struct PageQuota {
    link: Arc<HostLink>,
    account: Account,
}

impl PageQuota {
    /// The quota of device memory of a connection.
    pub fn new(link: Arc<HostLink>) -> Self {
        let account = Account::Device;
        Self { link, account }
    }

    /// The quota of host memory of a worker's connection. It waits for nobody.
    pub fn of_host(link: Arc<HostLink>) -> Self {
        let account = Account::Host;
        Self { link, account }
    }

    fn memory(&self) -> &Memory {
        self.link.page().memory_of(self.account)
    }

    fn try_take(&self, bytes: u64) -> Result<(), u64> {
        let credit = &self.memory().credit_bytes;
        let mut have = credit.load(Acquire);
        loop {
            let Some(rest) = have.checked_sub(bytes) else {
                return Err(bytes - have);
            };
            match credit.compare_exchange_weak(have, rest, AcqRel, Acquire) {
                Ok(_) => return Ok(()),
                Err(now) => have = now,
            }
        }
    }

    /// Takes `bytes` if they can be had now; never waits, and a refusal counts for nothing.
    pub fn charge_now(&self, bytes: u64) -> bool {
        self.take(bytes, true).is_ok()
    }

    fn take(&self, bytes: u64, now: bool) -> Result<(), Denied> {
        let memory = self.memory();
        // Another thread may take the credit that was granted for this one, so ask again; each
        // round is a grant by the ledger, which ends in a refusal when the limit is reached.
        while let Err(short) = self.try_take(bytes) {
            if let Err(reason) = self
                .link
                .need_credit(self.account, short, bytes - short, now)
            {
                memory.denied.fetch_add(u64::from(!now), Relaxed);
                return Err(Denied {
                    asked_bytes: bytes,
                    reason,
                });
            }
        }
        let used = memory.used_bytes.fetch_add(bytes, Relaxed) + bytes;
        // Mostly there was a higher peak before, and one load says so.
        for peak in [&memory.peak_bytes, &memory.window_peak_bytes] {
            if used > peak.load(Relaxed) {
                peak.fetch_max(used, Relaxed);
            }
        }
        Ok(())
    }
}

impl Quota for PageQuota {
    fn charge(&self, bytes: u64) -> Result<(), Denied> {
        self.take(bytes, false)
    }

    fn charge_now(&self, bytes: u64) -> Result<(), Denied> {
        self.take(bytes, true)
    }

    fn release(&self, bytes: u64) {
        let memory = self.memory();
        memory.used_bytes.fetch_sub(bytes, Relaxed);
        memory.credit_bytes.fetch_add(bytes, AcqRel);
    }

    fn view(&self) -> MemoryView {
        let asked = match self.account {
            Account::Device => self.link.memory_view(),
            Account::Host => None,
        };
        asked.unwrap_or_else(|| MemoryView {
            limit_bytes: self.link.page().limit_of(self.account).load(Relaxed),
            used_bytes: self.memory().used_bytes.load(Relaxed),
            device_free_bytes: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_byte_is_granted_and_the_next_refused() {
        let quota = LocalQuota::new(100);
        assert!(quota.charge(100).is_ok());
        assert!(quota.charge(1).is_err());
        quota.release(1);
        assert!(quota.charge(1).is_ok());
    }

    #[test]
    fn a_charge_that_overflows_is_refused() {
        let quota = LocalQuota::new(u64::MAX);
        quota.charge(10).unwrap();
        assert!(quota.charge(u64::MAX).is_err());
    }

    #[test]
    fn racing_threads_never_exceed_the_limit() {
        let quota = LocalQuota::new(1000);
        let granted = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        if quota.charge(7).is_ok() {
                            granted.fetch_add(7, Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(granted.into_inner(), 994);
    }

    #[test]
    fn resize_below_use_is_refused_and_changes_nothing() {
        let quota = LocalQuota::new(100);
        quota.charge(60).unwrap();
        assert!(quota.resize(50).is_err());
        assert!(quota.charge(40).is_ok());
    }
}
