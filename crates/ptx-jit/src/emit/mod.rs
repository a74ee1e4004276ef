//! Cranelift IR for one version of a kernel.
//!
//! The same code emits the scalar version (one lane, every register uniform) and the vector
//! versions (4, 8 or 16 lanes). A vector version runs groups of threads while every branch goes the
//! same way for the whole group; when one does not, the group's registers are saved and the runtime
//! runs each thread through the scalar version up to where the paths meet. So there are no masks,
//! and divergent code costs what scalar code costs.
//!
//! Owns values and registers here; `flow` does blocks and entries, `memory` loads, stores and
//! atomics, `int`, `float` and `convert` the arithmetic. Anything else calls the runtime.

mod access;
mod atomic;
mod bits;
mod calls;
mod check;
mod compare;
mod convert;
mod float;
mod flow;
mod int;
mod lazy;
mod memory;
mod ops;
mod rsqrt;
mod value;

use cranelift_codegen::cursor::{Cursor, CursorPosition, FuncCursor};
use cranelift_codegen::ir::{
    self, AbiParam, BlockArg, InstBuilder, MemFlagsData as MemFlags, Signature, Type, Value,
    condcodes::IntCC, types,
};
use cranelift_codegen::isa::CallConv;
use cranelift_frontend::{FunctionBuilder, Variable};
pub(crate) use flow::vector_entry;
pub(crate) use memory::Window;
use mica_ptx::ast::{Module, Operand, RegId, SpecialReg};
use mica_ptx_ops::layout::ModuleLayout;
use std::collections::HashMap;

use crate::CompileError;
use crate::patch::{self, Wanted};
use crate::plan::Plan;
use crate::scratch;
use crate::shape::Shape;
use crate::unit::{BlockId, Class, Reg};

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
enum Home {
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
}

/// What is the same for every version of a kernel.
pub(crate) struct Source<'m> {
    pub(crate) module: &'m Module,
    pub(crate) layout: &'m ModuleLayout,
    pub(crate) plan: &'m Plan,
    /// Calls the runtime before every access, for exact allocation bounds.
    pub(crate) memcheck: bool,
    /// Checks addresses. Off only to learn what it costs ([`crate::price`]).
    pub(crate) checks: bool,
    pub(crate) has_fma: bool,
    /// Instructions that can be put in later.
    pub(crate) patches: patch::Supported,
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
    merged: memory::Merged,
    /// Predicates of the current block of which only bounds are computed.
    lazy: HashMap<Reg, lazy::Lazy>,
    /// Vectors made in the current Cranelift block: constants and broadcasts.
    made: value::Made,
    /// How many instructions are marked to be replaced.
    pub(crate) patches: u32,
    buffer: Option<(ir::StackSlot, usize)>,
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

    /// Emits one instruction that becomes another one.
    pub(crate) fn marked(&mut self, wanted: Wanted, f: impl FnOnce(&mut Self) -> Value) -> Value {
        let own = self.site + 1;
        let mark = patch::mark(own, wanted, self.patches);
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
        let table = self
            .b
            .ins()
            .load(types::I64, fixed(), self.scratch, scratch::HELPERS);
        let f = self
            .b
            .ins()
            .load(types::I64, fixed(), table, (helper * 8) as i32);
        let call = self.b.ins().call_indirect(sig, f, args);
        self.b.inst_results(call)[0]
    }

    // ---- registers ---------------------------------------------------------------------------

    fn home(&mut self, r: Reg) -> Home {
        if let Some(h) = &self.homes[r as usize] {
            return h.clone();
        }
        let class = self.plan.unit.regs[r as usize];
        let scalar = self.scalar_type(r);
        let shape = if self.lanes == 1 {
            Shape::Uniform
        } else {
            self.plan.shape(r)
        };
        let home = match shape {
            Shape::Uniform | Shape::Undef => Home::Scalar(self.b.declare_var(scalar), scalar),
            Shape::Affine(s) => {
                let ty = self.class_type(class);
                Home::Affine(self.b.declare_var(ty), ty, s)
            }
            Shape::Varying => {
                let (n, ty) = self.vectors(class);
                Home::Vector((0..n).map(|_| self.b.declare_var(ty)).collect())
            }
        };
        self.homes[r as usize] = Some(home.clone());
        home
    }

    fn scalar_type(&self, r: Reg) -> Type {
        match (self.plan.unit.regs[r as usize], self.floaty[r as usize]) {
            (Class::B32, true) => types::F32,
            (Class::B64, true) => types::F64,
            (class, _) => self.class_type(class),
        }
    }

    /// The integer type of a uniform value.
    pub(crate) fn class_type(&self, class: Class) -> Type {
        match class {
            Class::Pred => types::I8,
            Class::B16 => types::I16,
            Class::B32 => types::I32,
            Class::B64 => types::I64,
            Class::B128 => types::I128,
        }
    }

    /// How many vectors, and of what type, hold a varying value.
    pub(crate) fn vectors(&self, class: Class) -> (usize, Type) {
        match class {
            Class::B64 => (self.lanes / 2, types::I64X2),
            Class::B128 => (self.lanes, types::I8X16),
            _ => (self.lanes / 4, types::I32X4),
        }
    }

    pub(crate) fn read(&mut self, r: Reg) -> V {
        if let Some(v) = self.cooked(r) {
            return v;
        }
        match self.home(r) {
            Home::Scalar(v, _) => V::U(self.b.use_var(v)),
            Home::Affine(v, _, s) => V::A(self.b.use_var(v), s),
            Home::Vector(vs) => V::X(vs.iter().map(|v| self.b.use_var(*v)).collect()),
        }
    }

    pub(crate) fn write(&mut self, r: Reg, v: V) {
        self.lazy.remove(&r);
        let class = self.plan.unit.regs[r as usize];
        match self.home(r) {
            Home::Scalar(var, ty) => {
                let v = match v {
                    V::U(v) | V::A(v, _) => v,
                    // Only reached when the analysis and the emitter disagree; lane 0 then.
                    V::X(_) => {
                        debug_assert!(false, "a uniform register got a varying value");
                        self.lane(&v, class, 0)
                    }
                };
                let v = self.cast(v, ty);
                self.b.def_var(var, v);
            }
            Home::Affine(var, ty, stride) => {
                let v = match v {
                    V::A(v, s) => {
                        debug_assert_eq!(s, stride);
                        v
                    }
                    V::U(v) => v,
                    V::X(_) => {
                        debug_assert!(false, "an affine register got a varying value");
                        self.lane(&v, class, 0)
                    }
                };
                let v = self.cast(v, ty);
                self.b.def_var(var, v);
            }
            Home::Vector(vars) => {
                let vs = self.vectorize(&v, class);
                for (var, v) in vars.iter().zip(vs) {
                    self.b.def_var(*var, v);
                }
            }
        }
    }

    pub(crate) fn reg(&self, r: RegId) -> Reg {
        self.plan.unit.reg(self.instance, r)
    }

    pub(crate) fn set(&mut self, r: RegId, v: V) {
        let r = self.reg(r);
        self.write(r, v);
    }

    pub(crate) fn class_of(&self, r: RegId) -> Class {
        self.plan.unit.regs[self.reg(r) as usize]
    }

    /// A source operand as a value of `class`.
    pub(crate) fn get(&mut self, o: &Operand, class: Class) -> Result<V, CompileError> {
        Ok(match o {
            Operand::Reg(r) => {
                let have = self.class_of(*r);
                let v = self.read(self.reg(*r));
                self.resize(v, have, class)
            }
            Operand::Imm(bits) => {
                let ty = self.class_type(class);
                let bits = if class == Class::Pred {
                    u64::from(*bits != 0)
                } else {
                    *bits
                };
                V::U(self.imm(ty, bits))
            }
            Operand::Var { var, offset } => {
                let v = self.var_address(*var, *offset)?;
                self.resize(v, Class::B64, class)
            }
            Operand::Func(f) => {
                let ty = self.class_type(class);
                V::U(self.imm(ty, scratch::FUNCTIONS + 16 * u64::from(f.0)))
            }
            Operand::Special(s) => self.special(*s, class)?,
        })
    }

    fn special(&mut self, s: SpecialReg, class: Class) -> Result<V, CompileError> {
        use mica_kernel::BlockContext as C;
        use mica_ptx::ast::Dim;
        use std::mem::offset_of;
        let dim = |d: Dim| match d {
            Dim::X => 0,
            Dim::Y => 4,
            Dim::Z => 8,
        };
        let (v, have) = match s {
            SpecialReg::NTid(d) => (
                V::U(self.field(types::I32, offset_of!(C, block) + dim(d))),
                Class::B32,
            ),
            SpecialReg::NCtaId(d) => (
                V::U(self.field(types::I32, offset_of!(C, grid) + dim(d))),
                Class::B32,
            ),
            SpecialReg::CtaId(d) => (
                V::U(self.field(types::I32, offset_of!(C, ctaid) + dim(d))),
                Class::B32,
            ),
            SpecialReg::SmId => (
                V::U(self.field(types::I32, offset_of!(C, smid))),
                Class::B32,
            ),
            SpecialReg::EnvReg(n @ (1 | 2)) => {
                let half = if n == 1 { 4 } else { 0 };
                let at = offset_of!(C, grid_workspace) + half;
                (V::U(self.field(types::I32, at)), Class::B32)
            }
            SpecialReg::GridId => (
                V::U(self.field(types::I64, offset_of!(C, grid_id))),
                Class::B64,
            ),
            SpecialReg::DynamicSmemSize => (
                V::U(self.field(types::I32, offset_of!(C, dynamic_shared))),
                Class::B32,
            ),
            SpecialReg::TotalSmemSize | SpecialReg::AggrSmemSize => (
                V::U(self.field(types::I32, offset_of!(C, shared_len))),
                Class::B32,
            ),
            SpecialReg::Tid(d) => (self.tid(d), Class::B32),
            SpecialReg::LaneId => {
                let t = self.thread();
                let t = self.b.ins().ireduce(types::I32, t);
                let m = self.imm(types::I32, 31);
                let l = self.b.ins().band(t, m);
                (
                    if self.lanes == 1 { V::U(l) } else { V::A(l, 1) },
                    Class::B32,
                )
            }
            SpecialReg::WarpId => {
                let t = self.thread();
                let t = self.b.ins().ireduce(types::I32, t);
                let five = self.imm(types::I32, 5);
                (V::U(self.b.ins().ushr(t, five)), Class::B32)
            }
            SpecialReg::LaneMaskEq
            | SpecialReg::LaneMaskLe
            | SpecialReg::LaneMaskLt
            | SpecialReg::LaneMaskGe
            | SpecialReg::LaneMaskGt => (self.lane_mask(s), Class::B32),
            SpecialReg::Clock
            | SpecialReg::ClockHi
            | SpecialReg::Clock64
            | SpecialReg::GlobalTimer
            | SpecialReg::GlobalTimerLo
            | SpecialReg::GlobalTimerHi
            | SpecialReg::NWarpId
            | SpecialReg::NSmId => {
                let which = self.i64(crate::run::special_code(s));
                let ctx = self.ctx;
                let v = self.call(crate::run::SPECIAL, &[ctx, which]);
                (V::U(v), Class::B64)
            }
            SpecialReg::ClusterNCtaRank | SpecialReg::ClusterNCtaId(_) => {
                (V::U(self.imm(types::I32, 1)), Class::B32)
            }
            SpecialReg::ClusterId(d) => (
                V::U(self.field(types::I32, offset_of!(C, ctaid) + dim(d))),
                Class::B32,
            ),
            SpecialReg::NClusterId(d) => (
                V::U(self.field(types::I32, offset_of!(C, grid) + dim(d))),
                Class::B32,
            ),
            _ => (V::U(self.imm(types::I64, 0)), Class::B64),
        };
        if class == Class::Pred {
            return Ok(V::U(self.imm(types::I8, 0)));
        }
        Ok(self.resize(v, have, class))
    }

    fn lane_mask(&mut self, s: SpecialReg) -> V {
        let mut out = Vec::new();
        for l in 0..self.lanes {
            let t = self.thread_of(l);
            let t = self.b.ins().ireduce(types::I32, t);
            let m = self.imm(types::I32, 31);
            let lane = self.b.ins().band(t, m);
            let one = self.imm(types::I32, 1);
            let eq = self.b.ins().ishl(one, lane);
            let lt = self.add_imm(eq, -1);
            let le = self.b.ins().bor(eq, lt);
            out.push(match s {
                SpecialReg::LaneMaskEq => eq,
                SpecialReg::LaneMaskLt => lt,
                SpecialReg::LaneMaskLe => le,
                SpecialReg::LaneMaskGe => self.b.ins().bnot(lt),
                _ => self.b.ins().bnot(le),
            });
        }
        self.from_lanes(&out, Class::B32)
    }

    fn tid(&mut self, d: mica_ptx::ast::Dim) -> V {
        use mica_kernel::BlockContext as C;
        use mica_ptx::ast::Dim;
        use std::mem::offset_of;
        let t = self.thread();
        let t = self.b.ins().ireduce(types::I32, t);
        let x = self.field(types::I32, offset_of!(C, block));
        if self.lanes > 1 {
            return self.tid_by_reciprocal(d, t, x);
        }
        // Most blocks have one row, and a division costs as much as the rest of a small kernel.
        let past = self.b.ins().icmp(IntCC::UnsignedGreaterThanOrEqual, t, x);
        let (divide, on) = (self.b.create_block(), self.b.create_block());
        let result = self.b.append_block_param(on, types::I32);
        // A thread of the first row has its own index as x, and 0 as y and z.
        let first = if d == Dim::X {
            t
        } else {
            self.imm(types::I32, 0)
        };
        self.b
            .ins()
            .brif(past, divide, &[], on, &[BlockArg::Value(first)]);
        self.b.switch_to_block(divide);
        let y = self.field(types::I32, offset_of!(C, block) + 4);
        let r = match d {
            Dim::X => {
                let x = self.nonzero(x);
                self.b.ins().urem(t, x)
            }
            Dim::Y => {
                let x = self.nonzero(x);
                let row = self.b.ins().udiv(t, x);
                let y = self.nonzero(y);
                self.b.ins().urem(row, y)
            }
            Dim::Z => {
                let plane = self.b.ins().imul(x, y);
                let plane = self.nonzero(plane);
                self.b.ins().udiv(t, plane)
            }
        };
        self.b.ins().jump(on, &[BlockArg::Value(r)]);
        self.b.switch_to_block(on);
        V::U(result)
    }

    /// The same in vector code, which divides once for all groups: with indexes and extents up to
    /// 1024 (`scratch::MAX_THREADS`), `t * ceil(2^20 / x) >> 20` is exact.
    fn tid_by_reciprocal(&mut self, d: mica_ptx::ast::Dim, t: Value, x: Value) -> V {
        use mica_kernel::BlockContext as C;
        use mica_ptx::ast::Dim;
        use std::mem::offset_of;
        let row = self.quotient(t, offset_of!(C, block));
        if d == Dim::X {
            let start = self.b.ins().imul(row, x);
            return V::A(self.b.ins().isub(t, start), 1);
        }
        let plane = self.quotient(row, offset_of!(C, block) + 4);
        if d == Dim::Z {
            return V::U(plane);
        }
        let y = self.field(types::I32, offset_of!(C, block) + 4);
        let start = self.b.ins().imul(plane, y);
        V::U(self.b.ins().isub(row, start))
    }

    /// A number below 1024 divided by a field of the context.
    fn quotient(&mut self, n: Value, field: usize) -> Value {
        let ctx = self.ctx;
        let reciprocal = self.hoist(Hoisted::Reciprocal(field), &|c| {
            let by = c.ins().load(types::I32, fixed(), ctx, field as i32);
            let one = c.ins().iconst(types::I32, 1);
            let by = c.ins().umax(by, one);
            let most = c.ins().iconst(types::I32, (1 << 20) - 1);
            let sum = c.ins().iadd(by, most);
            c.ins().udiv(sum, by)
        });
        let p = self.b.ins().imul(n, reciprocal);
        let shift = self.imm(types::I32, 20);
        self.b.ins().ushr(p, shift)
    }

    /// A divisor that Cranelift need not trap on.
    pub(crate) fn nonzero(&mut self, v: Value) -> Value {
        let ty = self.ty(v);
        let one = self.imm(ty, 1);
        self.b.ins().umax(v, one)
    }
}
