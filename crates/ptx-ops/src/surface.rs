//! Where surface accesses land, and how components are stored.

use crate::float::{F16, from_f64};
use crate::texture::{component_bytes, dimensions};
use mica_kernel::TextureView;
use mica_ptx::ast::{Clamp, Geometry};

/// Where a surface access lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SurfaceAddress {
    /// At this address.
    At(u64),
    /// Outside: loads give zero, stores do nothing.
    Nothing,
    /// Outside with `.trap`: the kernel faults.
    Trap,
}

/// The address of a surface access of `bytes` bytes at byte `x`, row `y`, slice `z`.
pub fn surface_address(
    view: &TextureView,
    geom: Geometry,
    clamp: Clamp,
    coords: [i32; 3],
    layer: u32,
    bytes: u32,
) -> SurfaceAddress {
    let texel = u64::from(component_bytes(view.format) * view.channels.clamp(1, 4));
    let width = u64::from(view.extent.x.max(1)) * texel;
    let limits = [
        width as i64 - i64::from(bytes),
        i64::from(view.extent.y.max(1)) - 1,
        i64::from(view.extent.z.max(1)) - 1,
    ];
    let dims = dimensions(geom);
    let mut at = [0i64; 3];
    for i in 0..3 {
        let value = if i < dims {
            i64::from(coords[i])
        } else if i == 2 && geom.is_array() {
            i64::from(layer)
        } else {
            0
        };
        if limits[i] < 0 {
            return if clamp == Clamp::Trap {
                SurfaceAddress::Trap
            } else {
                SurfaceAddress::Nothing
            };
        }
        at[i] = match (clamp, (0..=limits[i]).contains(&value)) {
            (_, true) => value,
            (Clamp::Clamp, false) => value.clamp(0, limits[i]),
            (Clamp::Zero, false) => return SurfaceAddress::Nothing,
            (Clamp::Trap, false) => return SurfaceAddress::Trap,
        };
    }
    let offset = (at[2] as u64)
        .wrapping_mul(view.slice_pitch)
        .wrapping_add((at[1] as u64).wrapping_mul(view.row_pitch))
        .wrapping_add(at[0] as u64);
    SurfaceAddress::At(view.base.wrapping_add(offset))
}

/// A component converted to a surface's format for `sust.p`.
pub fn encode_component(format: u32, bits: u32) -> u64 {
    match format {
        1 | 8 => u64::from(bits & 0xff),
        2 | 9 => u64::from(bits & 0xffff),
        16 => from_f64(F16, f64::from(f32::from_bits(bits))),
        _ => u64::from(bits),
    }
}
