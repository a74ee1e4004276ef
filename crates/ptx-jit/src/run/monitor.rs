//! What compiled code and the runtime tell the monitor of a block ([`mica_kernel::Monitor`]).

use mica_kernel::monitor::{
    Access, AccessKind, AccessSpace, GroupAccess, LaneAddresses, LaneValues, Line, LiveSlot,
    Misuse, NotedRead, ThreadSet, order,
};
use mica_kernel::{Fault, FaultKind, Monitor};
use mica_ptx::ast::Space;

use super::dispatch::Dispatch;
use super::env::{Env, coordinates};
use super::helpers::{Ctx, set_fault};
use crate::emit::monitor::kind_of;
use crate::plan::SyncSite;
use crate::scratch::{EXITED, WAITING};

/// The monitor of a block, if its kernel was compiled for one. It knows of all reads that were noted.
fn of<'a>(ctx: Ctx) -> Option<&'a mut dyn Monitor> {
    // SAFETY: the context and its monitor are valid for the block, which one host thread runs; a call of
    // the monitor is over before the next.
    let monitor = unsafe { (*ctx).monitor() }?;
    // SAFETY: the context is valid, and compiled code waits for this call.
    let log = unsafe { &mut (*ctx).reads };
    if log.next != log.first {
        let count = (log.next as usize - log.first as usize) / size_of::<NotedRead>();
        // SAFETY: compiled code filled the places from the first one up to the next, which is not behind the last.
        let noted = unsafe { std::slice::from_raw_parts(log.first, count) };
        log.next = log.first;
        monitor.reads(noted);
    }
    Some(monitor)
}

/// Tells the monitor of reads that were noted, as nothing follows that would.
pub(super) fn tell_noted(ctx: Ctx) {
    let _ = of(ctx);
}

fn unpack(meta: u64) -> (u32, AccessKind, u32, AccessSpace) {
    let kind = match meta >> 16 & 15 {
        0 => AccessKind::Read,
        1 => AccessKind::Write,
        _ => AccessKind::Atomic,
    };
    let space = match meta >> 28 & 15 {
        1 => AccessSpace::Shared,
        2 => AccessSpace::Local,
        3 => AccessSpace::Params,
        _ => AccessSpace::Arena,
    };
    (meta as u32 & 0xffff, kind, meta as u32 >> 20 & 0xff, space)
}

fn unpack_line(lines: u64) -> Line {
    Line {
        ptx: lines as u32,
        source: (lines >> 32) as u32,
    }
}

/// Ends the block with the fault of an access that the monitor refuses.
fn refuse(ctx: Ctx, access: &Access) -> u64 {
    // SAFETY: the context is valid for the block.
    let block = unsafe { (*ctx).block };
    set_fault(ctx, refused(access, block));
    1
}

/// An access of scalar code. Not 0 ends the block.
pub(super) extern "C" fn monitor(
    ctx: Ctx,
    t: u64,
    address: u64,
    meta: u64,
    lines: u64,
    value: u64,
) -> u64 {
    let Some(monitor) = of(ctx) else { return 0 };
    let (bytes, kind, order, space) = unpack(meta);
    let access = Access {
        thread: t as u32,
        bytes,
        address,
        kind,
        order,
        space,
        line: unpack_line(lines),
        value: (meta >> 32 & 1 == 1).then_some(value),
    };
    if monitor.access(&access) {
        return 0;
    }
    refuse(ctx, &access)
}

/// Accesses of a group. `buffer` holds the first address and the stride, then what is written; or one address for each
/// lane. Not 0 ends the block.
pub(super) extern "C" fn monitor_group(
    ctx: Ctx,
    t: u64,
    buffer: *const u64,
    meta: u64,
    lines: u64,
) -> u64 {
    let Some(monitor) = of(ctx) else { return 0 };
    let (bytes, kind, order, space) = unpack(meta);
    let lanes = (meta >> 40 & 0xff) as usize;
    // SAFETY: compiled code stored two words at least.
    let [address, stride] = unsafe { *buffer.cast::<[u64; 2]>() };
    // SAFETY: what is written follows where the word says so, and all of it was stored.
    let values = unsafe {
        match meta >> 32 & 3 {
            0 => LaneValues::None,
            1 => LaneValues::Words(std::slice::from_raw_parts(buffer.add(2).cast(), lanes)),
            _ => LaneValues::Pairs(std::slice::from_raw_parts(buffer.add(2), lanes)),
        }
    };
    let addresses = match meta >> 34 & 1 {
        0 => LaneAddresses::Stride(stride as i64),
        // SAFETY: compiled code stored one address for each lane.
        _ => LaneAddresses::Each(unsafe { std::slice::from_raw_parts(buffer, lanes) }),
    };
    let group = GroupAccess {
        first: Access {
            thread: t as u32,
            bytes,
            address,
            kind,
            order,
            space,
            line: unpack_line(lines),
            value: None,
        },
        lanes: lanes as u32,
        addresses,
        values,
    };
    let Err(access) = monitor.accesses(&group) else {
        return 0;
    };
    refuse(ctx, &access)
}

/// Accesses of a group to memory that the instruction's [`LiveSlot`] does not hold: each is told, and the slot takes the
/// allocation of the last one. Not 0 ends the block.
pub(super) extern "C" fn monitor_live(
    ctx: Ctx,
    site: u64,
    t: u64,
    addresses: *const u64,
    meta: u64,
    lines: u64,
) -> u64 {
    let Some(monitor) = of(ctx) else { return 0 };
    let (bytes, kind, order, space) = unpack(meta);
    for lane in 0..meta >> 40 & 0xff {
        let access = Access {
            thread: (t + lane) as u32,
            bytes,
            // SAFETY: compiled code stored one address for each lane that it names.
            address: unsafe { *addresses.add(lane as usize) },
            kind,
            order,
            space,
            line: unpack_line(lines),
            value: None,
        };
        if !monitor.access(&access) {
            return refuse(ctx, &access);
        }
        let range = monitor.live_range(&access);
        if let Some((base, len)) = range.filter(|(_, len)| *len >= u64::from(bytes)) {
            // SAFETY: `run_block` has compared the number of slots with the number of sites, and only this thread of the
            // host runs the block.
            unsafe {
                *(*ctx).live.add(site as usize) = LiveSlot {
                    base,
                    starts: len - u64::from(bytes) + 1,
                }
            };
        }
    }
    0
}

/// A fence of scalar code.
pub(super) extern "C" fn monitor_fence(ctx: Ctx, t: u64) -> u64 {
    if let Some(monitor) = of(ctx) {
        monitor.fence(t as u32);
    }
    0
}

/// The fault of an access that the monitor refuses.
fn refused(access: &Access, block: mica_kernel::Dim3) -> Fault {
    Fault {
        kind: FaultKind::IllegalAddress as u32,
        ptx_line: access.line.ptx,
        source_line: access.line.source,
        address: access.address,
        bytes: access.bytes,
        is_write: u32::from(access.kind != AccessKind::Read),
        thread: coordinates(block, access.thread),
        space: 0,
    }
}

impl Env<'_> {
    /// Tells the monitor of an access that the runtime is about to make.
    pub(super) fn tell_access(
        &self,
        space: Space,
        host: u64,
        bytes: u32,
        write: bool,
    ) -> Result<(), Fault> {
        let Some(monitor) = self.monitor() else {
            return Ok(());
        };
        let unit = &self.kernel.plan.unit;
        let op = &unit.inst(&self.kernel.module, self.place).op;
        let (kind, order) = match self.mbarrier.get() {
            true => (
                AccessKind::Atomic,
                order::STRONG | order::ACQUIRE | order::RELEASE | order::MBARRIER,
            ),
            false => kind_of(op, unit.in_step.contains(&self.place), write),
        };
        let line = self.line();
        let access = Access {
            thread: self.thread,
            bytes,
            address: host,
            kind,
            order,
            space: match space {
                Space::Shared | Space::SharedCluster => AccessSpace::Shared,
                Space::Local | Space::Param => AccessSpace::Local,
                _ => AccessSpace::Arena,
            },
            line: Line {
                ptx: line.0,
                source: line.1,
            },
            value: None,
        };
        match monitor.access(&access) {
            true => Ok(()),
            false => Err(refused(&access, self.context().block)),
        }
    }

    fn monitor(&self) -> Option<&mut dyn Monitor> {
        of(self.ctx).filter(|_| self.kernel.monitor)
    }
}

impl Dispatch<'_> {
    fn monitor(&self) -> Option<&mut dyn Monitor> {
        of(self.ctx).filter(|_| self.k.monitor)
    }

    pub(crate) fn is_monitored(&self) -> bool {
        self.monitor().is_some()
    }

    /// All threads have met at a barrier.
    pub(super) fn tell_barrier_for_all(&self, id: u32) {
        if let Some(monitor) = self.monitor() {
            monitor.barrier(id, &ThreadSet::first(self.threads));
        }
    }

    /// A barrier opens for those who wait at it.
    pub(super) fn tell_barrier(&self, id: u32, waits: &dyn Fn(u32) -> bool) {
        let Some(monitor) = self.monitor() else {
            return;
        };
        let mut waiting = ThreadSet::default();
        (0..self.threads)
            .filter(|t| waits(*t))
            .for_each(|t| waiting.insert(t));
        for warp in 0..self.threads.div_ceil(32) {
            self.find_divergence(warp, &waiting, monitor);
        }
        monitor.barrier(id, &waiting);
    }

    /// Looks whether the lanes of a warp are together at a barrier that wants them together.
    fn find_divergence(&self, warp: u32, waiting: &ThreadSet, monitor: &mut dyn Monitor) {
        let lanes = warp * 32..(warp * 32 + 32).min(self.threads);
        let Some(first) = lanes.clone().find(|t| waiting.contains(*t)) else {
            return;
        };
        let site = self.state(first);
        let apart = lanes
            .filter(|t| self.state(*t) != EXITED)
            .find(|t| self.state(*t) != site);
        let (Some(other), Some(sync)) = (apart, self.site_of(site)) else {
            return;
        };
        let op = &self.k.plan.unit.inst(&self.k.module, sync.place).op;
        use mica_ptx::ast::Op;
        if matches!(
            op,
            Op::Bar { aligned: true, .. } | Op::BarRed { aligned: true, .. }
        ) {
            // The thread that is named is one that waits, so that its line is a barrier's.
            let _ = other;
            monitor.misuse(Misuse::DivergentBarrier, first, self.line_of(sync));
        }
    }

    pub(super) fn tell_arrival(&self, id: u32, t: u32) {
        if let Some(monitor) = self.monitor() {
            monitor.arrive(id, t);
        }
    }

    pub(super) fn tell_warp(&self, warp: u32, lanes: u32) {
        if let Some(monitor) = self.monitor() {
            monitor.warp(&ThreadSet::of_warp(warp, lanes));
        }
    }

    pub(super) fn tell_misuse(&self, what: Misuse, t: u32, site: &SyncSite) {
        if let Some(monitor) = self.monitor() {
            monitor.misuse(what, t, self.line_of(site));
        }
    }

    /// Tells of every thread that waits for others who never come, one for each place.
    pub(super) fn tell_deadlock(&self) {
        let Some(monitor) = self.monitor() else {
            return;
        };
        let mut seen = Vec::new();
        for (t, c) in self.states() {
            if let Some(site) = self.site_of(c)
                && !seen.contains(&c)
            {
                seen.push(c);
                monitor.misuse(Misuse::NeverCompletes, t, self.line_of(site));
            }
        }
    }

    fn site_of(&self, state: u32) -> Option<&SyncSite> {
        let waits = state & WAITING != 0 && state != EXITED;
        waits.then(|| &self.k.plan.syncs[(state & !WAITING) as usize])
    }

    fn line_of(&self, site: &SyncSite) -> Line {
        let (ptx, source) = self.k.line(site.place);
        Line { ptx, source }
    }
}
