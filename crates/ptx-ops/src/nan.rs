//! Which instructions give PTX's own NaN, whatever NaN went in.
//!
//! Owns the list that lets compiled code compute with the processor's NaN and replace it by
//! [`Format::nan`](crate::float::Format::nan) only where bits are looked at. Not listed is what hands
//! the bits of a NaN on: moves, `copysign`, `cvt` between `f32` and `f64`. (A GPU hands on the payload of
//! an `f64` operand in arithmetic, too; which one of two is not documented, and here it is none.)

use mica_ptx::ast::{FloatUnOp, Op, Precision, RegId, ScalarType};

/// The register of an `f32` or `f64` result of which every NaN is the format's own.
pub fn canonical_result(op: &Op) -> Option<(RegId, ScalarType)> {
    let (dst, ty) = match op {
        Op::FloatBin { dst, ty, .. } | Op::Fma { dst, ty, .. } | Op::FloatDiv { dst, ty, .. } => {
            (*dst, *ty)
        }
        Op::FloatUn {
            op, dst, ty, prec, ..
        } => {
            let sign = matches!(op, FloatUnOp::Abs | FloatUnOp::Neg);
            // The gross approximations of f64 have a NaN of their own.
            if *ty == ScalarType::F64 && !sign && *prec == Precision::Approx {
                return None;
            }
            (*dst, *ty)
        }
        Op::Cvt {
            dst,
            dst_ty,
            src_ty,
            src2: None,
            ..
        } => match (src_ty, dst_ty) {
            (ScalarType::F32, ScalarType::F32) | (ScalarType::F64, ScalarType::F64) => {
                (*dst, *dst_ty)
            }
            _ => return None,
        },
        _ => return None,
    };
    matches!(ty, ScalarType::F32 | ScalarType::F64).then_some((dst, ty))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::{Operands, evaluate};
    use crate::float::{F32, F64, Format};
    use mica_ptx::ast::Operand;

    struct Same(u64);
    impl Operands for Same {
        fn value(&self, _: Operand) -> u64 {
            self.0
        }
    }

    const LISTED: &str = "
        add.f32 %f0, %f0, %f1; sub.f32 %f0, %f0, %f1; mul.ftz.f32 %f0, %f0, %f1;
        min.f32 %f0, %f0, %f1; max.NaN.f32 %f0, %f0, %f1; fma.rz.f32 %f0, %f0, %f1, %f2;
        div.rn.f32 %f0, %f0, %f1; div.approx.f32 %f0, %f0, %f1; div.full.f32 %f0, %f0, %f1;
        abs.f32 %f0, %f1; neg.f32 %f0, %f1; sqrt.rn.f32 %f0, %f1; rcp.rn.f32 %f0, %f1;
        rsqrt.approx.f32 %f0, %f1; sin.approx.f32 %f0, %f1; lg2.approx.f32 %f0, %f1;
        cvt.rni.f32.f32 %f0, %f1;
        add.f64 %d0, %d0, %d1; fma.rn.f64 %d0, %d0, %d1, %d2; min.f64 %d0, %d0, %d1;
        div.rn.f64 %d0, %d0, %d1; sqrt.rn.f64 %d0, %d1; cvt.rzi.f64.f64 %d0, %d1;
        neg.f64 %d0, %d1; abs.f64 %d0, %d1;";
    const NOT_LISTED: &str = "
        copysign.f32 %f0, %f0, %f1; cvt.rn.f32.f64 %f0, %d1;
        cvt.f64.f32 %d0, %f1;
        mov.f32 %f0, %f1; rcp.approx.ftz.f64 %d0, %d1;";

    fn ops(body: &str) -> Vec<Op> {
        let text = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() {{\n\
             .reg .f32 %f<3>;\n.reg .f64 %d<3>;\n{body}\n}}\n"
        );
        let module = mica_ptx::parse(text.as_bytes()).unwrap_or_else(|e| panic!("{e}"));
        let body = &module.functions[0].body;
        body.iter().map(|i| i.op.clone()).collect()
    }

    fn format(ty: ScalarType) -> Format {
        if ty == ScalarType::F64 { F64 } else { F32 }
    }

    #[test]
    fn what_is_listed_gives_the_format_s_own_nan() {
        let mut seen = 0;
        for op in ops(LISTED) {
            let Some((_, ty)) = canonical_result(&op) else {
                continue;
            };
            seen += 1;
            // Both formats read a NaN from these bits.
            for bits in [0x7ff8_1234_7fa1_2345, 0xfff0_0001_ff80_0001u64] {
                let results = evaluate(&op, &Same(bits)).expect("has a value");
                let got = results.first.expect("one result").1;
                assert_eq!(got, format(ty).nan(), "{op:?} of {bits:#x}");
            }
        }
        assert_eq!(seen, LISTED.matches(';').count());
    }

    #[test]
    fn what_hands_bits_on_is_not_listed() {
        for op in ops(NOT_LISTED) {
            assert_eq!(canonical_result(&op), None, "{op:?}");
        }
    }
}
