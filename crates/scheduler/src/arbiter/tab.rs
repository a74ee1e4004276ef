//! What a client owes for the lease it has or had last.

/// Whoever holds a lease pays for one part in so many at least, even if it had no processor meanwhile.
const LEAST_PART: u64 = 64;
/// One that had none for so many leases in a row pays more: it must not keep the device from those that
/// could use it.
const VAIN_LEASES: u32 = 8;
const VAIN_PART: u64 = 4;

/// What a client owes for its last lease.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tab {
    pub(super) held_ns: u64,
    pub(super) used_ns: u64,
    pub(super) paid_ns: u64,
    /// Leases before this one of which nothing was used.
    vain: u32,
}

impl Tab {
    /// The tab of the next lease.
    pub(super) fn next(&self) -> Self {
        let vain = match self.used_ns {
            0 => self.vain.saturating_add(1),
            _ => 0,
        };
        Self {
            vain,
            ..Self::default()
        }
    }

    pub(super) fn owed_ns(&self) -> u64 {
        let part = match self.vain < VAIN_LEASES {
            true => LEAST_PART,
            false => VAIN_PART,
        };
        self.used_ns.max(self.held_ns / part)
    }
}
