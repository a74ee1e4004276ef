//! Matrix instructions: where fragments hold their elements, and what `mma` computes.
//!
//! Owns the layouts of `mma`, `wmma`, `ldmatrix` and `movmatrix` over the 32 lanes of a warp.
//! Products of narrow floats are exact; their sum is taken in `f64` and rounded once, so the result
//! is at least as near as a tensor core's. `f64` goes by fused multiply-adds in the order of `k`.
//! Refuses (with `None`) shapes and types that PTX does not have, and sparse forms.

use crate::float::{self, F64, Format, Modes, from_f64, to_f64};
use crate::int::Int;
use mica_ptx::ast::{Layout, Mma, MmaOp, ScalarType, Shape, WmmaMatrix};

/// Registers that one lane gives to or gets from a matrix instruction.
pub type LaneRegisters = [u64; 8];

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

/// How one matrix lies in the registers of a warp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub cols: u32,
    /// Element type.
    pub ty: ScalarType,
    /// Registers per lane.
    pub registers: u32,
    /// For each lane, for each element in register order, the flat index of the element:
    /// `(group * rows + row) * cols + column`. Groups exist in `m8n8k4` of `f16` only, else 0.
    pub places: Vec<u16>,
    /// Elements per lane, duplicates included.
    pub per_lane: u32,
}

impl Fragment {
    fn new(
        (rows, cols): (u32, u32),
        ty: ScalarType,
        registers: u32,
        place: impl Fn(u32, u32) -> u32,
    ) -> Fragment {
        let per_lane = registers * register_bits(ty) / ty.bits();
        let places = (0..32u32)
            .flat_map(|lane| (0..per_lane).map(move |e| (lane, e)))
            .map(|(lane, e)| place(lane, e) as u16)
            .collect();
        Fragment {
            rows,
            cols,
            ty,
            registers,
            places,
            per_lane,
        }
    }

    /// Row and column of each element of a lane, in register order.
    pub fn lane_places(&self, lane: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let start = (lane * self.per_lane) as usize;
        self.places[start..start + self.per_lane as usize]
            .iter()
            .map(|&p| {
                let flat = u32::from(p) % (self.rows * self.cols);
                (flat / self.cols, flat % self.cols)
            })
    }

    /// The bits of element `e` within a lane's registers.
    pub fn extract(&self, registers: &LaneRegisters, e: u32) -> u64 {
        let (per, width) = (register_bits(self.ty) / self.ty.bits(), self.ty.bits());
        let mask = if width == 64 {
            u64::MAX
        } else {
            (1 << width) - 1
        };
        registers[(e / per) as usize & 7] >> (e % per * width) & mask
    }

    /// Puts the bits of element `e` into a lane's registers.
    pub fn insert(&self, registers: &mut LaneRegisters, e: u32, bits: u64) {
        let (per, width) = (register_bits(self.ty) / self.ty.bits(), self.ty.bits());
        let mask = if width == 64 {
            u64::MAX
        } else {
            (1 << width) - 1
        };
        let register = &mut registers[(e / per) as usize & 7];
        let shift = e % per * width;
        *register = *register & !(mask << shift) | (bits & mask) << shift;
    }
}

fn register_bits(ty: ScalarType) -> u32 {
    if ty == ScalarType::F64 { 64 } else { 32 }
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
        let a = gather(&self.a, self.groups, |lane| &lanes[lane].a);
        let b = gather(&self.b, self.groups, |lane| &lanes[lane].b);
        let c = gather(&self.c, self.groups, |lane| &lanes[lane].c);
        let d = match Format::of(self.a.ty) {
            Some(format) => self.floats(format, &a, &b, &c),
            None => self.integers(&a, &b, &c),
        };
        let mut out = [[0; 8]; 32];
        for (lane, registers) in out.iter_mut().enumerate() {
            let start = lane * self.d.per_lane as usize;
            for e in 0..self.d.per_lane {
                let place = self.d.places[start + e as usize] as usize;
                self.d.insert(registers, e, d[place]);
            }
        }
        out
    }

    /// Calls `f(flat index in D, row of A, column of B)` for each element of D.
    fn each(&self, mut f: impl FnMut(usize, usize, usize)) {
        let (m, n, k) = (self.a.rows as usize, self.b.cols as usize, self.k as usize);
        for group in 0..self.groups as usize {
            for i in 0..m {
                for j in 0..n {
                    f(
                        (group * m + i) * n + j,
                        (group * m + i) * k,
                        group * k * n + j,
                    );
                }
            }
        }
    }

    fn floats(&self, format: Format, a: &[u64], b: &[u64], c: &[u64]) -> Vec<u64> {
        let (n, k) = (self.b.cols as usize, self.k as usize);
        let mut out = vec![0; c.len()];
        if format == F64 {
            let modes = Modes::rounded(self.rounding);
            self.each(|to, row, col| {
                out[to] = (0..k).fold(c[to], |sum, x| {
                    float::fma(F64, modes, a[row + x], b[col + x * n], sum)
                });
            });
            return out;
        }
        let value = |ty: ScalarType, bits: u64| match ty {
            // Only the bits that tf32 has count.
            ScalarType::Tf32 => f64::from(f32::from_bits(bits as u32 & 0xffff_e000)),
            ty => Format::of(ty).map_or(0.0, |format| to_f64(format, bits)),
        };
        let a: Vec<f64> = a.iter().map(|&x| value(self.a.ty, x)).collect();
        let b: Vec<f64> = b.iter().map(|&x| value(self.b.ty, x)).collect();
        let to_format = Format::of(self.d.ty).unwrap_or(float::F32);
        self.each(|to, row, col| {
            let start = value(self.c.ty, c[to]);
            let sum = (0..k).fold(start, |sum, x| sum + a[row + x] * b[col + x * n]);
            out[to] = from_f64(to_format, sum);
        });
        out
    }

    fn integers(&self, a: &[u64], b: &[u64], c: &[u64]) -> Vec<u64> {
        let (n, k) = (self.b.cols as usize, self.k as usize);
        let value = |ty: ScalarType, bits: u64| Int::of(ty).map_or(0, |t| t.value(bits) as i64);
        let a: Vec<i64> = a.iter().map(|&x| value(self.a.ty, x)).collect();
        let b: Vec<i64> = b.iter().map(|&x| value(self.b.ty, x)).collect();
        let mut out = vec![0; c.len()];
        self.each(|to, row, col| {
            let product = |x: usize| match self.op {
                MmaOp::MulAdd => a[row + x] * b[col + x * n],
                MmaOp::XorPopc => (a[row + x] ^ b[col + x * n]) & 1,
                MmaOp::AndPopc => a[row + x] & b[col + x * n] & 1,
            };
            let sum = i64::from(c[to] as u32 as i32) + (0..k).map(product).sum::<i64>();
            out[to] = if self.sat {
                crate::int::S32.clamp(i128::from(sum))
            } else {
                u64::from(sum as u32)
            };
        });
        out
    }
}

fn gather<'a>(
    fragment: &Fragment,
    groups: u32,
    registers: impl Fn(usize) -> &'a LaneRegisters,
) -> Vec<u64> {
    let mut out = vec![0; (groups * fragment.rows * fragment.cols) as usize];
    // Duplicates hold the same value; backwards, so that the first copy is the one that counts.
    for lane in (0..32).rev() {
        let start = lane * fragment.per_lane as usize;
        for e in (0..fragment.per_lane).rev() {
            let place = fragment.places[start + e as usize] as usize;
            out[place] = fragment.extract(registers(lane), e);
        }
    }
    out
}

/// Packed spellings stand for their element.
fn element(ty: ScalarType) -> ScalarType {
    match ty {
        ScalarType::F16x2 => ScalarType::F16,
        ScalarType::Bf16x2 => ScalarType::Bf16,
        ScalarType::E4m3x2 => ScalarType::E4m3,
        ScalarType::E5m2x2 => ScalarType::E5m2,
        ty => ty,
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

/// A of `mma`: each register holds neighbours along `k` of one row.
fn fragment_a(m: u32, k: u32, ty: ScalarType) -> Fragment {
    let per = register_bits(ty) / ty.bits();
    let registers = m * k / 32 / per;
    Fragment::new((m, k), ty, registers, move |lane, e| {
        let (group, within) = (lane / 4, lane % 4);
        let (register, sub) = (e / per, e % per);
        let (half, block) = if m == 16 {
            (register & 1, register >> 1)
        } else {
            (0, register)
        };
        (group + 8 * half) * k + within * per + block * 4 * per + sub
    })
}

/// B of `mma`: each register holds neighbours along `k` of one column.
fn fragment_b(n: u32, k: u32, ty: ScalarType) -> Fragment {
    let per = register_bits(ty) / ty.bits();
    Fragment::new((k, n), ty, k * n / 32 / per, move |lane, e| {
        let (group, within) = (lane / 4, lane % 4);
        (within * per + e / per * 4 * per + e % per) * n + group
    })
}

/// C and D of `mma`: pairs along a row.
fn fragment_c(m: u32, n: u32, ty: ScalarType) -> Fragment {
    let per = register_bits(ty) / ty.bits();
    Fragment::new((m, n), ty, m * n / 32 / per, move |lane, e| {
        (lane / 4 + 8 * (e >> 1)) * n + lane % 4 * 2 + (e & 1)
    })
}

/// `m8n8k4` of `f16` is four products at once, one per pair of quads.
fn volta_group(lane: u32) -> (u32, u32) {
    (lane / 4 % 4, if lane < 16 { 0 } else { 4 })
}

fn volta_a(layout: Layout) -> Fragment {
    Fragment::new((8, 4), ScalarType::F16, 2, move |lane, e| {
        let (group, high) = volta_group(lane);
        let (row, col) = match layout {
            Layout::Row => (lane % 4 + high, e),
            Layout::Col => (e + high, lane % 4),
        };
        (group * 8 + row) * 4 + col
    })
}

fn volta_b(layout: Layout) -> Fragment {
    Fragment::new((4, 8), ScalarType::F16, 2, move |lane, e| {
        let (group, high) = volta_group(lane);
        let (row, col) = match layout {
            Layout::Col => (e, lane % 4 + high),
            Layout::Row => (lane % 4, e + high),
        };
        (group * 4 + row) * 8 + col
    })
}

fn volta_c(ty: ScalarType, float32: bool) -> Fragment {
    Fragment::new((8, 8), ty, if float32 { 8 } else { 4 }, move |lane, e| {
        let (group, high) = volta_group(lane);
        let (row, col) = if float32 {
            ((lane & 1) + (e & 2) + high, (e & 4) + (lane & 2) + (e & 1))
        } else {
            (lane % 4 + high, e)
        };
        (group * 8 + row) * 8 + col
    })
}

/// How `wmma` fragments lie in registers. PTX leaves it open; where the register file has more
/// room than the matrix has elements, they repeat. `None` for shapes that PTX does not have.
pub fn wmma_fragment(shape: Shape, matrix: WmmaMatrix, ty: ScalarType) -> Option<Fragment> {
    use ScalarType::*;
    let ty = element(ty);
    let (m, n, k) = (u32::from(shape.m), u32::from(shape.n), u32::from(shape.k));
    let size = match matrix {
        WmmaMatrix::A => (m, k),
        WmmaMatrix::B => (k, n),
        WmmaMatrix::C => (m, n),
    };
    let wide = matches!((m, n, k), (16, 16, 16) | (32, 8, 16) | (8, 32, 16));
    let unique = size.0 * size.1 / 32;
    let registers = match (ty, matrix) {
        (F16, WmmaMatrix::A | WmmaMatrix::B) if wide => 8,
        (F16, WmmaMatrix::C) if wide => 4,
        (F32, WmmaMatrix::C) if wide || (m, n, k) == (16, 16, 8) => 8,
        (Bf16 | S8 | U8, WmmaMatrix::A | WmmaMatrix::B) if wide => unique * ty.bits() / 32,
        (S32, WmmaMatrix::C) if wide => 8,
        (Tf32, WmmaMatrix::A | WmmaMatrix::B) if (m, n, k) == (16, 16, 8) => 4,
        (F64, _) if (m, n, k) == (8, 8, 4) => unique,
        (S4 | U4, WmmaMatrix::A | WmmaMatrix::B) if (m, n, k) == (8, 8, 32) => 1,
        (B1, WmmaMatrix::A | WmmaMatrix::B) if (m, n, k) == (8, 8, 128) => 1,
        (S32, WmmaMatrix::C) if (m, n) == (8, 8) && matches!(k, 32 | 128) => 2,
        _ => return None,
    };
    let square = (m, n) == (16, 16) && matrix == WmmaMatrix::C;
    Some(Fragment::new(size, ty, registers, move |lane, e| {
        if square {
            // As two m16n8 accumulators side by side, which is what the hardware does.
            let row = lane / 4 + 8 * (e >> 1 & 1);
            row * 16 + lane % 4 * 2 + (e & 1) + 8 * (e >> 2)
        } else {
            lane * unique + e % unique
        }
    }))
}

/// Bit offset of an element of a matrix in memory; `stride` is in elements.
pub fn memory_bit_offset(layout: Layout, stride: u64, row: u32, col: u32, bits: u32) -> u64 {
    let (major, minor) = match layout {
        Layout::Row => (row, col),
        Layout::Col => (col, row),
    };
    u64::from(major)
        .wrapping_mul(stride)
        .wrapping_add(u64::from(minor))
        .wrapping_mul(u64::from(bits))
}

/// The two elements (row, column) of an 8x8 `b16` tile that `lane` holds for `ldmatrix`,
/// `stmatrix` and `movmatrix`: low half first.
pub fn tile_places(lane: u32, trans: bool) -> [(u32, u32); 2] {
    let (outer, inner) = (lane / 4, lane % 4 * 2);
    if trans {
        [(inner, outer), (inner + 1, outer)]
    } else {
        [(outer, inner), (outer, inner + 1)]
    }
}

#[cfg(test)]
#[path = "matrix_tests.rs"]
mod tests;
