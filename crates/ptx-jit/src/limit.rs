//! How much is compiled: beyond, a kernel is interpreted.
//!
//! Owns the numbers. Passes take time and memory in proportion to a kernel's blocks times its registers, or to
//! the square of its blocks at worst; within these limits that is a few seconds and some hundred megabytes.

use mica_ptx::ast::Module;

use crate::CompileError;
use crate::plan::Plan;
use crate::unit::Unit;

/// Registers that are live at once above which they are allocated in one pass: backtracking over 20,000 takes half
/// a minute.
const QUICK_ABOVE: usize = 1_000;
/// Registers that are live at once: each has its place on the stack of the thread that runs the kernel.
const MOST_LIVE: usize = 24_000;
/// Bytes in which the registers of a warp are kept while it waits; every worker has them for 32 warps.
const MOST_KEPT: usize = 8 << 20;
/// Instructions, calls inlined.
const MOST_STEPS: usize = 150_000;
/// Blocks; a guarded instruction makes two.
const MOST_BLOCKS: usize = 20_000;
/// Blocks times registers: the bits of one of the sets that passes keep.
const MOST_SET_BITS: usize = 1 << 29;
/// Instructions of Cranelift's: it takes some microseconds for each.
const MOST_CODE: usize = 1_000_000;

fn within(what: &'static str, count: usize, limit: usize) -> Result<(), CompileError> {
    if count <= limit {
        return Ok(());
    }
    Err(CompileError::TooLarge { what, count, limit })
}

/// Refuses a kernel whose passes would take too long.
pub(crate) fn unit(unit: &Unit) -> Result<(), CompileError> {
    let steps = unit.blocks.iter().map(|b| b.steps.len() + 1).sum();
    within("instructions", steps, MOST_STEPS)?;
    within("blocks", unit.blocks.len(), MOST_BLOCKS)?;
    let bits = unit.blocks.len().saturating_mul(unit.regs.len());
    within("blocks times registers", bits, MOST_SET_BITS)
}

/// Refuses a kernel that keeps too much at once. Whether its registers are allocated in one pass.
pub(crate) fn pressure(plan: &Plan, module: &Module) -> Result<bool, CompileError> {
    let live = plan.peak_live(module);
    within("registers at once", live, MOST_LIVE)?;
    within(
        "bytes for what a warp keeps",
        plan.frame_bytes as usize,
        MOST_KEPT,
    )?;
    Ok(live > QUICK_ABOVE)
}

/// Refuses a kernel that becomes too much code.
pub(crate) fn code(instructions: usize) -> Result<(), CompileError> {
    within("instructions of its code", instructions, MOST_CODE)
}
