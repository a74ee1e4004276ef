//! Tensors.

use mica_ops::{DType, Ops};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::dlpack;
use crate::errors::of_ops;

/// An array in a virtual GPU.
#[pyclass(module = "mica", frozen, skip_from_py_object)]
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) ops: Ops,
    pub(crate) it: mica_ops::Tensor,
}

/// The type with a name that Python's libraries use.
pub(crate) fn dtype(name: &str) -> PyResult<DType> {
    match name {
        "float32" => Ok(DType::F32),
        "float16" => Ok(DType::F16),
        "bfloat16" => Ok(DType::BF16),
        "int8" => Ok(DType::I8),
        "int32" => Ok(DType::I32),
        "int4" => Ok(DType::I4),
        other => Err(PyTypeError::new_err(format!(
            "{other} is not a type of a tensor: float32, float16, bfloat16, int8, int32 and int4 are"
        ))),
    }
}

fn name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        DType::I8 => "int8",
        DType::I32 => "int32",
        DType::I4 => "int4",
    }
}

impl Tensor {
    fn view(&self, it: mica_ops::Result<mica_ops::Tensor>) -> PyResult<Self> {
        let it = it.map_err(|error| of_ops(&error))?;
        let ops = self.ops.clone();
        Ok(Self { ops, it })
    }
}

#[pymethods]
impl Tensor {
    #[getter]
    fn shape<'py>(&self, python: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(python, self.it.shape())
    }

    /// Elements between neighbours along each axis.
    #[getter]
    fn strides<'py>(&self, python: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(python, self.it.strides())
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        name(self.it.dtype())
    }

    /// The address of the first element in the virtual GPU.
    #[getter]
    fn address(&self) -> u64 {
        self.it.address()
    }

    /// With the last two axes exchanged; a view.
    #[getter(T)]
    fn t(&self) -> PyResult<Self> {
        self.view(self.it.t())
    }

    fn reshape(&self, shape: Vec<usize>) -> PyResult<Self> {
        self.view(self.it.reshape(&shape))
    }

    fn astype(&self, name: &str) -> PyResult<Self> {
        self.view(self.ops.cast(&self.it, dtype(name)?))
    }

    /// The elements in the order of the axes; waits for the work that computes them.
    fn tobytes<'py>(&self, python: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = python.detach(|| self.ops.bytes(&self.it));
        Ok(PyBytes::new(
            python,
            &bytes.map_err(|error| of_ops(&error))?,
        ))
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self.it.shape().first().copied();
        first.ok_or_else(|| PyTypeError::new_err("a tensor without axes has no length"))
    }

    fn __repr__(&self) -> String {
        let (shape, dtype) = (self.it.shape(), name(self.it.dtype()));
        format!("mica.Tensor(shape={shape:?}, dtype={dtype})")
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::device(&self.ops)
    }

    /// A capsule of DLPack: on a card the tensor's memory, on the software GPU a copy in host memory.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        python: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = (stream, max_version, copy);
        if dl_device.is_some_and(|wanted| wanted != dlpack::device(&self.ops)) {
            let message = format!("the tensor is on device {:?}", dlpack::device(&self.ops));
            return Err(PyValueError::new_err(message));
        }
        dlpack::export(python, &self.ops, &self.it)
    }
}
