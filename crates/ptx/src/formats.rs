//! Which number formats and which unit an instruction computes with.
//!
//! Policies on code decide by this. Moving bits is not computing: loads, stores, moves and shuffles of a
//! format are no use of it.

use crate::ast::{AtomOp, Op, ScalarType};
use crate::parse::scalar_type;

/// A number format that an instruction computes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// That of this type.
    Of(ScalarType),
    /// A format that the text does not name.
    Unknown,
}

impl Op {
    /// Whether the instruction runs on tensor cores, or only feeds them.
    pub fn uses_tensor_cores(&self) -> bool {
        match self {
            Op::LdMatrix { .. }
            | Op::StMatrix { .. }
            | Op::MovMatrix { .. }
            | Op::Mma(_)
            | Op::WmmaLoad(_)
            | Op::WmmaStore(_)
            | Op::WmmaMma(_)
            | Op::Wgmma(_)
            | Op::WgmmaWait => true,
            Op::Unsupported { opcode } => matches!(
                opcode.split('.').next(),
                Some("mma" | "wmma" | "wgmma" | "tcgen05" | "ldmatrix" | "stmatrix" | "movmatrix")
            ),
            _ => false,
        }
    }

    /// Calls `f` with every number format that the instruction computes in.
    pub fn visit_formats(&self, f: &mut dyn FnMut(Format)) {
        let mut all = |types: &[ScalarType]| types.iter().for_each(|ty| f(Format::Of(*ty)));
        match self {
            Op::Cvt { dst_ty, src_ty, .. } | Op::CvtPack { dst_ty, src_ty, .. } => {
                all(&[*dst_ty, *src_ty]);
            }
            Op::Set { dst_ty, ty, .. } => all(&[*dst_ty, *ty]),
            Op::Slct { ty, cond_ty, .. } => all(&[*ty, *cond_ty]),
            Op::IntBin { ty, .. }
            | Op::IntUn { ty, .. }
            | Op::AddCarry { ty, .. }
            | Op::Mul { ty, .. }
            | Op::Mad { ty, .. }
            | Op::Mul24 { ty, .. }
            | Op::Mad24 { ty, .. }
            | Op::Sad { ty, .. }
            | Op::Bfind { ty, .. }
            | Op::Bfe { ty, .. }
            | Op::Bfi { ty, .. }
            | Op::Szext { ty, .. }
            | Op::FloatBin { ty, .. }
            | Op::Fma { ty, .. }
            | Op::FloatDiv { ty, .. }
            | Op::FloatUn { ty, .. }
            | Op::Testp { ty, .. }
            | Op::Copysign { ty, .. }
            | Op::Setp { ty, .. }
            | Op::Selp { ty, .. }
            | Op::Match { ty, .. }
            | Op::Redux { ty, .. }
            | Op::LdMatrix { ty, .. }
            | Op::StMatrix { ty, .. } => all(&[*ty]),
            Op::Atom(atom) => all(&[atom.ty]),
            Op::CpReduceAsyncBulk(copy) => all(&[copy.ty]),
            Op::CpAsyncBulkTensor(copy) => {
                // The elements' format stands in the tensor map.
                if matches!(copy.reduce, Some(AtomOp::Add | AtomOp::Min | AtomOp::Max)) {
                    f(Format::Unknown);
                }
            }
            Op::Mma(mma) | Op::WmmaMma(mma) => all(&[mma.a_ty, mma.b_ty, mma.c_ty, mma.d_ty]),
            Op::Wgmma(mma) => all(&[mma.a_ty, mma.b_ty, mma.d_ty]),
            Op::WmmaLoad(load) => all(&[load.ty]),
            Op::WmmaStore(store) => all(&[store.ty]),
            Op::Tex(tex) => all(&[tex.dst_ty, tex.coord_ty]),
            Op::Tld4(tex) => all(&[tex.dst_ty]),
            Op::Suld(load) => all(&[load.ty]),
            Op::Sust(store) => all(&[store.ty]),
            Op::Sured(reduce) => all(&[reduce.ty]),
            Op::Unsupported { opcode } => unsupported(opcode, f),
            // Moves, addresses, control, synchronization, and integers of a fixed type.
            Op::Mov { .. }
            | Op::Pack { .. }
            | Op::Unpack { .. }
            | Op::Ld { .. }
            | Op::St { .. }
            | Op::StAsync { .. }
            | Op::Cvta { .. }
            | Op::IsSpacep { .. }
            | Op::IsTypep { .. }
            | Op::Prmt { .. }
            | Op::CacheControl { .. }
            | Op::CreatePolicy { .. }
            | Op::Mapa { .. }
            | Op::GetCtaRank { .. }
            | Op::Alloca { .. }
            | Op::StackSave { .. }
            | Op::StackRestore { .. }
            | Op::Fns { .. }
            | Op::Bmsk { .. }
            | Op::Shf { .. }
            | Op::Lop3 { .. }
            | Op::Dp4a { .. }
            | Op::Dp2a { .. }
            | Op::Bra { .. }
            | Op::BrxIdx { .. }
            | Op::Call { .. }
            | Op::Ret { .. }
            | Op::Exit
            | Op::Trap
            | Op::Brkpt
            | Op::Nanosleep { .. }
            | Op::Pmevent
            | Op::GridDepControl { .. }
            | Op::SetMaxNReg { .. }
            | Op::Nop
            | Op::Bar { .. }
            | Op::BarRed { .. }
            | Op::BarWarp { .. }
            | Op::BarCluster { .. }
            | Op::Fence { .. }
            | Op::FenceProxy { .. }
            | Op::Vote { .. }
            | Op::Activemask { .. }
            | Op::Elect { .. }
            | Op::Shfl { .. }
            | Op::CpAsync { .. }
            | Op::CpAsyncCommitGroup
            | Op::CpAsyncWaitGroup { .. }
            | Op::CpAsyncMbarrierArrive { .. }
            | Op::CpAsyncBulk(_)
            | Op::CpAsyncBulkPrefetch { .. }
            | Op::CpAsyncBulkCommitGroup
            | Op::CpAsyncBulkWaitGroup { .. }
            | Op::Mbarrier { .. }
            | Op::MbarrierPendingCount { .. }
            | Op::MovMatrix { .. }
            | Op::WgmmaWait
            | Op::Txq { .. }
            | Op::Video(_)
            | Op::VideoMad(_)
            | Op::VideoSimd(_) => {}
        }
    }
}

/// Formats of an instruction of which only the opcode is known.
fn unsupported(opcode: &str, f: &mut dyn FnMut(Format)) {
    let mut parts = opcode.split('.');
    let name = parts.next();
    if matches!(name, Some("mov" | "ld" | "st")) {
        return;
    }
    // Which reduction, and in which format, stands in the tensor map; a long opcode was cut.
    if opcode.starts_with("cp.reduce") || opcode.ends_with("...") {
        f(Format::Unknown);
    }
    for part in parts {
        // `.kind::f16` of `tcgen05`, `.acc::f16` of `multimem`.
        let kind = part.strip_prefix("kind::");
        let part = part.strip_prefix("acc::").or(kind).unwrap_or(part);
        let small = ["e4m3", "e5m2", "e2m1", "e2m3", "e3m2", "ue8m0", "ue4m3"];
        match scalar_type(part) {
            Some(ty) => f(Format::Of(ty)),
            None if small.iter().any(|name| part.starts_with(name)) => {
                f(Format::Of(ScalarType::E4m3));
            }
            None if kind.is_some() && part != "i8" => f(Format::Of(ScalarType::E4m3)),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formats(op: &Op) -> Vec<Format> {
        let mut all = Vec::new();
        op.visit_formats(&mut |format| all.push(format));
        all
    }

    fn of_opcode(opcode: &str) -> (bool, Vec<Format>) {
        let op = Op::Unsupported {
            opcode: opcode.into(),
        };
        (op.uses_tensor_cores(), formats(&op))
    }

    #[test]
    fn opcodes_that_no_engine_runs_are_judged_by_their_modifiers() {
        use ScalarType::*;
        let of = Format::Of;
        assert_eq!(
            of_opcode("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"),
            (true, vec![of(F32), of(Bf16), of(Bf16)])
        );
        assert_eq!(
            of_opcode("tcgen05.mma.cta_group::1.kind::f16"),
            (true, vec![of(F16)])
        );
        assert_eq!(
            of_opcode("tcgen05.mma.cta_group::1.kind::mxf4"),
            (true, vec![of(E4m3)])
        );
        assert_eq!(
            of_opcode("multimem.red.relaxed.sys.global.add.bf16x2"),
            (false, vec![of(Bf16x2)])
        );
        assert_eq!(of_opcode("mov.v2.f64"), (false, vec![]));
        assert_eq!(
            of_opcode("cp.reduce.async.bulk.tensor"),
            (false, vec![Format::Unknown])
        );
        assert_eq!(of_opcode("multimem.x..."), (false, vec![Format::Unknown]));
    }

    #[test]
    fn every_typed_instruction_tells_its_format() {
        let text = b".version 8.0 .target sm_90 .address_size 64\n.entry k() {\n\
            .reg .f64 %d<4>; .reg .pred %p; .reg .b64 %a; .reg .f32 %f; .reg .b32 %r;\n\
            add .f64 %d0, %d1, %d2; fma.rn.f64 %d0, %d1, %d2, %d3; div.rn.f64 %d0, %d1, %d2;\n\
            sqrt.rn.f64 %d0, %d1; setp.lt.f64 %p, %d0, %d1; selp.f64 %d0, %d1, %d2, %p;\n\
            cvt.f64.f32 %d0, %f; cvt.rn.f32.f64 %f, %d0; atom.global.add.f64 %d0, [%a], %d1;\n\
            red.global.add.f64 [%a], %d1; testp.finite.f64 %p, %d0; copysign.f64 %d0, %d1, %d2;\n\
            set.lt.u32.f64 %r, %d0, %d1; neg.f64 %d0, %d1; min.f64 %d0, %d1, %d2; ret; }";
        let module = crate::parse(text).unwrap();
        let body = &module.functions[0].body;
        for inst in &body[..body.len() - 1] {
            let f64s = formats(&inst.op).contains(&Format::Of(ScalarType::F64));
            assert!(f64s, "{:?}", inst.op);
        }
    }
}
