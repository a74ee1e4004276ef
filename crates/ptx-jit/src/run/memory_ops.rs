//! Memory instructions that have no inline code: odd atomics, asynchronous copies, mbarriers.

use mica_kernel::{Fault, FaultKind, update_128};
use mica_ptx::ast::{
    Address, Atom, AtomOp, MbarrierOp, MbarrierPhase, Op, Operand, RegId, ScalarType, Space,
};
use mica_ptx_ops::{atomic, mbarrier};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use mica_ptx_ops::typed::{extend, mask};

use super::env::Env;
use super::scalar_ops::Out;

pub(crate) fn execute(env: &Env<'_>, op: &Op, out: &mut Out<'_>) -> Result<(), Fault> {
    match op {
        Op::Atom(a) => atom(env, a, out),
        Op::Ld {
            space,
            ty,
            dst,
            addr,
            ..
        } => load(env, (*space, *ty), dst, addr, out),
        Op::St {
            space,
            ty,
            addr,
            src,
            ..
        } => store(env, (*space, *ty), addr, src),
        Op::BarCluster { wait: false, .. } => {
            super::cluster::arrive(env);
            Ok(())
        }
        Op::CpAsync { .. } => copy_small(env, op),
        Op::CpAsyncMbarrierArrive { noinc, space, mbar } => {
            // The copies are complete, so the arrival is due at once.
            update(env, *space, mbar, |s| {
                let s = if *noinc { s } else { mbarrier::increment(s) };
                mbarrier::arrive(s, 1, false)
            })
            .map(|_| ())
        }
        Op::StAsync {
            ty,
            addr,
            src,
            mbar,
        } => {
            let size = ty.bytes();
            let bytes = size * src.len() as u32;
            let to = env.host(Space::SharedCluster, addr, bytes, bytes, true)?;
            for (i, o) in src.iter().enumerate() {
                env.store(to + i as u64 * u64::from(size), size, env.value(*o));
            }
            update(env, Space::SharedCluster, mbar, |s| {
                mbarrier::complete_tx(s, bytes)
            })
            .map(|_| ())
        }
        Op::Mbarrier { space, addr, op } => mbar(env, *space, addr, op, out),
        _ => Err(env.fault(FaultKind::IllegalInstruction)),
    }
}

/// `cp.async`: the copy is made at once.
fn copy_small(env: &Env<'_>, op: &Op) -> Result<(), Fault> {
    let Op::CpAsync {
        dst,
        src,
        size,
        src_size,
        ignore_src,
        ..
    } = op
    else {
        return Ok(());
    };
    let to = env.host(Space::Shared, dst, *size, *size, true)?;
    let take = match (src_size, ignore_src) {
        (_, Some(p)) if env.pred(*p) => 0,
        (Some(n), _) => env.word(*n).min(*size),
        _ => *size,
    };
    let mut bytes = [0u8; 16];
    if take > 0 {
        let from = env.host(Space::Global, src, take, *size, false)? as *const u8;
        // SAFETY: so many bytes are checked, at most 16.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), take.min(16) as usize) };
    }
    // SAFETY: so many bytes are checked, at most 16.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, *size.min(&16) as usize)
    };
    Ok(())
}

/// `ld.shared::cluster`: of any block of the cluster.
fn load(
    env: &Env<'_>,
    (space, ty): (Space, ScalarType),
    dst: &[Option<RegId>],
    addr: &Address,
    out: &mut Out<'_>,
) -> Result<(), Fault> {
    let size = ty.bytes();
    let bytes = size * dst.len() as u32;
    let host = env.host(space, addr, bytes, bytes, false)?;
    for (i, r) in dst.iter().enumerate() {
        let Some(r) = r else { continue };
        let at = host + i as u64 * u64::from(size);
        let low = env.load(at, size.min(8));
        let high = if size == 16 { env.load(at + 8, 8) } else { 0 };
        let low = match ty.is_signed() {
            true => extend(ty, low),
            false => low,
        };
        out(*r, u128::from(high) << 64 | u128::from(low));
    }
    Ok(())
}

/// `st.shared::cluster`.
fn store(
    env: &Env<'_>,
    (space, ty): (Space, ScalarType),
    addr: &Address,
    src: &[Operand],
) -> Result<(), Fault> {
    let size = ty.bytes();
    let bytes = size * src.len() as u32;
    let host = env.host(space, addr, bytes, bytes, true)?;
    for (i, o) in src.iter().enumerate() {
        let (at, bits) = (host + i as u64 * u64::from(size), env.wide(*o));
        env.store(at, size.min(8), bits as u64);
        if size == 16 {
            env.store(at + 8, 8, (bits >> 64) as u64);
        }
    }
    Ok(())
}

/// An atomic update of 1, 2, 4 or 8 checked bytes. Gives the old value.
pub(crate) fn rmw(host: u64, bytes: u32, f: impl Fn(u64) -> u64) -> u64 {
    macro_rules! go {
        ($t:ty, $n:ty) => {{
            // SAFETY: the address was checked, and is aligned to its size.
            let a = unsafe { &*(host as *const $t) };
            let mut old = a.load(Ordering::SeqCst);
            loop {
                let new = f(u64::from(old)) as $n;
                match a.compare_exchange_weak(old, new, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(_) => break u64::from(old),
                    Err(seen) => old = seen,
                }
            }
        }};
    }
    match bytes {
        1 => go!(AtomicU8, u8),
        2 => go!(AtomicU16, u16),
        4 => go!(AtomicU32, u32),
        _ => go!(AtomicU64, u64),
    }
}

fn atom(env: &Env<'_>, a: &Atom, out: &mut Out<'_>) -> Result<(), Fault> {
    if a.ty == ScalarType::B128 {
        return atom_128(env, a, out);
    }
    let size = a.ty.bytes();
    let bytes = size * a.src.len() as u32;
    let host = env.host(a.space, &a.addr, bytes, bytes, true)?;
    // Additions of f32 flush subnormals in global memory and keep them in shared.
    let ftz = a.ty == ScalarType::F32 && !matches!(a.space, Space::Shared | Space::SharedCluster);
    let new = a.src2.map_or(0, |o| env.typed(o, a.ty));
    for (i, o) in a.src.iter().enumerate() {
        let v = env.typed(*o, a.ty);
        let old = rmw(host + i as u64 * u64::from(size), size, |old| {
            atomic::apply(a.op, a.ty, ftz && a.op == AtomOp::Add, old, v, new)
        });
        if let Some(Some(d)) = a.dst.get(i) {
            out(*d, u128::from(old & mask(a.ty.bits())));
        }
    }
    if let Some(m) = &a.mbar {
        update(env, Space::SharedCluster, m, |s| {
            mbarrier::complete_tx(s, bytes)
        })?;
    }
    Ok(())
}

/// `atom.cas.b128` and `atom.exch.b128`.
fn atom_128(env: &Env<'_>, a: &Atom, out: &mut Out<'_>) -> Result<(), Fault> {
    let Some(src) = a.src.first() else {
        return Err(env.fault(FaultKind::IllegalInstruction));
    };
    let host = env.host(a.space, &a.addr, 16, 16, true)?;
    let v = env.wide(*src);
    let new = a.src2.map_or(0, |o| env.wide(o));
    // SAFETY: checked and aligned.
    let old = unsafe { update_128(host, |old| atomic::apply_128(a.op, old, v, new)) };
    if let Some(Some(d)) = a.dst.first() {
        out(*d, old);
    }
    Ok(())
}

pub(super) fn update(
    env: &Env<'_>,
    space: Space,
    addr: &Address,
    f: impl Fn(u64) -> u64,
) -> Result<u64, Fault> {
    let host = env.mbarrier_host(space, addr, true)?;
    env.progress();
    Ok(rmw(host, 8, f))
}

fn mbar(
    env: &Env<'_>,
    space: Space,
    addr: &Address,
    op: &MbarrierOp,
    out: &mut Out<'_>,
) -> Result<(), Fault> {
    let w = |o: &Operand| env.word(*o);
    match op {
        MbarrierOp::Init { count } => {
            update(env, space, addr, |_| mbarrier::init(w(count)))?;
        }
        MbarrierOp::Inval => {
            update(env, space, addr, |_| 0)?;
        }
        MbarrierOp::Arrive {
            drop,
            expect_tx,
            dst,
            count,
            ..
        } => {
            let n = count.as_ref().map_or(1, w);
            let old = update(env, space, addr, |s| {
                let s = match expect_tx {
                    Some(b) => mbarrier::expect_tx(s, w(b)),
                    None => s,
                };
                mbarrier::arrive(s, n, *drop)
            })?;
            if let Some(d) = dst {
                out(*d, u128::from(old));
            }
        }
        MbarrierOp::ExpectTx { bytes, .. } => {
            update(env, space, addr, |s| mbarrier::expect_tx(s, w(bytes)))?;
        }
        MbarrierOp::CompleteTx { bytes, .. } => {
            update(env, space, addr, |s| mbarrier::complete_tx(s, w(bytes)))?;
        }
        MbarrierOp::Wait { dst, phase, .. } => {
            let host = env.mbarrier_host(space, addr, false)?;
            // SAFETY: checked and aligned.
            let state = unsafe { &*(host as *const AtomicU64) }.load(Ordering::SeqCst);
            let done = match phase {
                MbarrierPhase::State(o) => mbarrier::is_complete(state, env.value(*o)),
                MbarrierPhase::Parity(o) => mbarrier::is_parity_complete(state, w(o)),
            };
            if !done {
                env.give_way();
            }
            out(*dst, u128::from(done));
        }
    }
    Ok(())
}
