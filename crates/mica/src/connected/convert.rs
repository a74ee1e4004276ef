//! Descriptions in the form in which they travel.

use mica_gpu::{
    ArrayDescriptor, Copy3d, KernelDescription, ParamLayout, Place, TensorMapKind,
    TensorMapRequest, TextureDescriptor, TextureResource,
};
use mica_vgpu::RawAttribute;
use mica_wire::session as wire;
use mica_wire::session::{CopyBox, CopyPlace};

use crate::{Error, Result};

pub(super) fn kernel(layout: wire::KernelLayout) -> KernelDescription {
    let params = layout.params.iter();
    let params = params.map(|&(offset, size)| ParamLayout { offset, size });
    KernelDescription {
        name: layout.name,
        params: params.collect(),
        static_shared: layout.static_shared,
        local_bytes: layout.local_bytes,
        const_bytes: layout.const_bytes,
        registers: layout.registers,
        max_threads: layout.max_threads,
        ptx_version: layout.ptx_version,
        binary_version: layout.binary_version,
        is_complete: layout.is_complete,
    }
}

/// A request for a tensor map as it travels.
pub(super) fn tensor_map_shape(request: &TensorMapRequest) -> wire::TensorMapShape {
    let mut shape = wire::TensorMapShape {
        kind: 0,
        data_type: request.data_type,
        rank: request.rank,
        address: request.address.0,
        dims: request.dims,
        strides: request.strides,
        tile: [0; 5],
        lower: [0; 5],
        upper: [0; 5],
        channels: 0,
        pixels: 0,
        element_strides: request.element_strides,
        interleave: request.interleave,
        mode: 0,
        swizzle: request.swizzle,
        l2_promotion: request.l2_promotion,
        fill: request.fill,
    };
    match request.kind {
        TensorMapKind::Tiled(tile) => shape.tile = tile,
        TensorMapKind::Im2col(lower, upper, channels, pixels) => {
            (shape.kind, shape.lower, shape.upper) = (1, lower, upper);
            (shape.channels, shape.pixels) = (channels, pixels);
        }
        TensorMapKind::Im2colWide(lower, upper, channels, pixels, mode) => {
            (shape.kind, shape.lower[0], shape.upper[0]) = (2, lower, upper);
            (shape.channels, shape.pixels, shape.mode) = (channels, pixels, mode);
        }
    }
    shape
}

/// A side of a copy without memory of this process.
pub(super) fn place(place: Place) -> Result<CopyPlace> {
    match place {
        Place::Device(address) => Ok(CopyPlace::Device(address.0)),
        Place::Array(array) => Ok(CopyPlace::Array(array.0)),
        Place::Host(_) => Err(Error::Argument(
            "memory of this process cannot be a side of this copy".into(),
        )),
    }
}

pub(super) fn copy_box(copy: &Copy3d) -> Result<CopyBox> {
    let list = |(x, y, z): (u64, u64, u64)| [x, y, z];
    Ok(CopyBox {
        src: place(copy.src)?,
        src_pitch: copy.src_pitch,
        src_offset: list(copy.src_offset),
        dst: place(copy.dst)?,
        dst_pitch: copy.dst_pitch,
        dst_offset: list(copy.dst_offset),
        width_bytes: copy.width_bytes,
        height: copy.height,
        depth: copy.depth,
    })
}

pub(super) fn array_shape(descriptor: &ArrayDescriptor) -> wire::ArrayShape {
    wire::ArrayShape {
        width: descriptor.width,
        height: descriptor.height,
        depth: descriptor.depth,
        format: descriptor.format,
        channels: descriptor.channels,
        flags: descriptor.flags,
    }
}

pub(super) fn texture_shape(descriptor: &TextureDescriptor) -> wire::TextureShape {
    let (kind, resource, width, height, pitch) = match descriptor.resource {
        TextureResource::Array(array) => (0, array.0, 0, 0, 0),
        TextureResource::Linear(address, bytes) => (1, address.0, bytes, 0, 0),
        TextureResource::Pitched(address, width, height, pitch) => {
            (2, address.0, width, height, pitch)
        }
    };
    wire::TextureShape {
        kind,
        resource,
        width,
        height,
        pitch,
        format: descriptor.format,
        channels: descriptor.channels,
        address_mode: descriptor.address_mode,
        filter: descriptor.filter,
        normalized_coords: descriptor.normalized_coords,
        read_as_integer: descriptor.read_as_integer,
        border: descriptor.border,
    }
}

/// Launch attributes and what follows them in a record.
pub(super) fn attributes(attributes: &[RawAttribute], params: &[u8]) -> Vec<u8> {
    use wire::Field as _;
    let mut tail = Vec::with_capacity(attributes.len() * 68 + params.len());
    for attribute in attributes {
        wire::LaunchAttribute {
            id: attribute.id,
            value: attribute.value,
        }
        .put(&mut tail);
    }
    tail.extend_from_slice(params);
    tail
}
