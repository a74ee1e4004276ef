//! Texture sampling over a [`TextureView`].
//!
//! Memory is read through a closure, so that the caller checks addresses its own way. Filtering
//! follows CUDA's programming guide: texel centres at `i + 0.5`, weights with 8 fractional bits.
//! Refuses nothing: coordinates of any value, NaN included, land by the address mode.

mod plane;
mod simple;

pub use plane::Plane;
pub use simple::{Corners, Row, SAMPLES, Simple};

use crate::float::{F16, from_f64, to_f64};
use mica_kernel::TextureView;
use mica_ptx::ast::Geometry;

/// Four components as bits: `f32`, or integers where the view says so.
pub type Texel = [u32; 4];

/// Coordinates of a sample, already unpacked from the instruction.
#[derive(Clone, Copy, Debug)]
pub enum Coordinates {
    /// Float coordinates, filtered and addressed by the view.
    Float([f32; 3]),
    /// Integer coordinates: one texel, zero outside.
    Integer([i32; 3]),
}

/// `tex`: samples the view. `layer` is used by array geometries, `offsets` are in texels.
///
/// # Errors
/// Whatever `read(address, bytes)` returns.
pub fn sample<E>(
    view: &TextureView,
    geom: Geometry,
    coords: Coordinates,
    layer: u32,
    offsets: [i32; 3],
    read: &mut dyn FnMut(u64, u32) -> Result<u64, E>,
) -> Result<Texel, E> {
    let (view, point, slice) = match resolve(view, geom, coords, layer) {
        Resolved::Texel(index, slice) => {
            let index = std::array::from_fn(|i| Some(index[i] + i64::from(offsets[i])));
            return fetch(view, geom, index, slice, read);
        }
        Resolved::Point(view, point, slice) => (view, point, slice),
    };
    let dims = dimensions(geom);
    if view.filter == 0 {
        let index = std::array::from_fn(|i| {
            if i >= dims {
                return Some(0);
            }
            let cell = point[i].floor() as i64 + i64::from(offsets[i]);
            address(&view, i, cell)
        });
        return fetch(&view, geom, index, slice, read);
    }
    linear(&view, geom, dims, point, slice, offsets, read)
}

enum Resolved {
    /// An exact texel and its slice.
    Texel([i64; 3], u32),
    /// A point in texel units and its slice, with the view to sample.
    Point(TextureView, [f64; 3], u32),
}

pub(crate) fn dimensions(geom: Geometry) -> usize {
    match geom {
        Geometry::Cube | Geometry::ACube => 2,
        geom => geom.coords(),
    }
}

fn extent(view: &TextureView, dimension: usize) -> i64 {
    let size = [view.extent.x, view.extent.y, view.extent.z][dimension];
    i64::from(size.max(1))
}

fn resolve(view: &TextureView, geom: Geometry, coords: Coordinates, layer: u32) -> Resolved {
    let layers = view.extent.z.max(1);
    let slice = if geom.is_array() {
        layer.min(layers - 1)
    } else {
        0
    };
    let coords = match coords {
        Coordinates::Integer(index) => return Resolved::Texel(index.map(i64::from), slice),
        Coordinates::Float(coords) => coords.map(f64::from),
    };
    if matches!(geom, Geometry::Cube | Geometry::ACube) {
        let (face, s, t) = cube_face(coords);
        let first = if geom == Geometry::ACube {
            layer.saturating_mul(6)
        } else {
            0
        };
        let slice = first.saturating_add(face).min(layers - 1);
        let point = [s * extent(view, 0) as f64, t * extent(view, 1) as f64, 0.0];
        // Cube faces have no neighbours here: edges clamp.
        return Resolved::Point(
            TextureView {
                address_mode: [1; 3],
                ..*view
            },
            point,
            slice,
        );
    }
    let mut point = [0.0; 3];
    for (i, x) in point.iter_mut().enumerate().take(dimensions(geom)) {
        *x = if view.normalized_coords {
            normalize(view, i, coords[i]) * extent(view, i) as f64
        } else {
            coords[i]
        };
        // NaN and values past any texture would overflow the integer index.
        *x = if x.is_nan() {
            0.0
        } else {
            x.clamp(-1.0e9, 1.0e9)
        };
    }
    Resolved::Point(*view, point, slice)
}

fn normalize(view: &TextureView, dimension: usize, x: f64) -> f64 {
    match view.address_mode[dimension] {
        0 => x - x.floor(),
        2 => {
            let part = x - x.floor();
            if x.floor() % 2.0 == 0.0 {
                part
            } else {
                1.0 - part
            }
        }
        _ => x,
    }
}

/// The texel index by the address mode, `None` for the border.
fn address(view: &TextureView, dimension: usize, index: i64) -> Option<i64> {
    let size = extent(view, dimension);
    if (0..size).contains(&index) {
        return Some(index);
    }
    // Wrap and mirror exist for normalized coordinates only.
    match view.address_mode[dimension] {
        0 if view.normalized_coords => Some(index.rem_euclid(size)),
        2 if view.normalized_coords => {
            let cell = index.rem_euclid(2 * size);
            Some(if cell < size {
                cell
            } else {
                2 * size - 1 - cell
            })
        }
        3 => None,
        _ => Some(index.clamp(0, size - 1)),
    }
}

fn linear<E>(
    view: &TextureView,
    geom: Geometry,
    dims: usize,
    point: [f64; 3],
    slice: u32,
    offsets: [i32; 3],
    read: &mut dyn FnMut(u64, u32) -> Result<u64, E>,
) -> Result<Texel, E> {
    let mut base = [0i64; 3];
    let mut weight = [0f64; 3];
    for i in 0..dims {
        let shifted = point[i] - 0.5;
        base[i] = shifted.floor() as i64 + i64::from(offsets[i]);
        // 9-bit fixed point with 8 bits of fraction.
        weight[i] = ((shifted - shifted.floor()) * 256.0).round() / 256.0;
    }
    let mut sum = [0f64; 4];
    for corner in 0..1usize << dims {
        let mut share = 1.0;
        let mut index = [Some(0); 3];
        for i in 0..dims {
            let upper = corner >> i & 1 == 1;
            share *= if upper { weight[i] } else { 1.0 - weight[i] };
            index[i] = address(view, i, base[i] + i64::from(upper));
        }
        if share == 0.0 {
            continue;
        }
        let texel = fetch(view, geom, index, slice, read)?;
        for (total, bits) in sum.iter_mut().zip(texel) {
            *total += share * component_value(view, bits);
        }
    }
    if dims == 1 && view.address_mode[1] == 3 {
        // The hardware filters one dimension as two, at y = 0: half of it lies in the border.
        let edge = border(view, false);
        for (total, bits) in sum.iter_mut().zip(edge) {
            *total = (*total + component_value(view, bits)) / 2.0;
        }
    }
    Ok(sum.map(|x| (x as f32).to_bits()))
}

fn component_value(view: &TextureView, bits: u32) -> f64 {
    match (view.read_as_integer, view.format) {
        (true, 8..=10) => f64::from(bits as i32),
        (true, 1..=3) => f64::from(bits),
        _ => f64::from(f32::from_bits(bits)),
    }
}

/// One texel; `None` in an index, or one outside the extent, is the border.
fn fetch<E>(
    view: &TextureView,
    geom: Geometry,
    index: [Option<i64>; 3],
    slice: u32,
    read: &mut dyn FnMut(u64, u32) -> Result<u64, E>,
) -> Result<Texel, E> {
    let dims = dimensions(geom);
    let mut at = [0u64; 3];
    for i in 0..dims {
        match index[i] {
            Some(x) if (0..extent(view, i)).contains(&x) => at[i] = x as u64,
            outside => return Ok(border(view, outside.is_some())),
        }
    }
    let z = if geom == Geometry::D3 {
        at[2]
    } else {
        u64::from(slice)
    };
    let size = component_bytes(view.format);
    let texel = u64::from(size) * u64::from(view.channels.clamp(1, 4));
    let start = view
        .base
        .wrapping_add(z.wrapping_mul(view.slice_pitch))
        .wrapping_add(at[1].wrapping_mul(view.row_pitch))
        .wrapping_add(at[0].wrapping_mul(texel));
    // Components that the format has not are zero, the fourth too.
    let mut out = [0; 4];
    for (i, component) in out
        .iter_mut()
        .enumerate()
        .take(view.channels.clamp(1, 4) as usize)
    {
        let bits = read(start + u64::from(size) * i as u64, size)?;
        *component = decode(view, bits);
    }
    Ok(out)
}

/// The border's colour, in the components that the format has, as the hardware keeps it: in the
/// texture's own format.
fn border(view: &TextureView, plain_zero: bool) -> Texel {
    let mut out = [0; 4];
    if !plain_zero {
        let channels = view.channels.clamp(1, 4) as usize;
        for (to, from) in out.iter_mut().zip(view.border).take(channels) {
            *to = decode(view, border_bits(view, from));
        }
    }
    out
}

fn border_bits(view: &TextureView, value: f32) -> u64 {
    let scaled = |by: f32| (value * by) as i64 as u64;
    match (view.format, view.read_as_integer) {
        (1, false) => scaled(255.0) & 0xff,
        (2, false) => scaled(65535.0) & 0xffff,
        (8, false) => scaled(127.0) & 0xff,
        (9, false) => scaled(32767.0) & 0xffff,
        (1 | 8, true) => u64::from(value.to_bits() & 0xff),
        (2 | 9, true) => u64::from(value.to_bits() & 0xffff),
        (16, _) => from_f64(F16, f64::from(value)),
        _ => u64::from(value.to_bits()),
    }
}

/// Bytes of one component of a `CUarray_format`.
pub fn component_bytes(format: u32) -> u32 {
    match format {
        1 | 8 => 1,
        2 | 9 | 16 => 2,
        _ => 4,
    }
}

fn decode(view: &TextureView, bits: u64) -> u32 {
    let signed = |width: u32| ((bits << (64 - width)) as i64 >> (64 - width)) as i32;
    let scale = |value: f64, by: f64| ((value / by).max(-1.0) as f32).to_bits();
    match (view.format, view.read_as_integer) {
        (1..=3, true) | (3, _) => bits as u32,
        (8, true) => signed(8) as u32,
        (9, true) => signed(16) as u32,
        (10, _) => bits as u32,
        (1, false) => scale(bits as f64, 255.0),
        (2, false) => scale(bits as f64, 65535.0),
        (8, false) => scale(f64::from(signed(8)), 127.0),
        (9, false) => scale(f64::from(signed(16)), 32767.0),
        (16, _) => (to_f64(F16, bits) as f32).to_bits(),
        _ => bits as u32,
    }
}

/// Face and coordinates in `[0, 1]` of a direction.
fn cube_face([x, y, z]: [f64; 3]) -> (u32, f64, f64) {
    let (ax, ay, az) = (x.abs(), y.abs(), z.abs());
    let (face, s, t, major) = if ax >= ay && ax >= az {
        if x >= 0.0 {
            (0, -z, -y, ax)
        } else {
            (1, z, -y, ax)
        }
    } else if ay >= az {
        if y >= 0.0 {
            (2, x, z, ay)
        } else {
            (3, x, -z, ay)
        }
    } else if z >= 0.0 {
        (4, x, -y, az)
    } else {
        (5, -x, -y, az)
    };
    let scale = |v: f64| {
        if major == 0.0 {
            0.5
        } else {
            (v / major + 1.0) / 2.0
        }
    };
    (face, scale(s), scale(t))
}

/// `tld4`: one component of the four texels that a bilinear filter would read, in PTX's order:
/// lower left, lower right, upper right, upper left.
///
/// # Errors
/// Whatever `read` returns.
pub fn gather<E>(
    view: &TextureView,
    geom: Geometry,
    coords: [f32; 3],
    layer: u32,
    offsets: [i32; 3],
    component: u8,
    read: &mut dyn FnMut(u64, u32) -> Result<u64, E>,
) -> Result<Texel, E> {
    let Resolved::Point(view, point, slice) =
        resolve(view, geom, Coordinates::Float(coords), layer)
    else {
        return Ok([0; 4]);
    };
    let base: [i64; 2] =
        std::array::from_fn(|i| (point[i] - 0.5).floor() as i64 + i64::from(offsets[i]));
    let mut out = [0; 4];
    for (to, (dx, dy)) in out.iter_mut().zip([(0, 1), (1, 1), (1, 0), (0, 0)]) {
        let index = [
            address(&view, 0, base[0] + dx),
            address(&view, 1, base[1] + dy),
            Some(0),
        ];
        *to = fetch(&view, geom, index, slice, read)?[usize::from(component & 3)];
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
