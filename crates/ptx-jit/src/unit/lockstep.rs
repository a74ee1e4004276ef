//! Which accesses to memory the threads of a warp take together.
//!
//! Code from before independent threads passes values through volatile memory without a barrier and relies on the warp's
//! taking each access together; a GPU still does so wherever the threads are together. So the threads of a warp meet
//! before such an access, whoever of them is there.

use mica_ptx::ast::{Function, Op, Order, Space};

/// The places of a function at which threads of a warp meet.
pub(super) struct Lockstep {
    in_loop: Vec<bool>,
}

impl Lockstep {
    pub(super) fn of(f: &Function) -> Self {
        // How many more backward jumps go around each instruction than around the one before it.
        let mut change = vec![0i32; f.body.len() + 1];
        for (at, inst) in f.body.iter().enumerate() {
            let mut jump = |target: u32| {
                let target = target as usize;
                if target <= at {
                    change[target] += 1;
                    change[at + 1] -= 1;
                }
            };
            match &inst.op {
                Op::Bra { target, .. } => jump(*target),
                Op::BrxIdx { targets, .. } => targets.iter().for_each(|target| jump(*target)),
                _ => {}
            }
        }
        let around = change.iter().scan(0, |depth, change| {
            *depth += change;
            Some(*depth > 0)
        });
        Self {
            in_loop: around.collect(),
        }
    }

    /// Whether the threads of a warp meet before an instruction of the function.
    pub(super) fn meets(&self, f: &Function, index: u32) -> bool {
        let (Op::Ld { space, order, .. } | Op::St { space, order, .. }) =
            &f.body[index as usize].op
        else {
            return false;
        };
        *order == Order::Volatile
            && match space {
                Space::Shared => true,
                // In a loop, perhaps of a caller, it may wait for another block.
                Space::Global | Space::Generic => f.is_kernel && !self.in_loop[index as usize],
                _ => false,
            }
    }
}

/// Whether the instruction at which threads meet is an access, and so done by each of them when they have met.
pub(crate) fn is_lockstep(op: &Op) -> bool {
    matches!(op, Op::Ld { .. } | Op::St { .. })
}
