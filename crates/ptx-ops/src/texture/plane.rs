//! A texture of one or two dimensions, ready to be sampled by many threads.
//!
//! Owns what is the same for every sample: extents, pitches, how a texel is decoded. The results are those of
//! [`sample`](super::sample), bit by bit. Refuses (with `None`) layers, cubes, three dimensions and mirrored
//! coordinates, which [`sample`](super::sample) does.

use super::simple::Simple;
use super::{Texel, border, component_bytes, component_value, decode};
use mica_kernel::TextureView;
use mica_ptx::ast::Geometry;

/// One dimension.
#[derive(Clone, Copy, Debug)]
struct Axis {
    /// Texels.
    size: i64,
    /// What a coordinate is multiplied with.
    scale: f64,
    /// Only the fraction of a coordinate counts.
    wraps: bool,
    /// What is outside has the colour of the border, else that of the nearest texel.
    has_border: bool,
}

impl Axis {
    fn new(view: &TextureView, dimension: usize) -> Option<Axis> {
        let size = super::extent(view, dimension);
        let mode = view.address_mode[dimension];
        if view.normalized_coords && mode == 2 {
            return None;
        }
        Some(Axis {
            size,
            scale: if view.normalized_coords {
                size as f64
            } else {
                1.0
            },
            wraps: view.normalized_coords && mode == 0,
            has_border: mode == 3,
        })
    }

    /// A coordinate in texels.
    fn point(&self, x: f32) -> f64 {
        let x = f64::from(x);
        let x = if self.wraps { x - x.floor() } else { x };
        let x = x * self.scale;
        if x.is_nan() {
            0.0
        } else {
            x.clamp(-1.0e9, 1.0e9)
        }
    }

    /// Where an index lands; `None` in the border.
    fn place(&self, index: i64) -> Option<u64> {
        if (0..self.size).contains(&index) {
            return Some(index as u64);
        }
        if self.has_border {
            return None;
        }
        Some(match self.wraps {
            true => index.rem_euclid(self.size),
            false => index.clamp(0, self.size - 1),
        } as u64)
    }
}

/// A number of at most nine digits, rounded down. `f64::floor` is a call where the processor may be an old one.
#[inline]
fn floor(x: f64) -> i64 {
    let cut = x as i64;
    cut - i64::from(cut as f64 > x)
}

/// A texture of one or two dimensions.
#[derive(Clone, Copy, Debug)]
pub struct Plane {
    view: TextureView,
    axes: [Axis; 2],
    dims: usize,
    size: u32,
    channels: usize,
    texel: u64,
    /// Texels are floats as they are in memory.
    is_float: bool,
    simple: Option<Simple>,
}

impl Plane {
    /// `None` for what only [`sample`](super::sample) does.
    pub fn new(view: &TextureView, geom: Geometry) -> Option<Plane> {
        let dims = match geom {
            Geometry::D1 => 1,
            Geometry::D2 => 2,
            _ => return None,
        };
        let size = component_bytes(view.format);
        let channels = view.channels.clamp(1, 4);
        let axes = [Axis::new(view, 0)?, Axis::new(view, 1)?];
        let ends = |axis: &Axis| !axis.wraps && !axis.has_border;
        let plane = Plane {
            view: *view,
            simple: None,
            axes,
            dims,
            size,
            channels: channels as usize,
            texel: u64::from(size * channels),
            is_float: view.format == 32,
        };
        let is_simple = plane.is_float && channels == 1 && axes.iter().all(ends);
        let is_small = plane
            .bytes()
            .is_some_and(|(_, bytes)| bytes <= Simple::MOST_BYTES);
        Some(Plane {
            simple: (is_simple && is_small).then(|| plane.as_simple()),
            ..plane
        })
    }

    fn as_simple(&self) -> Simple {
        let last = |i: usize| match i < self.dims {
            true => (self.axes[i].size - 1) as f64,
            false => 0.0,
        };
        Simple {
            last: [last(0), last(1)],
            scale: self.axes.map(|axis| axis.scale),
            row_pitch: self.view.row_pitch as f64,
            dims: self.dims,
            is_linear: self.view.filter != 0,
        }
    }

    /// The first byte of the texture, and how many follow up to the end of its last texel; `None` past any memory.
    pub fn bytes(&self) -> Option<(u64, u64)> {
        let [width, height] = self.axes.map(|axis| axis.size as u64);
        let rows = if self.dims == 2 { height - 1 } else { 0 };
        let before = rows.checked_mul(self.view.row_pitch)?;
        let bytes = before.checked_add(width.checked_mul(self.texel)?)?;
        Some((self.view.base, bytes))
    }

    /// The texture as one with a float a texel, if it is.
    pub fn simple(&self) -> Option<&Simple> {
        self.simple.as_ref()
    }

    /// Samples at float coordinates. `read` gets the distance from the first byte, below what [`Plane::bytes`]
    /// says, and how many bytes.
    pub fn sample(&self, coords: [f32; 2], read: impl Fn(u64, u32) -> u64) -> Texel {
        let point = [
            self.axes[0].point(coords[0]),
            if self.dims == 2 {
                self.axes[1].point(coords[1])
            } else {
                0.0
            },
        ];
        match self.view.filter {
            0 => self.fetch(
                self.axes[0].place(floor(point[0])),
                self.row(floor(point[1])),
                &read,
            ),
            _ => self.linear(point, &read),
        }
    }

    /// The texel at integer coordinates, zero outside.
    pub fn texel(&self, index: [i32; 2], read: impl Fn(u64, u32) -> u64) -> Texel {
        let inside = |i: usize| i >= self.dims || (0..self.axes[i].size).contains(&index[i].into());
        if !(inside(0) && inside(1)) {
            return [0; 4];
        }
        let row = if self.dims == 2 { index[1] } else { 0 };
        self.fetch(Some(index[0] as u64), Some(row as u64), &read)
    }

    fn row(&self, index: i64) -> Option<u64> {
        match self.dims {
            2 => self.axes[1].place(index),
            _ => Some(0),
        }
    }

    fn linear(&self, point: [f64; 2], read: &impl Fn(u64, u32) -> u64) -> Texel {
        let mut base = [0; 2];
        let mut weight = [0.0; 2];
        for i in 0..self.dims {
            let shifted = point[i] - 0.5;
            base[i] = floor(shifted);
            // 9-bit fixed point with 8 bits of fraction; not negative, so that cutting rounds.
            let part = (shifted - base[i] as f64) * 256.0 + 0.5;
            weight[i] = part as i64 as f64 / 256.0;
        }
        let columns = [0, 1].map(|d| self.axes[0].place(base[0] + d));
        let rows = [0, 1].map(|d| self.row(base[1] + d));
        let mut sum = [0f64; 4];
        for corner in 0..1usize << self.dims {
            let (right, down) = (corner & 1, corner >> 1);
            let mut share = [1.0 - weight[0], weight[0]][right];
            if self.dims == 2 {
                share *= [1.0 - weight[1], weight[1]][down];
            }
            if share == 0.0 {
                continue;
            }
            let texel = self.fetch(columns[right], rows[down], read);
            for (total, bits) in sum.iter_mut().zip(texel).take(self.channels) {
                *total += share
                    * match self.is_float {
                        true => f64::from(f32::from_bits(bits)),
                        false => component_value(&self.view, bits),
                    };
            }
        }
        if self.dims == 1 && self.view.address_mode[1] == 3 {
            let edge = border(&self.view, false);
            for (total, bits) in sum.iter_mut().zip(edge) {
                *total = (*total + component_value(&self.view, bits)) / 2.0;
            }
        }
        sum.map(|x| (x as f32).to_bits())
    }

    fn fetch(
        &self,
        column: Option<u64>,
        row: Option<u64>,
        read: &impl Fn(u64, u32) -> u64,
    ) -> Texel {
        let (Some(column), Some(row)) = (column, row) else {
            return border(&self.view, false);
        };
        let start = row * self.view.row_pitch + column * self.texel;
        let mut out = [0; 4];
        for (i, component) in out.iter_mut().enumerate().take(self.channels) {
            let bits = read(start + u64::from(self.size) * i as u64, self.size);
            *component = match self.is_float {
                true => bits as u32,
                false => decode(&self.view, bits),
            };
        }
        out
    }
}
