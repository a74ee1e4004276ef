//! The driver's types that the shims look into. Everything else stays an opaque pointer.

use std::ffi::c_void;

/// What every call returns; numbers beyond [`CuResult`](crate::CuResult) pass through unharmed.
pub type CuStatus = u32;
/// An address in device memory.
pub type DevicePtr = u64;
/// A device's ordinal.
pub type Device = i32;
/// Any opaque handle: context, stream, event, function, array, pool, graph.
pub type Handle = *mut c_void;
/// `CUmemGenericAllocationHandle`.
pub type AllocationHandle = u64;

/// `CUDA_ARRAY_DESCRIPTOR` (version 2).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArrayDescriptor {
    /// Elements in a row.
    pub width: usize,
    /// Rows; 0 for one-dimensional arrays.
    pub height: usize,
    /// A `CUarray_format` by number.
    pub format: u32,
    /// Channels of an element.
    pub channels: u32,
}

/// `CUDA_ARRAY_DESCRIPTOR` of before CUDA 3.2.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArrayDescriptorV1 {
    /// Elements in a row.
    pub width: u32,
    /// Rows; 0 for one-dimensional arrays.
    pub height: u32,
    /// A `CUarray_format` by number.
    pub format: u32,
    /// Channels of an element.
    pub channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR` of before CUDA 3.2.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Array3dDescriptorV1 {
    /// Elements in a row.
    pub width: u32,
    /// Rows; 0 for one-dimensional arrays.
    pub height: u32,
    /// Slices or layers; 0 for flat arrays.
    pub depth: u32,
    /// A `CUarray_format` by number.
    pub format: u32,
    /// Channels of an element.
    pub channels: u32,
    /// Bits such as [`Array3dDescriptor::SPARSE`].
    pub flags: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR` (version 2).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Array3dDescriptor {
    /// Elements in a row.
    pub width: usize,
    /// Rows; 0 for one-dimensional arrays.
    pub height: usize,
    /// Slices or layers; 0 for flat arrays.
    pub depth: usize,
    /// A `CUarray_format` by number.
    pub format: u32,
    /// Channels of an element.
    pub channels: u32,
    /// Bits such as [`Array3dDescriptor::SPARSE`].
    pub flags: u32,
}

impl Array3dDescriptor {
    /// Memory is bound later, tile by tile.
    pub const SPARSE: u32 = 0x40;
    /// Memory is bound later.
    pub const DEFERRED_MAPPING: u32 = 0x80;
    /// Six faces; `depth` counts them.
    pub const CUBEMAP: u32 = 0x04;
    /// `depth` counts layers, which no mipmap level halves.
    pub const LAYERED: u32 = 0x01;

    /// Bytes of its elements; an array's tiling may take a little more.
    pub fn bytes(&self) -> u64 {
        if self.flags & (Self::SPARSE | Self::DEFERRED_MAPPING) != 0 {
            return 0;
        }
        let element =
            bits_per_channel(self.format) * u64::from(channels(self.format, self.channels));
        let product = [self.width, self.height.max(1), self.depth.max(1)]
            .into_iter()
            .fold(element, |bits, extent| bits.saturating_mul(extent as u64));
        product.div_ceil(8)
    }

    /// Bytes of `levels` mipmap levels.
    pub fn mipmapped_bytes(&self, levels: u32) -> u64 {
        let layered = self.flags & (Self::LAYERED | Self::CUBEMAP) != 0;
        let mut level = *self;
        let mut total = 0_u64;
        for _ in 0..levels.min(32) {
            total = total.saturating_add(level.bytes());
            level.width = (level.width / 2).max(1);
            level.height = if level.height == 0 {
                0
            } else {
                (level.height / 2).max(1)
            };
            if !layered && level.depth != 0 {
                level.depth = (level.depth / 2).max(1);
            }
        }
        total
    }
}

impl From<ArrayDescriptor> for Array3dDescriptor {
    fn from(flat: ArrayDescriptor) -> Self {
        Self {
            width: flat.width,
            height: flat.height,
            format: flat.format,
            channels: flat.channels,
            ..Self::default()
        }
    }
}

impl From<ArrayDescriptorV1> for Array3dDescriptor {
    fn from(flat: ArrayDescriptorV1) -> Self {
        Self {
            width: flat.width as usize,
            height: flat.height as usize,
            format: flat.format,
            channels: flat.channels,
            ..Self::default()
        }
    }
}

impl From<Array3dDescriptorV1> for Array3dDescriptor {
    fn from(deep: Array3dDescriptorV1) -> Self {
        Self {
            width: deep.width as usize,
            height: deep.height as usize,
            depth: deep.depth as usize,
            format: deep.format,
            channels: deep.channels,
            flags: deep.flags,
        }
    }
}

/// Bits of one channel; block-compressed and planar formats by their average, or what is no less. A format that is newer
/// than this is as wide as any.
fn bits_per_channel(format: u32) -> u64 {
    match format {
        0x01 | 0x08 | 0xc0..=0xc2 | 0xc6..=0xc8 => 8,
        0x02 | 0x09 | 0x10 | 0xc3..=0xc5 | 0xc9..=0xcb => 16,
        0x03 | 0x0a | 0x20 | 0x50 => 32,
        // Block-compressed.
        0x91 | 0x92 | 0x97 | 0x98 => 4,
        0x93..=0x96 | 0x99..=0x9e => 8,
        // Video, of 8 bits and of 10 to 16.
        0x51..=0x53 | 0x55 | 0x57 | 0x59 | 0x5b | 0x5d => 8,
        0xa2 | 0xa5 | 0xa8 | 0xb0 | 0xb2 | 0xb4 => 8,
        0x54 | 0x56 | 0x58 | 0x5a | 0x5c | 0x5e => 16,
        0x9f..=0xa1 | 0xa3 | 0xa4 | 0xa6 | 0xa7 | 0xa9 | 0xb1 | 0xb3 | 0xb5 => 16,
        _ => 32,
    }
}

/// Channels that count: formats that name their own number ignore the descriptor's.
fn channels(format: u32, declared: u32) -> u32 {
    match format {
        0x91..=0x9e | 0x50 => 1,
        0xc0 | 0xc3 | 0xc6 | 0xc9 => 1,
        0xc1 | 0xc4 | 0xc7 | 0xca => 2,
        0xc2 | 0xc5 | 0xc8 | 0xcb => 4,
        _ => declared.max(1),
    }
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemLocation {
    /// A `CUmemLocationType`.
    pub kind: i32,
    /// Ordinal of the device or node.
    pub id: i32,
}

impl MemLocation {
    /// `CU_MEM_LOCATION_TYPE_DEVICE`.
    pub const DEVICE: i32 = 1;
    /// `CU_MEM_LOCATION_TYPE_HOST`.
    pub const HOST: i32 = 2;
    /// `CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT`; between them lies one node of the host.
    const HOST_NUMA_CURRENT: i32 = 4;

    /// Whether it is the host's own memory. All else costs device memory: since CUDA 13.4 parts of a device have a kind
    /// of their own, and later releases may have more.
    pub fn on_host(&self) -> bool {
        (Self::HOST..=Self::HOST_NUMA_CURRENT).contains(&self.kind)
    }
}

/// `CUmemAllocationProp`, and the beginning of `CUmemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemAllocationProp {
    /// `CUmemAllocationType`.
    pub kind: i32,
    /// `CUmemAllocationHandleType` bits.
    pub handle_types: i32,
    /// Where the memory lives.
    pub location: MemLocation,
    /// Unused on Linux.
    pub win32: *const c_void,
    /// Compression and usage flags; of a pool, the most it may hold, 0 for no such limit.
    pub flags: u64,
}

impl MemAllocationProp {
    /// `CU_MEM_ALLOCATION_TYPE_MANAGED`.
    pub const MANAGED: i32 = 2;
}

/// `CUlaunchAttribute`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchAttributeRecord {
    /// `CUlaunchAttributeID`.
    pub id: u32,
    /// Unused.
    pub pad: u32,
    /// `CUlaunchAttributeValue`.
    pub value: [u32; 16],
}

const _: () = assert!(size_of::<LaunchAttributeRecord>() == 72);

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig {
    /// Blocks of the grid.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub shared_bytes: u32,
    /// The stream to launch on.
    pub stream: Handle,
    /// Launch attributes.
    pub attributes: *const c_void,
    /// How many.
    pub attribute_count: u32,
}

/// `CUDA_EXTERNAL_MEMORY_HANDLE_DESC` up to its size.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExternalMemoryDescriptor {
    /// `CUexternalMemoryHandleType`.
    pub kind: u32,
    /// A descriptor or pointers.
    pub handle: [u64; 2],
    /// Bytes of the memory.
    pub size: u64,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemAllocNodeParams {
    /// `CUmemPoolProps`.
    pub pool_props: [u64; 11],
    /// Who may access the memory.
    pub access: *const c_void,
    /// How many.
    pub access_count: usize,
    /// Bytes asked for.
    pub bytes: usize,
    /// The address, on return.
    pub address: DevicePtr,
}

const _: () = {
    assert!(size_of::<Array3dDescriptor>() == 40);
    assert!(size_of::<MemAllocationProp>() == 32);
    assert!(std::mem::offset_of!(LaunchConfig, stream) == 32);
    assert!(std::mem::offset_of!(ExternalMemoryDescriptor, size) == 24);
    assert!(std::mem::offset_of!(MemAllocNodeParams, bytes) == 104);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_as_large_as_their_elements() {
        let float4 = Array3dDescriptor {
            width: 100,
            height: 10,
            format: 0x20,
            channels: 4,
            ..Default::default()
        };
        assert_eq!(float4.bytes(), 100 * 10 * 16);
        let sparse = Array3dDescriptor {
            flags: Array3dDescriptor::SPARSE,
            ..float4
        };
        assert_eq!(sparse.bytes(), 0);
    }

    #[test]
    fn wide_and_unknown_formats_are_not_taken_for_narrow_ones() {
        let bytes = |format, channels| {
            let array = Array3dDescriptor {
                width: 64,
                height: 16,
                format,
                channels,
                ..Default::default()
            };
            array.bytes()
        };
        // Y444_PLANAR10 and UINT16_PLANAR_444 keep two bytes a channel.
        assert_eq!((bytes(0xb3, 3), bytes(0x5e, 3)), (6144, 6144));
        assert_eq!((bytes(0xb2, 3), bytes(0x5d, 3)), (3072, 3072));
        assert_eq!(bytes(0x7777, 4), 64 * 16 * 16);
    }

    #[test]
    fn mipmaps_halve_each_level() {
        let base = Array3dDescriptor {
            width: 8,
            height: 8,
            format: 0x01,
            channels: 1,
            ..Default::default()
        };
        assert_eq!(base.mipmapped_bytes(4), 64 + 16 + 4 + 1);
    }
}
