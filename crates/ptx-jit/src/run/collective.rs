//! Warp collectives: done for all members at once, when the last of them has arrived.

use mica_kernel::monitor::Misuse;
use mica_ptx::ast::Op;

use super::coherence::slot;
use super::dispatch::Dispatch;
use super::env::{self, End, Env, MAX_USES};
use super::members::execute;
use super::whole_warp;
use crate::plan::{SyncKind, SyncSite};
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
pub(crate) fn resolve(d: &Dispatch<'_>, w: u32) -> Result<bool, End> {
    if let Some(done) = whole_warp::resolve(d, w) {
        return done.map(|()| true);
    }
    let arrived = d.arrived(w);
    // Barriers are none of its business, and by far the most that warps wait at.
    if !(arrived.site.iter().flatten()).any(|id| d.site(*id).kind == SyncKind::Collective) {
        return Ok(false);
    }
    let mut warp = Warp {
        d,
        w,
        masks: masks(d, w, &arrived),
        arrived,
        done: 0,
    };
    warp.resolve(false)?;
    // Collectives without a mask (`activemask`) take whoever is there, so they go last.
    if warp.done == 0 {
        warp.resolve(true)?;
    }
    let done = warp.done;
    if done == 0 {
        return Ok(false);
    }
    let is_done = |t: u32| t >> 5 == w && done >> (t & 31) & 1 == 1;
    d.release(&is_done, w * 32, (w * 32 + 32).min(d.threads));
    Ok(true)
}

/// A warp whose collectives are looked through.
struct Warp<'a> {
    d: &'a Dispatch<'a>,
    w: u32,
    arrived: Arrived,
    /// Who takes part in the collective that each lane waits for, read once: a warp may fall into 32 groups.
    masks: [Option<u32>; 32],
    /// Lanes whose collective has been done.
    done: u32,
}

impl Warp<'_> {
    fn site(&self, id: u32) -> (&SyncSite, &Op) {
        let site = &self.d.k.plan.syncs[id as usize];
        (
            site,
            &self.d.k.plan.unit.inst(&self.d.k.module, site.place).op,
        )
    }

    /// Does the collectives with a mask, or those without one, whose members are all there.
    fn resolve(&mut self, unmasked: bool) -> Result<(), End> {
        let mut seen = 0u32;
        for lane in 0..32u32 {
            if (seen | self.done) >> lane & 1 == 1 {
                continue;
            }
            let Some(id) = self.arrived.site[lane as usize] else {
                continue;
            };
            let (site, op) = self.site(id);
            if matches!(
                op,
                Op::Bar { .. } | Op::BarRed { .. } | Op::BarCluster { .. } | Op::WgmmaWait
            ) {
                continue;
            }
            let mask = self.masks[lane as usize];
            if mask.is_none() != unmasked {
                continue;
            }
            let here = self.waiting_with(id, mask);
            seen |= here;
            let members = match mask {
                None => here,
                Some(m) => m & self.arrived.present & !self.arrived.exited,
            };
            if members & !here != 0 {
                continue;
            }
            // A mask that leaves out the lane itself is undefined; it takes part all the same.
            let members = members | 1 << lane;
            if let Some(mask) = mask {
                self.look(site, op, (mask, members), lane);
            }
            execute(self.d, self.w, site, op, members)?;
            self.done |= members;
        }
        Ok(())
    }

    /// Tells the monitor of a collective that is about to be done, and of what is wrong with its mask.
    fn look(&self, site: &SyncSite, op: &Op, (mask, members): (u32, u32), lane: u32) {
        if !self.d.is_monitored() {
            return;
        }
        let t = self.w * 32 + lane;
        if op_has_mask(op) && mask >> lane & 1 == 0 {
            self.d.tell_misuse(Misuse::NotInMask, t, site);
        }
        if matches!(op, Op::BarWarp { .. }) {
            self.d.tell_warp(self.w, members);
        }
    }

    /// Lanes that wait for the collective at a site with the same mask.
    fn waiting_with(&self, id: u32, mask: Option<u32>) -> u32 {
        let is_barrier = |id| matches!(self.site(id).1, Op::BarWarp { .. });
        let mut here = 0u32;
        for lane in 0..32u32 {
            let Some(other) = self.arrived.site[lane as usize] else {
                continue;
            };
            // A warp's barrier is one for all the places that it stands at.
            let is_same = other == id || (is_barrier(id) && is_barrier(other));
            if is_same && self.done >> lane & 1 == 0 && self.masks[lane as usize] == mask {
                here |= 1 << lane;
            }
        }
        here
    }
}

pub(super) fn env_of<'a>(d: &Dispatch<'a>, site: &'a SyncSite, t: u32) -> Env<'a> {
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
        whole: std::ptr::null(),
        texture: Default::default(),
        mbarrier: Default::default(),
    }
}

/// Who takes part in the collective that each lane waits for.
fn masks(d: &Dispatch<'_>, w: u32, arrived: &Arrived) -> [Option<u32>; 32] {
    let mut masks = [None; 32];
    for (lane, id) in (0..).zip(&arrived.site) {
        let Some(id) = id else { continue };
        let site = d.site(*id);
        let op = &d.k.plan.unit.inst(&d.k.module, site.place).op;
        masks[lane as usize] = member_mask(op, &env_of(d, site, w * 32 + lane));
    }
    masks
}

/// Whether the program wrote the mask.
fn op_has_mask(op: &Op) -> bool {
    match op {
        Op::BarWarp { .. } | Op::Match { .. } | Op::Redux { .. } | Op::Elect { .. } => true,
        Op::Vote { mask, .. } | Op::Shfl { mask, .. } => mask.is_some(),
        _ => false,
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
