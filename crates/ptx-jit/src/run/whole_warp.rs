//! Collectives that a whole warp has come to together: by far the most, so they are not asked lane by
//! lane who is there. The last warp of a block is whole with the lanes that it has.
//!
//! Owns finding such warps, and the simple collectives on whole rows of slots. Collectives of groups that divide such a
//! warp are [`super::groups`]'s. What takes part of a warp, or arrives in pieces, is [`super::collective`]'s.

use mica_kernel::{Fault, FaultKind};
use mica_ptx::ast::{
    Mma, Op, Operand, PredSrc, RegId, ScalarType, ShflMode, Space, VoteMode, Wgmma, WgmmaFactor,
};
use mica_ptx_ops::matrix::WarpRegister;
use mica_ptx_ops::matrix::wgmma::{Descriptor, Left, PIECE};
use mica_ptx_ops::{typed, warp};

use super::coherence::slot;
use super::collective::env_of;
use super::dispatch::{Dispatch, conts};
use super::env::{self, End, Env};
use super::fragments;
use super::groups::TakesPart;
use super::helpers::{Ctx, ended, kernel};
use super::members;
use crate::plan::SyncSite;
use crate::scratch::{COHERENT, EXITED, WAITING, status};
use crate::unit::Class;

/// Does the collective that all lanes of a warp wait at. `None` when that is not so.
pub(crate) fn resolve(d: &Dispatch<'_>, w: u32) -> Option<Result<(), End>> {
    let first = w * 32;
    let lanes = d.threads.saturating_sub(first).min(32) as usize;
    let conts = &mut conts(d.scratch)[first as usize..first as usize + lanes];
    let state = conts.first()? & !COHERENT;
    if state & WAITING == 0 || state == EXITED {
        return None;
    }
    // Of a group that runs together only the first thread's word counts.
    let step = |c: u32| match c & COHERENT {
        0 => 1,
        _ => d.lanes as usize,
    };
    let mut at = 0;
    while at < lanes {
        if conts[at] & !COHERENT != state {
            return None;
        }
        at += step(conts[at]);
    }
    let site = &d.k.plan.syncs[(state & !WAITING) as usize];
    let op = &d.k.plan.unit.inst(&d.k.module, site.place).op;
    let row = Row {
        d,
        site,
        first,
        lanes,
    };
    let done = match row.takes_part(op)? {
        TakesPart::Everyone => {
            if matches!(op, Op::BarWarp { .. }) {
                d.tell_warp(w, row.members());
            }
            match row.simple(op) {
                Some(()) => Ok(()),
                None => members::execute(d, w, site, op, row.members()),
            }
        }
        // The monitor is told of each group.
        TakesPart::Groups(_) if d.is_monitored() => return None,
        TakesPart::Groups(groups) => row.in_groups(op, &groups),
    };
    if let Err(end) = done {
        return Some(Err(end));
    }
    let mut at = 0;
    while at < lanes {
        let c = conts[at];
        conts[at] = site.next | c & COHERENT;
        at += step(c);
    }
    Some(Ok(()))
}

/// Does a collective for a warp whose lanes have stored their operands; called by code that runs whole warps.
pub(super) extern "C" fn collective(ctx: Ctx, index: u64, t: u64) -> u64 {
    let d = Dispatch::of(ctx, kernel(ctx));
    let site = &d.k.plan.syncs[index as usize];
    let op = &d.k.plan.unit.inst(&d.k.module, site.place).op;
    let row = Row {
        d: &d,
        site,
        first: t as u32,
        lanes: 32,
    };
    if row.simple(op).is_some() {
        return status::OK as u64;
    }
    match members::execute(&d, t as u32 >> 5, site, op, u32::MAX) {
        Ok(()) => status::OK as u64,
        Err(end) => ended(ctx, end),
    }
}

/// `wgmma.mma_async`: the rows that a warp computes. A block of 32 warps would compute for too long without a look at whether
/// it should stop.
pub(super) fn wgmma(d: &Dispatch<'_>, w: u32, site: &SyncSite, x: &Wgmma) -> Result<(), End> {
    let first = w * 32;
    let row = Row {
        d,
        site,
        first,
        lanes: d.threads.saturating_sub(first).min(32) as usize,
    };
    let e = env_of(d, site, first);
    e.poll()?;
    match row.wgmma(x, &e) {
        Some(done) => Ok(done?),
        None => Err(e.fault(FaultKind::IllegalInstruction).into()),
    }
}

/// What a vote gives each of its members.
pub(super) fn voted(mode: VoteMode, members: u32, truth: u32) -> u64 {
    match (mode, warp::vote(mode, members, truth)) {
        (VoteMode::Ballot, v) => u64::from(v),
        (_, v) => u64::from(v != 0),
    }
}

/// The slots of one warp at one site.
pub(super) struct Row<'d, 'k> {
    pub(super) d: &'d Dispatch<'k>,
    pub(super) site: &'k SyncSite,
    pub(super) first: u32,
    pub(super) lanes: usize,
}

impl Row<'_, '_> {
    pub(super) fn members(&self) -> u32 {
        u32::MAX >> (32 - self.lanes)
    }

    /// An operand of all lanes; `None` for what is no register or number.
    pub(super) fn load(&self, o: Operand) -> Option<WarpRegister> {
        let mut row = [0; 32];
        self.load_into(o, &mut row)?;
        Some(row)
    }

    /// The same into a row that exists.
    fn load_into(&self, o: Operand, out: &mut WarpRegister) -> Option<()> {
        let r = match o {
            Operand::Reg(r) => r,
            Operand::Imm(bits) => {
                out.fill(bits);
                return Some(());
            }
            _ => return None,
        };
        let at = self.site.uses.iter().position(|u| u.0 == r)?;
        let class = self.site.uses[at].1;
        let bytes = class.slot_bytes();
        let base = slot(
            self.d.k,
            self.d.scratch,
            (at * 256) as u32,
            class,
            self.first,
        ) as u64;
        if (self.lanes, class) == (32, Class::B32) {
            // SAFETY: a whole row of the warp's frame, aligned; one host thread runs the block.
            let row = unsafe { &*(base as *const [u32; 32]) };
            for (to, word) in out.iter_mut().zip(row) {
                *to = u64::from(*word);
            }
            return Some(());
        }
        for (l, to) in out.iter_mut().enumerate().take(self.lanes) {
            let v = env::load(base + l as u64 * u64::from(bytes), bytes);
            *to = match class {
                Class::Pred => u64::from(v != 0),
                _ => v,
            };
        }
        Some(())
    }

    pub(super) fn store(&self, r: RegId, values: impl Fn(usize) -> u64) {
        for (reg, class, offset) in &self.site.defs {
            let (true, Some(offset)) = (*reg == r, offset) else {
                continue;
            };
            let bytes = class.slot_bytes();
            let base = slot(self.d.k, self.d.scratch, *offset, *class, self.first) as u64;
            if (self.lanes, *class) == (32, Class::B32) {
                let row: [u32; 32] = std::array::from_fn(|l| values(l) as u32);
                // SAFETY: a whole row of the warp's frame, aligned; one host thread runs the block.
                unsafe { (base as *mut [u32; 32]).write(row) };
                continue;
            }
            for l in 0..self.lanes {
                env::store(base + l as u64 * u64::from(bytes), bytes, values(l));
            }
        }
    }

    /// The lanes whose predicate holds.
    pub(super) fn truth(&self, pred: &PredSrc) -> Option<u32> {
        let preds = self.load(pred.src)?;
        let holds = |l: &usize| (preds[*l] != 0) != pred.negated;
        Some((0..self.lanes).filter(holds).fold(0, |m, l| m | 1 << l))
    }

    /// Gives each lane the value of the lane that it names, with the bits of its clamp, if both take part together.
    pub(super) fn shuffle(
        &self,
        mode: ShflMode,
        (dst, pred): (Option<RegId>, Option<RegId>),
        values: &WarpRegister,
        (lane, clamp): (WarpRegister, WarpRegister),
        members: impl Fn(usize) -> u32,
    ) {
        let from: [(u32, bool); 32] = std::array::from_fn(|l| {
            warp::shfl_source(mode, l as u32, lane[l] as u32, clamp[l] as u32)
        });
        if let Some(dst) = dst {
            self.store(dst, |l| match from[l].0 {
                lane if lane < 32 && members(l) >> lane & 1 == 1 => values[lane as usize],
                // No lane: its own value.
                _ => values[l],
            });
        }
        if let Some(pred) = pred {
            self.store(pred, |l| u64::from(from[l].1));
        }
    }

    /// Does what needs no more than rows. `None` for the rest.
    fn simple(&self, op: &Op) -> Option<()> {
        match op {
            Op::BarWarp { .. } | Op::Ld { .. } | Op::St { .. } => {}
            Op::Activemask { dst } => self.store(*dst, |_| u64::from(self.members())),
            Op::Vote {
                mode, dst, pred, ..
            } => {
                let v = voted(*mode, self.members(), self.truth(pred)?);
                self.store(*dst, |_| v);
            }
            Op::Redux {
                op, ty, dst, src, ..
            } if *ty != ScalarType::F32 => {
                let values = self.load(*src)?.map(|v| v as u32);
                let v = warp::redux(*op, ty.is_signed(), self.members(), &values);
                self.store(*dst, |_| u64::from(v));
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
                let from = (self.load(*lane)?, self.load(*clamp)?);
                let all = self.members();
                self.shuffle(*mode, (*dst, *pred), &self.load(*src)?, from, |_| all);
            }
            Op::Match {
                all: false,
                ty,
                dst,
                pred: None,
                a,
                ..
            } => {
                let mask = typed::mask(ty.bits());
                let values = self.load(*a)?.map(|v| v & mask);
                let found = warp::match_any_of_all(self.members(), &values);
                self.store((*dst)?, |l| u64::from(found[l]));
            }
            // A partial warp is looked at lane by lane.
            Op::Mma(x) | Op::WmmaMma(x) if self.lanes == 32 => self.multiply(x)?,
            _ => self.matrix_memory(op)?,
        }
        Some(())
    }

    /// `mma` in its usual shapes has ten registers of operands and four of results, `wmma` up to eight of each.
    fn multiply(&self, x: &Mma) -> Option<()> {
        match (x.a.len() + x.b.len() + x.c.len(), x.d.len()) {
            (..=10, ..=4) => self.multiply_rows::<10, 4>(x),
            (..=24, ..=8) => self.multiply_rows::<24, 8>(x),
            _ => None,
        }
    }

    fn wgmma(&self, x: &Wgmma, e: &Env<'_>) -> Option<Result<(), Fault>> {
        let plan = self.site.wgmma.as_ref()?;
        let rows = |list: &[Operand]| -> Option<Vec<WarpRegister>> {
            list.iter().map(|o| self.load(*o)).collect()
        };
        let registers;
        let left = match &x.a {
            WgmmaFactor::Registers(list) => {
                registers = rows(list)?;
                Left::Registers(&registers)
            }
            WgmmaFactor::Descriptor(from) => {
                Left::Shared(Descriptor::of(e.value(*from)), self.first / 32)
            }
        };
        let accumulators: Vec<Operand> = x.d.iter().map(|r| Operand::Reg(*r)).collect();
        let mut d = rows(&accumulators)?;
        let right = Descriptor::of(e.value(x.b));
        let adds = e.pred(x.scale_d);
        let mut bad = None;
        let mut read = |at| {
            let host = e.host_at(Space::Shared, at, PIECE as u32, PIECE as u32, false);
            let host = host.map_err(|fault| bad = Some(fault)).ok()?;
            let [low, high] = [0, 8].map(|offset| env::load(host + offset, 8));
            Some((u128::from(high) << 64 | u128::from(low)).to_le_bytes())
        };
        if plan.run(&left, right, adds, &mut d, &mut read).is_none() {
            return bad.map(Err);
        }
        for (r, row) in x.d.iter().zip(&d) {
            self.store(*r, |l| row[l]);
        }
        Some(Ok(()))
    }

    fn multiply_rows<const FROM: usize, const TO: usize>(&self, x: &Mma) -> Option<()> {
        let plan = self.site.product.as_ref()?;
        let mut rows: [WarpRegister; FROM] = [[0; 32]; FROM];
        for (row, o) in rows.iter_mut().zip(x.a.iter().chain(&x.b).chain(&x.c)) {
            self.load_into(*o, row)?;
        }
        let (a, rest) = rows.split_at(x.a.len());
        let (b, c) = rest.split_at(x.b.len());
        let mut out: [WarpRegister; TO] = [[0; 32]; TO];
        fragments::product(plan, a, b, c, &mut out);
        for (r, row) in x.d.iter().zip(&out) {
            self.store(*r, |l| row[l]);
        }
        Some(())
    }
}
