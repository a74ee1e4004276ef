//! DLPack, version 0: the table that arrays of one library are handed to another with.

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::sync::Arc;

use mica_ops::{DType, Ops, Tensor};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::errors::of_ops;

const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const CUDA_MANAGED: i32 = 13;

const NAME: &CStr = c"dltensor";
const USED: &CStr = c"used_dltensor";

/// `DLTensor`.
#[repr(C)]
struct Table {
    data: *mut c_void,
    device: [i32; 2],
    axes: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    table: Table,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// What an exported table points to.
struct Exported {
    managed: Managed,
    _numbers: Vec<i64>,
    _keeps: Box<dyn Any + Send>,
}

/// Code and bits of a type: integers are 0, floats 2, bfloat 4.
fn code_of(dtype: DType) -> (u8, u8) {
    match dtype {
        DType::F32 => (2, 32),
        DType::F16 => (2, 16),
        DType::BF16 => (4, 16),
        DType::I8 => (0, 8),
        DType::I32 => (0, 32),
        DType::I4 => (0, 4),
    }
}

fn dtype_of(code: u8, bits: u8, lanes: u16) -> PyResult<DType> {
    let all = [DType::F32, DType::F16, DType::BF16, DType::I8, DType::I32];
    let found = all
        .into_iter()
        .find(|dtype| code_of(*dtype) == (code, bits) && lanes == 1);
    found.ok_or_else(|| {
        PyTypeError::new_err(format!(
            "an array of type code {code} with {bits} bits and {lanes} lanes: float32, float16, bfloat16, int8 and int32 can be taken"
        ))
    })
}

/// Where exported tensors are.
pub(crate) fn device(ops: &Ops) -> (i32, i32) {
    match ops.vgpu().driver_context() {
        Some(_) if !ops.vgpu().info().is_software() => (CUDA, 0),
        _ => (CPU, 0),
    }
}

unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: `export` put its box there; a consumer calls this once.
    drop(unsafe { Box::from_raw((*managed).context.cast::<Exported>()) });
}

unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: a capsule of ours; one that was used has another name and is the consumer's.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            let managed = ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr());
            delete(managed.cast());
        }
    }
}

/// What a table describes: the values' address, the steps between them, and what keeps them.
struct Values {
    data: *mut c_void,
    strides: Vec<i64>,
    keeps: Box<dyn Any + Send>,
}

impl Values {
    /// A tensor's own memory on the card.
    fn in_place(tensor: &Tensor) -> Self {
        Self {
            data: tensor.address() as *mut c_void,
            strides: tensor.strides().iter().map(|n| *n as i64).collect(),
            keeps: Box::new(tensor.clone()),
        }
    }

    /// A dense copy in host memory.
    fn copied(tensor: &Tensor, bytes: &[u8]) -> Self {
        // Words, so that every type is aligned.
        let mut words = vec![0_u64; bytes.len().div_ceil(8)];
        for (word, part) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..part.len()].copy_from_slice(part);
            *word = u64::from_ne_bytes(whole);
        }
        let mut strides = vec![1_i64; tensor.rank()];
        for axis in (1..tensor.rank()).rev() {
            strides[axis - 1] = strides[axis] * tensor.shape()[axis].max(1) as i64;
        }
        Self {
            data: words.as_mut_ptr().cast(),
            strides,
            keeps: Box::new(words),
        }
    }
}

pub(crate) fn export<'py>(
    python: Python<'py>,
    ops: &Ops,
    tensor: &Tensor,
) -> PyResult<Bound<'py, PyAny>> {
    if tensor.dtype() == DType::I4 {
        let message =
            "two elements of int4 share a byte, which few libraries read: export astype(\"int8\")";
        return Err(PyBufferError::new_err(message));
    }
    let device = device(ops);
    let values = if device.0 == CUDA {
        // The consumer's stream is not ours: what it reads is computed by then.
        let done = python.detach(|| ops.synchronize());
        done.map_err(|error| of_ops(&error))?;
        Values::in_place(tensor)
    } else {
        let bytes = python.detach(|| ops.bytes(tensor));
        Values::copied(tensor, &bytes.map_err(|error| of_ops(&error))?)
    };
    capsule(python, device, tensor, values)
}

/// A capsule with the table of a tensor's values.
fn capsule<'py>(
    python: Python<'py>,
    (kind, number): (i32, i32),
    tensor: &Tensor,
    values: Values,
) -> PyResult<Bound<'py, PyAny>> {
    let shape = tensor.shape().iter().map(|n| *n as i64);
    let mut numbers: Vec<i64> = shape.chain(values.strides).collect();
    let (code, bits) = code_of(tensor.dtype());
    let axes = tensor.rank();
    let table = Table {
        data: values.data,
        device: [kind, number],
        axes: axes as i32,
        code,
        bits,
        lanes: 1,
        shape: numbers.as_mut_ptr(),
        strides: numbers.as_mut_ptr().wrapping_add(axes),
        byte_offset: 0,
    };
    let exported = Box::into_raw(Box::new(Exported {
        managed: Managed {
            table,
            context: std::ptr::null_mut(),
            deleter: Some(delete),
        },
        _numbers: numbers,
        _keeps: values.keeps,
    }));
    // SAFETY: the box is ours until the capsule has it.
    let managed = unsafe {
        (*exported).managed.context = exported.cast();
        &raw mut (*exported).managed
    };
    // SAFETY: the name lives for ever; the capsule's end deletes what no consumer took.
    unsafe {
        let capsule = ffi::PyCapsule_New(managed.cast(), NAME.as_ptr(), Some(drop_capsule));
        if capsule.is_null() {
            delete(managed);
            return Err(PyErr::fetch(python));
        }
        Ok(Bound::from_owned_ptr(python, capsule))
    }
}

/// A table that was taken out of its capsule; given back when dropped.
struct Taken(*mut Managed);

// SAFETY: the producer's deleter may be called on any thread (DLPack asks that of it), and nothing else is done with the table.
unsafe impl Send for Taken {}
// SAFETY: as above; shared references read nothing.
unsafe impl Sync for Taken {}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: the capsule was marked as used, so the table is ours to delete, once. Producers of Python may need the interpreter's lock.
        Python::attach(|_| unsafe {
            if let Some(deleter) = (*self.0).deleter {
                deleter(self.0);
            }
        });
    }
}

fn take(array: &Bound<'_, PyAny>) -> PyResult<Taken> {
    let capsule = array.call_method0("__dlpack__")?;
    // SAFETY: the name is compared before the pointer is used; renamed, the table is ours.
    unsafe {
        let raw = capsule.as_ptr();
        if ffi::PyCapsule_IsValid(raw, NAME.as_ptr()) != 1 {
            return Err(PyTypeError::new_err(
                "__dlpack__ gave no capsule \"dltensor\"",
            ));
        }
        let managed = ffi::PyCapsule_GetPointer(raw, NAME.as_ptr());
        if ffi::PyCapsule_SetName(raw, USED.as_ptr()) != 0 {
            return Err(PyErr::fetch(array.py()));
        }
        Ok(Taken(managed.cast()))
    }
}

/// A tensor from an array of another library.
pub(crate) fn import(ops: &Ops, array: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let taken = Arc::new(take(array)?);
    // SAFETY: the producer keeps the table until it is deleted.
    let table = unsafe { &(*taken.0).table };
    let dtype = dtype_of(table.code, table.bits, table.lanes)?;
    let axes = usize::try_from(table.axes).unwrap_or(0);
    let numbers = |from: *const i64| -> PyResult<Vec<usize>> {
        if axes == 0 {
            return Ok(Vec::new());
        }
        // SAFETY: the producer has as many numbers there as axes.
        let numbers = unsafe { std::slice::from_raw_parts(from, axes) };
        let positive = numbers.iter().map(|n| usize::try_from(*n));
        positive
            .collect::<Result<_, _>>()
            .map_err(|_| PyValueError::new_err("an array with negative strides: copy it first"))
    };
    let shape = numbers(table.shape)?;
    let strides = match table.strides.is_null() {
        true => None,
        false => Some(numbers(table.strides)?),
    };
    let data = table.data as u64 + table.byte_offset;
    match (table.device[0], device(ops).0) {
        (CUDA | CUDA_MANAGED, CUDA) => {
            let keeps: Arc<dyn Any + Send + Sync> = taken;
            let made = ops.adopt(data, dtype, &shape, strides.as_deref(), keeps);
            made.map_err(|error| of_ops(&error))
        }
        (CPU | CUDA_HOST, _) => {
            let strides = strides.unwrap_or_else(|| dense(&shape));
            let bytes = gather(data, dtype.size_bytes(), &shape, &strides);
            ops.from_bytes(&shape, dtype, &bytes)
                .map_err(|error| of_ops(&error))
        }
        (kind, _) => Err(PyValueError::new_err(format!(
            "an array on a device of kind {kind}: this virtual GPU takes arrays in host memory{}",
            if device(ops).0 == CUDA {
                " and on its card"
            } else {
                ""
            }
        ))),
    }
}

fn dense(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis].max(1);
    }
    strides
}

/// Copies elements of an array in host memory in the order of its axes.
fn gather(data: u64, size: usize, shape: &[usize], strides: &[usize]) -> Vec<u8> {
    let count: usize = shape.iter().product();
    let mut bytes = Vec::with_capacity(count * size);
    let mut place = vec![0; shape.len()];
    for _ in 0..count {
        let offset: usize = place
            .iter()
            .zip(strides)
            .map(|(at, stride)| at * stride)
            .sum();
        let from = (data as usize + offset * size) as *const u8;
        // SAFETY: the element is in the array, by the producer's shape and strides.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(from, size) });
        for axis in (0..shape.len()).rev() {
            place[axis] += 1;
            if place[axis] < shape[axis] {
                break;
            }
            place[axis] = 0;
        }
    }
    bytes
}
