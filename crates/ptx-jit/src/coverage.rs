//! Which blocks of a kernel were entered, and which instructions were reached by that.
//!
//! Compiled code sets one byte for each block ([`crate::emit`]); all versions of a kernel share the bytes, as they share the
//! plan. A block of which one thread executed a part counts as a whole.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::unit::Unit;

/// Bytes for each block of a unit; none where nothing is recorded.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    entered: Vec<AtomicU8>,
    told: Vec<AtomicBool>,
}

impl Coverage {
    pub(crate) fn of(unit: &Unit) -> Self {
        Self {
            entered: unit.blocks.iter().map(|_| AtomicU8::new(0)).collect(),
            told: unit.blocks.iter().map(|_| AtomicBool::new(false)).collect(),
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        !self.entered.is_empty()
    }

    /// What [`mica_kernel::BlockContext::entered`] is set to.
    pub(crate) fn entered(&self) -> *const AtomicU8 {
        self.entered.as_ptr()
    }

    /// Tells the function and the index of each instruction that was reached since the last time.
    pub(crate) fn take(&self, unit: &Unit, tell: &mut dyn FnMut(u32, u32)) {
        let blocks = unit.blocks.iter().zip(&self.entered).zip(&self.told);
        for ((block, entered), told) in blocks {
            if entered.load(Ordering::Relaxed) == 0 || told.load(Ordering::Relaxed) {
                continue;
            }
            // Two launches that end at once: one of them tells it.
            if told.swap(true, Ordering::Relaxed) {
                continue;
            }
            let function = unit.instances[block.instance as usize].func.0;
            block.covers.iter().for_each(|inst| tell(function, *inst));
        }
    }
}
