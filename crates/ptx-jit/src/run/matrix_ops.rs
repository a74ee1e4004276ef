//! Matrices in the registers of a warp: loads, stores and products.

use mica_kernel::{Fault, FaultKind};
use mica_ptx::ast::{Mma, Operand, Space};
use mica_ptx_ops::matrix::{LaneOperands, MmaPlan, tile_places};
use mica_ptx_ops::warp;

use super::env::{self, Env};

pub(crate) fn stride_of(
    e: &Env<'_>,
    stride: Option<Operand>,
    layout: mica_ptx::ast::Layout,
    rows: u32,
    cols: u32,
) -> u64 {
    match (stride, layout) {
        (Some(s), _) => u64::from(e.word(s)),
        (None, mica_ptx::ast::Layout::Row) => u64::from(cols),
        (None, mica_ptx::ast::Layout::Col) => u64::from(rows),
    }
}

/// Reads or writes one matrix element at a bit offset.
pub(crate) fn element(
    e: &Env<'_>,
    space: Space,
    addr: &mica_ptx::ast::Address,
    bit: u64,
    bits: u32,
    write: Option<u64>,
) -> Result<u64, Fault> {
    let bytes = bits.div_ceil(8);
    let mut at = *addr;
    at.offset = at.offset.wrapping_add((bit / 8) as i64);
    let host = e.host(space, &at, bytes, bytes, write.is_some())?;
    let old = e.load(host, bytes);
    let shift = bit % 8;
    if let Some(v) = write {
        let new = if bits < 8 {
            let m = mica_ptx_ops::typed::mask(bits) << shift;
            old & !m | (v << shift & m)
        } else {
            v
        };
        e.store(host, bytes, new);
    }
    Ok(old >> shift & mica_ptx_ops::typed::mask(bits))
}

pub(crate) type Put<'a> = dyn Fn(u32, mica_ptx::ast::RegId, u64) + 'a;
pub(crate) type LaneEnv<'a, 'b> = dyn Fn(u32) -> Env<'b> + 'a;

/// Where the rows of tile `m` are: row `r` is at the address that lane `8m + r` gives. A lane that the block
/// does not have, or that has exited, gives no row: such a lane has neither registers nor local memory.
fn tile_rows(
    members: u32,
    m: usize,
    space: Space,
    addr: &mica_ptx::ast::Address,
    write: bool,
    lane_env: &LaneEnv<'_, '_>,
) -> Result<[Option<u64>; 8], Fault> {
    let mut rows = [None; 8];
    for (r, host) in rows.iter_mut().enumerate() {
        let lane = (8 * m + r) as u32 & 31;
        if members >> lane & 1 == 1 {
            *host = Some(lane_env(lane).host(space, addr, 16, 16, write)?);
        }
    }
    Ok(rows)
}

pub(crate) fn ld_matrix(
    members: u32,
    trans: bool,
    space: Space,
    dst: &[Option<mica_ptx::ast::RegId>],
    addr: &mica_ptx::ast::Address,
    lane_env: &LaneEnv<'_, '_>,
    put: &Put<'_>,
) -> Result<(), Fault> {
    for (m, d) in dst.iter().enumerate() {
        let Some(d) = d else { continue };
        let rows = tile_rows(members, m, space, addr, false, lane_env)?;
        for l in warp::lanes(members) {
            let mut out = 0u64;
            for (i, (row, col)) in tile_places(l, trans).iter().enumerate() {
                let Some(host) = rows[*row as usize & 7] else {
                    continue;
                };
                out |= env::load(host + 2 * u64::from(*col), 2) << (16 * i);
            }
            put(l, *d, out);
        }
    }
    Ok(())
}

pub(crate) fn st_matrix(
    members: u32,
    trans: bool,
    space: Space,
    addr: &mica_ptx::ast::Address,
    src: &[Operand],
    lane_env: &LaneEnv<'_, '_>,
) -> Result<(), Fault> {
    for (m, o) in src.iter().enumerate() {
        let rows = tile_rows(members, m, space, addr, true, lane_env)?;
        for l in warp::lanes(members) {
            let v = lane_env(l).value(*o);
            for (i, (row, col)) in tile_places(l, trans).iter().enumerate() {
                if let Some(host) = rows[*row as usize & 7] {
                    env::store(host + 2 * u64::from(*col), 2, v >> (16 * i));
                }
            }
        }
    }
    Ok(())
}

pub(crate) fn multiply(
    members: u32,
    m: &Mma,
    wmma: bool,
    lane_env: &LaneEnv<'_, '_>,
    put: &Put<'_>,
) -> Result<(), Fault> {
    let plan = if wmma {
        MmaPlan::wmma(m)
    } else {
        MmaPlan::mma(m)
    };
    let Some(plan) = plan else {
        return Err(lane_env(members.trailing_zeros()).fault(FaultKind::IllegalInstruction));
    };
    let mut lanes = [LaneOperands::default(); 32];
    for l in warp::lanes(members) {
        let e = lane_env(l);
        let x = &mut lanes[l as usize];
        for (to, list) in [(&mut x.a, &m.a), (&mut x.b, &m.b), (&mut x.c, &m.c)] {
            for (slot, o) in to.iter_mut().zip(list) {
                *slot = e.value(*o);
            }
        }
    }
    let out = plan.run(&lanes);
    for l in warp::lanes(members) {
        for (r, v) in m.d.iter().zip(out[l as usize]) {
            put(l, *r, v);
        }
    }
    Ok(())
}
