//! `cp.async.bulk` and its relatives: copies that are made when they are asked for.
//!
//! A copy ends outside of memory like any other access. Nothing here owns memory, since a read of a hole in the arena
//! leaves without coming back. Copies for all blocks of a cluster, reductions and boxes take long, so each looks now and then
//! whether the block should stop.

use mica_kernel::{Fault, FaultKind};
use mica_ptx::ast::{
    AddrBase, Address, Completion, CpAsyncBulk, CpAsyncBulkTensor, CpReduceAsyncBulk, Op, Operand,
    Space,
};
use mica_ptx_ops::tensor_map::{ALIGN, BYTES, MOST_RANK, PIECE, Row, Shape, TensorMap};
use mica_ptx_ops::{atomic, mbarrier};

use super::env::{End, Env};
use super::memory_ops::{rmw, update};

/// Alignment of a box in shared memory.
const BOX_ALIGN: u32 = 128;
/// Bytes that are reduced between two looks at whether the block should stop.
const BYTES_PER_POLL: u64 = 4096;

pub(super) fn execute(env: &Env<'_>, op: &Op) -> Result<(), End> {
    env.poll()?;
    match op {
        Op::CpAsyncBulk(x) => copy(env, x),
        Op::CpReduceAsyncBulk(x) => reduce(env, x),
        Op::CpAsyncBulkTensor(x) if x.store => store_box(env, x),
        Op::CpAsyncBulkTensor(x) => load_box(env, x),
        _ => Err(env.fault(FaultKind::IllegalInstruction).into()),
    }
}

fn copy(env: &Env<'_>, x: &CpAsyncBulk) -> Result<(), End> {
    let bytes = bulk_bytes(env, x.size)?;
    let from = env.host(x.src_space, &x.src, bytes, 16, false)?;
    let keep = x.byte_mask.map(|m| env.word(m));
    for target in targets(env, x.multicast)? {
        env.poll()?;
        let to = target.host(env, x.dst_space, &x.dst, bytes, 16)?;
        match keep {
            None => copy_bytes(to, from, u64::from(bytes)),
            Some(m) => (0..u64::from(bytes))
                .filter(|i| m >> (i % 16) & 1 == 1)
                .for_each(|i| env.store(to + i, 1, env.load(from + i, 1))),
        }
        target.complete(env, &x.completion, bytes)?;
    }
    Ok(())
}

fn reduce(env: &Env<'_>, x: &CpReduceAsyncBulk) -> Result<(), End> {
    let bytes = bulk_bytes(env, x.size)?;
    let to = env.host(x.dst_space, &x.dst, bytes, 16, true)?;
    let from = env.host(x.src_space, &x.src, bytes, 16, false)?;
    let step = x.ty.bytes();
    for i in (0..u64::from(bytes)).step_by(step as usize) {
        if i.is_multiple_of(BYTES_PER_POLL) {
            env.poll()?;
        }
        let v = env.load(from + i, step);
        rmw(to + i, step, |old| {
            atomic::apply(x.op, x.ty, false, old, v, 0)
        });
    }
    Ok(Target::Own.complete(env, &x.completion, bytes)?)
}

/// How much a bulk copy is of. Multiples of 16 only: a reduction goes by whole elements, and would end outside.
fn bulk_bytes(env: &Env<'_>, size: Operand) -> Result<u32, Fault> {
    let bytes = env.word(size);
    if !bytes.is_multiple_of(16) {
        return Err(env.fault(FaultKind::MisalignedAddress));
    }
    Ok(bytes)
}

/// Copies checked bytes.
fn copy_bytes(to: u64, from: u64, bytes: u64) {
    // SAFETY: the caller checked both ranges; they may overlap.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes as usize) };
}

/// A block that a copy into shared memory is for.
#[derive(Clone, Copy)]
enum Target {
    /// The one that the address names.
    Own,
    /// One of `.multicast::cluster`, with the same offsets.
    Rank(u32),
}

impl Target {
    /// The host address of what is written, checked.
    fn host(
        self,
        env: &Env<'_>,
        space: Space,
        addr: &Address,
        bytes: u32,
        align: u32,
    ) -> Result<u64, Fault> {
        match self {
            Self::Own => env.host(space, addr, bytes, align, true),
            Self::Rank(rank) => {
                let at = env.context().map_shared(offset(env, addr), rank);
                env.host_at(Space::SharedCluster, at, bytes, align, true)
            }
        }
    }

    /// Tells the barrier of the target that bytes have come.
    fn complete(self, env: &Env<'_>, how: &Completion, bytes: u32) -> Result<(), Fault> {
        let Completion::Mbarrier(at) = how else {
            return Ok(());
        };
        let add = |s| mbarrier::complete_tx(s, bytes);
        match self {
            Self::Own => update(env, Space::SharedCluster, at, add)?,
            Self::Rank(rank) => {
                let address = env.context().map_shared(offset(env, at), rank);
                let there = Address {
                    base: AddrBase::Absolute,
                    offset: address as i64,
                };
                update(env, Space::SharedCluster, &there, add)?
            }
        };
        Ok(())
    }
}

/// An address of `.shared::cluster` as a number.
fn offset(env: &Env<'_>, addr: &Address) -> u64 {
    let base = match addr.base {
        AddrBase::Reg(r) => env.reg(r),
        AddrBase::Absolute => 0,
        AddrBase::Var(var) => env.var_address(var),
    };
    u64::from(base.wrapping_add_signed(addr.offset) as u32)
}

/// The blocks of a mask, each of which must be there.
fn targets(
    env: &Env<'_>,
    multicast: Option<Operand>,
) -> Result<impl Iterator<Item = Target>, Fault> {
    let mask = multicast.map(|m| env.word(m) & 0xffff);
    let blocks = env.context().cluster_place.size;
    if mask.is_some_and(|mask| u64::from(mask) >> blocks != 0) {
        return Err(env.fault(FaultKind::IllegalInstruction));
    }
    let own = mask.is_none().then_some(Target::Own);
    let ranks = (0..blocks).filter(move |rank| mask.unwrap_or(0) >> rank & 1 == 1);
    Ok(own.into_iter().chain(ranks.map(Target::Rank)))
}

/// A tensor map in memory, and the coordinates of a box.
struct Boxed {
    map: TensorMap,
    coords: [i32; MOST_RANK],
    offsets: [u16; 3],
}

impl Boxed {
    /// What an instruction names. Bytes that are no map, or not one for it, are an illegal instruction.
    fn of(env: &Env<'_>, x: &CpAsyncBulkTensor) -> Result<Self, Fault> {
        let host = env.host(Space::Generic, &x.tensor_map, BYTES as u32, ALIGN, false)?;
        let mut bytes = [0; BYTES];
        for (i, piece) in bytes.chunks_exact_mut(8).enumerate() {
            piece.copy_from_slice(&env.load(host + 8 * i as u64, 8).to_le_bytes());
        }
        let map = TensorMap::decode(&bytes)
            .filter(|map| map.rank == x.dim && matches!(map.shape, Shape::Im2col(..)) == x.im2col);
        let Some(map) = map else {
            return Err(env.fault(FaultKind::IllegalInstruction));
        };
        let mut coords = [0; MOST_RANK];
        for (to, from) in coords.iter_mut().zip(&x.coords) {
            *to = env.word(*from) as i32;
        }
        let mut offsets = [0; 3];
        for (to, from) in offsets.iter_mut().zip(&x.im2col_offsets) {
            *to = env.word(*from) as u16;
        }
        Ok(Self {
            map,
            coords,
            offsets,
        })
    }

    /// Bytes of shared memory of a box: whole rows of the pattern in which pieces are exchanged.
    fn shared_bytes(&self, env: &Env<'_>) -> Result<u32, Fault> {
        let bytes = self.map.bytes().next_multiple_of(self.map.span());
        u32::try_from(bytes).map_err(|_| env.fault(FaultKind::IllegalAddress))
    }

    fn rows(&self) -> impl Iterator<Item = Row> {
        self.map.rows(&self.coords, &self.offsets)
    }
}

/// Global to shared memory.
fn load_box(env: &Env<'_>, x: &CpAsyncBulkTensor) -> Result<(), End> {
    let boxed = Boxed::of(env, x)?;
    let bytes = boxed.shared_bytes(env)?;
    for target in targets(env, x.multicast)? {
        let to = target.host(env, Space::SharedCluster, &x.shared, bytes, BOX_ALIGN)?;
        let start = offset(env, &x.shared) & 0xff_ffff;
        for row in boxed.rows() {
            env.poll()?;
            fill_row(env, &boxed, &row, (start, to))?;
        }
        target.complete(env, &x.completion, boxed.map.bytes() as u32)?;
    }
    Ok(())
}

fn fill_row(env: &Env<'_>, boxed: &Boxed, row: &Row, (start, to): (u64, u64)) -> Result<(), Fault> {
    let inside = row.skipped..row.skipped + row.inside;
    let from = match row.inside {
        0 => 0,
        n => env.host_at(Space::Generic, row.global, n as u32, 1, false)?,
    };
    let fill = boxed.map.fill().to_le_bytes();
    for piece in (0..boxed.map.row_bytes()).step_by(PIECE as usize) {
        let at = to + boxed.map.place(start, row.shared + piece);
        if inside.contains(&piece) && inside.end >= piece + PIECE {
            copy_bytes(at, from + (piece - row.skipped), PIECE);
            continue;
        }
        for byte in piece..piece + PIECE {
            let value = match inside.contains(&byte) {
                true => env.load(from + (byte - row.skipped), 1),
                false => u64::from(fill[byte as usize % 8]),
            };
            env.store(at + (byte - piece), 1, value);
        }
    }
    Ok(())
}

/// Shared to global memory, perhaps reduced with what is there.
fn store_box(env: &Env<'_>, x: &CpAsyncBulkTensor) -> Result<(), End> {
    let boxed = Boxed::of(env, x)?;
    let bytes = boxed.shared_bytes(env)?;
    let from = env.host(Space::Shared, &x.shared, bytes, BOX_ALIGN, false)?;
    let start = offset(env, &x.shared);
    let size = boxed.map.element_bytes();
    let ty = boxed.map.element();
    for row in boxed.rows() {
        env.poll()?;
        if row.inside == 0 {
            continue;
        }
        let to = env.host_at(
            Space::Generic,
            row.global,
            row.inside as u32,
            size as u32,
            true,
        )?;
        for byte in (0..row.inside).step_by(size as usize) {
            let at = from + boxed.map.place(start, row.shared + row.skipped + byte);
            let value = env.load(at, size as u32);
            match x.reduce.zip(ty) {
                None => env.store(to + byte, size as u32, value),
                Some((op, ty)) => {
                    rmw(to + byte, size as u32, |old| {
                        atomic::apply(op, ty, false, old, value, 0)
                    });
                }
            }
        }
    }
    Ok(())
}
