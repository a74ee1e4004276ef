//! What each operation mentions. Every operation is named, so a new one cannot be forgotten.

use super::parts::{call, mbarrier, tex};
use super::*;

impl Op {
    /// Calls `f` for everything the operation mentions, sources before destinations.
    pub fn visit(&self, f: &mut dyn FnMut(Ref)) {
        match self {
            Op::Mov { dst, src, .. }
            | Op::Cvta { dst, src, .. }
            | Op::IsSpacep { dst, src, .. }
            | Op::IsTypep { dst, src, .. }
            | Op::MovMatrix { dst, src }
            | Op::IntUn { dst, a: src, .. }
            | Op::Bfind { dst, a: src, .. }
            | Op::FloatUn { dst, a: src, .. }
            | Op::Testp { dst, a: src, .. }
            | Op::GetCtaRank { dst, a: src, .. }
            | Op::Alloca { dst, size: src, .. }
            | Op::MbarrierPendingCount { dst, state: src } => {
                operand(src, f);
                def(*dst, f);
            }
            Op::Mapa {
                dst, a, rank: b, ..
            }
            | Op::IntBin { dst, a, b, .. }
            | Op::AddCarry { dst, a, b, .. }
            | Op::Mul { dst, a, b, .. }
            | Op::Mul24 { dst, a, b, .. }
            | Op::Bmsk {
                dst,
                pos: a,
                width: b,
                ..
            }
            | Op::Szext { dst, a, pos: b, .. }
            | Op::FloatBin { dst, a, b, .. }
            | Op::FloatDiv { dst, a, b, .. }
            | Op::Copysign { dst, a, b, .. }
            | Op::Selp {
                dst,
                a,
                b,
                pred:
                    PredSrc {
                        src: Operand::Imm(_),
                        ..
                    },
                ..
            }
            | Op::Redux {
                dst,
                src: a,
                mask: b,
                ..
            } => {
                operands([a, b], f);
                def(*dst, f);
            }
            Op::Prmt { dst, a, b, c, .. }
            | Op::Mad { dst, a, b, c, .. }
            | Op::Mad24 { dst, a, b, c, .. }
            | Op::Sad { dst, a, b, c, .. }
            | Op::Fns {
                dst,
                mask: a,
                base: b,
                offset: c,
            }
            | Op::Bfe {
                dst,
                a,
                pos: b,
                len: c,
                ..
            }
            | Op::Shf {
                dst,
                a,
                b,
                amount: c,
                ..
            }
            | Op::Dp4a { dst, a, b, c, .. }
            | Op::Dp2a { dst, a, b, c, .. }
            | Op::Fma { dst, a, b, c, .. }
            | Op::Slct { dst, a, b, c, .. } => {
                operands([a, b, c], f);
                def(*dst, f);
            }
            Op::Selp {
                dst, a, b, pred, ..
            } => {
                operands([a, b, &pred.src], f);
                def(*dst, f);
            }
            Op::Bfi {
                dst,
                a,
                b,
                pos,
                len,
                ..
            } => {
                operands([a, b, pos, len], f);
                def(*dst, f);
            }
            Op::Pack { dst, srcs, .. } | Op::CreatePolicy { dst, srcs } => {
                operands(srcs, f);
                def(*dst, f);
            }
            Op::Unpack { dsts, src, .. } => {
                operand(src, f);
                defs(dsts, f);
            }
            Op::Ld {
                cache, dst, addr, ..
            } => {
                address(addr, f);
                operands(&cache.policy, f);
                defs(dst, f);
            }
            Op::LdMatrix { dst, addr, .. } => {
                address(addr, f);
                defs(dst, f);
            }
            Op::St {
                cache, addr, src, ..
            } => {
                address(addr, f);
                operands(src, f);
                operands(&cache.policy, f);
            }
            Op::StMatrix { addr, src, .. } => {
                address(addr, f);
                operands(src, f);
            }
            Op::StAsync {
                addr, src, mbar, ..
            } => {
                address(addr, f);
                operands(src, f);
                address(mbar, f);
            }
            Op::Cvt {
                dst,
                src,
                src2,
                rbits,
                ..
            } => {
                operand(src, f);
                operands(src2, f);
                operands(rbits, f);
                def(*dst, f);
            }
            Op::CvtPack { dst, a, b, c, .. } => {
                operands([a, b], f);
                operands(c, f);
                def(*dst, f);
            }
            Op::CacheControl { addr, .. } | Op::CpAsyncBulkPrefetch { addr } => address(addr, f),
            Op::StackSave { dst, .. } | Op::Activemask { dst } => def(*dst, f),
            Op::StackRestore { src, .. }
            | Op::Nanosleep { duration: src }
            | Op::BarWarp { mask: src }
            | Op::BrxIdx { index: src, .. } => operand(src, f),
            Op::Lop3 {
                dst, a, b, c, pred, ..
            } => {
                operands([a, b, c], f);
                operands(pred.as_ref().map(|p| &p.src.src), f);
                def(*dst, f);
                def(pred.map(|p| p.dst), f);
            }
            Op::Setp {
                combine: c,
                dst,
                dst_not,
                a,
                b,
                ..
            } => {
                operands([a, b], f);
                combine(c, f);
                def(*dst, f);
                def(*dst_not, f);
            }
            Op::Set {
                combine: c,
                dst,
                a,
                b,
                ..
            } => {
                operands([a, b], f);
                combine(c, f);
                def(*dst, f);
            }
            Op::Call {
                callee, rets, args, ..
            } => call(callee, rets, args, f),
            Op::Bar { id, count, .. } => {
                operand(id, f);
                operands(count, f);
            }
            Op::BarRed {
                dst,
                id,
                count,
                pred,
                ..
            } => {
                operands([id, &pred.src], f);
                operands(count, f);
                def(*dst, f);
            }
            Op::Vote {
                dst, pred, mask, ..
            } => {
                operand(&pred.src, f);
                operands(mask, f);
                def(*dst, f);
            }
            Op::Match {
                dst, pred, a, mask, ..
            } => {
                operands([a, mask], f);
                def(*dst, f);
                def(*pred, f);
            }
            Op::Elect { dst, pred, mask } => {
                operand(mask, f);
                def(*dst, f);
                def(*pred, f);
            }
            Op::Shfl {
                dst,
                pred,
                src,
                lane,
                clamp,
                mask,
                ..
            } => {
                operands([src, lane, clamp], f);
                operands(mask, f);
                def(*dst, f);
                def(*pred, f);
            }
            Op::Atom(x) => {
                address(&x.addr, f);
                operands(&x.src, f);
                operands(&x.src2, f);
                operands(&x.cache.policy, f);
                if let Some(m) = &x.mbar {
                    address(m, f);
                }
                defs(&x.dst, f);
            }
            Op::CpAsync {
                dst,
                src,
                src_size,
                ignore_src,
                cache,
                ..
            } => {
                address(dst, f);
                address(src, f);
                operands(src_size, f);
                operands(ignore_src.as_ref().map(|p| &p.src), f);
                operands(&cache.policy, f);
            }
            Op::CpAsyncMbarrierArrive { mbar, .. } => address(mbar, f),
            Op::CpAsyncBulk(x) => {
                address(&x.dst, f);
                address(&x.src, f);
                operand(&x.size, f);
                completion(&x.completion, f);
                operands(x.multicast.iter().chain(&x.byte_mask).chain(&x.policy), f);
            }
            Op::CpReduceAsyncBulk(x) => {
                address(&x.dst, f);
                address(&x.src, f);
                operand(&x.size, f);
                completion(&x.completion, f);
                operands(&x.policy, f);
            }
            Op::CpAsyncBulkTensor(x) => {
                address(&x.tensor_map, f);
                address(&x.shared, f);
                operands(x.coords.iter().chain(&x.im2col_offsets), f);
                completion(&x.completion, f);
                operands(x.multicast.iter().chain(&x.policy), f);
            }
            Op::Mbarrier { addr, op, .. } => {
                address(addr, f);
                mbarrier(op, f);
            }
            Op::Mma(x) | Op::WmmaMma(x) => {
                operands(x.a.iter().chain(&x.b).chain(&x.c), f);
                operands(x.sparse.as_ref().map(|s| &s.metadata), f);
                x.d.iter().for_each(|r| f(Ref::Reg(*r, Access::Def)));
            }
            Op::Wgmma(x) => {
                // The accumulators last, as there may be many: some readers take the first operands only.
                match &x.a {
                    WgmmaFactor::Registers(a) => operands(a, f),
                    WgmmaFactor::Descriptor(a) => operand(a, f),
                }
                operands([&x.b, &x.scale_d.src], f);
                x.d.iter().for_each(|r| f(Ref::Reg(*r, Access::Use)));
                x.d.iter().for_each(|r| f(Ref::Reg(*r, Access::Def)));
            }
            Op::WmmaLoad(x) => {
                address(&x.addr, f);
                operands(&x.stride, f);
                x.dst.iter().for_each(|r| f(Ref::Reg(*r, Access::Def)));
            }
            Op::WmmaStore(x) => {
                address(&x.addr, f);
                operands(x.src.iter().chain(&x.stride), f);
            }
            Op::Tex(x) => tex(x, f),
            Op::Tld4(x) => {
                operand(&x.texture, f);
                operands(x.sampler.iter().chain(&x.layer).chain(&x.coords), f);
                operands(x.offsets.iter().chain(&x.compare), f);
                defs(&x.dst, f);
                def(x.resident, f);
            }
            Op::Txq {
                dst, handle, level, ..
            } => {
                operand(handle, f);
                operands(level, f);
                def(*dst, f);
            }
            Op::Suld(x) => {
                operand(&x.surface, f);
                operands(x.layer.iter().chain(&x.coords), f);
                defs(&x.dst, f);
            }
            Op::Sust(x) => {
                operand(&x.surface, f);
                operands(x.layer.iter().chain(&x.coords).chain(&x.src), f);
            }
            Op::Sured(x) => {
                operand(&x.surface, f);
                operands(x.layer.iter().chain(&x.coords), f);
                operand(&x.src, f);
            }
            Op::Video(x) => {
                operands([&x.a.src, &x.b.src], f);
                operands(&x.c, f);
                def(x.dst, f);
            }
            Op::VideoMad(x) => {
                operands([&x.a.src, &x.b.src, &x.c], f);
                def(x.dst, f);
            }
            Op::VideoSimd(x) => {
                operands([&x.a, &x.b, &x.c], f);
                def(x.dst, f);
            }
            Op::Bra { .. }
            | Op::Ret { .. }
            | Op::Exit
            | Op::Trap
            | Op::Brkpt
            | Op::Pmevent
            | Op::GridDepControl { .. }
            | Op::SetMaxNReg { .. }
            | Op::Nop
            | Op::BarCluster { .. }
            | Op::WgmmaWait
            | Op::Fence { .. }
            | Op::FenceProxy { .. }
            | Op::CpAsyncCommitGroup
            | Op::CpAsyncWaitGroup { .. }
            | Op::CpAsyncBulkCommitGroup
            | Op::CpAsyncBulkWaitGroup { .. }
            | Op::Unsupported { .. } => {}
        }
    }
}
