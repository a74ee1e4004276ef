//! Textures with one float a texel and with coordinates that end at the edges, which most are, for several samples at
//! once.
//!
//! Owns the arithmetic of such samples: each step is a loop over all of them, without a branch, so that the compiler
//! makes vector code of it for whatever processor its caller is compiled for. The results are those of
//! [`sample`](super::sample), bit by bit. Reads nothing: the caller does that between two steps.
#![allow(
    clippy::needless_range_loop,
    reason = "a sample has one index in all rows"
)]

/// Samples that are computed together.
pub const SAMPLES: usize = 8;

/// A value for each sample.
pub type Row<T> = [T; SAMPLES];

/// A texture with one float a texel, and with coordinates that end at the edges.
#[derive(Clone, Copy, Debug)]
pub struct Simple {
    /// Largest index of each dimension.
    pub(super) last: [f64; 2],
    /// What a coordinate is multiplied with.
    pub(super) scale: [f64; 2],
    /// Bytes from a row to the next.
    pub(super) row_pitch: f64,
    pub(super) dims: usize,
    /// Whether neighbouring texels are blended.
    pub is_linear: bool,
}

/// What samples with a linear filter read, and how it is blended.
#[derive(Clone, Copy, Debug)]
pub struct Corners {
    /// Distances of the texels from the texture's first byte.
    pub places: [Row<u64>; 4],
    /// Shares of the texels, in whole parts of 256 for one dimension and 65,536 for two.
    shares: [Row<f64>; 4],
    /// How many of the four there are.
    pub count: usize,
}

/// Indexes in one dimension: the first of two, the second, and the second's share of 256.
type Split = [Row<f64>; 3];

impl Simple {
    /// Most bytes of such a texture: distances are computed as 64-bit floats, and [`whole`] takes numbers up to here.
    pub(super) const MOST_BYTES: u64 = 1 << 50;

    /// Distances from the texture's first byte of the texels that samples with a point filter read.
    #[inline(always)]
    pub fn points(&self, x: &Row<f32>, y: &Row<f32>) -> Row<u64> {
        let columns = self.cells(0, x);
        match self.dims {
            1 => self.places(&columns, &[0.0; SAMPLES]),
            _ => self.places(&columns, &self.cells(1, y)),
        }
    }

    /// What samples with a linear filter read.
    #[inline(always)]
    pub fn corners(&self, x: &Row<f32>, y: &Row<f32>) -> Corners {
        let [left, right, to_right] = self.split(0, x);
        let none = [0.0; SAMPLES];
        let mut corners = Corners {
            places: [[0; SAMPLES]; 4],
            shares: [none; 4],
            count: 2,
        };
        if self.dims == 1 {
            corners.places[0] = self.places(&left, &none);
            corners.places[1] = self.places(&right, &none);
            for i in 0..SAMPLES {
                corners.shares[0][i] = 256.0 - to_right[i];
                corners.shares[1][i] = to_right[i];
            }
            return corners;
        }
        let [up, down, to_down] = self.split(1, y);
        corners.count = 4;
        corners.places[0] = self.places(&left, &up);
        corners.places[1] = self.places(&right, &up);
        corners.places[2] = self.places(&left, &down);
        corners.places[3] = self.places(&right, &down);
        for i in 0..SAMPLES {
            let (to_left, to_up) = (256.0 - to_right[i], 256.0 - to_down[i]);
            corners.shares[0][i] = to_left * to_up;
            corners.shares[1][i] = to_right[i] * to_up;
            corners.shares[2][i] = to_left * to_down[i];
            corners.shares[3][i] = to_right[i] * to_down[i];
        }
        corners
    }

    /// The index of each coordinate's texel in a dimension.
    #[inline(always)]
    fn cells(&self, dimension: usize, coordinates: &Row<f32>) -> Row<f64> {
        let (scale, last) = (self.scale[dimension], self.last[dimension]);
        let mut cells = [0.0; SAMPLES];
        for (cell, x) in cells.iter_mut().zip(coordinates) {
            let x = f64::from(*x) * scale;
            // A NaN counts as 0.
            *cell = inside(x, last).floor();
        }
        cells
    }

    #[inline(always)]
    fn split(&self, dimension: usize, coordinates: &Row<f32>) -> Split {
        let (scale, last) = (self.scale[dimension], self.last[dimension]);
        let mut split = [[0.0; SAMPLES]; 3];
        for i in 0..SAMPLES {
            let x = f64::from(coordinates[i]) * scale;
            // A NaN counts as 0, and is at the first texel like everything below.
            let x = if x > -1.0e9 { x } else { -1.0e9 };
            let x = if x < 1.0e9 { x } else { 1.0e9 };
            // Rounded to 8 bits of fraction; a share of 256 is the next index with a share of 0.
            let steps = ((x - 0.5) * 256.0 + 0.5).floor();
            let first = (steps / 256.0).floor();
            split[0][i] = inside(first, last);
            split[1][i] = inside(first + 1.0, last);
            split[2][i] = steps - first * 256.0;
        }
        split
    }

    #[inline(always)]
    fn places(&self, columns: &Row<f64>, rows: &Row<f64>) -> Row<u64> {
        let mut places = [0; SAMPLES];
        for i in 0..SAMPLES {
            places[i] = whole(rows[i] * self.row_pitch + columns[i] * 4.0);
        }
        places
    }
}

impl Corners {
    /// The samples, of the bits of the texels at [`Corners::places`].
    #[inline(always)]
    pub fn blend(&self, texels: &[Row<u32>; 4]) -> Row<u32> {
        let mut samples = [0; SAMPLES];
        let all = if self.count == 4 { 65536.0 } else { 256.0 };
        for i in 0..SAMPLES {
            // Shares are whole numbers, so that products and sums are as exact as with fractions.
            let mut sum = 0.0;
            for corner in 0..4 {
                let (share, bits) = (self.shares[corner][i], texels[corner][i]);
                let product = share * f64::from(f32::from_bits(bits));
                // A texel without a share counts for nothing, whatever it is.
                sum += if share == 0.0 { 0.0 } else { product };
            }
            samples[i] = ((sum / all) as f32).to_bits();
        }
        samples
    }
}

/// The nearest number from 0 to `last`; 0 for a NaN, which no comparison is true of.
#[inline(always)]
fn inside(x: f64, last: f64) -> f64 {
    let x = if x > 0.0 { x } else { 0.0 };
    if x < last { x } else { last }
}

/// A whole number from 0 to 2^51. Conversions of the language look for every value that does not fit.
#[inline(always)]
fn whole(x: f64) -> u64 {
    /// At this size a 64-bit float has no fraction.
    const UNIT: f64 = 6_755_399_441_055_744.0;
    (x + UNIT).to_bits().wrapping_sub(UNIT.to_bits())
}
