//! Tensors: arrays of a virtual GPU with a type and a shape.

use std::ffi::c_void;
use std::sync::Arc;

use mica_ops::DType;

use crate::handles::{get, insert, mica_tensor, mica_vgpu, remove};
use crate::pointers::{Out, bytes_mut, slice};
use crate::status::{Failure, Result, call, mica_status};
use crate::vgpu::Vgpu;

/// What a tensor handle stands for.
pub(crate) struct Tensor {
    pub(crate) vgpu: Arc<Vgpu>,
    pub(crate) tensor: mica_ops::Tensor,
}

/// Type of the elements of a tensor.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum mica_dtype {
    /// 32-bit floats.
    MICA_F32 = 0,
    /// 16-bit floats of IEEE 754.
    MICA_F16 = 1,
    /// 16-bit floats with the exponent of 32-bit floats.
    MICA_BF16 = 2,
    /// 8-bit integers.
    MICA_I8 = 3,
    /// 32-bit integers.
    MICA_I32 = 4,
    /// 4-bit integers with a sign, two in a byte, the first in its lower half. Products and casts take them.
    MICA_I4 = 5,
}

/// Most axes of a tensor.
pub const MICA_MOST_AXES: usize = 8;

fn dtype_of(number: i32) -> Result<DType> {
    let all = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::I8,
        DType::I32,
        DType::I4,
    ];
    let index = usize::try_from(number).ok();
    let found = index.and_then(|index| all.get(index));
    found
        .copied()
        .ok_or_else(|| Failure::Argument(format!("dtype is {number}: write MICA_F32 or another")))
}

/// Makes a dense tensor, the last axis contiguous, from values in host memory. `dtype` is one of MICA_F32, MICA_F16,
/// MICA_BF16, MICA_I8, MICA_I32, MICA_I4; `bytes` is the size of all values together.
///
/// # Safety
/// `shape` is null or leads to `axes` numbers, `data` to so many bytes, `tensor` to room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mica_tensor_create(
    vgpu: *mut mica_vgpu,
    dtype: i32,
    shape: *const usize,
    axes: usize,
    data: *const c_void,
    bytes: usize,
    tensor: *mut *mut mica_tensor,
) -> mica_status {
    call(|| {
        let vgpu = get("vgpu", vgpu)?;
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new("tensor", tensor) }?;
        let dtype = dtype_of(dtype)?;
        if axes > MICA_MOST_AXES {
            return Err(Failure::Argument(format!(
                "axes is {axes}, the most is {MICA_MOST_AXES}"
            )));
        }
        // SAFETY: the caller's promise.
        let shape = unsafe { slice("shape", shape, axes) }?;
        // SAFETY: the caller's promise.
        let data = unsafe { slice("data", data.cast::<u8>(), bytes) }?;
        let tensor = vgpu.ops()?.from_bytes(shape, dtype, data)?;
        out.set(insert(Tensor { vgpu, tensor }));
        Ok(())
    })
}

/// Copies the values of a tensor to host memory in the order of its axes, after earlier work of the default stream.
/// `bytes` is the size of all values together.
///
/// # Safety
/// `data` is null or leads to room for so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mica_tensor_read(
    tensor: *mut mica_tensor,
    data: *mut c_void,
    bytes: usize,
) -> mica_status {
    call(|| {
        let tensor = get("tensor", tensor)?;
        let has = tensor.tensor.dtype().bytes_of(tensor.tensor.len());
        if bytes != has {
            return Err(Failure::Argument(format!(
                "bytes is {bytes}, the tensor has {has}"
            )));
        }
        // SAFETY: the caller's promise.
        let data = unsafe { bytes_mut("data", data.cast(), bytes) }?;
        data.copy_from_slice(&tensor.vgpu.ops()?.bytes(&tensor.tensor)?);
        Ok(())
    })
}

/// The shape of a tensor: `axes` numbers are written to `shape`, which has room for MICA_MOST_AXES.
///
/// # Safety
/// `shape` is null or leads to room for MICA_MOST_AXES numbers, `axes` to room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mica_tensor_shape(
    tensor: *mut mica_tensor,
    shape: *mut [usize; MICA_MOST_AXES],
    axes: *mut usize,
) -> mica_status {
    call(|| {
        let tensor = get("tensor", tensor)?;
        // SAFETY: the caller's promise.
        let (numbers, count) = unsafe { (Out::new("shape", shape)?, Out::new("axes", axes)?) };
        let mut all = [0; MICA_MOST_AXES];
        let own = tensor.tensor.shape();
        for (place, axis) in all.iter_mut().zip(own) {
            *place = *axis;
        }
        numbers.set(all);
        count.set(own.len());
        Ok(())
    })
}

/// A view of a matrix, or of each matrix of a stack, with rows and columns exchanged. No value is copied.
///
/// # Safety
/// `view` is null or leads to room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mica_tensor_transpose(
    tensor: *mut mica_tensor,
    view: *mut *mut mica_tensor,
) -> mica_status {
    call(|| {
        let tensor = get("tensor", tensor)?;
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new("view", view) }?;
        let vgpu = Arc::clone(&tensor.vgpu);
        let tensor = tensor.tensor.t()?;
        out.set(insert(Tensor { vgpu, tensor }));
        Ok(())
    })
}

/// Frees the tensor; its memory stays while views of it are there.
#[unsafe(no_mangle)]
pub extern "C" fn mica_tensor_free(tensor: *mut mica_tensor) -> mica_status {
    call(|| remove("tensor", tensor))
}
