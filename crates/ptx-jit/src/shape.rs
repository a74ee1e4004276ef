//! How a register varies over the lanes of a group.
//!
//! Threads of a group run together, so a value is *uniform* (one scalar), *affine* (`base + lane *
//! stride`, one scalar and a known stride: what makes an address one vector access) or *varying*.
//! A group leaves vector code when a branch diverges; registers written on the divergent paths and
//! still needed where they meet are varying.
//!
//! Widening a 32-bit affine value is affine only while no lane wraps: such instructions are listed
//! in [`Shapes::guards`], and generated code tests them.

use mica_ptx::ast::{
    AddrBase, Address, Callee, Dim, IntBinOp, Module, MulMode, Op, Operand, ScalarType, Space,
    SpecialReg,
};
use mica_ptx::visit::Access;
use mica_ptx_ops::layout::ModuleLayout;
use std::collections::{HashMap, HashSet};

use crate::bits::BitSet;
use crate::graph::Graph;
use crate::liveness::{visit_inst, visit_step};
use crate::unit::{Class, Reg, Step, Term, Unit, VarPlace};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Written nowhere seen yet.
    Undef,
    Uniform,
    Affine(i64),
    Varying,
}

impl Shape {
    fn join(self, other: Shape) -> Shape {
        match (self, other) {
            (Shape::Undef, x) | (x, Shape::Undef) => x,
            (a, b) if a == b => a,
            _ => Shape::Varying,
        }
    }
}

/// A 32-bit affine value that an instruction widens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guard {
    pub(crate) reg: Reg,
    pub(crate) signed: bool,
}

pub(crate) struct Shapes {
    pub(crate) of: Vec<Shape>,
    /// By `(instance, instruction)`.
    pub(crate) guards: HashMap<(u32, u32), Guard>,
}

struct Solver<'a> {
    unit: &'a Unit,
    module: &'a Module,
    layout: &'a ModuleLayout,
    shapes: Vec<Shape>,
    /// Registers that only ever hold thread or lane indexes: too small to wrap.
    small: HashSet<Reg>,
    guards: HashMap<(u32, u32), Guard>,
}

pub(crate) fn solve(
    unit: &Unit,
    module: &Module,
    layout: &ModuleLayout,
    graph: &Graph,
    live_in: &[BitSet],
) -> Shapes {
    let mut s = Solver {
        unit,
        module,
        layout,
        shapes: vec![Shape::Undef; unit.regs.len()],
        small: HashSet::new(),
        guards: HashMap::new(),
    };
    s.shapes[unit.sp as usize] = Shape::Uniform;
    s.find_small(graph);
    let defs = block_defs(unit, module);
    let mut influenced: HashMap<u32, BitSet> = HashMap::new();
    loop {
        s.guards.clear();
        let mut changed = s.pass(graph);
        for &b in &graph.rpo {
            let Term::Br { pred, .. } = &unit.blocks[b as usize].term else {
                continue;
            };
            if s.shapes[*pred as usize] != Shape::Varying {
                continue;
            }
            let set = influenced
                .entry(b)
                .or_insert_with(|| influence(unit, graph, live_in, &defs, b));
            for r in set.iter() {
                if s.shapes[r as usize] != Shape::Varying {
                    s.shapes[r as usize] = Shape::Varying;
                    changed = true;
                }
            }
        }
        if !changed {
            // What is still unknown is never written before it is read: any value will do.
            let mut unknown = false;
            for x in &mut s.shapes {
                if *x == Shape::Undef {
                    *x = Shape::Uniform;
                    unknown = true;
                }
            }
            if !unknown {
                break;
            }
        }
    }
    for x in &mut s.shapes {
        if *x == Shape::Affine(0) {
            *x = Shape::Uniform;
        }
    }
    Shapes {
        of: s.shapes,
        guards: s.guards,
    }
}

/// Registers that each block writes.
pub(crate) fn block_defs(unit: &Unit, module: &Module) -> Vec<BitSet> {
    unit.blocks
        .iter()
        .map(|block| {
            let mut d = BitSet::new(unit.regs.len());
            let mut f = |r: Reg, a: Access| {
                if a == Access::Def {
                    d.insert(r);
                }
            };
            for s in &block.steps {
                visit_step(unit, module, block.instance, *s, &mut f);
            }
            if let Term::Sync { inst, .. } | Term::Call { inst, .. } = &block.term {
                visit_inst(unit, module, block.instance, *inst, &mut f);
            }
            d
        })
        .collect()
}

/// Registers written between a branch and where its paths have met, and needed there.
fn influence(unit: &Unit, graph: &Graph, live_in: &[BitSet], defs: &[BitSet], b: u32) -> BitSet {
    let n = unit.blocks.len();
    let stop = graph.ipdom[b as usize];
    let reach = |start: u32| {
        let mut seen = vec![false; n];
        let mut stack = vec![start];
        while let Some(x) = stack.pop() {
            if std::mem::replace(&mut seen[x as usize], true) || Some(x) == stop {
                continue;
            }
            stack.extend(&graph.succs[x as usize]);
        }
        seen
    };
    let sides: Vec<Vec<bool>> = graph.succs[b as usize].iter().map(|s| reach(*s)).collect();
    let mut written = BitSet::new(unit.regs.len());
    for x in 0..n as u32 {
        if Some(x) != stop && sides.iter().any(|s| s[x as usize]) {
            written.union(&defs[x as usize]);
        }
    }
    let mut out = BitSet::new(unit.regs.len());
    for x in 0..n as u32 {
        if sides.iter().filter(|s| s[x as usize]).count() < 2 {
            continue;
        }
        for r in live_in[x as usize].iter() {
            if written.has(r) {
                out.insert(r);
            }
        }
    }
    out
}

impl Solver<'_> {
    fn find_small(&mut self, graph: &Graph) {
        let mut other = HashSet::new();
        for &b in &graph.rpo {
            let block = &self.unit.blocks[b as usize];
            for s in &block.steps {
                let mut indexes = false;
                if let Step::Inst(i) = s {
                    let op = &self.unit.func(self.module, block.instance).body[*i as usize].op;
                    indexes = matches!(
                        op,
                        Op::Mov {
                            src: Operand::Special(SpecialReg::Tid(_) | SpecialReg::LaneId),
                            ..
                        }
                    );
                }
                visit_step(self.unit, self.module, block.instance, *s, &mut |r, a| {
                    if a == Access::Def {
                        if indexes {
                            self.small.insert(r);
                        } else {
                            other.insert(r);
                        }
                    }
                });
            }
        }
        self.small.retain(|r| !other.contains(r));
    }

    fn pass(&mut self, graph: &Graph) -> bool {
        let mut changed = false;
        for &b in &graph.rpo {
            let unit = self.unit;
            let block = &unit.blocks[b as usize];
            for s in &block.steps {
                let shape = match s {
                    Step::Inst(i) => self.inst(block.instance, *i),
                    Step::Args { .. } | Step::Rets { .. } => Shape::Varying,
                };
                visit_step(unit, self.module, block.instance, *s, &mut |r, a| {
                    if a == Access::Def {
                        let wide = matches!(unit.regs[r as usize], Class::B32 | Class::B64);
                        let shape = match shape {
                            Shape::Affine(_) if !wide => Shape::Varying,
                            s => s,
                        };
                        let new = self.shapes[r as usize].join(shape);
                        changed |= new != self.shapes[r as usize];
                        self.shapes[r as usize] = new;
                    }
                });
            }
            if let Term::Sync { inst, .. } | Term::Call { inst, .. } = &block.term {
                visit_inst(unit, self.module, block.instance, *inst, &mut |r, a| {
                    if a == Access::Def {
                        changed |= self.shapes[r as usize] != Shape::Varying;
                        self.shapes[r as usize] = Shape::Varying;
                    }
                });
            }
        }
        changed
    }

    fn operand(&self, instance: u32, o: &Operand) -> Shape {
        match o {
            Operand::Reg(r) => self.shapes[self.unit.reg(instance, *r) as usize],
            Operand::Imm(_) | Operand::Func(_) | Operand::Var { .. } => Shape::Uniform,
            Operand::Special(s) => special_shape(*s),
        }
    }

    fn inst(&mut self, instance: u32, i: u32) -> Shape {
        let module = self.module;
        let op = &self.unit.func(module, instance).body[i as usize].op;
        let shape = |s: &Self, o: &Operand| s.operand(instance, o);
        match op {
            Op::Mov { src, ty, .. } if matches!(ty.bits(), 32 | 64) => shape(self, src),
            Op::Cvta {
                space: Space::Local,
                ..
            } => Shape::Varying,
            Op::Cvta { src, .. } => match src {
                Operand::Var { var, .. } if module.var(*var).space == Space::Local => {
                    Shape::Varying
                }
                src => shape(self, src),
            },
            Op::IntBin {
                op: IntBinOp::Add,
                ty,
                sat: false,
                a,
                b,
                ..
            } if plain(*ty) => add(shape(self, a), shape(self, b), 1),
            Op::IntBin {
                op: IntBinOp::Sub,
                ty,
                sat: false,
                a,
                b,
                ..
            } if plain(*ty) => add(shape(self, a), shape(self, b), -1),
            Op::IntBin {
                op: IntBinOp::Shl,
                ty,
                a,
                b: Operand::Imm(n),
                ..
            } if plain(*ty) && *n < u64::from(ty.bits()) => {
                scale(shape(self, a), 1i64.wrapping_shl(*n as u32), ty.bits())
            }
            Op::Mul { mode, ty, a, b, .. } if plain(*ty) => {
                self.product(instance, i, *mode, *ty, a, b)
            }
            Op::Mad {
                mode,
                ty,
                sat: false,
                carry,
                a,
                b,
                c,
                ..
            } if plain(*ty) && !carry.reads && !carry.writes => {
                let p = self.product(instance, i, *mode, *ty, a, b);
                add(p, shape(self, c), 1)
            }
            Op::Cvt {
                dst_ty,
                src_ty,
                sat: false,
                src,
                src2: None,
                ..
            } if plain(*dst_ty) && plain(*src_ty) => match shape(self, src) {
                Shape::Affine(s) => self.convert(instance, i, *dst_ty, *src_ty, src, s),
                s => s,
            },
            Op::Cvt { src, .. } if matches!(src, Operand::Special(_)) => {
                if shape(self, src) == Shape::Uniform {
                    Shape::Uniform
                } else {
                    Shape::Varying
                }
            }
            Op::Mov {
                src: src @ Operand::Special(_),
                ..
            } => shape(self, src),
            Op::Ld { space, addr, .. } => {
                if self.per_thread(instance, *space, addr) {
                    return Shape::Varying;
                }
                self.all_uses(instance, i)
            }
            Op::Atom(_)
            | Op::Alloca { .. }
            | Op::StackSave { .. }
            | Op::Mbarrier { .. }
            | Op::Call {
                callee: Callee::Direct(_) | Callee::Indirect { .. },
                ..
            }
            | Op::Tex(_)
            | Op::Tld4(_)
            | Op::Suld(_)
            | Op::CpAsyncBulk(_) => Shape::Varying,
            _ => self.all_uses(instance, i),
        }
    }

    /// Whether each thread has its own memory there.
    fn per_thread(&self, instance: u32, space: Space, addr: &Address) -> bool {
        match space {
            Space::Local => true,
            Space::Param | Space::Generic => match addr.base {
                AddrBase::Var(v) => matches!(
                    self.unit.var_place(self.module, self.layout, instance, v),
                    VarPlace::Local(_)
                ),
                // A register in `.param` space points at kernel parameters only in kernels.
                AddrBase::Reg(_) | AddrBase::Absolute => {
                    space == Space::Param && !self.unit.func(self.module, instance).is_kernel
                }
            },
            _ => false,
        }
    }

    fn all_uses(&self, instance: u32, i: u32) -> Shape {
        let mut uniform = true;
        visit_inst(self.unit, self.module, instance, i, &mut |r, a| {
            if a == Access::Use {
                uniform &= matches!(self.shapes[r as usize], Shape::Uniform | Shape::Undef);
            }
        });
        if uniform {
            Shape::Uniform
        } else {
            Shape::Varying
        }
    }

    fn product(
        &mut self,
        instance: u32,
        i: u32,
        mode: MulMode,
        ty: ScalarType,
        a: &Operand,
        b: &Operand,
    ) -> Shape {
        let (sa, sb) = (self.operand(instance, a), self.operand(instance, b));
        if mode == MulMode::Hi {
            return match (sa, sb) {
                (Shape::Undef, _) | (_, Shape::Undef) => Shape::Undef,
                (Shape::Uniform, Shape::Uniform) => Shape::Uniform,
                _ => Shape::Varying,
            };
        }
        let (affine, stride, by) = match (sa, sb, a, b) {
            (Shape::Undef, ..) | (_, Shape::Undef, ..) => return Shape::Undef,
            (Shape::Uniform, Shape::Uniform, ..) => return Shape::Uniform,
            (Shape::Affine(s), _, _, Operand::Imm(c)) => (a, s, *c),
            (_, Shape::Affine(s), Operand::Imm(c), _) => (b, s, *c),
            _ => return Shape::Varying,
        };
        let by = sign_extend(by, ty);
        match mode {
            MulMode::Lo => scale(Shape::Affine(stride), by, ty.bits()),
            MulMode::Wide if ty.bits() == 32 => {
                self.guard(instance, i, affine, ty.is_signed());
                scale(Shape::Affine(stride), by, 64)
            }
            _ => Shape::Varying,
        }
    }

    fn guard(&mut self, instance: u32, i: u32, o: &Operand, signed: bool) {
        if let Operand::Reg(r) = o {
            let reg = self.unit.reg(instance, *r);
            if !self.small.contains(&reg) {
                self.guards.insert((instance, i), Guard { reg, signed });
            }
        }
    }

    fn convert(
        &mut self,
        instance: u32,
        i: u32,
        dst: ScalarType,
        src: ScalarType,
        from: &Operand,
        stride: i64,
    ) -> Shape {
        let width = match from {
            Operand::Reg(r) => self.unit.regs[self.unit.reg(instance, *r) as usize],
            _ => Class::of(src),
        };
        if dst.bits() == 64 && src.bits() == 32 {
            if width != Class::B32 {
                return Shape::Varying;
            }
            self.guard(instance, i, from, src.is_signed());
            return Shape::Affine(stride);
        }
        scale(Shape::Affine(stride), 1, dst.bits())
    }
}

pub(crate) fn special_shape(s: SpecialReg) -> Shape {
    match s {
        SpecialReg::Tid(Dim::X) | SpecialReg::LaneId => Shape::Affine(1),
        SpecialReg::LaneMaskEq
        | SpecialReg::LaneMaskLe
        | SpecialReg::LaneMaskLt
        | SpecialReg::LaneMaskGe
        | SpecialReg::LaneMaskGt => Shape::Varying,
        _ => Shape::Uniform,
    }
}

/// A plain integer or bit type of 32 or 64 bits.
fn plain(ty: ScalarType) -> bool {
    use ScalarType::*;
    matches!(ty, B32 | U32 | S32 | B64 | U64 | S64)
}

/// An immediate as the integer its type says.
pub(crate) fn sign_extend(bits: u64, ty: ScalarType) -> i64 {
    match (ty.bits(), ty.is_signed()) {
        (32, true) => i64::from(bits as u32 as i32),
        (32, false) => i64::from(bits as u32),
        _ => bits as i64,
    }
}

fn add(a: Shape, b: Shape, sign: i64) -> Shape {
    match (a, b) {
        (Shape::Undef, _) | (_, Shape::Undef) => Shape::Undef,
        (Shape::Varying, _) | (_, Shape::Varying) => Shape::Varying,
        (Shape::Uniform, Shape::Uniform) => Shape::Uniform,
        (Shape::Affine(s), Shape::Uniform) => Shape::Affine(s),
        (Shape::Uniform, Shape::Affine(s)) => Shape::Affine(s.wrapping_mul(sign)),
        (Shape::Affine(s), Shape::Affine(t)) => Shape::Affine(s.wrapping_add(t.wrapping_mul(sign))),
    }
}

fn scale(a: Shape, by: i64, bits: u32) -> Shape {
    match a {
        Shape::Affine(s) => {
            let s = s.wrapping_mul(by);
            Shape::Affine(if bits == 32 { i64::from(s as i32) } else { s })
        }
        s => s,
    }
}
