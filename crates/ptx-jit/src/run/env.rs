//! Operands and memory as the runtime's own operations see them.

use mica_kernel::{BlockContext, Dim3, Fault, FaultKind, Services, TextureView};
use mica_ptx::ast::{
    AddrBase, Address, Dim, Operand, PredSrc, RegId, ScalarType, Space, SpecialReg, VarId,
};

use mica_ptx_ops::typed::mask;
use std::cell::Cell;
use std::sync::atomic::Ordering;

use super::dispatch::header;
use super::helpers::poll;
use crate::kernel::Kernel;
use crate::plan::SlowSite;
use crate::scratch;
use crate::unit::{Class, Place, VarPlace};

/// Most registers one instruction reads.
pub(crate) const MAX_USES: usize = 40;

/// Why an instruction ends its block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Fault(Fault),
    /// The device asked for the end of the block.
    Cancelled,
}

impl From<Fault> for End {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// One thread at one instruction.
pub(crate) struct Env<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) ctx: *mut BlockContext,
    pub(crate) place: Place,
    pub(crate) thread: u32,
    pub(crate) sp: u64,
    pub(crate) uses: &'a [(RegId, Class)],
    pub(crate) values: [u64; MAX_USES],
    /// All 16 bytes of each register, for those who need more than 8; null where only 8 were passed.
    pub(crate) whole: *const u128,
    /// The texture that a lane before this one asked for, by its handle: most often all ask for one.
    pub(crate) texture: Cell<Option<(u64, TextureView)>>,
    /// Whether the access being made is to an `mbarrier` object.
    pub(crate) mbarrier: Cell<bool>,
}

/// The index of a thread as its three coordinates.
pub(crate) fn coordinates(block: Dim3, thread: u32) -> Dim3 {
    let (x, y) = (block.x.max(1), block.y.max(1));
    Dim3 {
        x: thread % x,
        y: thread / x % y,
        z: thread / x / y,
    }
}

impl<'a> Env<'a> {
    /// Makes the thread stand aside at the head of the loop that it waits in: what it waits for is done by another.
    pub(crate) fn give_way(&self) {
        // SAFETY: the header of scratch memory is valid for the block, which one host thread runs.
        unsafe { *header((*self.ctx).scratch, super::SPIN_COUNT) = super::TIRED };
    }

    /// Does what the device's word says: goes on, holds still, or ends the block. For instructions that take long.
    #[inline]
    pub(crate) fn poll(&self) -> Result<(), End> {
        // SAFETY: the context and its stop word are valid for the block.
        let word = unsafe { (*(*self.ctx).stop).load(Ordering::Relaxed) };
        match word != 0 && poll(self.ctx) != 0 {
            true => Err(End::Cancelled),
            false => Ok(()),
        }
    }

    /// Has the dispatcher sleep that long once no thread of the block can do anything else.
    pub(crate) fn sleep(&self, ns: u32) {
        self.give_way();
        // SAFETY: as above.
        let asked = unsafe { &mut *header((*self.ctx).scratch, scratch::SLEEP) };
        *asked = ns.max(*asked);
    }

    /// Tells the dispatcher that a thread has done what others may wait for.
    pub(crate) fn progress(&self) {
        // SAFETY: as above.
        unsafe { *header((*self.ctx).scratch, scratch::PROGRESS) = 1 };
    }

    /// A thread at an instruction that the runtime does; its registers are still to be filled in.
    #[inline]
    pub(crate) fn at(
        kernel: &'a Kernel,
        ctx: *mut BlockContext,
        site: &'a SlowSite,
        thread: u32,
        sp: u64,
    ) -> Env<'a> {
        Env {
            kernel,
            ctx,
            place: site.place,
            thread,
            sp,
            uses: &site.uses,
            values: [0; MAX_USES],
            whole: std::ptr::null(),
            texture: Cell::default(),
            mbarrier: Cell::default(),
        }
    }
}

impl Env<'_> {
    pub(crate) fn context(&self) -> &BlockContext {
        // SAFETY: the context outlives the block, and compiled code does not write it.
        unsafe { &*self.ctx }
    }

    pub(crate) fn services(&self) -> Option<&dyn Services> {
        services(self.context())
    }

    pub(crate) fn line(&self) -> (u32, u32) {
        self.kernel.line(self.place)
    }

    pub(crate) fn fault(&self, kind: FaultKind) -> Fault {
        let (ptx_line, source_line) = self.line();
        Fault {
            kind: kind as u32,
            ptx_line,
            source_line,
            thread: coordinates(self.context().block, self.thread),
            ..Fault::default()
        }
    }

    // ---- operands ----------------------------------------------------------------------------

    pub(crate) fn reg(&self, r: RegId) -> u64 {
        self.uses
            .iter()
            .position(|u| u.0 == r)
            .map_or(0, |i| self.values[i])
    }

    pub(crate) fn value(&self, o: Operand) -> u64 {
        match o {
            Operand::Reg(r) => self.reg(r),
            Operand::Imm(bits) => bits,
            Operand::Var { var, offset } => self.var_address(var).wrapping_add_signed(offset),
            Operand::Func(f) => scratch::FUNCTIONS + 16 * u64::from(f.0),
            Operand::Special(s) => self.special(s),
        }
    }

    /// A 128-bit operand.
    pub(crate) fn wide(&self, o: Operand) -> u128 {
        let place = o
            .reg()
            .and_then(|r| self.uses.iter().position(|u| u.0 == r));
        match place {
            // SAFETY: generated code stored 16 bytes for each register.
            Some(i) if !self.whole.is_null() => unsafe { self.whole.add(i).read_unaligned() },
            _ => u128::from(self.value(o)),
        }
    }

    pub(crate) fn word(&self, o: Operand) -> u32 {
        self.value(o) as u32
    }

    pub(crate) fn typed(&self, o: Operand, ty: ScalarType) -> u64 {
        self.value(o) & mask(ty.bits())
    }

    pub(crate) fn pred(&self, p: PredSrc) -> bool {
        (self.value(p.src) != 0) != p.negated
    }

    fn special(&self, s: SpecialReg) -> u64 {
        let c = self.context();
        let at = coordinates(c.block, self.thread);
        let pick = |d: Dim, v: Dim3| {
            u64::from(match d {
                Dim::X => v.x,
                Dim::Y => v.y,
                Dim::Z => v.z,
            })
        };
        match s {
            SpecialReg::Tid(d) => pick(d, at),
            SpecialReg::NTid(d) => pick(d, c.block),
            SpecialReg::CtaId(d) => pick(d, c.ctaid),
            SpecialReg::NCtaId(d) => pick(d, c.grid),
            SpecialReg::LaneId => u64::from(self.thread & 31),
            SpecialReg::WarpId => u64::from(self.thread >> 5),
            SpecialReg::ClusterNCtaId(d) => pick(d, c.cluster_place.extent),
            SpecialReg::ClusterCtaId(d) => pick(d, c.cluster_place.block),
            SpecialReg::ClusterId(d) => pick(d, c.cluster_place.cluster),
            SpecialReg::NClusterId(d) => pick(d, c.cluster_place.clusters),
            SpecialReg::ClusterCtaRank => u64::from(c.cluster_place.rank),
            SpecialReg::ClusterNCtaRank => u64::from(c.cluster_place.size),
            SpecialReg::IsExplicitCluster => u64::from(c.cluster_place.is_explicit),
            s => s.reserved_offset().map_or(0, u64::from),
        }
    }

    /// A variable's address in its own space.
    pub(crate) fn var_address(&self, var: VarId) -> u64 {
        let k = self.kernel;
        match k
            .plan
            .unit
            .var_place(&k.module, &k.layout, self.place.instance, var)
        {
            VarPlace::KernelParam(o) | VarPlace::Shared(o) => o,
            VarPlace::Local(o) => self.sp + o,
            // SAFETY: the device gives an address for every global of the module.
            VarPlace::Global(i) => unsafe { *self.context().globals.add(i) },
            VarPlace::None => 0,
        }
    }

    // ---- memory ------------------------------------------------------------------------------

    /// The host address of an access, checked.
    pub(crate) fn host(
        &self,
        space: Space,
        addr: &Address,
        bytes: u32,
        align: u32,
        write: bool,
    ) -> Result<u64, Fault> {
        let mut space = space;
        let base = match addr.base {
            // Narrow addresses wrap, as in compiled code.
            AddrBase::Reg(r) if self.uses.contains(&(r, Class::B32)) => {
                i64::from(self.reg(r) as u32 as i32) as u64
            }
            AddrBase::Reg(r) => self.reg(r),
            AddrBase::Absolute => 0,
            AddrBase::Var(v) => {
                let k = self.kernel;
                match k
                    .plan
                    .unit
                    .var_place(&k.module, &k.layout, self.place.instance, v)
                {
                    VarPlace::Local(_) => space = Space::Local,
                    VarPlace::Shared(_) if space == Space::Generic => space = Space::Shared,
                    _ => {}
                }
                self.var_address(v)
            }
        };
        self.host_at(
            space,
            base.wrapping_add_signed(addr.offset),
            bytes,
            align,
            write,
        )
    }

    /// As [`Env::host`], for an `mbarrier` object.
    pub(crate) fn mbarrier_host(
        &self,
        space: Space,
        addr: &Address,
        write: bool,
    ) -> Result<u64, Fault> {
        self.mbarrier.set(true);
        let host = self.host(space, addr, 8, 8, write);
        self.mbarrier.set(false);
        host
    }

    /// Where the memory of a space begins, its length, and how far in it an address is.
    #[inline]
    fn window(&self, space: Space, address: u64, is_kernel: bool) -> (u64, u64, u64) {
        let c = self.context();
        let local = c.local_base + u64::from(self.thread) * c.local_stride;
        // Local memory is reserved for the threads of the block, and lanes past them have none.
        let local_len = match u64::from(self.thread) < c.block.count() {
            true => c.local_stride,
            false => 0,
        };
        match space {
            Space::Shared => (c.shared_base, c.shared_len, address),
            Space::SharedCluster => match c.cluster_shared(address) {
                Some((base, offset)) => (base, c.shared_len, offset),
                None => (c.shared_base, 0, address),
            },
            Space::Local => (local, local_len, address),
            Space::Param if is_kernel => (c.params as u64, c.params_len, address),
            Space::Param => (local, local_len, address),
            _ => {
                let offset = address.wrapping_sub(c.arena_base);
                (c.arena_base, c.arena_len, offset)
            }
        }
    }

    pub(crate) fn host_at(
        &self,
        space: Space,
        address: u64,
        bytes: u32,
        align: u32,
        write: bool,
    ) -> Result<u64, Fault> {
        let unit = &self.kernel.plan.unit;
        let function = unit.func(&self.kernel.module, self.place.instance);
        let is_kernel = function.is_kernel;
        let (start, len, offset) = self.window(space, address, is_kernel);
        let bad = |kind| Fault {
            address,
            bytes,
            is_write: u32::from(write),
            space: match space {
                Space::Shared | Space::SharedCluster => Fault::SHARED,
                Space::Local => Fault::LOCAL,
                Space::Param => Fault::PARAMS,
                _ => 0,
            },
            ..self.fault(kind)
        };
        if offset % u64::from(align.max(1)) != 0 {
            return Err(bad(FaultKind::MisalignedAddress));
        }
        if write && space == Space::Param && is_kernel {
            return Err(bad(FaultKind::IllegalAddress));
        }
        if len < u64::from(bytes) || offset > len - u64::from(bytes) {
            return Err(bad(FaultKind::IllegalAddress));
        }
        let exact = self.kernel.memcheck && start == self.context().arena_base;
        let within = |s: &dyn Services| s.check_access(address, u64::from(bytes), write);
        if exact && !self.services().is_none_or(within) {
            return Err(bad(FaultKind::IllegalAddress));
        }
        if self.kernel.monitor && !(space == Space::Param && is_kernel) {
            self.tell_access(space, start + offset, bytes, write)?;
        }
        self.note_access();
        Ok(start + offset)
    }

    /// Leaves word of who accesses memory and where: what lies inside the arena may still be a hole.
    fn note_access(&self) {
        self.note_access_of(self.thread);
    }

    /// The same for another thread at this instruction.
    #[inline]
    pub(super) fn note_access_of(&self, thread: u32) {
        self.note_thread(thread);
        self.note_place();
    }

    /// Leaves word of the thread alone.
    #[inline(always)]
    pub(super) fn note_thread(&self, thread: u32) {
        let header = self.context().scratch;
        // SAFETY: the header is inside scratch memory, which is aligned and this block's own.
        unsafe { *header.add(scratch::ACCESS as usize).cast::<u32>() = thread };
    }

    /// Leaves word of the instruction alone.
    #[inline(always)]
    pub(super) fn note_place(&self) {
        let header = self.context().scratch;
        let place = [self.place.instance, self.place.inst];
        // SAFETY: as above.
        unsafe {
            *header
                .add(scratch::ACCESS_PLACE as usize)
                .cast::<[u32; 2]>() = place;
        }
    }

    pub(crate) fn load(&self, host: u64, bytes: u32) -> u64 {
        load(host, bytes)
    }

    pub(crate) fn store(&self, host: u64, bytes: u32, bits: u64) {
        store(host, bytes, bits);
    }
}

pub(crate) fn services(c: &BlockContext) -> Option<&dyn Services> {
    if c.services.is_null() {
        return None;
    }
    // SAFETY: a non-null pointer is valid for the block, and so is the object behind it.
    unsafe { Some(&*(*c.services).0) }
}

/// Reads four bytes of checked memory.
#[inline(always)]
pub(super) fn load_word(host: u64) -> u32 {
    // SAFETY: the caller checked the range.
    unsafe { (host as *const u32).read_unaligned() }
}

/// Reads up to eight bytes of checked memory.
#[inline]
pub(crate) fn load(host: u64, bytes: u32) -> u64 {
    let p = host as *const u8;
    // SAFETY: the caller checked the range.
    unsafe {
        match bytes {
            1 => u64::from(p.read()),
            2 => u64::from(p.cast::<u16>().read_unaligned()),
            4 => u64::from(p.cast::<u32>().read_unaligned()),
            _ => p.cast::<u64>().read_unaligned(),
        }
    }
}

/// Writes up to eight bytes of checked memory.
pub(crate) fn store(host: u64, bytes: u32, bits: u64) {
    let p = host as *mut u8;
    // SAFETY: the caller checked the range.
    unsafe {
        match bytes {
            1 => p.write(bits as u8),
            2 => p.cast::<u16>().write_unaligned(bits as u16),
            4 => p.cast::<u32>().write_unaligned(bits as u32),
            _ => p.cast::<u64>().write_unaligned(bits),
        }
    }
}
