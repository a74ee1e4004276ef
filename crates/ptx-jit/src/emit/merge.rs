//! Which accesses are checked together, and which need no check.
//!
//! Accesses of one block that share a base register are checked together by the first of them: if their
//! hull is not inside the window, one of them is not. What a launch's proof speaks of takes no part.

use mica_ptx::ast::{AddrBase, Op, Space};
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

impl Emit<'_, '_> {
    /// Finds accesses of a block that can be checked together.
    pub(crate) fn plan_checks(&mut self, id: BlockId) {
        if self.src.memcheck || self.src.monitor {
            return;
        }
        let unit = &self.plan.unit;
        let module = self.src.module;
        let block = &unit.blocks[id as usize];
        let mut open: HashMap<(Reg, Window, u32), (usize, Hull)> = HashMap::new();
        let mut plan: HashMap<usize, Option<Hull>> = HashMap::new();
        for (at, step) in block.steps.iter().enumerate() {
            if let Step::Inst(i) = step {
                let op = &unit.func(module, block.instance).body[*i as usize].op;
                let found = match op {
                    Op::Ld {
                        space,
                        ty,
                        addr,
                        dst,
                        ..
                    } => Some((space, ty, addr, dst.len())),
                    Op::St {
                        space,
                        ty,
                        addr,
                        src,
                        ..
                    } => Some((space, ty, addr, src.len())),
                    _ => None,
                };
                // Proven accesses check nothing, so no other can rely on their check.
                let place = Place {
                    instance: block.instance,
                    inst: *i,
                };
                let proven = self.src.proven && self.plan.proof.covers(place);
                if let Some((space, ty, addr, n)) = found.filter(|_| !proven) {
                    let bytes = ty.bytes() * n as u32;
                    if let (AddrBase::Reg(r), Some(w)) = (addr.base, mergeable(*space)) {
                        let key = (unit.reg(block.instance, r), w, bytes);
                        let end = addr.offset.saturating_add(i64::from(bytes));
                        let fits = addr.offset.unsigned_abs() < 1 << 24;
                        match open.get_mut(&key) {
                            Some((leader, hull))
                                if fits && (addr.offset - hull.low) % i64::from(bytes) == 0 =>
                            {
                                hull.low = hull.low.min(addr.offset);
                                hull.high = hull.high.max(end);
                                plan.insert(*leader, Some(*hull));
                                plan.insert(at, None);
                            }
                            None if fits => {
                                let hull = Hull {
                                    low: addr.offset,
                                    high: end,
                                    align: bytes,
                                };
                                open.insert(key, (at, hull));
                            }
                            _ => {}
                        }
                    }
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
        Space::Shared | Space::SharedCluster => Some(Window::Shared),
        _ => None,
    }
}
