//! One tile of a product, whose sums stay in registers.
//!
//! A tile has at most [`Kind::most`] rows and columns: twelve rows of two registers of AVX-512 each, or six of two of AVX2.
//! Every kind adds in the same order with fused multiply-adds, so all give the same bits.

use mica_ptx_ops::multiply::stored;

/// Part of a product. Distances count elements.
pub(super) struct Tile {
    pub(super) a: *const f32,
    pub(super) b: *const f32,
    pub(super) c: *mut f32,
    pub(super) a_row: usize,
    pub(super) a_col: usize,
    pub(super) b_row: usize,
    pub(super) c_row: usize,
    pub(super) depth: usize,
    pub(super) cols: usize,
    pub(super) adds: bool,
}

/// Which instructions compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::run) enum Kind {
    /// Registers of sixteen elements.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// Registers of eight elements.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// One element after the other.
    Plain,
}

impl Kind {
    /// All that this processor has, the fastest first.
    pub(super) fn all() -> impl Iterator<Item = Kind> {
        [
            #[cfg(target_arch = "x86_64")]
            std::is_x86_feature_detected!("avx512f").then_some(Kind::Avx512),
            #[cfg(target_arch = "x86_64")]
            (std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma"))
                .then_some(Kind::Avx2),
            Some(Kind::Plain),
        ]
        .into_iter()
        .flatten()
    }

    /// The fastest that this processor has.
    pub(in crate::run) fn of_processor() -> Kind {
        Kind::all().next().unwrap_or(Kind::Plain)
    }

    /// The most rows and columns of a tile.
    pub(super) fn most(self) -> (u64, u64) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => (12, 32),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => (6, 16),
            Kind::Plain => (1, 256),
        }
    }

    /// Computes a tile of at most [`Kind::most`] rows and columns, and at least one of each.
    ///
    /// # Safety
    /// All elements are valid for reads, those of `c` for writes; the processor has the instructions.
    pub(super) unsafe fn compute(self, tile: &Tile, rows: usize) {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the contract.
            Kind::Avx512 => unsafe { avx512::compute(tile, rows) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the contract.
            Kind::Avx2 => unsafe { avx2::compute(tile, rows) },
            // SAFETY: the contract.
            Kind::Plain => unsafe { plain(tile, rows) },
        }
    }
}

/// # Safety
/// As for [`Kind::compute`].
unsafe fn plain(tile: &Tile, rows: usize) {
    for row in 0..rows {
        for col in 0..tile.cols {
            // SAFETY: an element of `c`.
            let to = unsafe { tile.c.add(row * tile.c_row + col) };
            let mut sum = 0.0;
            for k in 0..tile.depth {
                // SAFETY: an element of `a`.
                let x = unsafe { tile.a.add(row * tile.a_row + k * tile.a_col).read() };
                // SAFETY: an element of `b`.
                let y = unsafe { tile.b.add(k * tile.b_row + col).read() };
                sum = x.mul_add(y, sum);
            }
            if tile.adds {
                // SAFETY: valid by the contract.
                sum += unsafe { to.read() };
            }
            // SAFETY: valid by the contract.
            unsafe { to.cast::<u32>().write(stored(sum)) };
        }
    }
}

/// The registers of one instruction set.
#[cfg(target_arch = "x86_64")]
macro_rules! instructions {
    ($module:ident, $features:literal, $lanes:literal, $most:literal, rows $($rows:literal)*) => {
        /// Tiles in the registers of one instruction set.
        mod $module {
            use super::Tile;
            use super::super::registers::$module::*;

            /// # Safety
            /// As for [`super::Kind::compute`].
            #[target_feature(enable = $features)]
            pub(super) unsafe fn compute(tile: &Tile, rows: usize) {
                let is_whole = tile.cols.is_multiple_of($lanes);
                match (rows, tile.cols > $lanes, is_whole) {
                    $(
                        // SAFETY: the contract; the tile has so many rows and registers.
                        ($rows, false, false) => unsafe { sums::<$rows, 1, false>(tile) },
                        // SAFETY: the same.
                        ($rows, false, true) => unsafe { sums::<$rows, 1, true>(tile) },
                        // SAFETY: the same.
                        ($rows, true, false) => unsafe { sums::<$rows, 2, false>(tile) },
                        // SAFETY: the same.
                        ($rows, true, true) => unsafe { sums::<$rows, 2, true>(tile) },
                    )*
                    // SAFETY: the contract.
                    _ => unsafe { super::plain(tile, rows) },
                }
            }

            /// A tile of `ROWS` rows of `REGISTERS` registers each, which are full if it is `WHOLE`.
            ///
            /// # Safety
            /// As for [`super::Kind::compute`], and the tile has so many rows and registers.
            #[target_feature(enable = $features)]
            unsafe fn sums<const ROWS: usize, const REGISTERS: usize, const WHOLE: bool>(
                tile: &Tile,
            ) {
                let masks: [_; REGISTERS] =
                    std::array::from_fn(|v| mask(tile.cols.saturating_sub(v * $lanes)));
                let mut sums = [[zero(); REGISTERS]; ROWS];
                // Every third row has a pointer: an address has room for one distance and its double.
                let mut a: [*const f32; $most / 3] =
                    std::array::from_fn(|group| tile.a.wrapping_add(3 * group * tile.a_row));
                let mut b = tile.b;
                for _ in 0..tile.depth {
                    let mut x = [zero(); REGISTERS];
                    for (v, x) in x.iter_mut().enumerate() {
                        let from = b.wrapping_add(v * $lanes);
                        *x = match WHOLE {
                            // SAFETY: a full register of elements of `b`.
                            true => unsafe { load_all(from) },
                            // SAFETY: the mask has elements of `b` alone.
                            false => unsafe { load(from, masks[v]) },
                        };
                    }
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let from = a[row / 3].wrapping_add(row % 3 * tile.a_row);
                        // SAFETY: an element of `a`.
                        let y = unsafe { spread(from) };
                        for (sum, x) in sums.iter_mut().zip(&x) {
                            *sum = multiply_add(y, *x, *sum);
                        }
                    }
                    a = a.map(|a| a.wrapping_add(tile.a_col));
                    b = b.wrapping_add(tile.b_row);
                }
                for (row, sums) in sums.iter().enumerate() {
                    for (v, sum) in sums.iter().enumerate() {
                        let to = tile.c.wrapping_add(row * tile.c_row + v * $lanes);
                        let mut sum = *sum;
                        if tile.adds {
                            // SAFETY: the mask has elements of `c` alone.
                            sum = add(sum, unsafe { load(to, masks[v]) });
                        }
                        // SAFETY: the same.
                        unsafe { store(to, masks[v], canonical(sum)) };
                    }
                }
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
instructions!(avx512, "avx512f", 16, 12, rows 1 2 3 4 5 6 7 8 9 10 11 12);
#[cfg(target_arch = "x86_64")]
instructions!(avx2, "avx2,fma", 8, 6, rows 1 2 3 4 5 6);
