//! Virtual GPUs and operations in them.

use mica_ops::{Activation, Attention, DType, Gemm, Norm, Ops, Precision};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::dlpack;
use crate::errors::{of_mica, of_ops};
use crate::expr::Expr;
use crate::tensor::{Tensor, dtype};

/// A virtual GPU and its compute library.
#[pyclass(module = "mica", frozen, subclass)]
pub(crate) struct Vgpu {
    pub(crate) ops: Ops,
}

fn activation(name: Option<&str>) -> PyResult<Activation> {
    match name {
        None => Ok(Activation::None),
        Some("relu") => Ok(Activation::Relu),
        Some("gelu") => Ok(Activation::Gelu),
        Some("silu") => Ok(Activation::Silu),
        Some(other) => Err(PyValueError::new_err(format!(
            "{other:?} is not an activation: relu, gelu and silu are"
        ))),
    }
}

impl Vgpu {
    fn tensor(&self, it: mica_ops::Result<mica_ops::Tensor>) -> PyResult<Tensor> {
        let it = it.map_err(|error| of_ops(&error))?;
        let ops = self.ops.clone();
        Ok(Tensor { ops, it })
    }

    fn norm(
        &self,
        x: &Tensor,
        kind: Norm,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        epsilon: f32,
    ) -> PyResult<Tensor> {
        let (weight, bias) = (weight.map(|t| &t.it), bias.map(|t| &t.it));
        let normed = self.ops.norm(&x.it, kind, weight, bias, epsilon);
        self.tensor(normed.map(|(y, _)| y))
    }
}

#[pymethods]
impl Vgpu {
    /// On the software GPU in this process; with `joins`, the virtual GPU that `mica run` started this program in.
    #[new]
    fn new(
        python: Python<'_>,
        memory: Option<u64>,
        share: Option<f64>,
        tensor_cores: bool,
        joins: bool,
    ) -> PyResult<Self> {
        let made = python.detach(|| {
            let vgpu = match joins {
                true => mica::Vgpu::through_driver()?,
                false => {
                    let device = mica::Device::software()?;
                    let mut builder = mica::Vgpu::builder().tensor_cores(tensor_cores);
                    if let Some(bytes) = memory {
                        builder = builder.memory(bytes);
                    }
                    if let Some(percent) = share {
                        builder = builder.share(percent);
                    }
                    builder.build(&device)?
                }
            };
            Ops::new(&vgpu)
        });
        let ops = made.map_err(|error| of_ops(&error))?;
        Ok(Self { ops })
    }

    #[getter]
    fn name(&self) -> String {
        self.ops.vgpu().info().name
    }

    /// Bytes in use, and the limit.
    fn memory(&self) -> PyResult<(u64, u64)> {
        let memory = self.ops.vgpu().memory().map_err(|error| of_mica(&error))?;
        Ok((memory.used_bytes, memory.limit_bytes))
    }

    /// Libraries of the user: their name, whether they are used, and which file or why not.
    fn providers(&self) -> Vec<(&'static str, bool, String)> {
        let providers = self.ops.providers().into_iter();
        providers.map(|p| (p.name, p.is_used, p.state)).collect()
    }

    /// Changes the memory limit of a virtual GPU that this process has made.
    fn resize(&self, memory: u64) -> PyResult<()> {
        let resized = self.ops.vgpu().resize(memory);
        resized.map_err(|error| of_mica(&error))
    }

    fn synchronize(&self, python: Python<'_>) -> PyResult<()> {
        let done = python.detach(|| self.ops.synchronize());
        done.map_err(|error| of_ops(&error))
    }

    fn trim(&self) {
        self.ops.trim();
    }

    #[pyo3(name = "from_bytes")]
    fn of_bytes(&self, bytes: &[u8], shape: Vec<usize>, name: &str) -> PyResult<Tensor> {
        self.tensor(self.ops.from_bytes(&shape, dtype(name)?, bytes))
    }

    /// A tensor from an object with `__dlpack__`: its memory where that is on the same card, else a copy.
    #[pyo3(name = "from_dlpack")]
    fn of_dlpack(&self, array: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        self.tensor(Ok(dlpack::import(&self.ops, array)?))
    }

    fn zeros(&self, shape: Vec<usize>, name: &str) -> PyResult<Tensor> {
        self.tensor(self.ops.zeros(&shape, dtype(name)?))
    }

    /// Random numbers between two bounds, the same for the same seed on every device.
    fn uniform(
        &self,
        shape: Vec<usize>,
        name: &str,
        seed: u64,
        low: f32,
        high: f32,
    ) -> PyResult<Tensor> {
        let bounds = (low, high);
        self.tensor(self.ops.uniform(&shape, dtype(name)?, (seed, 0), bounds))
    }

    #[pyo3(signature = (a, b, *, bias=None, activation=None, alpha=1.0, c=None, beta=None, scale=1.0, residual=None, out=None, tf32=false))]
    #[allow(clippy::too_many_arguments, reason = "they have names in Python")]
    fn matmul(
        &self,
        python: Python<'_>,
        a: &Tensor,
        b: &Tensor,
        bias: Option<&Tensor>,
        activation: Option<&str>,
        alpha: f32,
        c: Option<&Tensor>,
        beta: Option<f32>,
        scale: f32,
        residual: Option<&Tensor>,
        out: Option<&str>,
        tf32: bool,
    ) -> PyResult<Tensor> {
        let spec = Gemm {
            alpha,
            c: c.map(|tensor| &tensor.it),
            beta: beta.unwrap_or(if c.is_some() { 1.0 } else { 0.0 }),
            scale,
            residual: residual.map(|tensor| &tensor.it),
            bias: bias.map(|tensor| &tensor.it),
            activation: self::activation(activation)?,
            out: out.map(dtype).transpose()?,
            precision: if tf32 {
                Precision::Tf32
            } else {
                Precision::Full
            },
        };
        self.tensor(python.detach(|| self.ops.gemm(&a.it, &b.it, &spec)))
    }

    #[pyo3(signature = (x, scale=1.0))]
    fn softmax(&self, x: &Tensor, scale: f32) -> PyResult<Tensor> {
        self.tensor(self.ops.softmax(&x.it, scale))
    }

    #[pyo3(signature = (x, weight=None, bias=None, epsilon=1e-5))]
    fn layer_norm(
        &self,
        x: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        epsilon: f32,
    ) -> PyResult<Tensor> {
        self.norm(x, Norm::Layer, weight, bias, epsilon)
    }

    #[pyo3(signature = (x, weight=None, epsilon=1e-5))]
    fn rms_norm(&self, x: &Tensor, weight: Option<&Tensor>, epsilon: f32) -> PyResult<Tensor> {
        self.norm(x, Norm::Rms, weight, None, epsilon)
    }

    #[pyo3(signature = (q, k, v, *, causal=false, window=None, scale=None))]
    #[allow(clippy::too_many_arguments, reason = "they have names in Python")]
    fn attention(
        &self,
        python: Python<'_>,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        causal: bool,
        window: Option<usize>,
        scale: Option<f32>,
    ) -> PyResult<Tensor> {
        let spec = Attention {
            causal,
            window,
            scale,
            ..Attention::default()
        };
        let attended = python.detach(|| self.ops.attention(&q.it, &k.it, &v.it, &spec));
        self.tensor(attended.map(|attended| attended.output))
    }

    /// An expression for each element of the inputs, in one kernel.
    #[pyo3(signature = (expr, *inputs, out=None))]
    fn map(
        &self,
        expr: PyRef<'_, Expr>,
        inputs: Vec<PyRef<'_, Tensor>>,
        out: Option<&str>,
    ) -> PyResult<Tensor> {
        let first = inputs
            .first()
            .map_or(DType::F32, |tensor| tensor.it.dtype());
        let out = out.map_or(Ok(first), dtype)?;
        let inputs: Vec<&mica_ops::Tensor> = inputs.iter().map(|tensor| &tensor.it).collect();
        self.tensor(self.ops.map(&expr.0, &inputs, &[], out))
    }
}
