//! The page a client shares with the daemon.
//!
//! Each group of fields sits on cache lines of its own, by who writes it. All fields are atomics:
//! either side may die at any moment and the other must find every word whole. The client is
//! trusted with its own page only: the daemon never uses a value from it as an index or a length.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// First word of a page.
pub const PAGE_MAGIC: u32 = 0x4D49_4341;
/// Layout version of [`ClientPage`].
pub const PAGE_VERSION: u32 = 2;
/// Bytes of the page's file.
pub const PAGE_BYTES: usize = 4096;

/// States in the low two bits of [`DaemonToClient::gate`]; the rest of the word is the sequence number
/// of the lease, so that one futex word tells a new grant from an old one.
pub mod gate {
    /// No lease is needed: submit freely.
    pub const OPEN: u32 = 0;
    /// Submit only while holding the lease: the client holds it until `lease_end_ns`.
    pub const LEASED: u32 = 1;
    /// Another client has the lease: wait on the `gate` word.
    pub const CLOSED: u32 = 2;

    /// The word for a state and a sequence number.
    pub const fn word(state: u32, sequence: u32) -> u32 {
        (sequence << 2) | (state & 3)
    }

    /// The state in a word.
    pub const fn state(word: u32) -> u32 {
        word & 3
    }

    /// The sequence number in a word.
    pub const fn sequence(word: u32) -> u32 {
        word >> 2
    }

    /// The sequence number before this one.
    pub const fn before(sequence: u32) -> u32 {
        sequence.wrapping_sub(1) & (u32::MAX >> 2)
    }

    /// Whether a sequence number comes after another one; they begin again after the largest.
    pub const fn is_later(sequence: u32, than: u32) -> bool {
        let ahead = sequence.wrapping_sub(than) & (u32::MAX >> 2);
        ahead != 0 && ahead <= u32::MAX >> 3
    }
}

/// What [`DaemonCommands::suspend`] holds.
pub mod suspend {
    /// The channels run.
    pub const RUN: u32 = 0;
    /// They are stopped, whatever becomes of the daemon.
    pub const STOP: u32 = 1;
    /// They are stopped until the daemon says otherwise or is gone: nobody else would let them go on.
    pub const PAUSE: u32 = 2;
}

/// Bits of [`ClientToDaemon::flags`].
pub mod client_flags {
    /// The process has made a context on the device; slices can be set.
    pub const CONTEXT: u32 = 1;
    /// The channel group was found and its slice can be read and set.
    pub const SLICE_CONTROL: u32 = 2;
    /// Channels are stopped as asked by `suspend`.
    pub const SUSPENDED: u32 = 4;
    /// Submissions pass a gate that obeys leases.
    pub const GATE_CONTROL: u32 = 8;
    /// `used_ns` says what was used of the device.
    pub const METERED: u32 = 16;
}

/// Written by the daemon, read by the client on its submission path.
#[repr(C, align(64))]
#[derive(Default)]
pub struct DaemonToClient {
    /// A [`gate::word`]; a futex word. The sequence grows with every grant.
    pub gate: AtomicU32,
    /// Reserved, zero.
    pub reserved: AtomicU32,
    /// CLOCK_MONOTONIC nanoseconds at which the lease ends; written before `gate`.
    pub lease_end_ns: AtomicU64,
}

/// Written by the daemon, read by the client's control thread.
#[repr(C, align(64))]
#[derive(Default)]
pub struct DaemonCommands {
    /// Grows when anything in this group changes; a futex word.
    pub command: AtomicU32,
    /// One of [`suspend`]: whether the process's channels are stopped.
    pub suspend: AtomicU32,
    /// Wanted length of the hardware time slice in microseconds; 0: leave the driver's own.
    pub slice_us: AtomicU64,
    /// Bytes the daemon has granted to this client in all (credit plus used).
    pub granted_bytes: AtomicU64,
    /// Memory limit of the virtual GPU.
    pub limit_bytes: AtomicU64,
    /// As `granted_bytes`, of [`Account::Host`].
    pub host_granted_bytes: AtomicU64,
    /// As `limit_bytes`, of [`Account::Host`].
    pub host_limit_bytes: AtomicU64,
}

/// Written by the client on its submission path.
#[repr(C, align(64))]
#[derive(Default)]
pub struct ClientCounters {
    /// Kernel, graph and large copy submissions.
    pub launches: AtomicU64,
    /// Waits that left the GPU without work of this process, or with one submission: less than holds a turn.
    pub drains: AtomicU64,
    /// Threads that wait at the gate now.
    pub waiting: AtomicU32,
    /// Sequence number of the last lease given back, its work drained.
    pub yielded: AtomicU32,
    /// Threads inside a call that waits for the GPU now.
    pub syncing: AtomicU32,
    /// Nanoseconds of GPU time, where the client can measure it.
    pub gpu_time_ns: AtomicU64,
    /// Nanoseconds threads have waited at the gate.
    pub gate_wait_ns: AtomicU64,
    /// Nanoseconds for which the device was taken, up to date when a lease is given back; only of
    /// clients that say so in their flags.
    pub used_ns: AtomicU64,
    /// `launches` when it was last certain that nothing of them still ran; zero where the client cannot tell.
    pub finished: AtomicU64,
}

/// What a client is granted: each kind of memory has a limit and a credit of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Account {
    /// Memory of the device.
    Device = 0,
    /// Memory of the host that a worker holds for its program besides.
    Host = 1,
}

/// Memory credit. Both sides change `credit_bytes` with compare-and-swap.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Memory {
    /// Bytes granted and not in use. The client takes from it, the daemon adds and recalls.
    pub credit_bytes: AtomicU64,
    /// Bytes in use, for display.
    pub used_bytes: AtomicU64,
    /// Most bytes ever in use.
    pub peak_bytes: AtomicU64,
    /// Requests refused for lack of memory.
    pub denied: AtomicU64,
    /// Most bytes in use since the daemon last set this to zero.
    pub window_peak_bytes: AtomicU64,
    /// Bytes in use that the driver's figure for the process leaves out: managed memory.
    pub uncounted_bytes: AtomicU64,
}

/// What the client tells of itself.
#[repr(C, align(64))]
#[derive(Default)]
pub struct ClientToDaemon {
    /// Bits of [`client_flags`].
    pub flags: AtomicU32,
    /// Result of the last slice control: 0, or the resource manager's status, or -errno.
    pub slice_status: AtomicI32,
    /// Slice length read back after it was set, in microseconds.
    pub slice_read_us: AtomicU64,
    /// The `command` value that has been carried out.
    pub command_done: AtomicU32,
    /// Entry points looked up that this Mica does not know and that may allocate or launch.
    pub unknown_symbols: AtomicU32,
    /// The driver's version number, 0 before it is known.
    pub driver_version: AtomicU32,
    /// Streams under capture now.
    pub captures: AtomicU32,
    /// Grows when the driver may have taken memory that was not charged: the daemon looks soon.
    pub looks_wanted: AtomicU32,
    /// Nanoseconds that the last start of stopped channels took; written before the flag that says so.
    pub start_took_ns: AtomicU64,
}

/// What the client has moved and broken so far, where it can tell; zeros where it cannot.
#[repr(C, align(64))]
#[derive(Default)]
pub struct ClientTraffic {
    /// Bytes copied from the host to the device.
    pub to_device_bytes: AtomicU64,
    /// Bytes copied from the device to the host.
    pub from_device_bytes: AtomicU64,
    /// Contexts that faulted.
    pub faults: AtomicU64,
    /// Programs that a worker serves now.
    pub sessions: AtomicU32,
    /// Nanoseconds of [`ClientCounters::used_ns`] for which a lease was kept and nothing ran.
    pub kept_ns: AtomicU64,
}

/// The whole page.
#[repr(C, align(64))]
#[derive(Default)]
pub struct ClientPage {
    /// [`PAGE_MAGIC`].
    pub magic: AtomicU32,
    /// [`PAGE_VERSION`].
    pub version: AtomicU32,
    /// Leases.
    pub lease: DaemonToClient,
    /// Slices, suspension, limits.
    pub commands: DaemonCommands,
    /// Submission counters.
    pub counters: ClientCounters,
    /// Memory credit.
    pub memory: Memory,
    /// State of the client.
    pub client: ClientToDaemon,
    /// What it has moved.
    pub traffic: ClientTraffic,
    /// Credit of host memory, of workers.
    pub host_memory: Memory,
}

impl ClientPage {
    /// The credit of an account.
    #[inline]
    pub fn memory_of(&self, account: Account) -> &Memory {
        match account {
            Account::Device => &self.memory,
            Account::Host => &self.host_memory,
        }
    }

    /// Bytes granted in all for an account.
    pub fn granted_of(&self, account: Account) -> &AtomicU64 {
        match account {
            Account::Device => &self.commands.granted_bytes,
            Account::Host => &self.commands.host_granted_bytes,
        }
    }

    /// The virtual GPU's limit for an account.
    pub fn limit_of(&self, account: Account) -> &AtomicU64 {
        match account {
            Account::Device => &self.commands.limit_bytes,
            Account::Host => &self.commands.host_limit_bytes,
        }
    }
}

const _: () = assert!(size_of::<ClientPage>() <= PAGE_BYTES);

#[cfg(test)]
mod tests {
    use super::gate::is_later;

    #[test]
    fn sequence_numbers_are_in_order_also_where_they_begin_again() {
        let largest = u32::MAX >> 2;
        assert!(is_later(6, 5) && !is_later(5, 6) && !is_later(5, 5));
        assert!(is_later(0, largest) && is_later(1, largest) && !is_later(largest, 0));
    }
}
