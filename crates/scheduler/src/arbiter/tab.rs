//! What a client owes for its present or last lease.

/// The holder of a lease pays for at least one part in this number of it, even if it had no processor meanwhile.
const LEAST_PART: u64 = 64;
/// Leases in a row without a processor after which the holder pays more: it must not keep the device from clients that
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
