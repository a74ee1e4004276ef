//! Watches one block after the other: what the engine tells becomes findings.

mod atomics;
mod group;
mod shared_reads;

use std::sync::Arc;

use mica_kernel::monitor::{
    Access, AccessKind, AccessSpace, GroupAccess, Line, Misuse, Monitor, NotedRead, ThreadSet,
    order,
};

use crate::finding::{Finding, Party, Place, Severity, Tool};
use crate::launch::{BlockNumber, LaunchFindings};
use crate::pages::PAGE;
use crate::race::{Clocks, Hit, LAST_EPOCH, MOST_FOREIGN, ROWS, RowPage, Seen, SyncClocks};
use crate::settings::Tools;
use crate::shadow::Shadow;

/// Host bytes of what strong writes to the shared memory of one block have released.
const MOST_SHARED_SYNC: u64 = 64 << 20;

/// Where allocations are, as the device knows.
pub trait LiveMemory {
    /// Whether the bytes lie in one live allocation that may be accessed like that. Called for every access to global memory.
    fn allows(&mut self, address: u64, bytes: u64, write: bool) -> bool;
    /// First address and bytes of the live allocation with an access that was allowed just now; `None` for memory of which
    /// every access must be looked at.
    fn range(&self, address: u64, write: bool) -> Option<(u64, u64)>;
    /// The source file and line that a line of the PTX text stands for.
    fn place(&self, ptx_line: u32) -> Place;
    /// Up to eight bytes of memory that was found live.
    fn peek(&self, address: u64, bytes: u32) -> Option<u64>;
}

/// The block that runs, and where its own memory is.
#[derive(Clone, Copy, Debug, Default)]
pub struct WatchedBlock {
    /// Its number in the grid.
    pub number: BlockNumber,
    /// Its index.
    pub index: [u32; 3],
    /// Threads along x, y, z.
    pub shape: [u32; 3],
    /// First address and bytes of its shared memory.
    pub shared: (u64, u64),
    /// First address and bytes of the local memory of all its threads.
    pub local: (u64, u64),
    /// The parameters that the kernel takes the address of.
    pub params: (u64, u64),
}

impl WatchedBlock {
    fn thread(&self, t: u32) -> [u32; 3] {
        let [x, y, _] = self.shape.map(|n| n.max(1));
        [t % x, t / x % y, t / x / y]
    }

    fn threads(&self) -> u32 {
        self.shape.iter().product()
    }

    /// Whether some of these bytes are the block's own.
    #[inline]
    fn holds_part(&self, address: u64, bytes: u64) -> bool {
        let end = address.saturating_add(bytes);
        [self.shared, self.local, self.params]
            .into_iter()
            .any(|(start, len)| address < start.saturating_add(len) && start < end)
    }
}

/// Watches the blocks that one host thread runs of one launch.
pub struct BlockWatcher<M> {
    tools: Tools,
    launch: u64,
    grid: [u32; 3],
    kernel: String,
    shadow: Option<Arc<Shadow>>,
    memory: M,
    findings: Arc<LaunchFindings>,
    block: WatchedBlock,
    clocks: Option<Clocks>,
    /// Pages of shared memory.
    pages: Vec<Box<RowPage>>,
    shared_sync: SyncClocks,
    /// Bytes of shared memory that were written.
    shared_written: Vec<bool>,
    /// Reads of shared memory since a barrier of the whole block, after which nobody has written there yet: they race with
    /// nothing, and matter only to a write before the next such barrier.
    reads: Vec<NotedRead>,
    /// Whether nobody has written to shared memory since then.
    is_unwritten: bool,
    is_deadlocked: bool,
    /// Whether it was told that a thread of the block has more epochs than can be remembered.
    is_past_epochs: bool,
}

/// Which memory an address is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Global,
    Shared,
    Local,
    Params,
}

impl<M: LiveMemory> BlockWatcher<M> {
    /// For blocks of one launch; `shadow` where device memory is looked at byte by byte.
    pub fn new(
        tools: Tools,
        (launch, grid, kernel): (u64, [u32; 3], String),
        shadow: Option<Arc<Shadow>>,
        memory: M,
        findings: Arc<LaunchFindings>,
    ) -> Self {
        Self {
            tools,
            launch,
            grid,
            kernel,
            shadow,
            memory,
            findings,
            block: WatchedBlock::default(),
            clocks: None,
            pages: Vec::new(),
            shared_sync: SyncClocks::default(),
            shared_written: Vec::new(),
            reads: Vec::new(),
            is_unwritten: true,
            is_deadlocked: false,
            is_past_epochs: false,
        }
    }

    /// The device's side.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Whether the block waits for threads that never come, which has been told.
    pub fn is_deadlocked(&self) -> bool {
        self.is_deadlocked
    }

    /// The block that begins now.
    pub fn begin(&mut self, block: WatchedBlock) {
        self.block = block;
        self.is_deadlocked = false;
        if self.tools.has(Tool::Racecheck) {
            // Blocks past the numbers that are remembered are not told apart from those before.
            self.clocks = Some(Clocks::new(block.number as u32, block.threads()));
            let pages = block.shared.1.div_ceil(PAGE) as usize;
            self.pages.truncate(pages);
            self.pages.iter_mut().for_each(|page| page.clear());
            self.pages.resize_with(pages, || RowPage::new(ROWS));
            self.shared_sync.clear();
            self.reads.clear();
            self.is_unwritten = true;
            self.is_past_epochs = false;
        }
        if self.tools.has(Tool::Initcheck) {
            self.shared_written.clear();
            self.shared_written.resize(block.shared.1 as usize, false);
        }
    }

    #[inline]
    fn locate(&self, access: &Access) -> Where {
        let inside = |(start, len): (u64, u64)| access.address.wrapping_sub(start) < len;
        match access.space {
            AccessSpace::Shared => Where::Shared,
            AccessSpace::Local => Where::Local,
            AccessSpace::Params => Where::Params,
            AccessSpace::Arena if inside(self.block.shared) => Where::Shared,
            AccessSpace::Arena if inside(self.block.local) => Where::Local,
            AccessSpace::Arena if inside(self.block.params) => Where::Params,
            AccessSpace::Arena => Where::Global,
        }
    }

    fn party(&self, thread: u32, line: Line, access: &str, bytes: u32) -> Party {
        Party {
            access: access.to_owned(),
            bytes,
            block: self.block.index,
            thread: self.block.thread(thread),
            place: self.memory.place(line.ptx),
        }
    }

    fn add(&self, thread: u32, tool: Tool, kind: &str, severity: Severity, finding: Parts) {
        let finding = Finding {
            tool,
            kind: kind.to_owned(),
            severity,
            message: finding.message,
            kernel: self.kernel.clone(),
            space: finding.space.to_owned(),
            address: finding.address,
            parties: finding.parties,
            allocation: None,
            count: 1,
        };
        self.findings.add(self.block.number, thread, finding);
    }

    fn initcheck(&mut self, access: &Access, place: Where) {
        let (reads, writes) = match access.kind {
            AccessKind::Read => (true, false),
            AccessKind::Write => (false, true),
            AccessKind::Atomic => (access.order & order::MBARRIER == 0, true),
        };
        let (address, bytes) = (access.address, u64::from(access.bytes));
        let unwritten = match place {
            Where::Global => {
                let Some(shadow) = &self.shadow else { return };
                let mut shadow = shadow.lock();
                let unwritten = reads && shadow.unwritten.is_unwritten(address, bytes);
                if writes || unwritten {
                    // Told once; the same memory is not reported again.
                    shadow.unwritten.write(address, bytes);
                    shadow.charge_unwritten();
                }
                unwritten
            }
            Where::Shared => {
                let from = address.wrapping_sub(self.block.shared.0) as usize;
                let range = from..from.saturating_add(bytes as usize);
                let Some(range) = self.shared_written.get_mut(range) else {
                    return;
                };
                let unwritten = reads && !range.iter().any(|w| *w);
                if writes || unwritten {
                    range.fill(true);
                }
                unwritten
            }
            Where::Local | Where::Params => return,
        };
        if unwritten {
            let space = name_of(place);
            let parts = Parts {
                message: format!("read of {space} memory that nobody wrote"),
                space,
                address: Some(self.shown(address, place)),
                parties: vec![self.party(
                    access.thread,
                    access.line,
                    verb(access.kind),
                    access.bytes,
                )],
            };
            self.add(
                access.thread,
                Tool::Initcheck,
                "uninitialized-read",
                Severity::Error,
                parts,
            );
        }
    }

    /// Addresses of shared memory are told as the program knows them.
    fn shown(&self, address: u64, place: Where) -> u64 {
        match place {
            Where::Shared => address.wrapping_sub(self.block.shared.0),
            _ => address,
        }
    }

    fn racecheck(&mut self, access: &Access, place: Where) {
        if place == Where::Shared && self.put_off(access) {
            return;
        }
        if access.order & order::STRONG != 0 || place == Where::Shared {
            self.catch_up();
        }
        self.is_unwritten &= place != Where::Shared || access.kind == AccessKind::Read;
        self.look_for_race(access, place);
    }

    fn look_for_race(&mut self, access: &Access, place: Where) {
        if !matches!(place, Where::Global | Where::Shared) {
            return;
        }
        let epoch = self.clocks.as_ref().and_then(|c| c.epoch(access.thread));
        if epoch.is_none() {
            return self.note_past_epochs(access);
        }
        let hit = match place {
            Where::Shared => self.race_in_shared(access),
            _ => self.race_in_global(access),
        };
        if let Some(hit) = hit
            && !self.is_same_value(&hit, access)
        {
            self.report_race(&hit, access, place);
        }
    }

    /// Tells once for each block that races of a thread are not seen any more.
    fn note_past_epochs(&mut self, access: &Access) {
        if std::mem::replace(&mut self.is_past_epochs, true) {
            return;
        }
        let parts = Parts {
            message: format!(
                "a thread passes more than {LAST_EPOCH} barriers and fences, or learns of more than {MOST_FOREIGN} blocks: races of later accesses are not seen"
            ),
            space: "",
            address: None,
            parties: vec![self.party(access.thread, access.line, verb(access.kind), access.bytes)],
        };
        let (tool, severity) = (Tool::Racecheck, Severity::Note);
        self.add(access.thread, tool, "incomplete", severity, parts);
    }

    fn race_in_shared(&mut self, access: &Access) -> Option<Hit> {
        let clocks = self.clocks.as_mut()?;
        let base = self.block.shared.0;
        acquire(clocks, &self.shared_sync, access);
        let mut hit = None;
        let number = self.block.number as u32;
        let looked = each_word(access, |at, bytes| {
            let seen = seen(access, clocks, number, bytes)?;
            let offset = at.wrapping_sub(base);
            let page = self.pages.get_mut((offset / PAGE) as usize)?;
            let found = page.one((offset % PAGE) as usize / 4, &seen, clocks, true);
            hit = hit.or(found.ok()?);
            Some(())
        });
        release(clocks, &mut self.shared_sync, access);
        if self.shared_sync.held_bytes() > MOST_SHARED_SYNC {
            self.shared_sync.lose();
            if let Some(shadow) = &self.shadow {
                shadow.lock().is_full = true;
            }
        }
        looked.and(hit).filter(|_| !self.shared_sync.is_lost())
    }

    fn race_in_global(&mut self, access: &Access) -> Option<Hit> {
        let clocks = self.clocks.as_mut()?;
        let shadow = self.shadow.as_ref()?;
        let mut shadow = shadow.lock();
        let is_strong = access.order & order::STRONG != 0;
        if is_strong {
            acquire(clocks, shadow.sync(self.launch), access);
        }
        let mut hit = None;
        let number = self.block.number as u32;
        let looked = each_word(access, |at, bytes| {
            let seen = seen(access, clocks, number, bytes)?;
            hit = hit.or(shadow.access((self.launch, at), &seen, clocks)?);
            Some(())
        });
        if is_strong && release(clocks, shadow.sync(self.launch), access) {
            shadow.charge_sync(self.launch);
        }
        (looked.and(hit)).filter(|_| !shadow.sync(self.launch).is_lost())
    }

    /// Two threads that write the same bits do no harm: many flags are set like that.
    fn is_same_value(&self, hit: &Hit, access: &Access) -> bool {
        let both_write = hit.kind == AccessKind::Write && access.kind == AccessKind::Write;
        let Some(value) = access.value.filter(|_| both_write && access.bytes <= 8) else {
            return false;
        };
        let mask = u64::MAX >> (64 - 8 * access.bytes.clamp(1, 8));
        let there = self.memory.peek(access.address, access.bytes);
        there.is_some_and(|there| there & mask == value & mask)
    }

    fn report_race(&self, hit: &Hit, access: &Access, place: Where) {
        let space = name_of(place);
        let (kind, severity, message) = match (hit.volatile, hit.kind, access.kind) {
            (true, ..) => (
                "missing-syncwarp",
                Severity::Error,
                format!(
                    "lanes of a warp use each other's {space} memory without __syncwarp() between them"
                ),
            ),
            (_, AccessKind::Read, _) => (
                "write-after-read",
                Severity::Error,
                format!("race in {space} memory: written while another thread may still read it"),
            ),
            (_, _, AccessKind::Read) => (
                "read-after-write",
                Severity::Error,
                format!("race in {space} memory: read while another thread may still write it"),
            ),
            _ => (
                "write-after-write",
                Severity::Error,
                format!("race in {space} memory: two threads write different values"),
            ),
        };
        let other = Line {
            ptx: hit.ptx_line,
            source: 0,
        };
        let mut earlier = self.party(hit.thread, other, verb(hit.kind), access.bytes);
        let [x, y, _] = self.grid.map(|n| n.max(1));
        earlier.block = [hit.block % x, hit.block / x % y, hit.block / x / y];
        let parts = Parts {
            message,
            space,
            address: Some(self.shown(access.address, place)),
            parties: vec![
                self.party(access.thread, access.line, verb(access.kind), access.bytes),
                earlier,
            ],
        };
        self.add(access.thread, Tool::Racecheck, kind, severity, parts);
    }
}

/// What differs between findings.
struct Parts {
    message: String,
    space: &'static str,
    address: Option<u64>,
    parties: Vec<Party>,
}

fn name_of(place: Where) -> &'static str {
    match place {
        Where::Global => "global",
        Where::Shared => "shared",
        Where::Local => "local",
        Where::Params => "parameter",
    }
}

fn verb(kind: AccessKind) -> &'static str {
    match kind {
        AccessKind::Read => "read",
        AccessKind::Write => "write",
        AccessKind::Atomic => "atomic",
    }
}

fn acquire(clocks: &mut Clocks, sync: &SyncClocks, access: &Access) {
    if access.order & order::STRONG != 0 && access.kind != AccessKind::Write {
        clocks.read(sync, access.address, access.thread);
    }
}

/// Whether the access is one that others may learn from.
fn release(clocks: &mut Clocks, sync: &mut SyncClocks, access: &Access) -> bool {
    let is_strong = access.order & order::STRONG != 0 && access.kind != AccessKind::Read;
    if is_strong {
        let releases = access.order & order::RELEASE != 0;
        clocks.write(sync, access.address, access.thread, releases);
    }
    is_strong
}

#[inline]
fn seen(access: &Access, clocks: &Clocks, block: u32, bytes: u32) -> Option<Seen> {
    Some(Seen {
        block,
        thread: access.thread,
        epoch: clocks.epoch(access.thread)?,
        ptx_line: access.line.ptx,
        bytes,
        kind: access.kind,
        order: access.order,
    })
}

/// Calls `f` for every word of an access, with the bytes of it, until `f` gives up.
#[inline]
fn each_word(access: &Access, mut f: impl FnMut(u64, u32) -> Option<()>) -> Option<()> {
    let (mut at, end) = (access.address, access.address + u64::from(access.bytes));
    while at < end {
        let word = at & !3;
        let n = (word + 4).min(end) - at;
        let bytes = ((1u32 << n) - 1) << (at - word);
        f(word, bytes)?;
        at += n;
    }
    Some(())
}

impl<M: LiveMemory> Monitor for BlockWatcher<M> {
    fn access(&mut self, access: &Access) -> bool {
        let place = self.locate(access);
        if place == Where::Global
            && !(self.memory).allows(
                access.address,
                u64::from(access.bytes),
                access.kind != AccessKind::Read,
            )
        {
            return false;
        }
        if self.tools.has(Tool::Initcheck) {
            self.initcheck(access, place);
        }
        if self.clocks.is_some() {
            self.racecheck(access, place);
        }
        true
    }

    fn accesses(&mut self, group: &GroupAccess<'_>) -> Result<(), Access> {
        if self.put_off_group(group) || self.race_in_rows(group) || self.race_of_atomics(group) {
            return Ok(());
        }
        group.each(|access| self.access(access))
    }

    fn reads(&mut self, reads: &[NotedRead]) {
        if self.put_off_noted(reads) {
            return;
        }
        for read in reads {
            // They are inside the block's own memory.
            let _ = self.accesses(&read.group());
        }
    }

    fn live_range(&mut self, access: &Access) -> Option<(u64, u64)> {
        // Memory of the block itself is somewhere else in the next block.
        let is_global = self.locate(access) == Where::Global;
        let write = access.kind != AccessKind::Read;
        (is_global && !self.tools.watch_every_access())
            .then(|| self.memory.range(access.address, write))?
    }

    fn fence(&mut self, thread: u32) {
        self.catch_up();
        if let Some(clocks) = &mut self.clocks {
            clocks.fence(thread);
        }
    }

    fn arrive(&mut self, barrier: u32, thread: u32) {
        self.catch_up();
        if let Some(clocks) = &mut self.clocks {
            clocks.arrive(barrier, thread);
        }
    }

    fn barrier(&mut self, barrier: u32, waiting: &ThreadSet) {
        self.settle_reads(waiting);
        if let Some(clocks) = &mut self.clocks {
            clocks.barrier(barrier, waiting);
        }
    }

    fn warp(&mut self, lanes: &ThreadSet) {
        self.catch_up();
        if let Some(clocks) = &mut self.clocks {
            clocks.meet(lanes);
        }
    }

    fn misuse(&mut self, what: Misuse, thread: u32, line: Line) {
        // What never completes ends the kernel, so it is told in any case.
        self.is_deadlocked |= what == Misuse::NeverCompletes;
        if !self.tools.has(Tool::Synccheck) && what != Misuse::NeverCompletes {
            return;
        }
        let (kind, severity, message) = match what {
            Misuse::NotInMask => (
                "not-in-mask",
                Severity::Error,
                "a thread executes a _sync operation whose mask leaves it out",
            ),
            Misuse::ShuffleFromAbsent => (
                "shuffle-from-absent",
                Severity::Warning,
                "a shuffle reads a lane that takes no part in it: its value is undefined",
            ),
            Misuse::DivergentBarrier => (
                "divergent-barrier",
                Severity::Error,
                "__syncthreads() in divergent code: threads of one warp are at different places",
            ),
            Misuse::NeverCompletes => (
                "never-completes",
                Severity::Error,
                "a thread waits for threads that never come: a GPU would hang here",
            ),
        };
        let parts = Parts {
            message: message.to_owned(),
            space: "",
            address: None,
            parties: vec![self.party(thread, line, "", 0)],
        };
        self.add(thread, Tool::Synccheck, kind, severity, parts);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Memory that may be accessed anywhere.
    pub(crate) struct Anything;

    impl LiveMemory for Anything {
        fn allows(&mut self, _: u64, _: u64, _: bool) -> bool {
            true
        }
        fn range(&self, _: u64, _: bool) -> Option<(u64, u64)> {
            None
        }
        fn place(&self, ptx_line: u32) -> Place {
            Place {
                file: None,
                line: 0,
                ptx_line,
            }
        }
        fn peek(&self, _: u64, _: u32) -> Option<u64> {
            Some(7)
        }
    }

    /// Numbers that look like chance.
    pub(crate) struct Noise(pub(crate) u64);

    impl Noise {
        pub(crate) fn below(&mut self, n: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % n
        }
    }
}
