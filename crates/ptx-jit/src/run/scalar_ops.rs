//! Instructions of one thread that have no inline code: values in, values out.

use mica_kernel::{Fault, FaultKind, KernelLaunch};
use mica_ptx::ast::{CallArg, Callee, Op, Operand, RegId, Space};
use mica_ptx_ops::eval::{self, Operands};
use mica_ptx_ops::multiply::{MULTIPLY, MULTIPLY_ADD};
use mica_ptx_ops::provided::MOST_ARGUMENTS;

use super::env::{End, Env};
use super::{bulk_copies, memory_ops, multiply, texture_ops};
use crate::scratch;

pub(crate) type Out<'a> = dyn FnMut(RegId, u128) + 'a;

impl Operands for Env<'_> {
    fn value(&self, operand: Operand) -> u64 {
        Env::value(self, operand)
    }
}

/// Does the instruction that `env` is at.
pub(crate) fn execute(env: &Env<'_>, out: &mut Out<'_>) -> Result<(), End> {
    let op = &env.kernel.plan.unit.inst(&env.kernel.module, env.place).op;
    if let Some(results) = eval::evaluate(op, env) {
        for (dst, bits) in results.writes() {
            out(dst, u128::from(bits));
        }
        return Ok(());
    }
    match op {
        Op::IsSpacep { space, dst, src } => {
            out(*dst, u128::from(in_space(env, *space, env.value(*src))));
        }
        Op::Cvta {
            space: Space::SharedCluster,
            dst,
            ..
        }
        | Op::Mapa { dst, .. }
        | Op::GetCtaRank { dst, .. } => out(*dst, u128::from(cluster_address(env, op))),
        Op::IsTypep { dst, .. } => out(*dst, 0),
        // PTX allows a sleep of no time, and others of the block may have work.
        Op::Nanosleep { duration } => env.sleep(env.word(*duration)),
        // Nobody is there to go on from a breakpoint.
        Op::Brkpt => return Err(env.fault(FaultKind::LaunchFailed).into()),
        Op::Call {
            callee: Callee::Direct(f),
            rets,
            args,
            ..
        } => {
            return builtin(env, *f, rets, args, out);
        }
        Op::Tex(_) | Op::Tld4(_) | Op::Txq { .. } | Op::Suld(_) | Op::Sust(_) | Op::Sured(_) => {
            texture_ops::execute(env, op, out)?;
        }
        Op::CpAsyncBulk(_) | Op::CpReduceAsyncBulk(_) | Op::CpAsyncBulkTensor(_) => {
            return bulk_copies::execute(env, op);
        }
        _ => memory_ops::execute(env, op, out)?,
    }
    Ok(())
}

/// What an instruction about the shared memory of a cluster's blocks finds: an address, or the rank of a block.
#[inline]
fn cluster_address(env: &Env<'_>, op: &Op) -> u64 {
    let c = env.context();
    match op {
        Op::Cvta {
            to_generic, src, ..
        } => match (to_generic, env.value(*src)) {
            (true, at) => c.generic_of_shared(at),
            (false, at) => c.shared_of_generic(at),
        },
        Op::Mapa { space, a, rank, .. } => match (space, env.value(*a), env.word(*rank)) {
            (Space::Generic, at, rank) => c.map_generic(at, rank),
            (_, at, rank) => c.map_shared(at, rank),
        },
        Op::GetCtaRank { space, a, .. } => match (space, env.value(*a)) {
            (Space::Generic, at) => c.find_shared(at).map_or(0, |(rank, _)| rank).into(),
            (_, at) => c.shared_rank(at).into(),
        },
        _ => 0,
    }
}

fn in_space(env: &Env<'_>, space: Space, address: u64) -> bool {
    let c = env.context();
    let local = c.local_base + u64::from(env.thread) * c.local_stride;
    let shared = address.wrapping_sub(c.shared_base) < c.shared_len;
    let own = address.wrapping_sub(local) < c.local_stride;
    let params = c.params_device != 0 && address.wrapping_sub(c.params_device) < c.params_len;
    match space {
        Space::Shared => shared,
        Space::SharedCluster => c.find_shared(address).is_some(),
        Space::Local => own,
        Space::Param => params,
        Space::Const => env.kernel.layout.globals.iter().enumerate().any(|(i, g)| {
            // SAFETY: the device gives an address for every global.
            let at = unsafe { *c.globals.add(i) };
            g.constant && address.wrapping_sub(at) < g.size.max(1)
        }),
        _ => address.wrapping_sub(c.arena_base) < c.arena_len && !shared && !own,
    }
}

/// A function that the device provides ([`mica_ptx_ops::provided`]).
fn builtin(
    env: &Env<'_>,
    f: mica_ptx::ast::FuncId,
    rets: &[CallArg],
    args: &[CallArg],
    out: &mut Out<'_>,
) -> Result<(), End> {
    let name = env.kernel.module.func(f).name.as_str();
    let mut widths = [8; MOST_ARGUMENTS];
    if name == "__assertfail" {
        widths[2] = 4;
    }
    let words = arguments(env, args, widths)?;
    let s = env.services();
    let (result, bytes) = match name {
        "vprintf" => (
            u64::from(s.map_or(-1, |s| s.printf(words[0], words[1])) as u32),
            4,
        ),
        "malloc" => (s.map_or(0, |s| s.malloc(words[0])), 8),
        "__mica_parameter_buffer" => (parameter_buffer(env, words), 8),
        "__mica_launch" => {
            let code = s.map_or(0, |s| s.launch(words[0], words[1]));
            (u64::from(code), 8)
        }
        "free" => {
            if let Some(s) = s {
                s.free(words[0]);
            }
            return Ok(());
        }
        MULTIPLY | MULTIPLY_ADD => {
            return multiply::execute(env, words, name == MULTIPLY_ADD);
        }
        "__assertfail" => {
            if let Some(s) = s {
                s.assert_fail(words[0], words[1], words[2] as u32, words[3]);
            }
            return Err(env.fault(FaultKind::Assert).into());
        }
        _ => return Err(env.fault(FaultKind::InvalidPc).into()),
    };
    match rets.first() {
        Some(CallArg::Var(v)) => {
            let at = env.host_at(Space::Local, env.var_address(*v), bytes, 1, true)?;
            env.store(at, bytes, result);
        }
        Some(CallArg::Reg(r)) => out(*r, u128::from(result)),
        _ => {}
    }
    Ok(())
}

/// Memory for the parameters of a launch by this kernel; 0 where there is none.
fn parameter_buffer(env: &Env<'_>, words: [u64; MOST_ARGUMENTS]) -> u64 {
    let [function, grid, rest, block, depth, ..] = words;
    let index = function.wrapping_sub(scratch::FUNCTIONS) / 16;
    let kernels = &env.kernel.layout.kernel_functions;
    let kernel = kernels.iter().position(|f| u64::from(f.0) == index);
    let shape = [grid, rest, block, depth];
    let launch = kernel.map(|kernel| KernelLaunch::of_words(kernel as u32, shape));
    let made = env.services().zip(launch);
    made.map_or(0, |(services, launch)| services.parameter_buffer(&launch))
}

/// What a built-in function is called with, at most so many bytes of each argument.
fn arguments(
    env: &Env<'_>,
    args: &[CallArg],
    widths: [u32; MOST_ARGUMENTS],
) -> Result<[u64; MOST_ARGUMENTS], Fault> {
    let mut words = [0; MOST_ARGUMENTS];
    for ((word, arg), bytes) in words.iter_mut().zip(args).zip(widths) {
        *word = match arg {
            CallArg::Var(v) => {
                let bytes = bytes.min(env.kernel.module.var(*v).size.max(1) as u32);
                let at = env.host_at(Space::Local, env.var_address(*v), bytes, 1, false)?;
                env.load(at, bytes)
            }
            CallArg::Reg(r) => env.reg(*r),
            CallArg::Imm(bits) => *bits,
            CallArg::None => 0,
        };
    }
    Ok(words)
}
