//! `wgmma`: the product of a warpgroup, of which each warp computes 16 of 64 rows.
//!
//! Owns matrix descriptors and what `wgmma.mma_async` computes, with the arithmetic of [`super::MmaPlan`]: products
//! are exact, their sum is taken in `f64` (integers: in 64 bits) in the order of `k` and rounded once. Reads shared
//! memory through its caller, 16 bytes at a time, so that each access is checked where all others are.

use mica_ptx::ast::{MmaOp, ScalarType, Wgmma, WgmmaFactor};

use super::fragment::{Fragment, fragment_a};
use super::{WarpRegister, gather, half};
use crate::float::{self, Format, from_f64, to_f64};
use crate::int::Int;

/// Rows that a warp computes.
const ROWS: usize = 16;
/// Bytes that are read of shared memory at once.
pub const PIECE: usize = 16;
/// Rows of 16 bytes, or of a swizzled pattern, that lie together.
const GROUP: u32 = 8;

/// Reads [`PIECE`] bytes at an offset in shared memory, a multiple of [`PIECE`]; `None` ends the product.
pub type Read<'a> = dyn FnMut(u64) -> Option<[u8; PIECE]> + 'a;

/// A 64-bit matrix descriptor, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    start: u32,
    leading: u32,
    stride: u32,
    base: u32,
    /// Bytes of a row of the swizzled pattern; 16 without one.
    span: u32,
}

impl Descriptor {
    /// From a register's bits.
    pub fn of(bits: u64) -> Self {
        let bytes = |shift: u32| (bits >> shift & 0x3fff) as u32 * 16;
        Self {
            start: bytes(0),
            leading: bytes(16),
            stride: bytes(32),
            base: (bits >> 49 & 7) as u32,
            span: match bits >> 62 {
                0 => 16,
                1 => 128,
                2 => 64,
                _ => 32,
            },
        }
    }

    /// Where 16 bytes are. Of a row of `k` it is piece 0 or 1 of row `outer`; of a transposed factor row `outer` is one
    /// of `k`, and its pieces go on along the other axis.
    fn place(&self, is_transposed: bool, outer: u32, piece: u32) -> u64 {
        let across = self.span / PIECE as u32;
        let (far, near) = (outer / GROUP, outer % GROUP);
        let offset = match (is_transposed, across) {
            (false, 1) => near * self.span + far * self.stride + piece * self.leading,
            (false, _) => near * self.span + far * self.stride + piece * PIECE as u32,
            (true, 1) => near * self.span + far * self.leading + piece * self.stride,
            (true, _) => {
                let within = near * self.span + far * self.stride;
                within + piece / across * self.leading + piece % across * PIECE as u32
            }
        };
        let at = self.start + offset;
        // Pieces of a row are exchanged by the number of the row in its pattern.
        let row = (at >> 7).wrapping_sub(self.base) & (across - 1);
        u64::from(at ^ row << 4)
    }
}

/// The first factor of one warp.
pub enum Left<'a> {
    /// Four registers.
    Registers(&'a [WarpRegister]),
    /// The descriptor, and which warp of the warpgroup it is.
    Shared(Descriptor, u32),
}

/// A `wgmma.mma_async` with its layouts worked out.
#[derive(Clone, Debug)]
pub struct WgmmaPlan {
    a: Fragment,
    b_ty: ScalarType,
    d_ty: ScalarType,
    n: usize,
    k: usize,
    op: MmaOp,
    sat: bool,
    is_negated: bool,
    /// Of `a` and `b`.
    is_transposed: [bool; 2],
}

impl WgmmaPlan {
    /// The plan, or `None` when the instruction has not the registers of its shape.
    pub fn of(inst: &Wgmma) -> Option<Self> {
        let (n, k) = (usize::from(inst.shape.n), usize::from(inst.shape.k));
        let a = fragment_a(ROWS as u32, k as u32, inst.a_ty);
        let registers = ROWS * n * inst.d_ty.bits() as usize / 32 / 32;
        let fits = match &inst.a {
            WgmmaFactor::Registers(list) => list.len() == a.registers as usize,
            WgmmaFactor::Descriptor(_) => true,
        };
        (fits && inst.d.len() == registers).then_some(Self {
            a,
            b_ty: inst.b_ty,
            d_ty: inst.d_ty,
            n,
            k,
            op: inst.op,
            sat: inst.sat,
            is_negated: inst.a_negated != inst.b_negated,
            is_transposed: [inst.a_transposed, inst.b_transposed],
        })
    }

    /// Computes the rows of one warp. `d` has a row of lanes for each register, read where `adds`, and written. `None`
    /// where `read` gave nothing; `d` is then unchanged.
    pub fn run(
        &self,
        left: &Left<'_>,
        right: Descriptor,
        adds: bool,
        d: &mut [WarpRegister],
        read: &mut Read<'_>,
    ) -> Option<()> {
        if self.d_ty == ScalarType::S32 {
            self.integers(left, right, adds, d, read)
        } else {
            self.floats(left, right, adds, d, read)
        }
    }

    fn floats(
        &self,
        left: &Left<'_>,
        right: Descriptor,
        adds: bool,
        d: &mut [WarpRegister],
        read: &mut Read<'_>,
    ) -> Option<()> {
        let sign = if self.is_negated { -1.0 } else { 1.0 };
        let decode = |ty: ScalarType, bits: u64| match ty {
            ScalarType::F16 => half(bits),
            ScalarType::Bf16 => f64::from(f32::from_bits((bits as u32) << 16)),
            // Only the bits that tf32 has count.
            ScalarType::Tf32 => f64::from(f32::from_bits(bits as u32 & 0xffff_e000)),
            ty => Format::of(ty).map_or(0.0, |format| to_f64(format, bits)),
        };
        let mut a = self.left(left, &decode, read)?;
        a.iter_mut().for_each(|x| *x *= sign);
        let b = self.right(right, &decode, read)?;
        let format = Format::of(self.d_ty).unwrap_or(float::F32);
        let mut sums = self.sums(adds, d, |bits| to_f64(format, bits));
        multiply(&a, &b, &mut sums, self.n, |sum, x, y| sum + x * y);
        self.put(d, &sums, |sum| from_f64(format, sum));
        Some(())
    }

    fn integers(
        &self,
        left: &Left<'_>,
        right: Descriptor,
        adds: bool,
        d: &mut [WarpRegister],
        read: &mut Read<'_>,
    ) -> Option<()> {
        let decode = |ty: ScalarType, bits: u64| match ty {
            ScalarType::B1 => bits as i64 & 1,
            ty => Int::of(ty).map_or(0, |t| t.value(bits) as i64),
        };
        let a = self.left(left, &decode, read)?;
        let b = self.right(right, &decode, read)?;
        let mut sums = self.sums(adds, d, |bits| i64::from(bits as u32 as i32));
        match self.op {
            MmaOp::MulAdd => multiply(&a, &b, &mut sums, self.n, |sum, x, y| sum + x * y),
            MmaOp::XorPopc => multiply(&a, &b, &mut sums, self.n, |sum, x, y| sum + (x ^ y)),
            MmaOp::AndPopc => multiply(&a, &b, &mut sums, self.n, |sum, x, y| sum + (x & y)),
        }
        self.put(d, &sums, |sum| match self.sat {
            true => crate::int::S32.clamp(i128::from(sum)),
            false => u64::from(sum as u32),
        });
        Some(())
    }

    /// The rows of A, one after the other.
    fn left<T: Copy + Default>(
        &self,
        left: &Left<'_>,
        decode: &impl Fn(ScalarType, u64) -> T,
        read: &mut Read<'_>,
    ) -> Option<Vec<T>> {
        let (ty, k) = (self.a.ty, self.k);
        match left {
            Left::Registers(rows) => Some(gather(&self.a, 1, rows, |bits| decode(ty, bits))),
            Left::Shared(from, warp) => {
                let mut out = vec![T::default(); ROWS * k];
                let first = warp % 4 * ROWS as u32;
                let part = Part {
                    from: *from,
                    is_transposed: self.is_transposed[0],
                    first,
                    count: ROWS,
                    ty,
                };
                part.visit(k, read, |row, at, bits| {
                    out[row * k + at] = decode(ty, bits)
                })?;
                Some(out)
            }
        }
    }

    /// B with its columns side by side.
    fn right<T: Copy + Default>(
        &self,
        from: Descriptor,
        decode: &impl Fn(ScalarType, u64) -> T,
        read: &mut Read<'_>,
    ) -> Option<Vec<T>> {
        let (n, ty) = (self.n, self.b_ty);
        let mut out = vec![T::default(); self.k * n];
        let part = Part {
            from,
            is_transposed: self.is_transposed[1],
            first: 0,
            count: n,
            ty,
        };
        part.visit(self.k, read, |col, at, bits| {
            out[at * n + col] = decode(ty, bits)
        })?;
        Some(out)
    }

    /// Row and column of element `e` of a lane's accumulators.
    fn place(&self, lane: usize, e: usize) -> usize {
        let row = lane / 4 + 8 * (e >> 1 & 1);
        row * self.n + (e >> 2) * 8 + lane % 4 * 2 + (e & 1)
    }

    fn sums<T: Copy + Default>(
        &self,
        adds: bool,
        d: &[WarpRegister],
        decode: impl Fn(u64) -> T,
    ) -> Vec<T> {
        let mut sums = vec![T::default(); ROWS * self.n];
        if !adds {
            return sums;
        }
        let width = self.d_ty.bits();
        let per = 32 / width as usize;
        for (r, row) in d.iter().enumerate() {
            for (lane, word) in row.iter().enumerate() {
                for i in 0..per {
                    let bits = word >> (i as u32 * width) & super::element_mask(width);
                    sums[self.place(lane, r * per + i)] = decode(bits);
                }
            }
        }
        sums
    }

    fn put<T: Copy>(&self, d: &mut [WarpRegister], sums: &[T], encode: impl Fn(T) -> u64) {
        let width = self.d_ty.bits();
        let per = 32 / width as usize;
        for (r, row) in d.iter_mut().enumerate() {
            for (lane, word) in row.iter_mut().enumerate() {
                *word = (0..per).fold(0, |all, i| {
                    let bits = encode(sums[self.place(lane, r * per + i)]);
                    all | bits << (i as u32 * width)
                });
            }
        }
    }
}

/// Rows of A, or columns of B, in shared memory.
struct Part {
    from: Descriptor,
    is_transposed: bool,
    first: u32,
    count: usize,
    ty: ScalarType,
}

impl Part {
    /// Calls `put` with the row, the place along `k` and the bits of each element.
    fn visit(
        &self,
        k: usize,
        read: &mut Read<'_>,
        mut put: impl FnMut(usize, usize, u64),
    ) -> Option<()> {
        // What a register has of an element.
        let width = self.ty.bits() as usize;
        let per = PIECE * 8 / width;
        if self.is_transposed {
            for at in 0..k {
                for piece in 0..self.count / per {
                    let number = self.first / per as u32 + piece as u32;
                    let bytes = read(self.from.place(true, at as u32, number))?;
                    elements(&bytes, width, |i, bits| put(piece * per + i, at, bits));
                }
            }
            return Some(());
        }
        for row in 0..self.count {
            for piece in 0..k / per {
                let outer = self.first + row as u32;
                let bytes = read(self.from.place(false, outer, piece as u32))?;
                elements(&bytes, width, |i, bits| put(row, piece * per + i, bits));
            }
        }
        Some(())
    }
}

fn elements(bytes: &[u8; PIECE], width: usize, mut put: impl FnMut(usize, u64)) {
    let all = u128::from_le_bytes(*bytes);
    for i in 0..PIECE * 8 / width {
        let bits = (all >> (i * width)) as u64 & super::element_mask(width as u32);
        put(i, bits);
    }
}

/// Adds the products to the sums, which go side by side along a row.
fn multiply<T: Copy>(a: &[T], b: &[T], sums: &mut [T], n: usize, step: impl Fn(T, T, T) -> T) {
    let k = b.len() / n.max(1);
    for (left, sums) in a.chunks_exact(k).zip(sums.chunks_exact_mut(n)) {
        for (&x, right) in left.iter().zip(b.chunks_exact(n)) {
            for (sum, &y) in sums.iter_mut().zip(right) {
                *sum = step(*sum, x, y);
            }
        }
    }
}

#[cfg(test)]
#[path = "wgmma_tests.rs"]
mod tests;
