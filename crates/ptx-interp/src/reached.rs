//! Which instructions were reached, where coverage is recorded.

use mica_ptx::ast::{Module, Op};
use std::sync::atomic::{AtomicU8, Ordering};

use crate::state::Frame;

const NEW: u8 = 1;
const TOLD: u8 = 2;

/// One byte for each instruction of each function; none where nothing is recorded.
#[derive(Debug, Default)]
pub(crate) struct Reached(Vec<Vec<AtomicU8>>);

impl Reached {
    pub(crate) fn of(module: &Module) -> Self {
        let bytes = |count| (0..count).map(|_| AtomicU8::new(0)).collect();
        let functions = module.functions.iter();
        Self(functions.map(|f| bytes(f.body.len())).collect())
    }

    /// A thread is at an instruction; `runs` says whether its guard lets it. A branch that is not taken was decided,
    /// which counts.
    pub(crate) fn note(&self, frame: Frame, op: &Op, runs: bool) {
        let Some(function) = self.0.get(frame.function.index()) else {
            return;
        };
        if !runs && !matches!(op, Op::Bra { .. } | Op::BrxIdx { .. }) {
            return;
        }
        if let Some(byte) = function.get(frame.pc as usize)
            && byte.load(Ordering::Relaxed) == 0
        {
            byte.store(NEW, Ordering::Relaxed);
        }
    }

    /// Tells what was reached since the last time.
    pub(crate) fn take(&self, tell: &mut dyn FnMut(u32, u32)) {
        for (function, bytes) in self.0.iter().enumerate() {
            for (inst, byte) in bytes.iter().enumerate() {
                if byte.load(Ordering::Relaxed) == NEW {
                    byte.store(TOLD, Ordering::Relaxed);
                    tell(function as u32, inst as u32);
                }
            }
        }
    }
}
