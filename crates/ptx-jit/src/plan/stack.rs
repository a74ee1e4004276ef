//! How much local memory a kernel needs, all frames and saved registers included.

use mica_ptx::ast::{Callee, FuncId, Module, Op};
use mica_ptx_ops::calls::chains;
use std::collections::HashMap;

use super::Plan;
use crate::unit::{Place, Term};

/// Words below the frame of an out-of-line function: where to go on, the caller's stack pointer, where
/// results are; one is spare, so that frames stay aligned to 16 bytes.
pub(crate) const LINK: u64 = 32;

/// The local memory of out-of-line functions, the kernel first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stack {
    /// By root: inlined frames, then registers that are saved over calls.
    bytes: Vec<u64>,
    root_of: HashMap<FuncId, u32>,
    /// What the deepest chain of calls needs; of a recursive one each function is counted once.
    pub(crate) whole: u64,
}

impl Stack {
    /// Bytes that an activation of a root needs besides what it calls.
    pub(crate) fn of(&self, root: u32) -> u64 {
        self.bytes.get(root as usize).copied().unwrap_or(u64::MAX)
    }

    /// Bytes of the kernel's own activation: compiled code does not check that they are there.
    pub(crate) fn kernel(&self) -> u64 {
        self.of(0)
    }

    /// The out-of-line version of a function.
    pub(crate) fn root(&self, func: FuncId) -> Option<u32> {
        self.root_of.get(&func).copied()
    }
}

impl Plan {
    pub(crate) fn measure_stack(&mut self, module: &Module) {
        let unit = &self.unit;
        let root_of: HashMap<FuncId, u32> =
            (0..).zip(&unit.roots).map(|(i, r)| (r.func, i)).collect();
        let mut saved = vec![0u64; unit.roots.len()];
        let mut callees: Vec<Vec<usize>> = vec![Vec::new(); unit.roots.len()];
        let mut by_pointer = vec![false; unit.roots.len()];
        for &b in &self.graph.rpo {
            let block = &unit.blocks[b as usize];
            let Term::Call { inst, next } = block.term else {
                continue;
            };
            let root = unit.instances[block.instance as usize].root as usize;
            saved[root] = saved[root].max(self.live_at(&[next]).len() as u64 * 16);
            let place = Place {
                instance: block.instance,
                inst,
            };
            match &unit.inst(module, place).op {
                Op::Call {
                    callee: Callee::Direct(f),
                    ..
                } => callees[root].extend(root_of.get(f).map(|r| *r as usize)),
                _ => by_pointer[root] = true,
            }
        }
        for (list, any) in callees.iter_mut().zip(by_pointer) {
            if any {
                // Any function but the kernel.
                list.extend(1..unit.roots.len());
            }
            list.sort_unstable();
            list.dedup();
        }
        let bytes: Vec<u64> = (unit.roots.iter().zip(&saved))
            .map(|(r, saved)| r.frame_bytes.next_multiple_of(16) + saved)
            .collect();
        let whole = chains(&callees, |r| bytes[r].saturating_add(LINK)).weight;
        // Nothing links to the kernel itself.
        let whole = whole.first().map_or(0, |w| w.saturating_sub(LINK));
        self.stack = Stack {
            bytes,
            root_of,
            whole,
        };
    }
}
