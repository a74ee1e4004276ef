//! Decides which threads run next.
//!
//! A block is run in passes. In each pass every thread or coherent group that is ready runs up to
//! its next sync point; then warp collectives whose members have all arrived are done, and when
//! nothing is ready any more, barriers. All state is in scratch memory.

use mica_kernel::{BlockContext, BlockOutcome, Fault, FaultKind, Order};
use mica_ptx::ast::{Op, Operand};
use std::sync::atomic::Ordering;

use super::coherence::{cohere, decohere};
use super::collective::{self, Arrived};
use super::env::End;
use super::helpers::{ended, poll, table};
use super::{NO_STOP, env};
use crate::kernel::Kernel;
use crate::plan::SyncSite;
use crate::scratch::{self, COHERENT, EXITED, WAITING, status};

/// Passes in which only warp collectives were done, after which barriers are looked at all the same.
const PASSES_PER_LOOK: u32 = 32;

/// The continuations of all threads.
pub(crate) fn conts<'a>(scratch_ptr: *mut u8) -> &'a mut [u32] {
    // SAFETY: the header of scratch memory holds this many, and one host thread runs the block.
    unsafe {
        std::slice::from_raw_parts_mut(
            scratch_ptr.add(scratch::CONT as usize).cast::<u32>(),
            scratch::MAX_THREADS as usize,
        )
    }
}

pub(crate) fn header(scratch_ptr: *mut u8, offset: i32) -> *mut u32 {
    // SAFETY: inside the header.
    unsafe { scratch_ptr.add(offset as usize).cast::<u32>() }
}

/// Fills the header of a block's scratch memory.
///
/// # Safety
/// `s` is the scratch memory of a block of `k`, aligned.
#[inline]
unsafe fn fill_header(k: &Kernel, s: *mut u8, lanes: u32, threads: u32) {
    // SAFETY: the header is inside scratch memory.
    unsafe {
        *header(s, scratch::PENDING) = 0;
        *header(s, scratch::LANES) = lanes;
        *header(s, scratch::THREADS) = threads;
        *header(s, super::SPIN_COUNT) = 0;
        *header(s, scratch::SLEEP) = 0;
        *header(s, scratch::PROGRESS) = 0;
        *header(s, scratch::TEXTURE) = 0;
        *header(s, scratch::ACCESS) = scratch::NOBODY;
        *header(s, scratch::ONE) = 1f32.to_bits();
        *s.add(scratch::HELPERS as usize).cast::<*const usize>() = table().as_ptr();
        *s.add(scratch::KERNEL as usize).cast::<*const Kernel>() = k;
        if !k.plan.syncs.is_empty() {
            let bytes = 16 * scratch::BARRIER_COUNT;
            std::ptr::write_bytes(s.add(scratch::BARRIERS as usize), 0, bytes);
        }
        if k.plan.meets_cluster {
            super::cluster::begin(s);
        }
    }
}

/// Runs one block in groups of `lanes` threads.
///
/// # Safety
/// `ctx` as `Executable::run_block` asks.
pub(crate) unsafe fn run_block(k: &Kernel, lanes: u32, ctx: *mut BlockContext) -> BlockOutcome {
    // SAFETY: by contract.
    let c = unsafe { &mut *ctx };
    let threads = c.block.count();
    if threads == 0 || threads > u64::from(scratch::MAX_THREADS) {
        c.fault = Fault {
            kind: FaultKind::LaunchFailed as u32,
            ..Fault::default()
        };
        return BlockOutcome::Faulted;
    }
    if let Some(fault) = super::recheck::missing(k, c) {
        c.fault = fault;
        return BlockOutcome::Faulted;
    }
    if c.resumes != 0 {
        return outcome(Dispatch::of(ctx, k).finish());
    }
    let threads = threads as u32;
    c.entered = k.coverage.entered();
    // What a block left there that a fault ended is of no interest.
    c.reads.next = c.reads.first;
    let s = c.scratch;
    // SAFETY: the block's scratch memory, by contract.
    unsafe { fill_header(k, s, lanes, threads) };
    // SAFETY: reading the word that the device owns.
    if unsafe { (*c.stop).load(Ordering::Relaxed) } != 0 && poll(ctx) != 0 {
        return BlockOutcome::Cancelled;
    }
    let d = Dispatch::of(ctx, k);
    let whole = threads / lanes * lanes;
    let mut st = 0;
    if lanes > 1 {
        st = d.run(lanes, 0, whole, 0);
    }
    let first = if lanes > 1 { whole } else { 0 };
    for t in first..threads {
        if st == 0 {
            let t = d.ordered(t);
            st = d.run(1, t, t, 0);
        }
    }
    // SAFETY: as above.
    let pending = unsafe { *header(s, scratch::PENDING) } != 0;
    if st == 0 && (pending || !k.plan.syncs.is_empty()) {
        st = d.finish();
    }
    if k.monitor {
        super::monitor::tell_noted(ctx);
    }
    outcome(st)
}

fn outcome(st: u64) -> BlockOutcome {
    match st as i64 {
        status::OK => BlockOutcome::Done,
        status::CANCEL => BlockOutcome::Cancelled,
        status::WAIT => BlockOutcome::Waiting,
        _ => BlockOutcome::Faulted,
    }
}

/// Passes in a row that go on because threads have arrived at an `mbarrier`: who arrives again and again may wait for another
/// block, which must run.
const MOST_SPARED: u32 = 256;

/// How a pass over the threads went.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// Some thread ran.
    Ran,
    /// All wait, or have exited.
    Stuck,
    /// All have exited.
    Over,
}

impl Pass {
    fn of(over: bool, ran: bool) -> Self {
        match (over, ran) {
            (true, _) => Self::Over,
            (_, true) => Self::Ran,
            _ => Self::Stuck,
        }
    }
}

pub(crate) struct Dispatch<'a> {
    pub(crate) k: &'a Kernel,
    pub(crate) ctx: *mut BlockContext,
    pub(crate) scratch: *mut u8,
    pub(crate) threads: u32,
    pub(crate) lanes: u32,
    /// See [`BlockContext::proven`].
    proven: bool,
    /// Which thread is next, where threads run one by one.
    order: Order,
}

impl<'a> Dispatch<'a> {
    /// For a block whose header is filled.
    pub(crate) fn of(ctx: *mut BlockContext, k: &'a Kernel) -> Dispatch<'a> {
        // SAFETY: the context is valid for the block, and `run_block` filled the header.
        let (c, threads, lanes) = unsafe {
            let s = (*ctx).scratch;
            (
                &*ctx,
                *header(s, scratch::THREADS),
                *header(s, scratch::LANES),
            )
        };
        Dispatch {
            k,
            ctx,
            scratch: c.scratch,
            threads,
            lanes,
            proven: c.proven != 0,
            order: Order::new(c.schedule, u64::from(threads)),
        }
    }
}

impl Dispatch<'_> {
    /// Runs threads `[begin, end)` from an entry: groups of `lanes`, or one thread.
    fn run(&self, lanes: u32, begin: u32, end: u32, entry: u32) -> u64 {
        let Some(code) = self.k.code(lanes, self.proven) else {
            return status::FAULT as u64;
        };
        let limit = if lanes == 1 { NO_STOP } else { u64::from(end) };
        // SAFETY: the context is what `run_block` was given.
        unsafe { code.call(self.ctx, u64::from(begin), limit, u64::from(entry)) }
    }

    /// The thread at a place in the order, where threads run one by one.
    fn ordered(&self, place: u32) -> u32 {
        match self.lanes {
            1 => self.order.at(u64::from(place)) as u32,
            _ => place,
        }
    }

    fn finish(&self) -> u64 {
        let (mut idle, mut spared) = (0u32, 0u32);
        let mut passes = 0u32;
        loop {
            passes = passes.wrapping_add(1);
            // SAFETY: the stop word is valid for the block.
            if unsafe { (*(*self.ctx).stop).load(Ordering::Relaxed) } != 0 && poll(self.ctx) != 0 {
                return status::CANCEL as u64;
            }
            match self.barrier_for_all() {
                Some(0) => continue,
                Some(st) => return st,
                None => {}
            }
            let ran = match self.pass() {
                Ok(Pass::Over) => return status::OK as u64,
                Ok(p) => p == Pass::Ran,
                Err(st) => return st,
            };
            if ran && (self.any_streams() || self.one_barrier().is_some()) {
                // Groups in streams wait for nobody, so whoever waits for them need not be looked at yet.
                idle = 0;
                continue;
            }
            match self.resolve_collectives() {
                Ok(false) => {}
                Ok(true) => {
                    idle = 0;
                    // A warp whose collectives are part of a loop that waits must not hold up the others' barriers.
                    if passes.is_multiple_of(PASSES_PER_LOOK) {
                        self.barriers();
                    }
                    continue;
                }
                Err(end) => return ended(self.ctx, end),
            }
            if ran {
                // Only parked threads are still ready: others, perhaps of other blocks, must run.
                if self.any_ready() {
                    if self.has_progressed() && spared < MOST_SPARED {
                        (idle, spared) = (0, spared + 1);
                    } else {
                        idle += 1;
                    }
                    if idle > 2 && !self.is_in_cluster() {
                        spared = 0;
                        self.rest();
                    }
                }
                if self.any_ready() {
                    // Barriers may be complete while others spin.
                    if self.barriers() {
                        idle = 0;
                    } else if idle > 2 && self.is_in_cluster() {
                        return self.give_way(false);
                    }
                    continue;
                }
            }
            if let Some(st) = self.release_or_end() {
                return st;
            }
        }
    }

    /// Where no thread is ready: lets threads go on that barriers hold up, else gives the status that ends the run.
    #[inline]
    fn release_or_end(&self) -> Option<u64> {
        if self.barriers() {
            return None;
        }
        if self.states().all(|(_, c)| c == EXITED) {
            return Some(status::OK as u64);
        }
        if self.is_in_cluster() {
            return Some(self.give_way(true));
        }
        // A GPU would hang here for ever.
        self.tell_deadlock();
        Some(self.fail(self.deadlock()))
    }

    /// Carries out the collectives of warps whose members have all come. Whether there was any.
    fn resolve_collectives(&self) -> Result<bool, End> {
        let mut moved = false;
        for warp in 0..self.threads.div_ceil(32) {
            moved |= collective::resolve(self, warp)?;
        }
        Ok(moved)
    }

    /// Whether a thread has arrived at an `mbarrier` since the last call. Then nobody sleeps: what threads wait for may have
    /// come.
    fn has_progressed(&self) -> bool {
        // SAFETY: inside the header.
        let has_arrived = unsafe { header(self.scratch, scratch::PROGRESS).replace(0) } != 0;
        if has_arrived {
            // SAFETY: inside the header.
            unsafe { *header(self.scratch, scratch::SLEEP) = 0 };
        }
        has_arrived
    }

    /// Lets other blocks run, for as long as threads of this one asked to sleep.
    fn rest(&self) {
        // SAFETY: inside the header.
        let ns = unsafe { header(self.scratch, scratch::SLEEP).replace(0) };
        // SAFETY: the context is valid for the block.
        match env::services(unsafe { &*self.ctx }) {
            Some(services) => {
                services.stalled();
                if ns > 0 {
                    services.sleep(ns);
                }
            }
            None => std::thread::yield_now(),
        }
    }

    /// Names a thread that waits for others that never come.
    pub(super) fn deadlock(&self) -> Fault {
        let mut f = Fault {
            kind: FaultKind::LaunchFailed as u32,
            address: Fault::NEVER_COME,
            ..Fault::default()
        };
        if let Some((t, c)) = self
            .states()
            .find(|(_, c)| c & WAITING != 0 && *c != EXITED)
        {
            let site = &self.k.plan.syncs[(c & !WAITING) as usize];
            (f.ptx_line, f.source_line) = self.k.line(site.place);
            // SAFETY: the context is valid for the block.
            f.thread = env::coordinates(unsafe { (*self.ctx).block }, t);
        }
        f
    }

    fn fail(&self, f: Fault) -> u64 {
        // SAFETY: the context is valid, and no other host thread has it.
        unsafe { (*self.ctx).fault = f };
        status::FAULT as u64
    }

    /// `(thread, continuation)` of every thread, groups expanded.
    pub(crate) fn states(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        (0..self.threads).map(|t| (t, self.state(t)))
    }

    /// The continuation of a thread, without the mark of coherence.
    pub(crate) fn state(&self, t: u32) -> u32 {
        let conts = conts(self.scratch);
        let head = t / self.lanes * self.lanes;
        let c = conts[head as usize];
        if c & COHERENT != 0 {
            c & !COHERENT
        } else {
            conts[t as usize]
        }
    }

    fn any_ready(&self) -> bool {
        self.states().any(|(_, c)| c & WAITING == 0 && c != EXITED)
    }

    /// Whether a group is between two turns of a grid-stride loop.
    fn any_streams(&self) -> bool {
        if self.k.plan.grid_stride.is_empty() || self.lanes == 1 {
            return false;
        }
        let conts = conts(self.scratch);
        (0..self.threads).step_by(self.lanes as usize).any(|t| {
            let c = conts[t as usize];
            let e = c & !COHERENT;
            c & COHERENT != 0
                && e & WAITING == 0
                && e != EXITED
                && (self.k.plan.grid_stride).contains(&self.k.plan.entries[e as usize])
        })
    }

    /// Runs everything that is ready, once.
    fn pass(&self) -> Result<Pass, u64> {
        if self.lanes == 1 {
            return self.pass_one_by_one();
        }
        let conts = conts(self.scratch);
        let mut ran = false;
        let mut over = true;
        let mut t = 0;
        while t < self.threads {
            let c = conts[t as usize];
            if c & COHERENT != 0 {
                let end = self.same_groups(t, c);
                let e = c & !COHERENT;
                over &= e == EXITED;
                if e & WAITING == 0 && e != EXITED {
                    ran = true;
                    self.status(self.run(self.lanes, t, end, e))?;
                }
                t = end;
                continue;
            }
            over &= c == EXITED;
            if c & WAITING != 0 || c == EXITED {
                t += 1;
                continue;
            }
            ran = true;
            let whole = t.is_multiple_of(self.lanes)
                && t + self.lanes <= self.threads
                && (1..self.lanes).all(|l| conts[(t + l) as usize] == c)
                && self.k.plan.is_vector_entry(self.lanes as usize, c)
                && cohere(
                    self.k,
                    self.scratch,
                    t,
                    self.lanes,
                    &self.k.plan.saved[c as usize],
                );
            if whole {
                self.status(self.run(self.lanes, t, t + self.lanes, c))?;
                t += self.lanes;
            } else {
                self.status(self.run(1, t, t, c))?;
                t += 1;
            }
        }
        Ok(Pass::of(over, ran))
    }

    /// The same where threads run one by one, in their order.
    fn pass_one_by_one(&self) -> Result<Pass, u64> {
        let conts = conts(self.scratch);
        let (mut ran, mut over) = (false, true);
        for place in 0..self.threads {
            let t = self.ordered(place);
            let c = conts[t as usize] & !COHERENT;
            over &= c == EXITED;
            if c & WAITING == 0 && c != EXITED {
                ran = true;
                self.status(self.run(1, t, t, c))?;
            }
        }
        Ok(Pass::of(over, ran))
    }

    fn status(&self, st: u64) -> Result<(), u64> {
        if st == 0 { Ok(()) } else { Err(st) }
    }

    /// The end of the run of groups that have the same continuation.
    fn same_groups(&self, t: u32, c: u32) -> u32 {
        let conts = conts(self.scratch);
        let mut end = t + self.lanes;
        while end + self.lanes <= self.threads && conts[end as usize] == c {
            end += self.lanes;
        }
        end
    }

    /// The `bar.sync` that everybody waits at, and its number.
    fn one_barrier(&self) -> Option<(&SyncSite, u32)> {
        let conts = conts(self.scratch);
        let plain = conts[0] & !COHERENT;
        if plain & WAITING == 0 {
            return None;
        }
        let site = self.site(plain);
        let op = &self.k.plan.unit.inst(&self.k.module, site.place).op;
        let Op::Bar {
            arrive: false,
            id: Operand::Imm(id),
            count: None,
            ..
        } = op
        else {
            return None;
        };
        let id = *id as u32 & 15;
        if self.arrivals(id) != 0 {
            return None;
        }
        let mut t = 0;
        while t < self.threads {
            let c = conts[t as usize];
            if c & !COHERENT != plain {
                return None;
            }
            t += if c & COHERENT != 0 { self.lanes } else { 1 };
        }
        Some((site, id))
    }

    /// The common case of `bar.sync` by everybody: nobody has to be counted.
    fn barrier_for_all(&self) -> Option<u64> {
        let (site, id) = self.one_barrier()?;
        self.tell_barrier_for_all(id);
        if self.lanes == 1 {
            for t in 0..self.threads {
                let t = self.ordered(t);
                let st = self.run(1, t, t, site.next);
                if st != 0 {
                    return Some(st);
                }
            }
            return Some(0);
        }
        let conts = conts(self.scratch);
        let first = conts[0];
        let end = match first & COHERENT {
            0 => 0,
            _ => self.same_groups(0, first),
        };
        // Without touching any continuation, but for the threads of a block that fill no group.
        if end + self.lanes > self.threads {
            let mut st = self.run(self.lanes, 0, end, site.next);
            for t in end..self.threads {
                if st == 0 {
                    st = self.run(1, t, t, site.next);
                }
            }
            return Some(st);
        }
        let mut t = 0;
        while t < self.threads {
            let c = &mut conts[t as usize];
            *c = site.next | *c & COHERENT;
            t += if *c & COHERENT != 0 { self.lanes } else { 1 };
        }
        Some(0)
    }

    /// Lets a thread go on at `entry`. Breaks up its group if the others do not follow.
    pub(crate) fn release(&self, done: &dyn Fn(u32) -> bool, first: u32, last: u32) {
        let conts = conts(self.scratch);
        let mut t = first;
        while t < last {
            let c = conts[t as usize];
            let coherent = c & COHERENT != 0 && t.is_multiple_of(self.lanes);
            let n = if coherent { self.lanes } else { 1 };
            let state = c & !COHERENT;
            if state & WAITING == 0 || state == EXITED {
                t += n;
                continue;
            }
            let next = self.k.plan.syncs[(state & !WAITING) as usize].next;
            if !coherent {
                if done(t) {
                    conts[t as usize] = next;
                }
            } else if (t..t + n).all(done) {
                conts[t as usize] = next | COHERENT;
            } else if (t..t + n).any(done) {
                decohere(
                    self.k,
                    self.scratch,
                    t,
                    n,
                    &self.k.plan.saved[next as usize],
                );
                for u in t..t + n {
                    conts[u as usize] = if done(u) { next } else { state };
                }
            }
            t += n;
        }
    }

    /// Everything that a collective of a warp needs to know.
    pub(crate) fn arrived(&self, warp: u32) -> Arrived {
        let mut a = Arrived::default();
        for l in 0..32 {
            let t = warp * 32 + l;
            if t >= self.threads {
                continue;
            }
            let c = self.state(t);
            a.present |= 1 << l;
            if c == EXITED {
                a.exited |= 1 << l;
            } else if c & WAITING != 0 {
                a.site[l as usize] = Some(c & !WAITING);
            }
        }
        a
    }
}
