//! Tensor maps, through which kernels for Hopper have the copy unit fetch boxes of a tensor.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use mica::{DevicePtr, TensorMap, TensorMapKind, TensorMapRequest};

use crate::{DType, Ops, Result};

/// Most tensor maps that are remembered.
const MOST_MAPS: usize = 4096;

/// `CU_TENSOR_MAP_SWIZZLE_128B`.
const SWIZZLE_128_BYTES: u32 = 3;
/// `CU_TENSOR_MAP_L2_PROMOTION_L2_256B`.
const PROMOTION_256_BYTES: u32 = 3;

/// `CU_TENSOR_MAP_DATA_TYPE_UINT8`, `FLOAT16` or `BFLOAT16`.
fn data_type(dtype: DType) -> u32 {
    match dtype {
        DType::F16 => 6,
        DType::BF16 => 9,
        _ => 0,
    }
}

/// A stack of matrices, or a stack of stacks, of which a kernel copies boxes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Boxes {
    pub(crate) dtype: DType,
    pub(crate) address: u64,
    /// Contiguous elements, rows, matrices, stacks.
    pub(crate) sizes: [u64; 4],
    /// Elements between rows, matrices and stacks.
    pub(crate) strides: [u64; 3],
    /// How many of the sizes count: 3 or 4.
    pub(crate) rank: u32,
    /// Contiguous elements, rows and matrices of a box.
    pub(crate) tile: [u32; 3],
}

impl Boxes {
    pub(crate) fn request(&self) -> TensorMapRequest {
        let bytes = self.dtype.size_bytes() as u64;
        let [x, y, z, w] = self.sizes;
        let [row, matrix, stack] = self.strides.map(|stride| stride * bytes);
        let is_stacked = self.rank == 4;
        let [across, down, deep] = self.tile;
        TensorMapRequest {
            kind: TensorMapKind::Tiled([across, down, deep, u32::from(is_stacked), 0]),
            data_type: data_type(self.dtype),
            rank: self.rank,
            address: DevicePtr(self.address),
            dims: [x, y, z, if is_stacked { w } else { 0 }, 0],
            strides: [row, matrix, if is_stacked { stack } else { 0 }, 0, 0],
            element_strides: [1, 1, 1, u32::from(is_stacked), 0],
            interleave: 0,
            swizzle: SWIZZLE_128_BYTES,
            l2_promotion: PROMOTION_256_BYTES,
            fill: 0,
        }
    }
}

/// Images in memory order NHWC, of which a kernel copies elements of windows: 64 channels of so many windows that follow each
/// other. Pairs are vertical and horizontal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowColumns {
    pub(crate) dtype: DType,
    pub(crate) address: u64,
    /// Images, height, width, channels.
    pub(crate) sizes: [u64; 4],
    /// From the first pixel to that of the first window.
    pub(crate) first: [i32; 2],
    /// From the last pixel to that of the last window.
    pub(crate) last: [i32; 2],
    pub(crate) stride: [u32; 2],
    pub(crate) windows: u32,
}

impl WindowColumns {
    pub(crate) fn request(&self) -> TensorMapRequest {
        let [images, height, width, channels] = self.sizes;
        let corner = |[y, x]: [i32; 2]| [x, y, 0, 0, 0];
        let pixel = channels * self.dtype.size_bytes() as u64;
        let (first, last) = (corner(self.first), corner(self.last));
        TensorMapRequest {
            kind: TensorMapKind::Im2col(first, last, 64, self.windows),
            data_type: data_type(self.dtype),
            rank: 4,
            address: DevicePtr(self.address),
            dims: [channels, width, height, images, 0],
            strides: [pixel, width * pixel, height * width * pixel, 0, 0],
            element_strides: [1, self.stride[1], self.stride[0], 1, 0],
            interleave: 0,
            swizzle: SWIZZLE_128_BYTES,
            l2_promotion: PROMOTION_256_BYTES,
            fill: 0,
        }
    }
}

/// Tensor maps that were made. A map depends on nothing but the request, so memory that is freed does not matter.
#[derive(Default)]
pub(crate) struct TensorMaps(Mutex<HashMap<TensorMapRequest, TensorMap>>);

impl Ops {
    pub(crate) fn tensor_map(&self, request: TensorMapRequest) -> Result<TensorMap> {
        let mut known = (self.tensor_maps.0.lock()).unwrap_or_else(PoisonError::into_inner);
        if let Some(map) = known.get(&request) {
            return Ok(*map);
        }
        let map = self.vgpu.tensor_map(&request)?;
        if known.len() >= MOST_MAPS {
            known.clear();
        }
        known.insert(request, map);
        Ok(map)
    }
}
