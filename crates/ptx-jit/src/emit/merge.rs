//! Which accesses are checked together, and which need no check.
//!
//! Accesses of one block that share a base register are checked together by the first of them: if their
//! hull is not inside the window, one of them is not. What a launch's proof speaks of takes no part.

use mica_ptx::ast::{AddrBase, Op, RegId, Space};
use mica_ptx::visit::Access as Touch;
use std::collections::HashMap;

use super::Emit;
use super::memory::{Ask, Window};
use crate::liveness::visit_step;
use crate::unit::{BlockId, Place, Reg, Step};

/// Which checks of a block are done where.
#[derive(Default)]
pub(crate) struct Merged {
    /// The step being emitted.
    pub(crate) at: usize,
    /// By step: the hull to check there, or none when an earlier step did.
    plan: HashMap<usize, Option<Hull>>,
}

/// The smallest range of offsets that holds several accesses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hull {
    pub(crate) low: i64,
    pub(crate) high: i64,
    pub(crate) align: u32,
}

impl Hull {
    /// Bytes from the lowest to the end of the highest. Offsets are the program's, up to the ends of their range.
    pub(crate) fn span(&self) -> u64 {
        self.high.wrapping_sub(self.low) as u64
    }
}

/// Accesses with one base register, window and size, and the step at which they are checked.
type Open = HashMap<(Reg, Window, u32), (usize, Hull)>;

/// An access that can be checked together with others: base register, window, bytes, offset.
fn access(op: &Op) -> Option<(RegId, Window, u32, i64)> {
    let (space, ty, addr, elements) = match op {
        Op::Ld {
            space,
            ty,
            addr,
            dst,
            ..
        } => (space, ty, addr, dst.len()),
        Op::St {
            space,
            ty,
            addr,
            src,
            ..
        } => (space, ty, addr, src.len()),
        _ => return None,
    };
    match addr.base {
        AddrBase::Reg(register) => {
            let bytes = ty.bytes() * elements as u32;
            Some((register, mergeable(*space)?, bytes, addr.offset))
        }
        _ => None,
    }
}

/// Has an access checked by an earlier step with the same key, or makes it the first one.
fn join(
    open: &mut Open,
    plan: &mut HashMap<usize, Option<Hull>>,
    key: (Reg, Window, u32),
    at: usize,
    offset: i64,
) {
    if offset.unsigned_abs() >= 1 << 24 {
        return;
    }
    let bytes = key.2;
    let end = offset.saturating_add(i64::from(bytes));
    match open.get_mut(&key) {
        Some((leader, hull)) if (offset - hull.low) % i64::from(bytes) == 0 => {
            hull.low = hull.low.min(offset);
            hull.high = hull.high.max(end);
            plan.insert(*leader, Some(*hull));
            plan.insert(at, None);
        }
        Some(_) => {}
        None => {
            let hull = Hull {
                low: offset,
                high: end,
                align: bytes,
            };
            open.insert(key, (at, hull));
        }
    }
}

impl Emit<'_, '_> {
    /// Finds accesses of a block that can be checked together.
    pub(crate) fn plan_checks(&mut self, id: BlockId) {
        if self.src.memcheck || self.src.monitor {
            return;
        }
        let unit = &self.plan.unit;
        let module = self.src.module;
        let block = &unit.blocks[id as usize];
        let mut open = Open::new();
        let mut plan = HashMap::new();
        for (at, step) in block.steps.iter().enumerate() {
            if let Step::Inst(i) = step {
                let op = &unit.func(module, block.instance).body[*i as usize].op;
                let place = Place {
                    instance: block.instance,
                    inst: *i,
                };
                // Proven accesses check nothing, so no other can rely on their check.
                let proven = self.src.proven && self.plan.proof.covers(place);
                if let Some((register, window, bytes, offset)) = access(op).filter(|_| !proven) {
                    let key = (unit.reg(block.instance, register), window, bytes);
                    join(&mut open, &mut plan, key, at, offset);
                }
            }
            visit_step(unit, module, block.instance, *step, &mut |r, a| {
                if a == Touch::Def {
                    open.retain(|k, _| k.0 != r);
                }
            });
        }
        self.merged.plan = plan;
    }

    /// What has to be checked here, if neither an earlier step nor the launch's proof did.
    pub(crate) fn hull(&self, offset: i64, ask: Ask, by_register: bool) -> Option<Hull> {
        let place = self.plan.slow.get(self.site as usize).map(|s| s.place);
        if self.src.proven && place.is_some_and(|p| self.plan.proof.covers(p)) {
            return None;
        }
        let merged = self.merged.plan.get(&self.merged.at).copied();
        match merged.filter(|_| by_register) {
            Some(planned) => planned,
            None => Some(Hull {
                low: offset,
                high: offset.wrapping_add(i64::from(ask.bytes)),
                align: ask.align,
            }),
        }
    }
}

fn mergeable(space: Space) -> Option<Window> {
    match space {
        Space::Generic | Space::Global | Space::Const => Some(Window::Arena),
        Space::Shared => Some(Window::Shared),
        _ => None,
    }
}
