//! Cranelift IR for one version of a kernel.
//!
//! The same code emits the scalar version (one lane, every register uniform) and the vector
//! versions (4, 8, 16 or 32 lanes). A vector version runs groups of threads while every branch goes the
//! same way for the whole group. Where one does not, short ways around are run with lanes switched off
//! (`masked`); for others the group's registers are saved and the runtime runs each thread through the
//! scalar version up to where the paths meet, so that such code costs what scalar code costs.
//!
//! Owns values and registers here; `flow` does blocks and entries, `memory` loads, stores and
//! atomics, `int`, `float` and `convert` the arithmetic. Anything else calls the runtime.

mod atomic;
mod bits;
mod branch;
mod calls;
mod check;
mod compare;
mod convert;
mod coverage;
mod directed;
mod dot;
mod exp;
mod float;
mod flow;
mod half;
mod inside;
mod int;
mod lazy;
mod load;
mod masked;
mod memory;
mod merge;
pub(crate) mod monitor;
mod moves;
mod nan_canonicalisation;
mod ops;
mod prefetch;
mod product;
mod registers;
mod shift;
mod slots;
mod slow;
mod special;
mod store;
mod trig;
mod value;
mod warp;
mod wide;

use cranelift_codegen::cursor::{Cursor, CursorPosition, FuncCursor};
use cranelift_codegen::ir::{
    self, AbiParam, InstBuilder, MemFlagsData as MemFlags, Signature, Type, Value, types,
};
use cranelift_codegen::isa::CallConv;
use cranelift_frontend::{FunctionBuilder, Variable};
pub(crate) use memory::Window;
use mica_ptx::ast::Module;
use mica_ptx_ops::layout::ModuleLayout;
use std::collections::HashMap;
pub(crate) use wide::is_wide;

use crate::CompileError;
use crate::plan::Plan;
use crate::run;
use crate::scratch;
use crate::unit::{BlockId, Place, Reg};

/// A value over the lanes of a group.
#[derive(Clone, Debug)]
pub(crate) enum V {
    /// The same in every lane.
    U(Value),
    /// `base + lane * stride`, wrapping in the width of `base` (32 or 64 bits).
    A(Value, i64),
    /// Vectors: `I32X4` for every four lanes (predicates are masks, 16 bits are zero-extended), or
    /// `I64X2` for every two.
    X(Vec<Value>),
}

/// The variables that hold a register.
#[derive(Clone, Debug)]
pub(crate) enum Home {
    Scalar(Variable, Type),
    Affine(Variable, Type, i64),
    Vector(Vec<Variable>),
}

/// Values that are the same for a whole block of threads, made once at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Hoisted {
    Field(Type, usize),
    Limit(Window, u64, u32),
    /// Of a field, times 2^20, rounded up.
    Reciprocal(usize),
    /// From what a load loads to what the next block's loads.
    Ahead(Place),
}

/// What is the same for every version of a kernel.
pub(crate) struct Source<'m> {
    pub(crate) module: &'m Module,
    pub(crate) layout: &'m ModuleLayout,
    pub(crate) plan: &'m Plan,
    /// Calls the runtime before every access, for exact allocation bounds.
    pub(crate) memcheck: bool,
    /// Tells the block's monitor of every access and fence; scalar code only.
    pub(crate) monitor: bool,
    /// Of accesses to shared and local memory too.
    pub(crate) monitor_own: bool,
    /// Notes which blocks are entered ([`crate::coverage`]).
    pub(crate) coverage: bool,
    /// Checks addresses once more that need no check ([`inside`]).
    pub(crate) recheck: bool,
    /// Allocates registers in one pass ([`crate::limit`]).
    pub(crate) quick: bool,
    /// Checks addresses. Off only to learn what it costs ([`crate::bounds_cost`]).
    pub(crate) checks: bool,
    pub(crate) has_fma: bool,
    /// For launches of which [`crate::bounds`] has shown that what it speaks of needs no check.
    pub(crate) proven: bool,
    /// Broadcasts from memory can be put in later ([`patch`]).
    pub(crate) broadcasts: bool,
    /// Instructions of 256 bits can, too ([`patch::wide`]).
    pub(crate) wide: bool,
}

#[cfg(test)]
impl<'m> Source<'m> {
    /// With checks of addresses, and nothing else.
    pub(crate) fn plain(module: &'m Module, layout: &'m ModuleLayout, plan: &'m Plan) -> Self {
        Self {
            module,
            layout,
            plan,
            memcheck: false,
            monitor: false,
            monitor_own: true,
            coverage: false,
            recheck: false,
            quick: false,
            checks: true,
            has_fma: false,
            proven: false,
            broadcasts: false,
            wide: false,
        }
    }
}

pub(crate) struct Emit<'e, 'm> {
    pub(crate) b: FunctionBuilder<'e>,
    pub(crate) src: &'e Source<'m>,
    pub(crate) plan: &'m Plan,
    pub(crate) lanes: usize,
    blocks: HashMap<BlockId, ir::Block>,
    stubs: HashMap<u32, ir::Block>,
    homes: Vec<Option<Home>>,
    floaty: Vec<bool>,
    ctx: Value,
    scratch: Value,
    /// First thread of the group.
    thread: Variable,
    /// The entry at which scalar code stops.
    stop: Value,
    leave: ir::Block,
    ret_block: Option<ir::Block>,
    callee_sp: Variable,
    /// Where the group's slots of 4, 8 and 16 bytes begin.
    frames: [Variable; 3],
    /// The first block, where values that never change are kept.
    start: ir::Block,
    hoisted: HashMap<Hoisted, Value>,
    /// The instance whose code is being emitted.
    pub(crate) instance: u32,
    /// The slow site of the instruction being emitted, which also names its line.
    pub(crate) site: u32,
    sigs: HashMap<usize, ir::SigRef>,
    poll_sig: Option<ir::SigRef>,
    merged: merge::Merged,
    wide: wide::Wide,
    /// While lanes are switched off.
    masked: Option<masked::Masked>,
    /// Predicates of the current block of which only bounds are computed.
    lazy: HashMap<Reg, lazy::Lazy>,
    /// Vectors made in the current Cranelift block: constants and broadcasts.
    made: value::Made,
    /// How many instructions are marked to be replaced.
    pub(crate) patches: u32,
    /// By address, where from it memory was asked for ahead of a load.
    prefetched: HashMap<Value, i32>,
    buffer: Option<ir::StackSlot>,
    /// Where registers are while lanes run one by one.
    rows: Option<ir::StackSlot>,
    /// A register got a value that is not of its uniformity. A launch's proof speaks of what each thread computes,
    /// so code that takes lanes for affine where they are not may not run.
    disagreed: bool,
}

/// The signature of every version: `(context, thread or begin, stop or end, entry) -> status`.
pub(crate) fn signature(conv: CallConv) -> Signature {
    let mut sig = Signature::new(conv);
    for _ in 0..4 {
        sig.params.push(AbiParam::new(types::I64));
    }
    sig.returns.push(AbiParam::new(types::I64));
    sig
}

pub(crate) fn flags() -> MemFlags {
    MemFlags::new().with_notrap()
}

/// For memory that does not change while a block runs.
pub(crate) fn fixed() -> MemFlags {
    MemFlags::trusted().with_readonly().with_can_move()
}

impl<'e, 'm> Emit<'e, 'm> {
    pub(crate) fn ty(&self, v: Value) -> Type {
        self.b.func.dfg.value_type(v)
    }

    pub(crate) fn refuse(&self, what: &str) -> CompileError {
        let f = self.plan.unit.func(self.src.module, self.instance);
        let place = self.plan.slow.get(self.site as usize).map(|s| s.place);
        let line = place.map_or(f.line, |p| self.plan.unit.inst(self.src.module, p).line);
        CompileError::Unsupported {
            function: f.name.clone(),
            line,
            what: what.into(),
        }
    }

    // ---- constants and the context -----------------------------------------------------------

    pub(crate) fn i64(&mut self, x: i64) -> Value {
        self.b.ins().iconst(types::I64, x)
    }

    pub(crate) fn imm(&mut self, ty: Type, bits: u64) -> Value {
        match ty {
            types::F32 => {
                let v = self.b.ins().iconst(types::I32, i64::from(bits as u32));
                self.b.ins().bitcast(types::F32, MemFlags::new(), v)
            }
            types::F64 => self.b.ins().f64const(f64::from_bits(bits)),
            types::I8 => self.b.ins().iconst(ty, (bits & 0xff) as i64),
            types::I16 => self.b.ins().iconst(ty, (bits & 0xffff) as i64),
            types::I32 => self.b.ins().iconst(ty, i64::from(bits as u32)),
            types::I128 => {
                let lo = self.i64(bits as i64);
                let hi = self.i64(0);
                self.b.ins().iconcat(lo, hi)
            }
            _ => self.b.ins().iconst(types::I64, bits as i64),
        }
    }

    /// A field of the block context that does not change.
    pub(crate) fn field(&mut self, ty: Type, offset: usize) -> Value {
        let ctx = self.ctx;
        self.hoist(Hoisted::Field(ty, offset), &|c| {
            c.ins().load(ty, fixed(), ctx, offset as i32)
        })
    }

    /// A value made once, at the end of the first block.
    fn hoist(&mut self, key: Hoisted, make: &dyn Fn(&mut FuncCursor<'_>) -> Value) -> Value {
        if let Some(v) = self.hoisted.get(&key) {
            return *v;
        }
        let last = self.b.func.layout.last_inst(self.start);
        let mut c = FuncCursor::new(self.b.func);
        match last {
            Some(i) if c.func.dfg.insts[i].opcode().is_terminator() => {
                c.set_position(CursorPosition::At(i))
            }
            _ => c.set_position(CursorPosition::After(self.start)),
        }
        let v = make(&mut c);
        self.hoisted.insert(key, v);
        v
    }

    pub(crate) fn thread(&mut self) -> Value {
        self.b.use_var(self.thread)
    }

    /// The thread index of a lane.
    pub(crate) fn thread_of(&mut self, lane: usize) -> Value {
        let t = self.thread();
        self.add_imm(t, lane as i64)
    }

    pub(crate) fn add_imm(&mut self, v: Value, x: i64) -> Value {
        if x == 0 {
            return v;
        }
        let ty = self.ty(v);
        let c = self.imm(ty, x as u64);
        self.b.ins().iadd(v, c)
    }

    pub(crate) fn mul_imm(&mut self, v: Value, x: i64) -> Value {
        if x == 1 {
            return v;
        }
        let ty = self.ty(v);
        if x > 0
            && (x as u64).is_power_of_two()
            && u64::from(ty.bits()) > u64::from(x.trailing_zeros())
        {
            let n = self.imm(types::I32, u64::from(x.trailing_zeros()));
            return self.b.ins().ishl(v, n);
        }
        let c = self.imm(ty, x as u64);
        self.b.ins().imul(v, c)
    }

    /// Emits one instruction that becomes another one, marked by `mark`.
    pub(crate) fn marked_as(
        &mut self,
        mark: fn(u32, u32) -> u32,
        f: impl FnOnce(&mut Self) -> Value,
    ) -> Value {
        let own = self.site + 1;
        let mark = mark(own, self.patches);
        self.patches += 1;
        self.b.set_srcloc(ir::SourceLoc::new(mark));
        let v = f(self);
        self.b.set_srcloc(ir::SourceLoc::new(own));
        v
    }

    // ---- runtime calls -----------------------------------------------------------------------

    /// Calls a runtime function; all arguments and the result are 64 bits wide.
    pub(crate) fn call(&mut self, helper: usize, args: &[Value]) -> Value {
        let sig = match self.sigs.get(&args.len()) {
            Some(s) => *s,
            None => {
                let mut sig = Signature::new(self.b.func.signature.call_conv);
                for _ in args {
                    sig.params.push(AbiParam::new(types::I64));
                }
                sig.returns.push(AbiParam::new(types::I64));
                let s = self.b.import_signature(sig);
                self.sigs.insert(args.len(), s);
                s
            }
        };
        let f = self.helper(helper);
        let call = self.b.ins().call_indirect(sig, f, args);
        self.b.inst_results(call)[0]
    }

    /// The address of a runtime function.
    fn helper(&mut self, index: usize) -> Value {
        let table = (self.b.ins()).load(types::I64, fixed(), self.scratch, scratch::HELPERS);
        (self.b.ins()).load(types::I64, fixed(), table, (index * 8) as i32)
    }

    /// Waits while the device wants it. Not 0 means to end the block. Overwrites no register.
    pub(crate) fn call_poll(&mut self) -> Value {
        let sig = match self.poll_sig {
            Some(s) => s,
            None => self.b.import_signature(run::poll_signature()),
        };
        self.poll_sig = Some(sig);
        let f = self.helper(run::POLL);
        self.b.ins().call_indirect(sig, f, &[self.ctx]);
        (self.b.ins()).load(types::I32, flags(), self.scratch, scratch::CANCELLED)
    }
}
