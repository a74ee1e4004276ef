//! The functions that compiled code calls. All take and give 64-bit words.

use cranelift_codegen::isa::OwnedTargetIsa;
use mica_kernel::{BlockContext, Fault, FaultKind, stop};
use mica_ptx::ast::SpecialReg;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use super::coherence::{cohere, decohere};
use super::env::{End, Env, MAX_USES, coordinates, services};
use super::{DIVERGED_BAD, NO_STOP, dispatch, quiet, scalar_ops};
use crate::CompileError;
use crate::code::Code;
use crate::emit::Window;
use crate::kernel::Kernel;
use crate::scratch::{self, status};
use crate::unit::Place;

pub(super) type Ctx = *mut BlockContext;

/// Addresses of the functions, in the order of the constants in `run`.
static TABLE: OnceLock<(Vec<usize>, Code)> = OnceLock::new();

/// Makes the table. Nothing compiled can run before.
pub(crate) fn install(isa: &OwnedTargetIsa) -> Result<(), CompileError> {
    if TABLE.get().is_some() {
        return Ok(());
    }
    let quiet = quiet::compile(isa, poll as *const () as usize)?;
    let table = vec![
        fault as *const () as usize,
        quiet.address(),
        diverge as *const () as usize,
        slow as *const () as usize,
        special as *const () as usize,
        trap as *const () as usize,
        bad_pc as *const () as usize,
        memcheck as *const () as usize,
        sin as *const () as usize,
        cos as *const () as usize,
        lg2 as *const () as usize,
        ex2 as *const () as usize,
        tanh as *const () as usize,
        div_approx as *const () as usize,
        super::row::slow_row as *const () as usize,
        super::recheck::recheck as *const () as usize,
        super::monitor::monitor as *const () as usize,
        super::monitor::monitor_fence as *const () as usize,
        super::whole_warp::collective as *const () as usize,
        super::monitor::monitor_live as *const () as usize,
        super::monitor::monitor_group as *const () as usize,
    ];
    // Whoever comes second finds one that is as good.
    let _ = TABLE.set((table, quiet));
    Ok(())
}

pub(crate) fn table() -> &'static [usize] {
    TABLE.get().map_or(&[], |t| &t.0)
}

/// The kernel a block runs.
pub(crate) fn kernel<'a>(ctx: Ctx) -> &'a Kernel {
    // SAFETY: `run_block` stored the address of a kernel that outlives the block.
    unsafe {
        &**(*ctx)
            .scratch
            .add(scratch::KERNEL as usize)
            .cast::<*const Kernel>()
    }
}

/// Packs what a fault must know of its access.
pub(crate) fn pack_meta(w: Window, align: u32, span: u64, lanes: usize, write: bool) -> i64 {
    let w = match w {
        Window::Arena => 0,
        Window::Shared => 1,
        Window::Local => 2,
        Window::Params => 3,
    };
    (span.min(0xffff_ffff)
        | u64::from(align.trailing_zeros()) << 32
        | w << 40
        | (lanes as u64) << 44
        | u64::from(write) << 56) as i64
}

pub(super) fn set_fault(ctx: Ctx, f: Fault) {
    // SAFETY: the context is valid, and only this thread of the host runs the block.
    unsafe { (*ctx).fault = f };
}

/// What is wrong with an access to `span` bytes of a window, and where; some are of several accesses of `bytes` each.
fn wrong_access(
    address: u64,
    (start, len): (u64, u64),
    span: u64,
    align: u64,
    bytes: u32,
) -> Option<(FaultKind, u64)> {
    let off = address.wrapping_sub(start);
    if off % align != 0 {
        return Some((FaultKind::MisalignedAddress, address));
    }
    if len >= span && off <= len - span {
        return None;
    }
    // Of accesses that were checked together the first that is outside.
    let inside = off < len && len - off >= u64::from(bytes);
    let at = if inside {
        address + span - u64::from(bytes)
    } else {
        address
    };
    Some((FaultKind::IllegalAddress, at))
}

/// Describes a failed check. `addresses` holds the lowest address of each lane.
extern "C" fn fault(
    ctx: Ctx,
    site: u64,
    t: u64,
    addresses: *const u64,
    stride: i64,
    meta: u64,
) -> u64 {
    let k = kernel(ctx);
    // SAFETY: as for `kernel`.
    let c = unsafe { &*ctx };
    let align = 1u64 << (meta >> 32 & 0xff);
    let window = meta >> 40 & 15;
    let write = meta >> 56 & 1;
    let memory = match window {
        0 => (c.arena_base, c.arena_len),
        1 => (0, c.shared_len),
        2 => (0, c.local_stride),
        _ => (0, c.params_len),
    };
    let slow = &k.plan.slow[site as usize];
    let bytes = k.access_bytes(slow.place);
    // SAFETY: generated code stored as many addresses as `meta` says; the header was filled by `run_block`.
    let checked = unsafe { Checked::of(c, addresses, stride, meta) };
    let found = (0..checked.count).find_map(|lane| {
        let address = checked.address_of(lane);
        let (kind, at) = wrong_access(address, memory, checked.span, align, bytes)?;
        Some((kind, at, lane))
    });
    let found = found.unwrap_or((FaultKind::IllegalAddress, checked.first(), 0));
    let (ptx_line, source_line) = k.line(slow.place);
    // A narrow address was extended by its sign; the program knows its 32 bits.
    let address = match found.1 >> 32 {
        0xffff_ffff if window != 0 => found.1 & 0xffff_ffff,
        _ => found.1,
    };
    set_fault(
        ctx,
        Fault {
            kind: found.0 as u32,
            ptx_line,
            address,
            bytes,
            is_write: write as u32,
            thread: coordinates(c.block, (t + found.2) as u32),
            source_line,
            space: window as u32,
        },
    );
    0
}

/// The addresses of a check that failed.
struct Checked<'a> {
    /// One for each lane, or the lowest alone.
    stored: &'a [u64],
    /// From lane to lane, where one address stands for all.
    stride: i64,
    /// Lanes.
    count: u64,
    /// Bytes that each lane accesses.
    span: u64,
}

impl Checked<'_> {
    /// # Safety
    /// `addresses` are as many as `meta` says, and the header of the block's scratch memory is filled.
    unsafe fn of(c: &BlockContext, addresses: *const u64, stride: i64, meta: u64) -> Self {
        let (span, n) = (meta & 0xffff_ffff, meta >> 44 & 0xfff);
        // SAFETY: by contract.
        let stored = unsafe { std::slice::from_raw_parts(addresses, n as usize) };
        if n != 1 || stride == 0 {
            return Self {
                stored,
                stride: 0,
                count: n,
                span,
            };
        }
        // SAFETY: by contract.
        let lanes = unsafe { *c.scratch.add(scratch::LANES as usize).cast::<u32>() };
        Self {
            stored,
            stride,
            count: u64::from(lanes),
            span: span - stride.unsigned_abs() * (u64::from(lanes) - 1),
        }
    }

    fn first(&self) -> u64 {
        self.stored.first().copied().unwrap_or(0)
    }

    fn address_of(&self, lane: u64) -> u64 {
        if self.stride == 0 {
            return self.stored[lane as usize];
        }
        // The lowest address is the last lane's where they descend.
        let reach = (self.stride * (self.count as i64 - 1)).min(0);
        let offset = self.stride * lane as i64 - reach;
        self.first().wrapping_add(offset as u64)
    }
}

/// Called when `*stop` is not 0: waits, or asks for the end. Not 0 means cancel.
pub(crate) extern "C" fn poll(ctx: Ctx) -> u64 {
    // SAFETY: the context and its stop word are valid for the block.
    let c = unsafe { &*ctx };
    // SAFETY: as above.
    match unsafe { (*c.stop).load(Ordering::Relaxed) } {
        stop::RUN => 0,
        stop::PAUSE => u64::from(!services(c).is_none_or(|s| s.pause())),
        _ => 1,
    }
}

/// Runs the threads of a group one by one up to where their paths meet.
extern "C" fn diverge(ctx: Ctx, site: u64, t: u64, mask: u64) -> u64 {
    let k = kernel(ctx);
    // SAFETY: the header was filled by `run_block`.
    let scratch_ptr = unsafe { (*ctx).scratch };
    // SAFETY: as above.
    let lanes = unsafe { *scratch_ptr.add(scratch::LANES as usize).cast::<u32>() };
    let d = &k.plan.diverges[site as usize];
    let t = t as u32;
    let spread = &k.spreads[site as usize];
    decohere(k, scratch_ptr, t, lanes, &spread.before);
    let conts = dispatch::conts(scratch_ptr);
    for l in 0..lanes {
        conts[(t + l) as usize] = if mask >> l & 1 == 1 { d.then } else { d.els };
    }
    let stop = d.join.map_or(NO_STOP, u64::from);
    let Some(code) = k.code(1, false) else {
        return DIVERGED_BAD as u64;
    };
    for l in 0..lanes {
        let entry = conts[(t + l) as usize];
        if d.join == Some(entry) {
            continue;
        }
        // SAFETY: the context is what `run_block` was given.
        let s = unsafe { code.call(ctx, u64::from(t + l), stop, u64::from(entry)) };
        if s != status::OK as u64 {
            return DIVERGED_BAD as u64 + s - 1;
        }
    }
    // SAFETY: as above.
    unsafe { *scratch_ptr.add(scratch::CURRENT as usize).cast::<u32>() = t };
    if let Some(join) = d.join {
        let all = (0..lanes).all(|l| conts[(t + l) as usize] == join);
        if all && cohere(k, scratch_ptr, t, lanes, &spread.compare) {
            return 1;
        }
    }
    decohere(k, scratch_ptr, t, lanes, &spread.apart);
    if (0..lanes).any(|l| conts[(t + l) as usize] != scratch::EXITED) {
        // SAFETY: as above.
        unsafe { *scratch_ptr.add(scratch::PENDING as usize).cast::<u32>() = 1 };
    }
    0
}

/// Does one instruction for one thread. `buffer` holds its registers, 16 bytes each, and gets its
/// results after them.
extern "C" fn slow(ctx: Ctx, site: u64, t: u64, buffer: *mut u64, sp: u64) -> u64 {
    let k = kernel(ctx);
    let s = &k.plan.slow[site as usize];
    let mut env = Env::at(k, ctx, s, t as u32, sp);
    env.whole = buffer.cast();
    for i in 0..s.uses.len().min(MAX_USES) {
        // SAFETY: generated code stored this many.
        env.values[i] = unsafe { *buffer.add(2 * i) };
    }
    let n = s.uses.len();
    let mut out = |r: mica_ptx::ast::RegId, v: u128| {
        if let Some(i) = s.defs.iter().position(|d| d.0 == r) {
            // SAFETY: the buffer has room for all results.
            unsafe { buffer.add(2 * (n + i)).cast::<u128>().write_unaligned(v) };
        }
    };
    match scalar_ops::execute(&env, &mut out) {
        Ok(()) => status::OK as u64,
        Err(end) => ended(ctx, end),
    }
}

/// What compiled code returns where an instruction ends its block.
pub(super) fn ended(ctx: Ctx, end: End) -> u64 {
    match end {
        End::Fault(fault) => {
            set_fault(ctx, fault);
            status::FAULT as u64
        }
        End::Cancelled => status::CANCEL as u64,
    }
}

/// The number by which [`SPECIAL`](super::SPECIAL) knows a special register.
pub(crate) fn special_code(s: SpecialReg) -> i64 {
    match s {
        SpecialReg::Clock | SpecialReg::Clock64 => 0,
        SpecialReg::ClockHi => 1,
        SpecialReg::GlobalTimer | SpecialReg::GlobalTimerLo => 2,
        SpecialReg::GlobalTimerHi => 3,
        SpecialReg::NWarpId => 4,
        _ => 5,
    }
}

fn clock() -> u64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let start = START.get_or_init(std::time::Instant::now);
    // A nominal 1 GHz, so that differences are nanoseconds.
    start.elapsed().as_nanos() as u64
}

extern "C" fn special(ctx: Ctx, which: u64) -> u64 {
    // SAFETY: the context is valid for the block.
    let c = unsafe { &*ctx };
    let timer = || services(c).map_or_else(clock, |s| s.global_timer_ns());
    match which {
        0 => clock(),
        1 => clock() >> 32,
        2 => timer(),
        3 => timer() >> 32,
        4 => c.block.count().div_ceil(32),
        _ => 1,
    }
}

/// `line` is the PTX line below and the source line above.
fn simple_fault(ctx: Ctx, kind: FaultKind, t: u64, line: u64, address: u64) -> u64 {
    // SAFETY: the context is valid for the block.
    let block = unsafe { (*ctx).block };
    set_fault(
        ctx,
        Fault {
            kind: kind as u32,
            ptx_line: line as u32,
            source_line: (line >> 32) as u32,
            address,
            thread: coordinates(block, t as u32),
            ..Fault::default()
        },
    );
    0
}

/// `trap`, and a full stack: `address` says which.
extern "C" fn trap(ctx: Ctx, t: u64, line: u64, address: u64) -> u64 {
    simple_fault(ctx, FaultKind::LaunchFailed, t, line, address)
}

/// Whose memory the runtime accessed last, and for which instruction.
pub(crate) fn last_access(context: &BlockContext) -> Option<(u32, Place)> {
    if context.scratch.is_null() {
        return None;
    }
    // SAFETY: scratch memory begins with the header, which `run_block` filled.
    let (thread, [instance, inst]) = unsafe {
        let header = context.scratch;
        (
            *header.add(scratch::ACCESS as usize).cast::<u32>(),
            *header
                .add(scratch::ACCESS_PLACE as usize)
                .cast::<[u32; 2]>(),
        )
    };
    (thread != scratch::NOBODY).then_some((thread, Place { instance, inst }))
}

extern "C" fn bad_pc(ctx: Ctx, t: u64, line: u64, address: u64) -> u64 {
    simple_fault(ctx, FaultKind::InvalidPc, t, line, address)
}

/// Asks the device whether an access is within one allocation. Not 0 means that it is not.
extern "C" fn memcheck(ctx: Ctx, site: u64, t: u64, address: u64, bytes: u64) -> u64 {
    let k = kernel(ctx);
    let (size, write) = (bytes as u32, bytes >> 32 != 0);
    // SAFETY: the context is valid for the block.
    let asked = services(unsafe { &*ctx });
    if asked.is_none_or(|s| s.check_access(address, u64::from(size), write)) {
        return 0;
    }
    let place = k.plan.slow[site as usize].place;
    let (ptx_line, source_line) = k.line(place);
    // SAFETY: the context is valid for the block.
    let block = unsafe { (*ctx).block };
    set_fault(
        ctx,
        Fault {
            kind: FaultKind::IllegalAddress as u32,
            ptx_line,
            address,
            bytes: size,
            is_write: u32::from(write),
            thread: coordinates(block, t as u32),
            source_line,
            space: 0,
        },
    );
    1
}

macro_rules! unary {
    ($name:ident, $f:path) => {
        extern "C" fn $name(x: u64, mode: u64) -> u64 {
            u64::from($f(mode & 1 != 0, x as u32))
        }
    };
}

unary!(sin, mica_ptx_ops::approx::sin_f32);
unary!(cos, mica_ptx_ops::approx::cos_f32);
unary!(lg2, mica_ptx_ops::approx::lg2_f32);
unary!(ex2, mica_ptx_ops::approx::ex2_f32);

extern "C" fn tanh(x: u64, _mode: u64) -> u64 {
    u64::from(mica_ptx_ops::approx::tanh_f32(x as u32))
}

extern "C" fn div_approx(a: u64, b: u64, mode: u64) -> u64 {
    let ftz = mode & 1 != 0;
    u64::from(if mode & 2 != 0 {
        mica_ptx_ops::approx::div_full_f32(ftz, a as u32, b as u32)
    } else {
        mica_ptx_ops::approx::div_approx_f32(ftz, a as u32, b as u32)
    })
}
