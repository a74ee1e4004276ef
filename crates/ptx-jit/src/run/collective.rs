//! Warp collectives: done for all members at once, when the last of them has arrived.

use mica_kernel::{Fault, FaultKind};
use mica_ptx::ast::{Op, Operand, ReduxOp, ScalarType, VoteMode};
use mica_ptx_ops::matrix::{LaneRegisters, memory_bit_offset, tile_places, wmma_fragment};
use mica_ptx_ops::warp;

use super::coherence::slot;
use super::dispatch::Dispatch;
use super::env::{self, Env, MAX_USES};
use super::matrix_ops::{element, ld_matrix, multiply, st_matrix, stride_of};
use super::whole_warp;
use crate::plan::SyncSite;
use crate::unit::Class;

/// Where the lanes of a warp are.
#[derive(Default)]
pub(crate) struct Arrived {
    /// Lanes that exist.
    pub(crate) present: u32,
    /// Lanes that have exited.
    pub(crate) exited: u32,
    /// The sync site each lane waits at.
    pub(crate) site: [Option<u32>; 32],
}

/// Does every collective of a warp whose members are all there. Whether any was.
pub(crate) fn resolve(d: &Dispatch<'_>, w: u32) -> Result<bool, Fault> {
    if let Some(done) = whole_warp::resolve(d, w) {
        return done.map(|()| true);
    }
    let a = d.arrived(w);
    let mut done = 0u32;
    let mut seen = 0u32;
    // Collectives without a mask (`activemask`) take whoever is there, so they go last.
    for unmasked in [false, true] {
        if unmasked && done != 0 {
            break;
        }
        seen = if unmasked { 0 } else { seen };
        for lane in 0..32u32 {
            if seen >> lane & 1 == 1 || done >> lane & 1 == 1 {
                continue;
            }
            let Some(site_id) = a.site[lane as usize] else {
                continue;
            };
            let site = &d.k.plan.syncs[site_id as usize];
            let op = &d.k.plan.unit.inst(&d.k.module, site.place).op;
            if matches!(
                op,
                Op::Bar { .. } | Op::BarRed { .. } | Op::BarCluster { .. }
            ) {
                continue;
            }
            let lane_env = env_of(d, site, w * 32 + lane);
            let mask = member_mask(op, &lane_env);
            if mask.is_none() != unmasked {
                continue;
            }
            // Lanes that are there too, with the same mask.
            let mut here = 0u32;
            for l in 0..32u32 {
                let Some(other) = a.site[l as usize] else {
                    continue;
                };
                let same = if matches!(op, Op::BarWarp { .. }) {
                    let s = &d.k.plan.syncs[other as usize];
                    matches!(
                        d.k.plan.unit.inst(&d.k.module, s.place).op,
                        Op::BarWarp { .. }
                    )
                } else {
                    other == site_id
                };
                if same && done >> l & 1 == 0 {
                    let s = &d.k.plan.syncs[other as usize];
                    let o = &d.k.plan.unit.inst(&d.k.module, s.place).op;
                    if member_mask(o, &env_of(d, s, w * 32 + l)) == mask {
                        here |= 1 << l;
                    }
                }
            }
            seen |= here;
            let members = match mask {
                None => here,
                Some(m) => m & a.present & !a.exited,
            };
            if members & !here != 0 {
                continue;
            }
            // A mask that leaves out the lane itself is undefined; it takes part all the same.
            let members = members | 1 << lane;
            execute(d, w, site, op, members)?;
            done |= members;
        }
    }
    if done == 0 {
        return Ok(false);
    }
    let is_done = |t: u32| t >> 5 == w && done >> (t & 31) & 1 == 1;
    d.release(&is_done, w * 32, (w * 32 + 32).min(d.threads));
    Ok(true)
}

fn env_of<'a>(d: &Dispatch<'a>, site: &'a SyncSite, t: u32) -> Env<'a> {
    let mut values = [0u64; MAX_USES];
    for (i, (_, class)) in site.uses.iter().enumerate().take(MAX_USES) {
        let p = slot(d.k, d.scratch, (i * 256) as u32, *class, t);
        let v = env::load(p as u64, class.slot_bytes());
        values[i] = if *class == Class::Pred {
            u64::from(v != 0)
        } else {
            v
        };
    }
    let sp = match d.k.plan.sp_slot {
        Some(s) => env::load(slot(d.k, d.scratch, s.offset, s.class, t) as u64, 8),
        None => 0,
    };
    Env {
        kernel: d.k,
        ctx: d.ctx,
        place: site.place,
        thread: t,
        sp,
        uses: &site.uses,
        values,
        texture: Default::default(),
    }
}

/// Who takes part; `None` for whoever is there.
fn member_mask(op: &Op, env: &Env<'_>) -> Option<u32> {
    match op {
        Op::BarWarp { mask }
        | Op::Match { mask, .. }
        | Op::Redux { mask, .. }
        | Op::Elect { mask, .. } => Some(env.word(*mask)),
        Op::Vote { mask, .. } | Op::Shfl { mask, .. } => mask.map(|m| env.word(m)),
        Op::Activemask { .. } | Op::Ld { .. } | Op::St { .. } => None,
        // `.aligned`: the whole warp.
        _ => Some(u32::MAX),
    }
}

pub(crate) fn execute(
    d: &Dispatch<'_>,
    w: u32,
    site: &SyncSite,
    op: &Op,
    members: u32,
) -> Result<(), Fault> {
    let lane_env = |l: u32| env_of(d, site, w * 32 + l);
    let put = |l: u32, r: mica_ptx::ast::RegId, v: u64| {
        for (reg, class, offset) in &site.defs {
            if let (true, Some(o)) = (*reg == r, offset) {
                let p = slot(d.k, d.scratch, *o, *class, w * 32 + l);
                env::store(p as u64, class.slot_bytes(), v);
            }
        }
    };
    let gather = |o: Operand| -> [u64; 32] {
        let mut all = [0; 32];
        for l in warp::lanes(members) {
            all[l as usize] = lane_env(l).value(o);
        }
        all
    };
    match op {
        // What follows happens in the next block, with everyone there.
        Op::BarWarp { .. } | Op::Ld { .. } | Op::St { .. } => {}
        Op::Activemask { dst } => {
            warp::lanes(members).for_each(|l| put(l, *dst, u64::from(members)));
        }
        Op::Vote {
            mode, dst, pred, ..
        } => {
            let truth = warp::lanes(members)
                .filter(|l| lane_env(*l).pred(*pred))
                .fold(0, |m, l| m | 1u32 << l);
            let v = warp::vote(*mode, members, truth);
            let v = if *mode == VoteMode::Ballot {
                v
            } else {
                u32::from(v != 0)
            };
            warp::lanes(members).for_each(|l| put(l, *dst, u64::from(v)));
        }
        Op::Match {
            all,
            ty,
            dst,
            pred,
            a,
            ..
        } => {
            let values = gather(*a).map(|v| v & mica_ptx_ops::typed::mask(ty.bits()));
            for l in warp::lanes(members) {
                let (m, p) = if *all {
                    warp::match_all(members, &values)
                } else {
                    (warp::match_any(members, &values, l), true)
                };
                if let Some(d) = dst {
                    put(l, *d, u64::from(m));
                }
                if let Some(d) = pred {
                    put(l, *d, u64::from(p));
                }
            }
        }
        Op::Redux {
            op,
            ty,
            abs,
            nan,
            dst,
            src,
            ..
        } => {
            let values = gather(*src).map(|v| v as u32);
            let v = if *ty == ScalarType::F32 {
                warp::redux_f32(*op == ReduxOp::Max, *abs, *nan, members, &values)
            } else {
                warp::redux(*op, ty.is_signed(), members, &values)
            };
            warp::lanes(members).for_each(|l| put(l, *dst, u64::from(v)));
        }
        Op::Elect { dst, pred, .. } => {
            let leader = members.trailing_zeros();
            for l in warp::lanes(members) {
                if let Some(d) = dst {
                    put(l, *d, u64::from(leader));
                }
                put(l, *pred, u64::from(l == leader));
            }
        }
        Op::Shfl {
            mode,
            dst,
            pred,
            src,
            lane,
            clamp,
            ..
        } => {
            let values = gather(*src);
            for l in warp::lanes(members) {
                let e = lane_env(l);
                let (from, inside) = warp::shfl_source(*mode, l, e.word(*lane), e.word(*clamp));
                // Reading a lane that takes no part is undefined; its own value then.
                let from = if from < 32 && members >> from & 1 == 1 {
                    from
                } else {
                    l
                };
                if let Some(d) = dst {
                    put(l, *d, values[from as usize]);
                }
                if let Some(p) = pred {
                    put(l, *p, u64::from(inside));
                }
            }
        }
        Op::LdMatrix {
            trans,
            space,
            dst,
            addr,
            ..
        } => {
            ld_matrix(members, *trans, *space, dst, addr, &lane_env, &put)?;
        }
        Op::StMatrix {
            trans,
            space,
            addr,
            src,
            ..
        } => {
            st_matrix(members, *trans, *space, addr, src, &lane_env)?;
        }
        Op::MovMatrix { dst, src } => {
            let values = gather(*src);
            for l in warp::lanes(members) {
                let mut out = 0u64;
                for (i, (row, col)) in tile_places(l, true).iter().enumerate() {
                    let owner = row * 4 + col / 2;
                    let half = values[owner as usize & 31] >> (16 * (col & 1)) & 0xffff;
                    out |= half << (16 * i);
                }
                put(l, *dst, out);
            }
        }
        Op::Mma(m) => multiply(members, m, false, &lane_env, &put)?,
        Op::WmmaMma(m) => multiply(members, m, true, &lane_env, &put)?,
        Op::WmmaLoad(x) => {
            let Some(f) = wmma_fragment(x.shape, x.matrix, x.ty) else {
                return Err(lane_env(0).fault(FaultKind::IllegalInstruction));
            };
            for l in warp::lanes(members) {
                let e = lane_env(l);
                let stride = stride_of(&e, x.stride, x.layout, f.rows, f.cols);
                let mut regs: LaneRegisters = [0; 8];
                for (i, (row, col)) in f.lane_places(l).enumerate() {
                    let bit = memory_bit_offset(x.layout, stride, row, col, f.ty.bits());
                    let bits = element(&e, x.space, &x.addr, bit, f.ty.bits(), None)?;
                    f.insert(&mut regs, i as u32, bits);
                }
                for (r, v) in x.dst.iter().zip(regs) {
                    put(l, *r, v);
                }
            }
        }
        Op::WmmaStore(x) => {
            let Some(f) = wmma_fragment(x.shape, mica_ptx::ast::WmmaMatrix::C, x.ty) else {
                return Err(lane_env(0).fault(FaultKind::IllegalInstruction));
            };
            for l in warp::lanes(members) {
                let e = lane_env(l);
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
        }
        _ => return Err(lane_env(0).fault(FaultKind::IllegalInstruction)),
    }
    Ok(())
}
