//! Matrix instructions: where fragments hold their elements, and what `mma` computes.
//!
//! Owns the layouts of `mma`, `wmma`, `ldmatrix` and `movmatrix` over the 32 lanes of a warp; `wgmma` has those of
//! warpgroups and of factors in shared memory.
//! Products of narrow floats are exact; their sum is taken in `f64` and rounded once, so the result
//! is at least as near as a tensor core's. `f64` goes by fused multiply-adds in the order of `k`.
//! Refuses (with `None`) shapes and types that PTX does not have, and sparse forms.

mod fragment;
pub mod wgmma;

pub use fragment::{Fragment, memory_bit_offset, tile_places, wmma_fragment};

use fragment::{
    element, fragment_a, fragment_b, fragment_c, register_bits, volta_a, volta_b, volta_c,
};

use crate::float::{self, F64, Format, Modes, from_f64, to_f64};
use crate::int::Int;
use mica_ptx::ast::{Mma, MmaOp, ScalarType, WmmaMatrix};

/// Registers that one lane gives to or gets from a matrix instruction.
pub type LaneRegisters = [u64; 8];

/// One register in all lanes of a warp.
pub type WarpRegister = [u64; 32];

/// The operands of one lane.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaneOperands {
    /// Fragment of A.
    pub a: LaneRegisters,
    /// Fragment of B.
    pub b: LaneRegisters,
    /// Fragment of C.
    pub c: LaneRegisters,
}

/// An `mma` or `wmma.mma` with its layouts worked out.
#[derive(Clone, Debug)]
pub struct MmaPlan {
    a: Fragment,
    b: Fragment,
    c: Fragment,
    d: Fragment,
    k: u32,
    groups: u32,
    op: MmaOp,
    sat: bool,
    rounding: float::Rounding,
}

impl MmaPlan {
    /// The plan of `mma.sync`, or `None` when the shape and types are not supported.
    pub fn mma(inst: &Mma) -> Option<MmaPlan> {
        let shape = (inst.shape.m, inst.shape.n, inst.shape.k);
        let [a, b, c, d] = [inst.a_ty, inst.b_ty, inst.c_ty, inst.d_ty].map(element);
        if inst.sparse.is_some() || !types_fit(a, b, c, d, inst.op) {
            return None;
        }
        let volta = shape == (8, 8, 4) && a == ScalarType::F16;
        let allowed: &[u16] = match a.bits() {
            64 => &[4, 8, 16],
            32 => &[4, 8],
            16 => &[8, 16],
            8 => &[16, 32],
            4 => &[32, 64],
            _ => &[128, 256],
        };
        let (m, n, k) = (u32::from(shape.0), u32::from(shape.1), u32::from(shape.2));
        let small = (m, n) == (8, 8)
            && matches!((a.bits(), k), (64, 4) | (8, 16) | (4, 32) | (1, 128))
            && a != ScalarType::E4m3
            && a != ScalarType::E5m2;
        let large = (m, n) == (16, 8) && allowed.contains(&shape.2);
        if !(volta || small || large) {
            return None;
        }
        let (fa, fb, fc, fd) = if volta {
            let float32 = |ty| ty == ScalarType::F32;
            (
                volta_a(inst.a_layout),
                volta_b(inst.b_layout),
                volta_c(c, float32(c)),
                volta_c(d, float32(d)),
            )
        } else {
            (
                fragment_a(m, k, a),
                fragment_b(n, k, b),
                fragment_c(m, n, c),
                fragment_c(m, n, d),
            )
        };
        let plan = MmaPlan {
            a: fa,
            b: fb,
            c: fc,
            d: fd,
            k,
            groups: if volta { 4 } else { 1 },
            op: inst.op,
            sat: inst.sat,
            rounding: inst.round.into(),
        };
        plan.registers_fit(inst).then_some(plan)
    }

    /// The plan of `wmma.mma`.
    pub fn wmma(inst: &Mma) -> Option<MmaPlan> {
        let [a, b, c, d] = [inst.a_ty, inst.b_ty, inst.c_ty, inst.d_ty].map(element);
        if inst.sparse.is_some() || !types_fit(a, b, c, d, inst.op) {
            return None;
        }
        let plan = MmaPlan {
            a: wmma_fragment(inst.shape, WmmaMatrix::A, a)?,
            b: wmma_fragment(inst.shape, WmmaMatrix::B, b)?,
            c: wmma_fragment(inst.shape, WmmaMatrix::C, c)?,
            d: wmma_fragment(inst.shape, WmmaMatrix::C, d)?,
            k: u32::from(inst.shape.k),
            groups: 1,
            op: inst.op,
            sat: inst.sat,
            rounding: inst.round.into(),
        };
        plan.registers_fit(inst).then_some(plan)
    }

    fn registers_fit(&self, inst: &Mma) -> bool {
        let fits = |fragment: &Fragment, registers: usize| {
            fragment.registers as usize == registers && registers <= 8
        };
        fits(&self.a, inst.a.len())
            && fits(&self.b, inst.b.len())
            && fits(&self.c, inst.c.len())
            && fits(&self.d, inst.d.len())
    }

    /// Computes `D = A * B + C` for a whole warp.
    pub fn run(&self, lanes: &[LaneOperands; 32]) -> [LaneRegisters; 32] {
        let rows = |get: fn(&LaneOperands) -> &LaneRegisters| -> [WarpRegister; 8] {
            std::array::from_fn(|i| std::array::from_fn(|lane| get(&lanes[lane])[i]))
        };
        let mut out = [[0; 32]; 8];
        self.run_rows(&rows(|l| &l.a), &rows(|l| &l.b), &rows(|l| &l.c), &mut out);
        std::array::from_fn(|lane| std::array::from_fn(|i| out[i][lane]))
    }

    /// The same with one row of lanes for each register.
    pub fn run_rows(
        &self,
        a: &[WarpRegister],
        b: &[WarpRegister],
        c: &[WarpRegister],
        out: &mut [WarpRegister],
    ) {
        self.run_rows_by(a, b, c, out, |sum, x, y| sum + x * y);
    }

    /// The same with this sum of a product of narrow floats, which is exact: `sum + x * y`, rounded once. Inlined, so that a
    /// caller compiled for wider registers gets code with them.
    #[inline(always)]
    pub fn run_rows_by(
        &self,
        a: &[WarpRegister],
        b: &[WarpRegister],
        c: &[WarpRegister],
        out: &mut [WarpRegister],
        step: impl Fn(f64, f64, f64) -> f64,
    ) {
        let operands = [a, b, c];
        let d = match Format::of(self.a.ty) {
            Some(F64) => self.doubles(operands),
            Some(_) => self.floats(operands, step),
            None => self.integers(operands),
        };
        let (width, count) = (self.d.ty.bits(), self.d.registers as usize);
        let per = (register_bits(self.d.ty) / width) as usize;
        for (lane, places) in self.d.places.chunks_exact(count * per).enumerate() {
            for (row, places) in out.iter_mut().zip(places.chunks_exact(per)) {
                let word = places.iter().rev().fold(0, |word: u64, &place| {
                    word.checked_shl(width).unwrap_or(0) | d[place as usize]
                });
                row[lane & 31] = word;
            }
        }
    }

    fn matrices<T: Copy + Default>(
        &self,
        [a, b, c]: [&[WarpRegister]; 3],
        decode: impl Fn(ScalarType, u64) -> T,
    ) -> [Vec<T>; 3] {
        let part = |f: &Fragment, rows: &[WarpRegister]| {
            gather(f, self.groups, rows, |bits| decode(f.ty, bits))
        };
        [part(&self.a, a), part(&self.b, b), part(&self.c, c)]
    }

    /// Narrow floats, each part decoded by code for its own type and width.
    #[inline(always)]
    fn decoded(&self, fragment: &Fragment, rows: &[WarpRegister]) -> Vec<f64> {
        let mut out = vec![0.0; (self.groups * fragment.rows * fragment.cols) as usize];
        let to = &mut out[..];
        match fragment.ty {
            ScalarType::F16 => scatter::<f64, 2, 16>(fragment, rows, half, to),
            ScalarType::Bf16 => {
                let wide = |bits| f64::from(f32::from_bits((bits as u32) << 16));
                scatter::<f64, 2, 16>(fragment, rows, wide, to);
            }
            ScalarType::F32 => {
                let wide = |bits| f64::from(f32::from_bits(bits as u32));
                scatter::<f64, 1, 32>(fragment, rows, wide, to);
            }
            // Only the bits that tf32 has count.
            ScalarType::Tf32 => {
                let wide = |bits| f64::from(f32::from_bits(bits as u32 & 0xffff_e000));
                scatter::<f64, 1, 32>(fragment, rows, wide, to);
            }
            ty => {
                let wide = |bits| Format::of(ty).map_or(0.0, |format| to_f64(format, bits));
                scatter::<f64, 4, 8>(fragment, rows, wide, to);
            }
        }
        out
    }

    /// `finish` of each element of C after `step(sum, a, b)` along `k`. A row of D at a time, so that
    /// the sums of a row go side by side.
    #[inline(always)]
    fn product<T: Copy>(
        &self,
        [a, b, mut sums]: [Vec<T>; 3],
        step: impl Fn(T, T, T) -> T,
        finish: impl Fn(T) -> u64,
    ) -> Vec<u64> {
        let (m, n, k) = (self.a.rows as usize, self.b.cols as usize, self.k as usize);
        for (row, sums) in sums.chunks_exact_mut(n).enumerate() {
            let left = &a[row * k..][..k];
            let right = &b[row / m * k * n..][..k * n];
            // Of the usual widths, so that the sums of a row stay in registers.
            if row_of::<T, 8>(sums, left, right, &step) || row_of::<T, 16>(sums, left, right, &step)
            {
                continue;
            }
            for (&x, right) in left.iter().zip(right.chunks_exact(n)) {
                for (sum, &y) in sums.iter_mut().zip(right) {
                    *sum = step(*sum, x, y);
                }
            }
        }
        sums.into_iter().map(finish).collect()
    }

    fn doubles(&self, operands: [&[WarpRegister]; 3]) -> Vec<u64> {
        let modes = Modes::rounded(self.rounding);
        let matrices = self.matrices(operands, |_, bits| bits);
        self.product(
            matrices,
            |sum, x, y| float::fma(F64, modes, x, y, sum),
            |sum| sum,
        )
    }

    #[inline(always)]
    fn floats(
        &self,
        [a, b, c]: [&[WarpRegister]; 3],
        step: impl Fn(f64, f64, f64) -> f64,
    ) -> Vec<u64> {
        let matrices = [
            self.decoded(&self.a, a),
            self.decoded(&self.b, b),
            self.decoded(&self.c, c),
        ];
        match Format::of(self.d.ty) {
            Some(to) if to != float::F32 => self.product(matrices, step, |sum| from_f64(to, sum)),
            _ => self.product(matrices, step, |sum| from_f64(float::F32, sum)),
        }
    }

    fn integers(&self, operands: [&[WarpRegister]; 3]) -> Vec<u64> {
        let matrices = self.matrices(operands, |ty, bits| {
            Int::of(ty).map_or(0, |t| t.value(bits) as i64)
        });
        let step = |sum: i64, x: i64, y: i64| match self.op {
            MmaOp::MulAdd => sum + x * y,
            MmaOp::XorPopc => sum + ((x ^ y) & 1),
            MmaOp::AndPopc => sum + (x & y & 1),
        };
        self.product(matrices, step, |sum| {
            if self.sat {
                crate::int::S32.clamp(i128::from(sum))
            } else {
                u64::from(sum as u32)
            }
        })
    }
}

/// A row of D, if it has so many columns.
#[inline(always)]
fn row_of<T: Copy, const N: usize>(
    sums: &mut [T],
    left: &[T],
    right: &[T],
    step: &impl Fn(T, T, T) -> T,
) -> bool {
    let Ok(sums) = <&mut [T; N]>::try_from(sums) else {
        return false;
    };
    let mut row = *sums;
    for (&x, right) in left.iter().zip(right.as_chunks::<N>().0) {
        for (sum, &y) in row.iter_mut().zip(right) {
            *sum = step(*sum, x, y);
        }
    }
    *sums = row;
    true
}

/// The elements of a matrix by flat index, decoded.
fn gather<T: Copy + Default>(
    fragment: &Fragment,
    groups: u32,
    rows: &[WarpRegister],
    decode: impl Fn(u64) -> T,
) -> Vec<T> {
    let mut out = vec![T::default(); (groups * fragment.rows * fragment.cols) as usize];
    // The usual widths by code of their own.
    match fragment.ty.bits() {
        16 => scatter::<T, 2, 16>(fragment, rows, decode, &mut out),
        32 => scatter::<T, 1, 32>(fragment, rows, decode, &mut out),
        64 => scatter::<T, 1, 64>(fragment, rows, decode, &mut out),
        8 => scatter::<T, 4, 8>(fragment, rows, decode, &mut out),
        4 => scatter::<T, 8, 4>(fragment, rows, decode, &mut out),
        _ => scatter::<T, 32, 1>(fragment, rows, decode, &mut out),
    }
    out
}

/// With `PER` elements of `WIDTH` bits in a register. A row of lanes is decoded at once, then put where it belongs.
#[inline(always)]
fn scatter<T: Copy + Default, const PER: usize, const WIDTH: u32>(
    fragment: &Fragment,
    rows: &[WarpRegister],
    decode: impl Fn(u64) -> T,
    out: &mut [T],
) {
    let count = fragment.registers as usize;
    for (r, row) in rows.iter().enumerate().take(count) {
        for i in 0..PER {
            let shift = i as u32 * WIDTH;
            let mut values = [T::default(); 32];
            for (value, word) in values.iter_mut().zip(row) {
                *value = decode(word >> shift & element_mask(WIDTH));
            }
            // Duplicates hold the same value.
            let places = fragment.places[r * PER + i..].iter().step_by(count * PER);
            for (value, &place) in values.iter().zip(places) {
                out[place as usize] = *value;
            }
        }
    }
}

/// An `f16`, as [`to_f64`] has it but for the bits of a NaN, without branches.
#[inline(always)]
fn half(bits: u64) -> f64 {
    // 2^(1023 - 15): moves the exponent to where doubles have it, for subnormals too.
    const SCALE: f64 = f64::from_bits((1023 + 1008) << 52);
    let magnitude = f64::from_bits((bits & 0x7fff) << 42) * SCALE;
    // Infinities and NaN: all bits of the exponent.
    let largest = u64::from(bits & 0x7c00 == 0x7c00).wrapping_neg() & 0x7ff << 52;
    f64::from_bits(magnitude.to_bits() | largest | (bits & 0x8000) << 48)
}

#[inline(always)]
const fn element_mask(width: u32) -> u64 {
    if width == 64 {
        u64::MAX
    } else {
        (1 << width) - 1
    }
}

fn types_fit(a: ScalarType, b: ScalarType, c: ScalarType, d: ScalarType, op: MmaOp) -> bool {
    use ScalarType::*;
    let bit_op = op != MmaOp::MulAdd;
    match a {
        F16 => b == F16 && matches!(c, F16 | F32) && matches!(d, F16 | F32) && !bit_op,
        Bf16 | Tf32 => b == a && c == F32 && d == F32 && !bit_op,
        E4m3 | E5m2 => matches!(b, E4m3 | E5m2) && matches!(c, F16 | F32) && c == d && !bit_op,
        F64 => b == F64 && c == F64 && d == F64 && !bit_op,
        S8 | U8 => matches!(b, S8 | U8) && c == S32 && d == S32 && !bit_op,
        S4 | U4 => matches!(b, S4 | U4) && c == S32 && d == S32 && !bit_op,
        B1 => b == B1 && c == S32 && d == S32 && bit_op,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
