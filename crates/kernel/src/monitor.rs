//! What a checked kernel tells a [`Monitor`]: every access to memory, every fence, every synchronization.
//!
//! Engines call a monitor only where [`crate::BlockContext::monitor`] is not null and their code was made for it.
//! One host thread runs a block, so a monitor is never called twice at the same time.

/// Reads, writes or does both in one step.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// A load.
    Read = 0,
    /// A store.
    Write = 1,
    /// A read-modify-write operation.
    Atomic = 2,
}

/// The memory that an instruction names.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessSpace {
    /// Global, constant and generic addresses: anything inside the arena.
    Arena = 0,
    /// The shared memory of the block.
    Shared = 1,
    /// The local memory of the thread.
    Local = 2,
    /// The parameters of the launch, which nobody writes.
    Params = 3,
}

/// How an access is ordered, as bits.
pub mod order {
    /// Volatile, relaxed or stronger: the access takes part in synchronization.
    pub const STRONG: u32 = 1;
    /// Later accesses of the thread come after this one.
    pub const ACQUIRE: u32 = 2;
    /// Earlier accesses of the thread come before this one.
    pub const RELEASE: u32 = 4;
    /// Of the two strong kinds, `.volatile`.
    pub const VOLATILE: u32 = 8;
    /// An operation on an `mbarrier` object, whose arrival releases and whose completed wait acquires.
    pub const MBARRIER: u32 = 16;
}

/// A place in the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Line {
    /// Line of the PTX text.
    pub ptx: u32,
    /// Line of the source file, 0 when unknown.
    pub source: u32,
}

/// One access of one thread, told before it happens.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The thread within its block, numbered along x, y, z.
    pub thread: u32,
    /// Bytes.
    pub bytes: u32,
    /// Host address of the first byte.
    pub address: u64,
    /// Load, store or both.
    pub kind: AccessKind,
    /// Bits of [`order`].
    pub order: u32,
    /// The memory that the instruction names.
    pub space: AccessSpace,
    /// Where in the program.
    pub line: Line,
    /// The bits that a store of at most eight bytes writes.
    pub value: Option<u64>,
}

/// Where the lanes of a group access memory.
#[derive(Clone, Copy, Debug)]
pub enum LaneAddresses<'a> {
    /// Each lane so many bytes behind the one before.
    Stride(i64),
    /// An address for each lane.
    Each(&'a [u64]),
}

/// One access of each lane of a group, told before any of them happens. Lanes that write do not write the same bytes.
#[derive(Clone, Copy, Debug)]
pub struct GroupAccess<'a> {
    /// The access of the first lane; its value is not told here.
    pub first: Access,
    /// How many threads, whose numbers follow each other.
    pub lanes: u32,
    /// Where they access memory.
    pub addresses: LaneAddresses<'a>,
    /// What they write.
    pub values: LaneValues<'a>,
}

/// The bits that the lanes of a group write.
#[derive(Clone, Copy, Debug)]
pub enum LaneValues<'a> {
    /// Not told.
    None,
    /// At most 32 bits each.
    Words(&'a [u32]),
    /// At most 64 bits each.
    Pairs(&'a [u64]),
}

impl GroupAccess<'_> {
    /// Where one lane accesses memory.
    pub fn address(&self, lane: u32) -> u64 {
        match self.addresses {
            LaneAddresses::Stride(by) => {
                let offset = by.wrapping_mul(i64::from(lane));
                self.first.address.wrapping_add_signed(offset)
            }
            LaneAddresses::Each(each) => {
                let address = each.get(lane as usize).copied();
                address.unwrap_or(self.first.address)
            }
        }
    }

    /// Has `allow` judge the access of each lane.
    ///
    /// # Errors
    /// The first access that it refuses.
    #[inline]
    pub fn each(&self, mut allow: impl FnMut(&Access) -> bool) -> Result<(), Access> {
        for lane in 0..self.lanes {
            let access = self.lane(lane);
            if !allow(&access) {
                return Err(access);
            }
        }
        Ok(())
    }

    /// The access of one lane.
    pub fn lane(&self, lane: u32) -> Access {
        let at = lane as usize;
        let address = self.address(lane);
        let value = match self.values {
            LaneValues::None => None,
            LaneValues::Words(words) => words.get(at).map(|word| u64::from(*word)),
            LaneValues::Pairs(pairs) => pairs.get(at).copied(),
        };
        Access {
            thread: self.first.thread + lane,
            address,
            value,
            ..self.first
        }
    }
}

/// Threads of a block, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadSet(pub [u64; 16]);

impl ThreadSet {
    /// The first `threads` threads.
    pub fn first(threads: u32) -> Self {
        let mut set = Self::default();
        for (at, word) in (0u32..).zip(&mut set.0) {
            *word = match threads.saturating_sub(64 * at) {
                64.. => u64::MAX,
                some => (1 << some) - 1,
            };
        }
        set
    }

    /// The lanes of `mask` in a warp.
    pub fn of_warp(warp: u32, mask: u32) -> Self {
        let mut set = Self::default();
        if let Some(word) = set.0.get_mut(warp as usize / 2) {
            *word = u64::from(mask) << (32 * (warp % 2));
        }
        set
    }

    /// Adds a thread.
    pub fn insert(&mut self, thread: u32) {
        if let Some(word) = self.0.get_mut(thread as usize / 64) {
            *word |= 1 << (thread % 64);
        }
    }

    /// Whether a thread is among them.
    pub fn contains(&self, thread: u32) -> bool {
        let word = self.0.get(thread as usize / 64);
        word.is_some_and(|word| word >> (thread % 64) & 1 == 1)
    }

    /// How many there are.
    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 16]
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().enumerate().flat_map(|(i, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(64 * i as u32 + bit)
            })
        })
    }
}

/// A misuse of a synchronizing instruction, as the engine that carries it out sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Misuse {
    /// A thread executes a `_sync` operation whose mask leaves the thread out.
    NotInMask,
    /// A shuffle reads a lane that takes no part.
    ShuffleFromAbsent,
    /// Lanes of one warp are at different instructions when a barrier of the block opens.
    DivergentBarrier,
    /// A thread waits at a barrier or a `_sync` operation that can never complete.
    NeverCompletes,
}

/// Addresses that one instruction of a kernel may access without telling the monitor, because the monitor has allowed
/// an access of this instruction inside the same allocation before.
///
/// An access that begins at `address` is allowed when `address - base`, computed modulo 2⁶⁴, is below `starts`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveSlot {
    /// The first address of the allocation.
    pub base: u64,
    /// How many addresses an access may begin at: the allocation's bytes less the access's bytes, plus one. 0 while
    /// nothing is known.
    pub starts: u64,
}

/// A plain read of the block's shared memory by threads that follow each other, as compiled code notes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct NotedRead {
    /// Where the first thread reads.
    pub address: u64,
    /// Bytes from one thread's address to the next one's.
    pub stride: i64,
    /// Lines of the PTX text and, above 32 bits, of the source file.
    pub lines: u64,
    /// The first thread; above 32 bits how many bytes each reads, above 48 how many threads there are.
    pub who: u64,
}

impl NotedRead {
    /// A read of `lanes` threads, of which `first` is the first one's.
    pub fn new(first: &Access, lanes: u32, stride: i64) -> Self {
        Self {
            address: first.address,
            stride,
            lines: u64::from(first.line.ptx) | u64::from(first.line.source) << 32,
            who: u64::from(first.thread) | Self::size(first.bytes, lanes),
        }
    }

    /// What [`NotedRead::who`] has above the thread.
    pub fn size(bytes: u32, lanes: u32) -> u64 {
        u64::from(bytes & 0xffff) << 32 | u64::from(lanes) << 48
    }

    /// The read of all threads.
    pub fn group(&self) -> GroupAccess<'static> {
        GroupAccess {
            first: Access {
                thread: self.who as u32,
                bytes: (self.who >> 32) as u32 & 0xffff,
                address: self.address,
                kind: AccessKind::Read,
                order: 0,
                space: AccessSpace::Shared,
                line: Line {
                    ptx: self.lines as u32,
                    source: (self.lines >> 32) as u32,
                },
                value: None,
            },
            lanes: (self.who >> 48) as u32,
            addresses: LaneAddresses::Stride(self.stride),
            values: LaneValues::None,
        }
    }
}

/// Where compiled code notes reads of shared memory. The monitor is told of them before it is told of anything else.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ReadLog {
    /// The first place; null where reads are told one by one.
    pub first: *mut NotedRead,
    /// Where the next read is noted.
    pub next: *mut NotedRead,
    /// Behind the last place.
    pub end: *mut NotedRead,
}

impl ReadLog {
    /// No place for any read.
    pub const NONE: Self = Self {
        first: std::ptr::null_mut(),
        next: std::ptr::null_mut(),
        end: std::ptr::null_mut(),
    };

    /// An empty log in some places.
    pub fn new(places: &mut [NotedRead]) -> Self {
        let places = places.as_mut_ptr_range();
        Self {
            first: places.start,
            next: places.start,
            end: places.end,
        }
    }
}

/// Told of everything that a block does to memory, before it is done.
pub trait Monitor {
    /// An access. `false` ends the block: the address is not the program's to touch.
    fn access(&mut self, access: &Access) -> bool;
    /// The accesses of a group, in the order of its lanes.
    ///
    /// # Errors
    /// The first access that is not the program's to make, which ends the block.
    fn accesses(&mut self, group: &GroupAccess<'_>) -> Result<(), Access> {
        group.each(|access| self.access(access))
    }
    /// Reads of the block's own shared memory, in the order in which they happened, since anything else was told. They
    /// cannot be refused.
    fn reads(&mut self, reads: &[NotedRead]) {
        for read in reads {
            let _ = self.accesses(&read.group());
        }
    }
    /// The allocation in which [`Monitor::access`] has just allowed an access, as its first address and its bytes.
    /// `None` where the next access of the same instruction must be told too.
    fn live_range(&mut self, access: &Access) -> Option<(u64, u64)> {
        let _ = access;
        None
    }
    /// A fence of one thread.
    fn fence(&mut self, thread: u32);
    /// A thread arrives at a barrier of the block and goes on.
    fn arrive(&mut self, barrier: u32, thread: u32);
    /// A barrier of the block opens for the threads that wait at it.
    fn barrier(&mut self, barrier: u32, waiting: &ThreadSet);
    /// Lanes of a warp have met: `bar.warp.sync` and the `_sync` operations that order memory.
    fn warp(&mut self, lanes: &ThreadSet);
    /// A synchronizing instruction is used as it must not be.
    fn misuse(&mut self, what: Misuse, thread: u32, line: Line);
}

/// A sized holder for the trait object, so that it can be behind a thin pointer.
pub struct MonitorRef(pub *mut dyn Monitor);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_threads_keep_their_order() {
        let mut set = ThreadSet::of_warp(3, 0b101);
        set.insert(1023);
        set.insert(0);
        set.insert(1024);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 96, 98, 1023]);
        assert!(set.contains(98) && !set.contains(97) && !set.contains(4096));
        assert_eq!((set.len(), ThreadSet::first(33).len()), (4, 33));
        assert!(ThreadSet::default().is_empty());
    }
}
