//! What the parts of calls, asynchronous barriers and textures mention.

use super::*;

pub(super) fn call(callee: &Callee, rets: &[CallArg], args: &[CallArg], f: &mut Visitor<'_>) {
    match callee {
        Callee::Direct(func) => f(Ref::Func(*func)),
        Callee::Indirect {
            pointer, targets, ..
        } => {
            operand(pointer, f);
            targets.iter().flatten().for_each(|t| f(Ref::Func(*t)));
        }
    }
    for (list, access) in [(args, Access::Use), (rets, Access::Def)] {
        for a in list {
            match a {
                CallArg::Reg(r) => f(Ref::Reg(*r, access)),
                CallArg::Var(v) => f(Ref::Var(*v)),
                CallArg::Imm(_) | CallArg::None => {}
            }
        }
    }
}

pub(super) fn mbarrier(op: &MbarrierOp, f: &mut Visitor<'_>) {
    match op {
        MbarrierOp::Init { count } => operand(count, f),
        MbarrierOp::Inval => {}
        MbarrierOp::Arrive {
            expect_tx,
            dst,
            count,
            ..
        } => {
            operands(expect_tx.iter().chain(count), f);
            def(*dst, f);
        }
        MbarrierOp::ExpectTx { bytes, .. } | MbarrierOp::CompleteTx { bytes, .. } => {
            operand(bytes, f);
        }
        MbarrierOp::Wait {
            dst,
            phase,
            timeout_ns,
            ..
        } => {
            match phase {
                MbarrierPhase::State(o) | MbarrierPhase::Parity(o) => operand(o, f),
            }
            operands(timeout_ns, f);
            def(*dst, f);
        }
    }
}

pub(super) fn tex(x: &Tex, f: &mut Visitor<'_>) {
    operand(&x.texture, f);
    operands(
        x.sampler
            .iter()
            .chain(&x.layer)
            .chain(&x.coords)
            .chain(&x.sample),
        f,
    );
    match &x.level {
        TexLevel::Base => {}
        TexLevel::Level(l) => operand(l, f),
        TexLevel::Grad { dx, dy } => operands(dx.iter().chain(dy), f),
    }
    operands(x.offsets.iter().chain(&x.compare), f);
    defs(&x.dst, f);
    def(x.resident, f);
}
