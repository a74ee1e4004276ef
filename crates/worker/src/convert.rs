//! Between what travels and what the engine takes.

use mica_cuda_abi::DeviceAttribute;
use mica_gpu::{
    ArrayDescriptor, ArrayId, Copy3d, DevicePtr, Fill2d, Gpu, HostSpan, KernelDescription, Place,
    TensorMapKind, TensorMapRequest, TextureDescriptor, TextureResource,
};
use mica_vgpu::{LoadedModule, Statistics, VgpuError, VgpuSpec};
use mica_wire::session as wire;
use mica_wire::session::{CopyBox, CopyPlace, SessionArea, Violation};

pub(crate) fn snapshot(spec: &VgpuSpec, limit_bytes: u64, gpu: &dyn Gpu) -> wire::DeviceSnapshot {
    let properties = gpu.properties();
    let value = |attribute: &DeviceAttribute| Some((*attribute as u32, gpu.attribute(*attribute)?));
    let attributes = DeviceAttribute::ALL.iter().filter_map(value).collect();
    let (processor_groups, processor_places) = gpu.processor_map().unwrap_or_default();
    wire::DeviceSnapshot {
        vgpu: spec.name.clone(),
        name: properties.name.clone(),
        uuid: properties.uuid,
        pci_bus_id: properties.pci_bus_id.clone(),
        compute_capability: properties.compute_capability,
        total_memory: limit_bytes.min(properties.total_memory),
        multiprocessors: properties.multiprocessors,
        max_threads_per_block: properties.max_threads_per_block,
        max_shared_per_block: properties.max_shared_per_block,
        frame_bytes: properties.frame_bytes,
        stream_priorities: properties.stream_priorities,
        attributes,
        has_driver: gpu.has_driver(),
        can_be_saved: spec.can_be_saved,
        processor_groups,
        processor_places,
    }
}

pub(crate) fn kernel(kernel: KernelDescription) -> wire::KernelLayout {
    wire::KernelLayout {
        name: kernel.name,
        params: kernel.params.iter().map(|p| (p.offset, p.size)).collect(),
        static_shared: kernel.static_shared,
        local_bytes: kernel.local_bytes,
        const_bytes: kernel.const_bytes,
        registers: kernel.registers,
        max_threads: kernel.max_threads,
        ptx_version: kernel.ptx_version,
        binary_version: kernel.binary_version,
        is_complete: kernel.is_complete,
    }
}

pub(crate) fn module(loaded: LoadedModule) -> wire::LoadedModule {
    let kernels = loaded.info.kernels.into_iter().map(kernel);
    let globals = loaded.info.globals.into_iter();
    let globals = globals.map(|global| wire::GlobalLayout {
        name: global.name,
        address: global.address.0,
        bytes: global.bytes,
        is_managed: global.is_managed,
    });
    wire::LoadedModule {
        module: loaded.module,
        kernels: kernels.collect(),
        globals: globals.collect(),
    }
}

pub(crate) fn counters(s: &Statistics) -> wire::VgpuCounters {
    wire::VgpuCounters {
        launches: s.launches,
        bytes_from_host: s.bytes_from_host,
        bytes_to_host: s.bytes_to_host,
        bytes_on_device: s.bytes_on_device,
        denials: s.denials,
        faults: s.faults,
        sessions: s.sessions.into(),
        used_bytes: s.used_bytes,
        peak_bytes: s.peak_bytes,
        gpu_time_ns: s.gpu_time_ns,
        streams: s.streams.into(),
        modules: s.modules.into(),
    }
}

/// A copy, with the staging chunks it reads and writes.
pub(crate) struct StagedCopy {
    pub(crate) copy: Copy3d,
    pub(crate) reads: Option<u32>,
    pub(crate) writes: Option<u32>,
}

/// The engine's form of a copy.
///
/// # Errors
/// A violation if a chunk or a range in it does not exist.
pub(crate) fn copy(area: &SessionArea, copy: &CopyBox) -> Result<StagedCopy, Violation> {
    let extent = (copy.width_bytes, copy.height, copy.depth);
    let (src, reads) = place(area, copy.src, copy.src_pitch, extent)?;
    let (dst, writes) = place(area, copy.dst, copy.dst_pitch, extent)?;
    let triple = |[x, y, z]: [u64; 3]| (x, y, z);
    let copy = Copy3d {
        src,
        src_pitch: copy.src_pitch,
        src_offset: triple(copy.src_offset),
        dst,
        dst_pitch: copy.dst_pitch,
        dst_offset: triple(copy.dst_offset),
        width_bytes: copy.width_bytes,
        height: copy.height,
        depth: copy.depth,
    };
    Ok(StagedCopy {
        copy,
        reads,
        writes,
    })
}

fn place(
    area: &SessionArea,
    place: CopyPlace,
    pitch: (u64, u64),
    (width, height, depth): (u64, u64, u64),
) -> Result<(Place, Option<u32>), Violation> {
    Ok(match place {
        CopyPlace::Device(address) => (Place::Device(DevicePtr(address)), None),
        CopyPlace::Array(handle) => (Place::Array(ArrayId(handle)), None),
        CopyPlace::Staging { chunk, offset } => {
            let rows = height.saturating_sub(1).checked_mul(pitch.0);
            let slices = depth.saturating_sub(1).checked_mul(pitch.1);
            let bytes = rows
                .and_then(|rows| rows.checked_add(slices?))
                .and_then(|bytes| bytes.checked_add(width));
            let offset = u64::from(offset);
            let bad = Violation::Chunk {
                chunk,
                offset,
                bytes: bytes.unwrap_or(u64::MAX),
            };
            let bytes = bytes.ok_or(bad.clone())?;
            let pointer = area.chunk_pointer(chunk, offset, bytes).ok_or(bad)?;
            // SAFETY: the bytes are inside the session's area, which whoever waits for this copy
            // (see `dispatch::ChunkGuard`) keeps mapped until the stream has passed it. The program
            // may change them at any time; they are data to the device, whatever they are.
            let span = unsafe { HostSpan::new(pointer, bytes) };
            (Place::Host(span), Some(chunk))
        }
    })
}

pub(crate) fn fill(fill: &wire::Fill) -> Fill2d {
    Fill2d {
        dst: DevicePtr(fill.address),
        pitch: fill.pitch,
        value: fill.value,
        element_bytes: fill.element_bytes,
        width: fill.width,
        height: fill.height,
    }
}

pub(crate) fn array(shape: &wire::ArrayShape) -> ArrayDescriptor {
    ArrayDescriptor {
        width: shape.width,
        height: shape.height,
        depth: shape.depth,
        format: shape.format,
        channels: shape.channels,
        flags: shape.flags,
    }
}

pub(crate) fn texture(shape: &wire::TextureShape) -> Result<TextureDescriptor, VgpuError> {
    let address = DevicePtr(shape.resource);
    let resource = match shape.kind {
        0 => TextureResource::Array(ArrayId(shape.resource)),
        1 => TextureResource::Linear(address, shape.width),
        2 => TextureResource::Pitched(address, shape.width, shape.height, shape.pitch),
        other => {
            return Err(VgpuError::Argument(format!(
                "{other} is not a kind of texture"
            )));
        }
    };
    Ok(TextureDescriptor {
        resource,
        format: shape.format,
        channels: shape.channels,
        address_mode: shape.address_mode,
        filter: shape.filter,
        normalized_coords: shape.normalized_coords,
        read_as_integer: shape.read_as_integer,
        border: shape.border,
    })
}

pub(crate) fn tensor_map(shape: &wire::TensorMapShape) -> Result<TensorMapRequest, VgpuError> {
    let kind = match shape.kind {
        0 => TensorMapKind::Tiled(shape.tile),
        1 => TensorMapKind::Im2col(shape.lower, shape.upper, shape.channels, shape.pixels),
        2 => TensorMapKind::Im2colWide(
            shape.lower[0],
            shape.upper[0],
            shape.channels,
            shape.pixels,
            shape.mode,
        ),
        other => {
            return Err(VgpuError::Argument(format!(
                "{other} is not a kind of tensor map"
            )));
        }
    };
    Ok(TensorMapRequest {
        kind,
        data_type: shape.data_type,
        rank: shape.rank,
        address: DevicePtr(shape.address),
        dims: shape.dims,
        strides: shape.strides,
        element_strides: shape.element_strides,
        interleave: shape.interleave,
        swizzle: shape.swizzle,
        l2_promotion: shape.l2_promotion,
        fill: shape.fill,
    })
}
