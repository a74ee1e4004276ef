//! Where vector code can be entered.
//!
//! An entry loads all that is live there, so that many of them make a long function. Code for whole warps does not stop
//! at a collective that always has all lanes, nor where lanes meet that parted shortly before; where there are many
//! collectives, a warp that fell apart is put together elsewhere.

use mica_ptx::ast::{Module, Op, Operand};

use super::Plan;
use crate::unit::WARP;

/// Collectives up to which a warp is put together behind each of them.
const FEW_COLLECTIVES: usize = 64;

impl Plan {
    /// Whether code of so many lanes can be entered at `e`.
    pub(crate) fn is_vector_entry(&self, lanes: usize, e: u32) -> bool {
        self.vector_entries[usize::from(lanes == WARP)]
            .get(e as usize)
            .is_some_and(|is| *is)
    }

    pub(super) fn find_vector_entries(&self, module: &Module, warps: bool) -> Vec<bool> {
        let mut found = vec![false; self.entries.len()];
        let mut mark = |e: u32| {
            if let Some(is) = found.get_mut(e as usize) {
                *is = true;
            }
        };
        mark(0);
        let whole: Vec<bool> = (self.graph.rpo.iter())
            .filter_map(|b| Some((*b, *self.sync_of.get(b)?)))
            .map(|(b, _)| warps && self.inline[b as usize] && self.is_always_whole(module, b))
            .collect();
        let many = whole.iter().filter(|w| **w).count() > FEW_COLLECTIVES;
        for (site, whole) in self.syncs.iter().zip(whole) {
            if !(many && whole) {
                mark(site.next);
            }
        }
        for d in &self.diverges {
            // A group that has met goes on without an entry where it knows what to load.
            if let Some(join) = d.join
                && !(many && d.reload.is_some())
            {
                mark(join);
            }
        }
        self.parks.values().for_each(|e| mark(*e));
        found
    }

    /// Whether the collective at the end of a block has all lanes in every launch.
    fn is_always_whole(&self, module: &Module, b: u32) -> bool {
        let crate::unit::Term::Sync { inst, .. } = self.unit.blocks[b as usize].term else {
            return false;
        };
        let instance = self.unit.blocks[b as usize].instance;
        let op = &self.unit.func(module, instance).body[inst as usize].op;
        mask_of(op).is_none_or(|mask| self.known(instance, mask) == Some(u32::MAX))
    }

    /// The value of an operand that is the same in every launch: a number, or a register that is only ever given
    /// that number.
    pub(crate) fn known(&self, instance: u32, o: &Operand) -> Option<u32> {
        match o {
            Operand::Imm(bits) => Some(*bits as u32),
            Operand::Reg(r) => {
                let constant = self.constants.get(&self.unit.reg(instance, *r));
                constant.map(|c| *c as u32)
            }
            _ => None,
        }
    }
}

/// The lanes that a collective asks for; `None` where it takes whoever is there, or all.
pub(crate) fn mask_of(op: &Op) -> Option<&Operand> {
    match op {
        Op::BarWarp { mask }
        | Op::Match { mask, .. }
        | Op::Redux { mask, .. }
        | Op::Elect { mask, .. } => Some(mask),
        Op::Vote { mask, .. } | Op::Shfl { mask, .. } => mask.as_ref(),
        _ => None,
    }
}
