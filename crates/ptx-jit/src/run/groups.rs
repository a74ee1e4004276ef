//! Collectives of a warp that has come as a whole and whose masks divide it: tiles of cooperative groups, groups of lanes
//! that agree.
//!
//! Owns finding the groups and the simple collectives in all of them at once, on whole rows of slots.

use mica_ptx::ast::Op;
use mica_ptx_ops::warp;

use super::env::End;
use super::members;
use super::whole_warp::{Row, voted};

/// Who takes part in a collective that all lanes of a warp are at.
pub(super) enum TakesPart {
    Everyone,
    /// The members of each lane's group.
    Groups([u32; 32]),
}

impl Row<'_, '_> {
    /// Who takes part in an instruction that all lanes are at. `None` for barriers of the block, which no warp
    /// opens, and where a mask names a lane that came with another one.
    pub(super) fn takes_part(&self, op: &Op) -> Option<TakesPart> {
        let mask = match op {
            Op::Bar { .. } | Op::BarRed { .. } | Op::BarCluster { .. } | Op::WgmmaWait => {
                return None;
            }
            Op::BarWarp { mask }
            | Op::Match { mask, .. }
            | Op::Redux { mask, .. }
            | Op::Elect { mask, .. } => *mask,
            Op::Vote { mask, .. } | Op::Shfl { mask, .. } => match mask {
                Some(mask) => *mask,
                None => return Some(TakesPart::Everyone),
            },
            _ => return Some(TakesPart::Everyone),
        };
        let masks = self.load(mask)?.map(|m| m as u32);
        let all = self.members();
        if masks[0] & all == all && masks[..self.lanes].iter().all(|m| *m == masks[0]) {
            return Some(TakesPart::Everyone);
        }
        self.groups(&masks).map(TakesPart::Groups)
    }

    /// The members of each lane's group, where the masks divide the warp: tiles, labels, lanes that agree.
    fn groups(&self, masks: &[u32; 32]) -> Option<[u32; 32]> {
        let mut groups = [0; 32];
        let mut seen = 0u32;
        for l in 0..self.lanes {
            if seen >> l & 1 == 1 {
                continue;
            }
            let members = masks[l] & self.members();
            let same = (0..self.lanes).filter(|other| masks[*other] == masks[l]);
            if same.fold(0, |m, other| m | 1 << other) != members {
                return None;
            }
            warp::lanes(members).for_each(|member| groups[member as usize] = members);
            seen |= members;
        }
        Some(groups)
    }

    /// Does a collective in each group of a warp by itself.
    pub(super) fn in_groups(&self, op: &Op, groups: &[u32; 32]) -> Result<(), End> {
        if self.simple_in_groups(op, groups).is_some() {
            return Ok(());
        }
        let mut done = 0u32;
        for (l, members) in groups.iter().enumerate().take(self.lanes) {
            if done >> l & 1 == 0 {
                members::execute(self.d, self.first / 32, self.site, op, *members)?;
                done |= members;
            }
        }
        Ok(())
    }

    /// Does what needs no more than rows. `None` for the rest.
    fn simple_in_groups(&self, op: &Op, groups: &[u32; 32]) -> Option<()> {
        match op {
            Op::BarWarp { .. } => {}
            Op::Vote {
                mode, dst, pred, ..
            } => {
                let truth = self.truth(pred)?;
                self.store(*dst, |l| voted(*mode, groups[l], truth & groups[l]));
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
                let values = self.load(*src)?;
                self.shuffle(*mode, (*dst, *pred), &values, from, |l| groups[l]);
            }
            _ => return None,
        }
        Some(())
    }
}
