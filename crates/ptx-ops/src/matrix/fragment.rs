//! Where the lanes of a warp hold the elements of matrices.

use super::LaneRegisters;
use mica_ptx::ast::{Layout, ScalarType, Shape, WmmaMatrix};

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

pub(super) fn register_bits(ty: ScalarType) -> u32 {
    if ty == ScalarType::F64 { 64 } else { 32 }
}

/// Packed spellings stand for their element.
pub(super) fn element(ty: ScalarType) -> ScalarType {
    match ty {
        ScalarType::F16x2 => ScalarType::F16,
        ScalarType::Bf16x2 => ScalarType::Bf16,
        ScalarType::E4m3x2 => ScalarType::E4m3,
        ScalarType::E5m2x2 => ScalarType::E5m2,
        ty => ty,
    }
}

/// A of `mma`: each register holds neighbours along `k` of one row.
pub(super) fn fragment_a(m: u32, k: u32, ty: ScalarType) -> Fragment {
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
pub(super) fn fragment_b(n: u32, k: u32, ty: ScalarType) -> Fragment {
    let per = register_bits(ty) / ty.bits();
    Fragment::new((k, n), ty, k * n / 32 / per, move |lane, e| {
        let (group, within) = (lane / 4, lane % 4);
        (within * per + e / per * 4 * per + e % per) * n + group
    })
}

/// C and D of `mma`: pairs along a row.
pub(super) fn fragment_c(m: u32, n: u32, ty: ScalarType) -> Fragment {
    let per = register_bits(ty) / ty.bits();
    Fragment::new((m, n), ty, m * n / 32 / per, move |lane, e| {
        (lane / 4 + 8 * (e >> 1)) * n + lane % 4 * 2 + (e & 1)
    })
}

/// `m8n8k4` of `f16` is four products at once, one per pair of quads.
fn volta_group(lane: u32) -> (u32, u32) {
    (lane / 4 % 4, if lane < 16 { 0 } else { 4 })
}

pub(super) fn volta_a(layout: Layout) -> Fragment {
    Fragment::new((8, 4), ScalarType::F16, 2, move |lane, e| {
        let (group, high) = volta_group(lane);
        let (row, col) = match layout {
            Layout::Row => (lane % 4 + high, e),
            Layout::Col => (e + high, lane % 4),
        };
        (group * 8 + row) * 4 + col
    })
}

pub(super) fn volta_b(layout: Layout) -> Fragment {
    Fragment::new((4, 8), ScalarType::F16, 2, move |lane, e| {
        let (group, high) = volta_group(lane);
        let (row, col) = match layout {
            Layout::Col => (e, lane % 4 + high),
            Layout::Row => (lane % 4, e + high),
        };
        (group * 4 + row) * 8 + col
    })
}

pub(super) fn volta_c(ty: ScalarType, float32: bool) -> Fragment {
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
