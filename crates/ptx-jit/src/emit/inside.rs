//! Accesses without a check at run time, and why each of them is inside.
//!
//! Owns the rule: compiled code uses an address of the program's memory either after a check
//! ([`super::check`]), or because [`Emit::place`] found its bytes inside a [`KnownMemory`] whose size is
//! known when the kernel is compiled and which every launch has at least (`run_block` refuses one that
//! has not), or because the launch's proof or a merged check covers it ([`super::merge`]).
//!
//! With [`crate::Options::recheck`] the addresses of all three kinds are checked once more, right before the
//! access, and one that is outside ends the process.

use cranelift_codegen::ir::{InstBuilder, Value, types};
use mica_kernel::BlockContext;
use std::mem::offset_of;

use super::memory::{Host, near};
use super::{Emit, V, fixed};
use crate::CompileError;
use crate::run;

/// Memory of a size that is known when a kernel is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KnownMemory {
    /// The running function's frame in the local memory of a lane, with what is inlined into it and
    /// the registers that it saves.
    Frame(usize),
    /// The launch's parameters.
    Params,
    /// The copy of them in the arena.
    ParamsDevice,
    /// Static shared memory.
    Shared,
    /// A variable of the module, by its index in `BlockContext::globals`.
    Global(usize),
}

impl Emit<'_, '_> {
    /// Bytes that memory of this kind has in every launch of the kernel.
    fn extent(&self, memory: KnownMemory) -> u64 {
        let unit = &self.plan.unit;
        let kernel = self.src.module.func(unit.roots[0].func);
        match memory {
            KnownMemory::Frame(_) => {
                let root = unit.instances[self.instance as usize].root;
                self.plan.stack.of(root)
            }
            KnownMemory::Params | KnownMemory::ParamsDevice => u64::from(kernel.param_bytes),
            KnownMemory::Shared if kernel.uses_dynamic_shared => {
                u64::from(kernel.dynamic_shared_offset)
            }
            KnownMemory::Shared => u64::from(kernel.shared_bytes),
            KnownMemory::Global(i) => self.src.layout.globals.get(i).map_or(0, |g| g.size),
        }
    }

    /// Whether `bytes` at an offset are inside.
    pub(crate) fn is_inside(&self, memory: KnownMemory, offset: u64, bytes: u64) -> bool {
        let end = offset.checked_add(bytes);
        end.is_some_and(|end| end <= self.extent(memory))
    }

    /// The host address of `bytes` at an offset in known memory, as a base and what an instruction adds to
    /// it: the one address of the program's memory that is made without a check.
    ///
    /// # Errors
    /// When they are not inside: a kernel of which the layout and the compiler differ is not compiled.
    pub(crate) fn place(
        &mut self,
        memory: KnownMemory,
        offset: u64,
        bytes: u64,
    ) -> Result<(Value, i32), CompileError> {
        if !self.is_inside(memory, offset, bytes) {
            let have = self.extent(memory);
            let what = format!("{bytes} bytes at {offset} of {memory:?}, which has {have}");
            return Err(self.refuse(&what));
        }
        let base = match memory {
            KnownMemory::Frame(lane) => self.frame_base(lane),
            KnownMemory::Params => self.field(types::I64, offset_of!(BlockContext, params)),
            KnownMemory::ParamsDevice => {
                self.field(types::I64, offset_of!(BlockContext, params_device))
            }
            KnownMemory::Shared => self.field(types::I64, offset_of!(BlockContext, shared_base)),
            KnownMemory::Global(i) => {
                let p = self.field(types::I64, offset_of!(BlockContext, globals));
                self.b.ins().load(types::I64, fixed(), p, (i * 8) as i32)
            }
        };
        let (at, near) = match near(offset as i64) {
            Some(o) => (base, o),
            None => (self.add_imm(base, offset as i64), 0),
        };
        if self.src.recheck {
            let lane = match memory {
                KnownMemory::Frame(lane) => lane,
                _ => 0,
            };
            let code = match memory {
                KnownMemory::Frame(_) => run::RECHECK_LOCAL,
                KnownMemory::Params => run::RECHECK_PARAMS,
                KnownMemory::Shared => run::RECHECK_SHARED,
                KnownMemory::ParamsDevice | KnownMemory::Global(_) => run::RECHECK_ARENA,
            };
            let at = self.add_imm(at, i64::from(near));
            self.recheck(code, lane, at, bytes);
        }
        Ok((at, near))
    }

    /// Host address of the running function's frame.
    fn frame_base(&mut self, lane: usize) -> Value {
        let base = self.local_base(lane);
        if !self.plan.unit.has_calls() {
            return base;
        }
        match self.read(self.plan.unit.sp) {
            V::U(sp) => self.b.ins().iadd(base, sp),
            _ => base,
        }
    }

    /// Checks once more where an access goes that was resolved in another way.
    pub(crate) fn recheck_host(&mut self, host: &Host, bytes: u32, params: bool) {
        let code = if params {
            run::RECHECK_EITHER
        } else {
            run::RECHECK_ARENA
        };
        for lane in 0..self.lanes {
            let at = match host {
                Host::One(p, off) => self.add_imm(*p, i64::from(*off)),
                Host::Affine(p, off, stride) => {
                    let by = stride.wrapping_mul(lane as i64);
                    self.add_imm(*p, by.wrapping_add(i64::from(*off)))
                }
                Host::Lanes(lanes) => self.add_imm(lanes[lane].0, i64::from(lanes[lane].1)),
            };
            self.recheck(code, lane, at, u64::from(bytes));
            if matches!(host, Host::One(..)) {
                break;
            }
        }
    }

    pub(crate) fn recheck(&mut self, memory: i64, lane: usize, at: Value, bytes: u64) {
        let t = self.thread_of(lane);
        let site = self.i64(i64::from(self.site));
        let memory = self.i64(memory);
        let bytes = self.i64(bytes as i64);
        self.call(run::RECHECK, &[self.ctx, site, t, at, bytes, memory]);
    }
}
