//! Products that a thread asks the device for ([`mica_ptx_ops::multiply`]), with the widest registers of the processor.
//!
//! Owns the checks of memory and the division into tiles that fit into registers; [`tile`] computes one.

#[cfg(target_arch = "x86_64")]
mod registers;
mod tile;

pub(super) use tile::Kind;

use mica_kernel::FaultKind;
use mica_ptx::ast::Space;
use mica_ptx_ops::multiply::{Matrix, Multiply, PART, WORDS};

use super::env::{End, Env};

/// Pieces of a matrix that are checked between two looks at whether the block should stop.
const PIECES_PER_POLL: usize = 256;

/// Does the call with these arguments. Owns nothing while it accesses memory, as a hole in the arena ends it by a jump.
pub(super) fn execute(env: &Env<'_>, words: [u64; WORDS], adds: bool) -> Result<(), End> {
    let Some(call) = Multiply::of_words(words, adds) else {
        return Err(env.fault(FaultKind::IllegalInstruction).into());
    };
    if call.is_empty() {
        return Ok(());
    }
    check(env, &call.a, false)?;
    check(env, &call.b, false)?;
    if adds {
        check(env, &call.c, false)?;
    }
    check(env, &call.c, true)?;
    // SAFETY: all elements are inside the arena and aligned.
    unsafe { compute(&call, Kind::of_processor(), || env.poll()) }
}

/// Whether all elements may be accessed. Code that tells of each access, or is told which memory is allocated, names the
/// elements alone; other code only has to stay inside the arena.
fn check(env: &Env<'_>, matrix: &Matrix, write: bool) -> Result<(), End> {
    let one = |address, bytes: u64| {
        let narrow = u32::try_from(bytes).unwrap_or(u32::MAX);
        env.host_at(Space::Generic, address, narrow, 4, write)
            .map(drop)
    };
    if env.kernel.memcheck || env.kernel.monitor {
        for (number, (address, bytes)) in matrix.pieces().enumerate() {
            if number.is_multiple_of(PIECES_PER_POLL) {
                env.poll()?;
            }
            one(address, bytes)?;
        }
        return Ok(());
    }
    let bytes = matrix.bytes();
    if bytes > u64::from(u32::MAX) {
        // Elements far apart: the first and the last one are in the arena, so all are.
        one(matrix.address, 4)?;
        let end = matrix.address.wrapping_add(bytes - 4);
        return match end >= matrix.address {
            true => Ok(one(end, 4)?),
            false => Err(env.fault(FaultKind::IllegalAddress).into()),
        };
    }
    match bytes {
        0 => Ok(()),
        bytes => Ok(one(matrix.address, bytes)?),
    }
}

/// Divides a length into nearly equal parts of at most `most`.
fn parts(length: u64, most: u64) -> impl Iterator<Item = (u64, u64)> {
    let count = length.div_ceil(most);
    (0..count).map(move |part| {
        let (first, end) = (length * part / count, length * (part + 1) / count);
        (first, end - first)
    })
}

/// Computes a call by tiles. Asks before each whether to go on: what a tile reads may be all over memory.
///
/// # Safety
/// All elements of the call's matrices are valid for reads, and `c`'s for writes, by any number of threads at once.
unsafe fn compute<E>(
    call: &Multiply,
    kind: Kind,
    mut go_on: impl FnMut() -> Result<(), E>,
) -> Result<(), E> {
    let (most_rows, most_cols) = kind.most();
    for first_col in (0..call.c.cols).step_by(most_cols as usize) {
        let cols = (call.c.cols - first_col).min(most_cols);
        for (first_row, rows) in parts(call.c.rows, most_rows) {
            for first in (0..call.a.cols.max(1)).step_by(PART as usize) {
                go_on()?;
                let tile = tile::Tile {
                    a: call.a.at(first_row, first) as *const f32,
                    b: call.b.at(first, first_col) as *const f32,
                    c: call.c.at(first_row, first_col) as *mut f32,
                    a_row: call.a.row as usize,
                    a_col: call.a.col as usize,
                    b_row: call.b.row as usize,
                    c_row: call.c.row as usize,
                    depth: (call.a.cols - first.min(call.a.cols)).min(PART) as usize,
                    cols: cols as usize,
                    adds: call.adds || first > 0,
                };
                // SAFETY: a part of matrices that are valid by the contract.
                unsafe { kind.compute(&tile, rows as usize) };
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
