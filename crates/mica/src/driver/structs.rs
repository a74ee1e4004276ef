//! What the driver is given by pointer, as cuda.h lays it out.

use std::ffi::{c_uint, c_void};

use mica_gpu::{Copy3d, Place, TextureDescriptor, TextureResource};

use super::functions::Raw;

/// `CUmemorytype`.
const HOST: c_uint = 1;
const DEVICE: c_uint = 2;
const ARRAY: c_uint = 3;

/// One side of a `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct BoxSide {
    x_bytes: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: c_uint,
    host: *const c_void,
    device: u64,
    array: Raw,
    reserved: *mut c_void,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct BoxCopy {
    from: BoxSide,
    to: BoxSide,
    width_bytes: usize,
    height: usize,
    depth: usize,
}

const _: () = assert!(size_of::<BoxCopy>() == 200);

impl BoxSide {
    fn of(place: Place, pitch: (u64, u64), offset: (u64, u64, u64)) -> Self {
        let mut side = Self {
            x_bytes: offset.0 as usize,
            y: offset.1 as usize,
            z: offset.2 as usize,
            level: 0,
            kind: DEVICE,
            host: std::ptr::null(),
            device: 0,
            array: std::ptr::null_mut(),
            reserved: std::ptr::null_mut(),
            pitch: pitch.0 as usize,
            height: pitch.1.checked_div(pitch.0).unwrap_or(0) as usize,
        };
        match place {
            Place::Device(address) => side.device = address.0,
            Place::Array(array) => (side.kind, side.array) = (ARRAY, array.0 as Raw),
            Place::Host(span) => (side.kind, side.host) = (HOST, span.as_ptr().cast()),
        }
        side
    }
}

impl BoxCopy {
    pub(super) fn of(copy: &Copy3d) -> Self {
        Self {
            from: BoxSide::of(copy.src, copy.src_pitch, copy.src_offset),
            to: BoxSide::of(copy.dst, copy.dst_pitch, copy.dst_offset),
            width_bytes: copy.width_bytes as usize,
            height: copy.height as usize,
            depth: copy.depth as usize,
        }
    }
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
pub(super) struct KernelNode {
    pub(super) function: Raw,
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) shared_bytes: c_uint,
    pub(super) params: *mut *mut c_void,
    pub(super) extra: *mut *mut c_void,
    pub(super) kernel: Raw,
    pub(super) context: Raw,
}

const _: () = assert!(size_of::<KernelNode>() == 72);

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
pub(super) struct FillNode {
    pub(super) address: u64,
    pub(super) pitch: usize,
    pub(super) value: c_uint,
    pub(super) element_bytes: c_uint,
    pub(super) width: usize,
    pub(super) height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
pub(super) struct HostNode {
    pub(super) function: unsafe extern "C" fn(*mut c_void),
    pub(super) data: *mut c_void,
}

/// `CUDA_RESOURCE_DESC`: its kind, a union of 128 bytes, flags.
#[repr(C)]
pub(super) struct Resource {
    kind: c_uint,
    place: [u64; 16],
    flags: c_uint,
}

const _: () = assert!(size_of::<Resource>() == 144);

impl Resource {
    pub(super) fn array(array: u64) -> Self {
        Self::new(0, &[array])
    }

    pub(super) fn of(texture: &TextureDescriptor) -> Self {
        let format = u64::from(texture.format) | u64::from(texture.channels) << 32;
        match texture.resource {
            TextureResource::Array(array) => Self::array(array.0),
            TextureResource::Linear(address, bytes) => Self::new(2, &[address.0, format, bytes]),
            TextureResource::Pitched(address, width, height, pitch) => {
                Self::new(3, &[address.0, format, width, height, pitch])
            }
        }
    }

    fn new(kind: c_uint, fields: &[u64]) -> Self {
        let mut place = [0; 16];
        place[..fields.len()].copy_from_slice(fields);
        Self {
            kind,
            place,
            flags: 0,
        }
    }
}

/// `CUDA_TEXTURE_DESC`.
#[repr(C)]
pub(super) struct TextureReading {
    address_mode: [c_uint; 3],
    filter: c_uint,
    flags: c_uint,
    max_anisotropy: c_uint,
    level_filter: c_uint,
    level_bias: f32,
    least_level: f32,
    most_level: f32,
    border: [f32; 4],
    reserved: [i32; 12],
}

const _: () = assert!(size_of::<TextureReading>() == 104);

impl TextureReading {
    pub(super) fn of(texture: &TextureDescriptor) -> Self {
        // `CU_TRSF_READ_AS_INTEGER` and `CU_TRSF_NORMALIZED_COORDINATES`.
        let flags =
            c_uint::from(texture.read_as_integer) | c_uint::from(texture.normalized_coords) << 1;
        Self {
            address_mode: texture.address_mode,
            filter: texture.filter,
            flags,
            max_anisotropy: 0,
            level_filter: 0,
            level_bias: 0.0,
            least_level: 0.0,
            most_level: 0.0,
            border: texture.border,
            reserved: [0; 12],
        }
    }
}
