//! Tensor maps as requests, and as the bytes that kernels of this device read.

use mica_cuda_abi::CuResult;
use mica_gpu::{GpuError, Result, TensorMapKind, TensorMapRequest};
use mica_ptx_ops::tensor_map::{Shape, TensorMap};

use crate::error::invalid_value;

/// `CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA`.
const FILL_NAN: u32 = 1;

/// The bytes that stand for a map.
pub(super) fn encode(request: &TensorMapRequest) -> Result<mica_gpu::TensorMap> {
    let absent = |what: &str| {
        let text = format!("this device has no tensor maps with {what}");
        Err(GpuError::new(CuResult::NotSupported, text))
    };
    if request.interleave != 0 {
        return absent("interleaved channels");
    }
    let spatial = |corner: &[i32; 5]| [corner[0], corner[1], corner[2]];
    let shape = match &request.kind {
        TensorMapKind::Tiled(tile) => Shape::Tiled(*tile),
        TensorMapKind::Im2col(lower, upper, channels, pixels) => {
            Shape::Im2col(spatial(lower), spatial(upper), *channels, *pixels)
        }
        TensorMapKind::Im2colWide(..) => return absent("windows of lines (im2col wide)"),
    };
    let small = |number: u32, what: &str| {
        u8::try_from(number).map_err(|_| invalid_value(format!("{what} {number} of a tensor map")))
    };
    if request.fill > FILL_NAN {
        return Err(invalid_value(format!(
            "fill {} of a tensor map",
            request.fill
        )));
    }
    let [first, second, third, fourth, _] = request.strides;
    let mut map = TensorMap {
        shape,
        data_type: small(request.data_type, "data type")?,
        rank: small(request.rank, "rank")?,
        swizzle: small(request.swizzle, "swizzle")?,
        fills_nan: request.fill == FILL_NAN,
        address: request.address.0,
        dims: request.dims,
        strides: [first, second, third, fourth],
        element_strides: request.element_strides,
    };
    map.check().map_err(invalid_value)?;
    // What belongs to no dimension is not part of the map.
    let rank = usize::from(map.rank);
    map.dims[rank..].fill(1);
    map.strides[rank - 1..].fill(0);
    map.element_strides[rank..].fill(1);
    if let Shape::Tiled(tile) = &mut map.shape {
        tile[rank..].fill(1);
    }
    Ok(map.encode())
}
