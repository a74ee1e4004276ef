//! What a module is charged for: host memory while it is read and compiled, and what is kept of it.
//!
//! [`mica_ptx::reading_bytes`] tells what reading a text takes. `tests/module_memory.rs` holds all figures to what the
//! allocator counts.

use std::sync::Arc;

use mica_gpu::{Result, SessionBudget, Share};

/// Host bytes that compiling takes for one instruction, and those that are kept.
const COMPILING: u64 = 8 << 10;
const COMPILED: u64 = 1 << 10;

/// The charge for a module while it is read; what remains of it goes with the module.
#[derive(Debug, Default)]
pub(crate) struct ReadingShare(Option<Share>);

impl ReadingShare {
    /// Takes more.
    pub(crate) fn add(&mut self, budget: Option<&Arc<SessionBudget>>, bytes: u64) -> Result<()> {
        let Some(budget) = budget else {
            return Ok(());
        };
        let what = "a module";
        match &mut self.0 {
            Some(share) => share.resize(share.bytes().saturating_add(bytes), what),
            None => {
                self.0 = Some(budget.take(bytes, what)?);
                Ok(())
            }
        }
    }

    /// Gives back all but `bytes`.
    pub(crate) fn keep(mut self, bytes: u64) -> Option<Share> {
        if let Some(share) = &mut self.0 {
            let less = bytes.min(share.bytes());
            // To give back never fails.
            let _ = share.resize(less, "a module");
        }
        self.0
    }
}

/// Host bytes of compiling so many instructions, and what of them is kept.
pub(crate) fn compile_cost(instructions: u64) -> (u64, u64) {
    (
        instructions.saturating_mul(COMPILING),
        instructions.saturating_mul(COMPILED),
    )
}
