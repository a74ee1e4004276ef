//! Moves, loads, stores, atomics, addresses and cache control.

use crate::ast::{Atom, AtomOp, Op, Operand, Order, ScalarType, Scope, Sem, Space};
use crate::error::Result;
use crate::parse::Parser;
use crate::parse::operand::Width;

use ScalarType::*;

/// `mov`, packing and unpacking included.
pub(crate) fn mov(p: &mut Parser<'_>) -> Result<Op> {
    if p.mods.vector() > 1 {
        return p.unsupported();
    }
    let ty = p.ty_of(&[
        Pred, B16, B32, B64, B128, U16, U32, U64, S16, S32, S64, F16, F16x2, Bf16, Bf16x2, F32, F64,
    ])?;
    p.no_more_mods()?;
    if let Some(elements) = p.vector_parts(ty, part_type)? {
        let src = p.next_src(ty)?;
        return Ok(Op::Unpack {
            ty,
            dsts: elements.into_iter().map(Some).collect(),
            src,
        });
    }
    if p.token.is(b'{') {
        let start = p.token;
        let count = count_elements(p)?;
        let Some(part) = part_type(ty, count) else {
            return p.bad_operand(&start, format!("`{ty}` has no {count} equal parts"));
        };
        let dsts = p.dst_vector(count, part, Width::Exact)?;
        p.comma()?;
        let src = p.src(ty)?;
        return Ok(Op::Unpack { ty, dsts, src });
    }
    let dst = p.dst(ty)?;
    p.comma()?;
    if let Some(elements) = p.vector_parts(ty, part_type)? {
        return Ok(Op::Pack {
            ty,
            dst,
            srcs: elements.into_iter().map(Operand::Reg).collect(),
        });
    }
    if p.token.is(b'{') {
        let start = p.token;
        let count = count_elements(p)?;
        let Some(part) = part_type(ty, count) else {
            return p.bad_operand(&start, format!("`{ty}` has no {count} equal parts"));
        };
        let srcs = p.src_vector(count, part, Width::Exact)?;
        return Ok(Op::Pack { ty, dst, srcs });
    }
    let src = p.src(ty)?;
    Ok(Op::Mov { ty, dst, src })
}

/// How many elements the vector here has, without consuming it.
fn count_elements(p: &Parser<'_>) -> Result<usize> {
    let mut ahead = p.lexer;
    let mut count = 1;
    loop {
        let token = ahead.next()?;
        if token.is(b',') {
            count += 1;
        }
        if token.is(b'}') || token.is(b';') || token.kind == crate::lexer::Kind::End {
            return Ok(count);
        }
    }
}

fn part_type(ty: ScalarType, count: usize) -> Option<ScalarType> {
    match (ty.bits(), count) {
        (16, 2) => Some(B8),
        (32, 2) => Some(B16),
        (32, 4) => Some(B8),
        (64, 2) => Some(B32),
        (64, 4) => Some(B16),
        (128, 2) => Some(B64),
        (128, 4) => Some(B32),
        _ => None,
    }
}

const STORABLE: &[ScalarType] = &[
    B8, B16, B32, B64, B128, U8, U16, U32, U64, S8, S16, S32, S64, F16, F16x2, Bf16, F32, F64,
];

fn order(p: &mut Parser<'_>) -> Result<Order> {
    if p.mods.flag("volatile") {
        return Ok(Order::Volatile);
    }
    if p.mods.flag("mmio") {
        p.mods.flag("relaxed");
        p.mods.scope();
        return Ok(Order::Mmio);
    }
    let sem = p.mods.take(|m| match m {
        "weak" => Some(Sem::Weak),
        "relaxed" => Some(Sem::Relaxed),
        "acquire" => Some(Sem::Acquire),
        "release" => Some(Sem::Release),
        _ => None,
    });
    let make: fn(Scope) -> Order = match sem {
        None | Some(Sem::Weak) => return Ok(Order::Weak),
        Some(Sem::Acquire) => Order::Acquire,
        Some(Sem::Release) => Order::Release,
        Some(_) => Order::Relaxed,
    };
    match p.mods.scope() {
        Some(scope) => Ok(make(scope)),
        None => p.bad_instruction("needs a scope such as `.gpu`"),
    }
}

/// Refuses vectors of more than 256 bits, and 16-bit elements times 8.
fn check_vector(p: &Parser<'_>, ty: ScalarType, count: usize) -> Result<()> {
    if u64::from(ty.bits()) * count as u64 <= 256 {
        return Ok(());
    }
    p.bad_instruction(format!("has no vector of {count} elements of type `{ty}`"))
}

const WRITABLE: [Space; 5] = [
    Space::Global,
    Space::Shared,
    Space::SharedCluster,
    Space::Local,
    Space::Param,
];
const LOADABLE: [Space; 6] = [
    Space::Global,
    Space::Shared,
    Space::SharedCluster,
    Space::Local,
    Space::Param,
    Space::Const,
];

/// `ld`, `ldu`.
pub(crate) fn ld(p: &mut Parser<'_>) -> Result<Op> {
    let uniform = p.opcode.text == "ldu";
    let order = order(p)?;
    let space = p.space_of(&LOADABLE)?;
    let nc = p.mods.flag("nc") || uniform;
    let (mut cache, hint) = p.mods.cache();
    p.mods.flag("unified");
    let count = p.mods.vector();
    let ty = p.ty_of(STORABLE)?;
    check_vector(p, ty, count)?;
    p.no_more_mods()?;
    let dst = p.dst_vector(count, ty, Width::AtLeast)?;
    p.comma()?;
    let addr = p.memory_in(space)?;
    p.accept_dot("unified")?;
    if hint {
        cache.policy = Some(p.next_src(B64)?);
    }
    Ok(Op::Ld {
        space,
        ty,
        order,
        nc,
        cache,
        dst,
        addr,
    })
}

/// `st`, `st.async`.
pub(crate) fn st(p: &mut Parser<'_>) -> Result<Op> {
    if p.mods.flag("bulk") {
        return p.unsupported();
    }
    if p.mods.flag("async") {
        return st_async(p);
    }
    let order = order(p)?;
    let space = p.space_of(&WRITABLE)?;
    let (mut cache, hint) = p.mods.cache();
    let count = p.mods.vector();
    let ty = p.ty_of(STORABLE)?;
    check_vector(p, ty, count)?;
    p.no_more_mods()?;
    let addr = p.memory_in(space)?;
    p.comma()?;
    let src = p.src_vector(count, ty, Width::AtLeast)?;
    if hint {
        cache.policy = Some(p.next_src(B64)?);
    }
    Ok(Op::St {
        space,
        ty,
        order,
        cache,
        addr,
        src,
    })
}

fn st_async(p: &mut Parser<'_>) -> Result<Op> {
    if p.mods.has("mmio") || p.mods.has("release") {
        return p.unsupported();
    }
    p.mods.flag("weak");
    p.space_of(&[Space::SharedCluster])?;
    p.mods.flag("mbarrier::complete_tx::bytes");
    let count = p.mods.vector();
    let ty = p.ty_of(&[B32, B64, U32, U64, S32, S64, F32, F64])?;
    p.no_more_mods()?;
    let addr = p.address_in(Space::SharedCluster)?;
    p.comma()?;
    let src = p.src_vector(count, ty, Width::Exact)?;
    let mbar = p.next_address_in(Space::SharedCluster)?;
    Ok(Op::StAsync {
        ty,
        addr,
        src,
        mbar,
    })
}

pub(super) fn atom_op(name: &str) -> Option<AtomOp> {
    Some(match name {
        "and" => AtomOp::And,
        "or" => AtomOp::Or,
        "xor" => AtomOp::Xor,
        "exch" => AtomOp::Exch,
        "cas" => AtomOp::Cas,
        "add" => AtomOp::Add,
        "inc" => AtomOp::Inc,
        "dec" => AtomOp::Dec,
        "min" => AtomOp::Min,
        "max" => AtomOp::Max,
        _ => return None,
    })
}

fn sem(name: &str) -> Option<Sem> {
    Some(match name {
        "relaxed" => Sem::Relaxed,
        "acquire" => Sem::Acquire,
        "release" => Sem::Release,
        "acq_rel" => Sem::AcqRel,
        _ => return None,
    })
}

/// Whether PTX has this operation on this type.
fn atom_fits(op: AtomOp, ty: ScalarType) -> bool {
    match op {
        AtomOp::And | AtomOp::Or | AtomOp::Xor => matches!(ty, B32 | B64),
        AtomOp::Exch => matches!(ty, B32 | B64 | B128 | U32 | U64 | S32 | S64 | F32 | F64),
        AtomOp::Cas => matches!(
            ty,
            B16 | B32 | B64 | B128 | U32 | U64 | S32 | S64 | F32 | F64
        ),
        AtomOp::Inc | AtomOp::Dec => ty == U32,
        AtomOp::Add => matches!(
            ty,
            U32 | S32 | U64 | S64 | F16 | F16x2 | Bf16 | Bf16x2 | F32 | F64
        ),
        AtomOp::Min | AtomOp::Max => {
            matches!(ty, U32 | S32 | U64 | S64 | F16 | F16x2 | Bf16 | Bf16x2)
        }
    }
}

/// `atom`, `red`, `red.async`.
pub(crate) fn atom(p: &mut Parser<'_>) -> Result<Op> {
    let returns = p.opcode.text == "atom";
    let is_async = p.mods.flag("async");
    let sem = p.mods.take(sem).unwrap_or(Sem::Relaxed);
    let scope = p.mods.scope().unwrap_or(Scope::Gpu);
    let space = p.space_of(&[Space::Global, Space::Shared, Space::SharedCluster])?;
    p.mods.flag("mbarrier::complete_tx::bytes");
    let (mut cache, hint) = p.mods.cache();
    let Some(op) = p.mods.take(atom_op) else {
        return p.bad_instruction("needs an operation such as `.add`");
    };
    let noftz = p.mods.flag("noftz");
    let count = p.mods.vector();
    let ty = p.ty()?;
    if !atom_fits(op, ty) || (!returns && matches!(op, AtomOp::Exch | AtomOp::Cas)) {
        return p.bad_instruction(format!("has no such operation on type `{ty}`"));
    }
    check_vector(p, ty, count)?;
    p.no_more_mods()?;
    let mut dst = Vec::new();
    if returns {
        dst = p.dst_vector_or_sink(count, ty)?;
        p.comma()?;
    }
    let addr = p.memory_in(space)?;
    p.comma()?;
    let src = p.src_vector(count, ty, Width::Exact)?;
    let src2 = if op == AtomOp::Cas {
        Some(p.next_src(ty)?)
    } else {
        None
    };
    let mbar = if is_async {
        Some(p.next_address_in(Space::SharedCluster)?)
    } else {
        None
    };
    if hint {
        cache.policy = Some(p.next_src(B64)?);
    }
    Ok(Op::Atom(Box::new(Atom {
        space,
        op,
        ty,
        sem,
        scope,
        noftz,
        cache,
        dst,
        addr,
        src,
        src2,
        mbar,
    })))
}

impl Parser<'_> {
    /// Destinations of an atomic: `_` stands for all of a vector.
    fn dst_vector_or_sink(
        &mut self,
        count: usize,
        ty: ScalarType,
    ) -> Result<Vec<Option<crate::ast::RegId>>> {
        if self.token.text == "_" {
            self.advance()?;
            return Ok(vec![None; count]);
        }
        self.dst_vector(count, ty, Width::Exact)
    }
}
