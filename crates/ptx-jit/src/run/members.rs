//! What a warp collective does, for the members that take part in it.

use mica_kernel::monitor::Misuse;
use mica_kernel::{Fault, FaultKind};
use mica_ptx::ast::{
    Op, Operand, ReduxOp, RegId, ScalarType, VoteMode, WmmaLoad, WmmaMatrix, WmmaStore,
};
use mica_ptx_ops::matrix::{LaneRegisters, memory_bit_offset, tile_places, wmma_fragment};
use mica_ptx_ops::warp;

use super::coherence::slot;
use super::collective::env_of;
use super::dispatch::Dispatch;
use super::env::{self, End, Env};
use super::matrix_ops::{element, ld_matrix, multiply, st_matrix, stride_of};
use super::whole_warp;
use crate::plan::SyncSite;

/// Lanes of a warp that do a collective together.
struct Members<'a> {
    d: &'a Dispatch<'a>,
    w: u32,
    site: &'a SyncSite,
    lanes: u32,
}

/// Does a collective for its members.
pub(crate) fn execute(
    d: &Dispatch<'_>,
    w: u32,
    site: &SyncSite,
    op: &Op,
    members: u32,
) -> Result<(), End> {
    let m = Members {
        d,
        w,
        site,
        lanes: members,
    };
    let env = |l: u32| m.env(l);
    let put = |l: u32, r: RegId, v: u64| m.put(l, r, v);
    match op {
        // What follows happens in the next block, with everyone there.
        Op::BarWarp { .. } | Op::Ld { .. } | Op::St { .. } => {}
        Op::Activemask { dst } => m.put_all(*dst, members),
        Op::Vote { .. } => m.vote(op),
        Op::Match { .. } => m.matching(op),
        Op::Redux { .. } => m.redux(op),
        Op::Elect { dst, pred, .. } => {
            let leader = members.trailing_zeros();
            for l in warp::lanes(members) {
                m.put_some(l, *dst, u64::from(leader));
                m.put(l, *pred, u64::from(l == leader));
            }
        }
        Op::Shfl { .. } => m.shuffle(op),
        Op::LdMatrix {
            trans,
            space,
            dst,
            addr,
            ..
        } => ld_matrix(members, *trans, *space, dst, addr, &env, &put)?,
        Op::StMatrix {
            trans,
            space,
            addr,
            src,
            ..
        } => st_matrix(members, *trans, *space, addr, src, &env)?,
        Op::MovMatrix { dst, src } => m.transpose(*dst, *src),
        Op::Mma(x) => multiply(members, x, false, &env, &put)?,
        Op::WmmaMma(x) => multiply(members, x, true, &env, &put)?,
        Op::Wgmma(x) => whole_warp::wgmma(d, w, site, x)?,
        Op::WmmaLoad(x) => m.wmma_load(x)?,
        Op::WmmaStore(x) => m.wmma_store(x)?,
        _ => return Err(m.illegal().into()),
    }
    Ok(())
}

impl Members<'_> {
    fn env(&self, lane: u32) -> Env<'_> {
        env_of(self.d, self.site, self.w * 32 + lane)
    }

    /// Sets a lane's register.
    fn put(&self, lane: u32, r: RegId, v: u64) {
        for (reg, class, offset) in &self.site.defs {
            if let (true, Some(o)) = (*reg == r, offset) {
                let p = slot(self.d.k, self.d.scratch, *o, *class, self.w * 32 + lane);
                env::store(p as u64, class.slot_bytes(), v);
            }
        }
    }

    fn put_some(&self, lane: u32, r: Option<RegId>, v: u64) {
        if let Some(r) = r {
            self.put(lane, r, v);
        }
    }

    fn put_all(&self, r: RegId, v: u32) {
        warp::lanes(self.lanes).for_each(|l| self.put(l, r, u64::from(v)));
    }

    /// An operand's value in every member.
    fn gather(&self, o: Operand) -> [u64; 32] {
        let mut all = [0; 32];
        for l in warp::lanes(self.lanes) {
            all[l as usize] = self.env(l).value(o);
        }
        all
    }

    fn illegal(&self) -> Fault {
        self.env(0).fault(FaultKind::IllegalInstruction)
    }

    fn vote(&self, op: &Op) {
        let Op::Vote {
            mode, dst, pred, ..
        } = op
        else {
            return;
        };
        let truth = warp::lanes(self.lanes)
            .filter(|l| self.env(*l).pred(*pred))
            .fold(0, |m, l| m | 1u32 << l);
        let v = warp::vote(*mode, self.lanes, truth);
        let v = match mode {
            VoteMode::Ballot => v,
            _ => u32::from(v != 0),
        };
        self.put_all(*dst, v);
    }

    fn matching(&self, op: &Op) {
        let Op::Match {
            all,
            ty,
            dst,
            pred,
            a,
            ..
        } = op
        else {
            return;
        };
        let values = (self.gather(*a)).map(|v| v & mica_ptx_ops::typed::mask(ty.bits()));
        for l in warp::lanes(self.lanes) {
            let (m, p) = match all {
                true => warp::match_all(self.lanes, &values),
                false => (warp::match_any(self.lanes, &values, l), true),
            };
            self.put_some(l, *dst, u64::from(m));
            self.put_some(l, *pred, u64::from(p));
        }
    }

    fn redux(&self, op: &Op) {
        let Op::Redux {
            op,
            ty,
            abs,
            nan,
            dst,
            src,
            ..
        } = op
        else {
            return;
        };
        let values = self.gather(*src).map(|v| v as u32);
        let v = match ty {
            ScalarType::F32 => {
                warp::redux_f32(*op == ReduxOp::Max, *abs, *nan, self.lanes, &values)
            }
            _ => warp::redux(*op, ty.is_signed(), self.lanes, &values),
        };
        self.put_all(*dst, v);
    }

    fn shuffle(&self, op: &Op) {
        let Op::Shfl {
            mode,
            dst,
            pred,
            src,
            lane,
            clamp,
            ..
        } = op
        else {
            return;
        };
        let values = self.gather(*src);
        for l in warp::lanes(self.lanes) {
            let e = self.env(l);
            let (from, inside) = warp::shfl_source(*mode, l, e.word(*lane), e.word(*clamp));
            // Reading a lane that takes no part is undefined; its own value then.
            let takes_part = from < 32 && self.lanes >> from & 1 == 1;
            if !takes_part && inside {
                let t = self.w * 32 + l;
                self.d.tell_misuse(Misuse::ShuffleFromAbsent, t, self.site);
            }
            let from = if takes_part { from } else { l };
            self.put_some(l, *dst, values[from as usize]);
            self.put_some(l, *pred, u64::from(inside));
        }
    }

    /// `movmatrix`: the halves of an 8 by 8 tile, transposed.
    fn transpose(&self, dst: RegId, src: Operand) {
        let values = self.gather(src);
        for l in warp::lanes(self.lanes) {
            let mut out = 0u64;
            for (i, (row, col)) in tile_places(l, true).iter().enumerate() {
                let owner = row * 4 + col / 2;
                let half = values[owner as usize & 31] >> (16 * (col & 1)) & 0xffff;
                out |= half << (16 * i);
            }
            self.put(l, dst, out);
        }
    }

    fn wmma_load(&self, x: &WmmaLoad) -> Result<(), Fault> {
        let Some(f) = wmma_fragment(x.shape, x.matrix, x.ty) else {
            return Err(self.illegal());
        };
        for l in warp::lanes(self.lanes) {
            let e = self.env(l);
            let stride = stride_of(&e, x.stride, x.layout, f.rows, f.cols);
            let mut regs: LaneRegisters = [0; 8];
            for (i, (row, col)) in f.lane_places(l).enumerate() {
                let bit = memory_bit_offset(x.layout, stride, row, col, f.ty.bits());
                let bits = element(&e, x.space, &x.addr, bit, f.ty.bits(), None)?;
                f.insert(&mut regs, i as u32, bits);
            }
            for (r, v) in x.dst.iter().zip(regs) {
                self.put(l, *r, v);
            }
        }
        Ok(())
    }

    fn wmma_store(&self, x: &WmmaStore) -> Result<(), Fault> {
        let Some(f) = wmma_fragment(x.shape, WmmaMatrix::C, x.ty) else {
            return Err(self.illegal());
        };
        for l in warp::lanes(self.lanes) {
            let e = self.env(l);
            let stride = stride_of(&e, x.stride, x.layout, f.rows, f.cols);
            let mut regs: LaneRegisters = [0; 8];
            for (r, o) in regs.iter_mut().zip(&x.src) {
                *r = e.value(*o);
            }
            for (i, (row, col)) in f.lane_places(l).enumerate() {
                let bit = memory_bit_offset(x.layout, stride, row, col, f.ty.bits());
                let v = f.extract(&regs, i as u32);
                element(&e, x.space, &x.addr, bit, f.ty.bits(), Some(v))?;
            }
        }
        Ok(())
    }
}
