//! Checks once more what compiled code takes to be inside ([`crate::emit`]'s `inside`), for tests and fuzzing.

use mica_kernel::{BlockContext, Fault, FaultKind};
use std::io::Write;

use super::helpers::{Ctx, kernel};
use crate::kernel::Kernel;

/// The whole arena.
pub(crate) const RECHECK_ARENA: i64 = 0;
/// The thread's local memory.
pub(crate) const RECHECK_LOCAL: i64 = 1;
/// The block's shared memory.
pub(crate) const RECHECK_SHARED: i64 = 2;
/// The launch's parameters.
pub(crate) const RECHECK_PARAMS: i64 = 3;
/// The launch's parameters, or the arena: `.param` is the one or the other by what a variable is for.
pub(crate) const RECHECK_EITHER: i64 = 4;

/// Ends the process when `bytes` at `host` are not inside.
pub(super) extern "C" fn recheck(
    ctx: Ctx,
    site: u64,
    thread: u64,
    host: u64,
    bytes: u64,
    memory: u64,
) -> u64 {
    // SAFETY: the context is valid for the block.
    let c = unsafe { &*ctx };
    let (start, len) = match memory as i64 {
        RECHECK_LOCAL => (c.local_base + thread * c.local_stride, c.local_stride),
        RECHECK_SHARED => (c.shared_base, c.shared_len),
        RECHECK_PARAMS => (c.params as u64, c.params_len),
        _ => (c.arena_base, c.arena_len),
    };
    let inside = |start: u64, len: u64| {
        let offset = host.wrapping_sub(start);
        bytes <= len && offset <= len - bytes
    };
    let either = memory as i64 == RECHECK_EITHER && inside(c.params as u64, c.params_len);
    if either || inside(start, len) {
        return 0;
    }
    let k = kernel(ctx);
    let line = (k.plan.slow.get(site as usize)).map_or(0, |s| k.line(s.place).0);
    // Not `eprintln`, which a test's harness keeps to itself.
    let _ = writeln!(
        std::io::stderr(),
        "MICA_JIT_RECHECK: {bytes} bytes at {host:#x} (near PTX line {line}, thread {thread}) are outside \
         memory {memory} of {len} bytes at {start:#x}, and no check was emitted"
    );
    std::process::abort();
}

/// Why a block cannot run: memory that compiled code relies on is not there.
pub(super) fn missing(k: &Kernel, c: &BlockContext) -> Option<Fault> {
    let func = k.plan.unit.roots[0].func;
    let f = k.module.func(func);
    let shared = if f.uses_dynamic_shared {
        f.dynamic_shared_offset
    } else {
        f.shared_bytes
    };
    let fault = |address| Fault {
        kind: FaultKind::LaunchFailed as u32,
        ptx_line: f.line,
        address,
        ..Fault::default()
    };
    if c.local_stride < k.plan.stack.kernel() {
        return Some(fault(Fault::STACK_FULL));
    }
    let short = c.shared_len < u64::from(shared) || c.params_len < u64::from(f.param_bytes);
    short.then(|| fault(0))
}
