//! Tensor maps: descriptions of tensors that Hopper's copy engine reads.

use mica_cuda_abi::CuResult;
use mica_gpu::{ContextId, GpuError, Result, TensorMap, TensorMapKind, TensorMapRequest};

use super::{CudaGpu, invalid};

/// Where the driver writes a tensor map: it wants 64 bytes of alignment.
#[repr(C, align(64))]
struct Room(TensorMap);

impl CudaGpu {
    pub(super) fn encode_tensor_map(
        &self,
        context: ContextId,
        request: &TensorMapRequest,
    ) -> Result<TensorMap> {
        let context = self.context(context)?;
        // The driver reads as many numbers as there are dimensions.
        if !(1..=5).contains(&request.rank) {
            let rank = request.rank;
            return Err(invalid(format!("a tensor map of {rank} dimensions")));
        }
        let functions = &self.driver.functions;
        let mut room = Room([0; 128]);
        let out = room.0.as_mut_ptr().cast();
        let (data, rank, address) = (request.data_type, request.rank, request.address.0);
        let (dims, strides) = (request.dims.as_ptr(), request.strides.as_ptr());
        let element = request.element_strides.as_ptr();
        let (interleave, swizzle) = (request.interleave, request.swizzle);
        let (l2, fill) = (request.l2_promotion, request.fill);
        match &request.kind {
            TensorMapKind::Tiled(tile) => {
                let tile = tile.as_ptr();
                // SAFETY: writes 128 bytes; all arrays have five numbers, the driver reads at most as many.
                self.call(&context, "cuTensorMapEncodeTiled", || unsafe {
                    (functions.tensor_map_tiled)(
                        out, data, rank, address, dims, strides, tile, element, interleave,
                        swizzle, l2, fill,
                    )
                })?;
            }
            TensorMapKind::Im2col(lower, upper, channels, pixels) => {
                let (lower, upper) = (lower.as_ptr(), upper.as_ptr());
                // SAFETY: as above.
                self.call(&context, "cuTensorMapEncodeIm2col", || unsafe {
                    (functions.tensor_map_im2col)(
                        out, data, rank, address, dims, strides, lower, upper, *channels, *pixels,
                        element, interleave, swizzle, l2, fill,
                    )
                })?;
            }
            TensorMapKind::Im2colWide(lower, upper, channels, pixels, mode) => {
                let Some(encode) = functions.tensor_map_im2col_wide else {
                    let what = "wide tensor maps need a driver for CUDA 12.8 or newer";
                    return Err(GpuError::new(CuResult::CallRequiresNewerDriver, what));
                };
                // SAFETY: as above.
                self.call(&context, "cuTensorMapEncodeIm2colWide", || unsafe {
                    encode(
                        out, data, rank, address, dims, strides, *lower, *upper, *channels,
                        *pixels, element, interleave, *mode, swizzle, l2, fill,
                    )
                })?;
            }
        }
        Ok(room.0)
    }
}
