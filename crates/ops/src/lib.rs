//! Compute operations inside a virtual GPU.
//!
//! An [`Ops`] belongs to one [`mica::Vgpu`] and one stream of it. Operations take [`Tensor`]s (memory of
//! the virtual GPU with a type, a shape and strides) and return new ones; they are queued in the stream
//! and return before they are done. Memory counts against the virtual GPU's limit. Which kernels are
//! used follows from the device and from what the virtual GPU allows: one without tensor cores never
//! loads code that has them.
//!
//! ```
//! use mica_ops::{DType, Gemm, Ops};
//!
//! # fn main() -> Result<(), mica_ops::Error> {
//! let device = mica::Device::software()?;
//! let vgpu = mica::Vgpu::builder().memory(64 << 20).build(&device)?;
//! let ops = Ops::new(&vgpu)?;
//! let a = ops.tensor(&[2, 3], DType::F32, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! let b = ops.tensor(&[3, 1], DType::F32, &[1.0, 0.0, -1.0])?;
//! let c = ops.gemm(&a, &b, &Gemm::default())?;
//! assert_eq!(ops.values(&c)?, [-2.0, -2.0]);
//! let wrong = ops.gemm(&a, &a, &Gemm::default()).unwrap_err();
//! assert!(wrong.to_string().contains("[2, 3] does not fit"));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod attention;
mod conv;
mod dtype;
mod error;
mod expr;
mod gemm;
mod int4;
mod kernels;
mod pack;
mod queue;
mod rows;
mod storage;
mod tensor;
mod tensor_maps;
mod timing;
mod train;
mod tune;

use std::any::Any;
use std::sync::Arc;

use mica::{Stream, Vgpu};

pub use attention::{Attended, Attention, AttentionGradients, AttentionMemory, Pages, Starts};
pub use conv::Conv;
pub use dtype::{DType, bf16_from_f32, f16_from_f32, f32_from_f16};
pub use error::{Error, Result};
pub use expr::Expr;
pub use gemm::{Activation, Gemm, Precision, Provider};
pub use int4::Int4Weights;
pub use rows::{Norm, NormGradients, NormStatistics, Reduction};
pub use tensor::Tensor;
pub use timing::{KernelTime, OperationTime};
pub use train::{AdamW, LossScale, Parameter};

use kernels::Kernels;
use queue::Queue;
use storage::Pool;
use tensor_maps::TensorMaps;
use tune::Tuner;

/// Operations of one virtual GPU, in the order of one stream. Clones are the same.
#[derive(Clone)]
pub struct Ops {
    vgpu: Vgpu,
    stream: Queue,
    kernels: Arc<Kernels>,
    pool: Arc<Pool>,
    tuner: Arc<Tuner>,
    tensor_maps: Arc<TensorMaps>,
    library: Arc<gemm::Library>,
    is_software: bool,
    /// Whether the virtual GPU allows them.
    allows_tensor_cores: bool,
    /// Whether kernels of this crate use them.
    tensor_cores: bool,
    capability: (u32, u32),
}

impl std::fmt::Debug for Ops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ops")
            .field("vgpu", &self.vgpu)
            .finish_non_exhaustive()
    }
}

impl Ops {
    /// Operations of a virtual GPU, in its default stream.
    ///
    /// # Errors
    /// If the virtual GPU cannot be reached.
    pub fn new(vgpu: &Vgpu) -> Result<Self> {
        Self::in_stream(vgpu, &vgpu.default_stream())
    }

    /// Operations in a stream. A tensor of another [`Ops`] may be used only when that one's stream has
    /// made it, and must be kept until this stream has used it: the other [`Ops`] reuses its memory at once.
    ///
    /// # Errors
    /// If the virtual GPU cannot be reached.
    pub fn in_stream(vgpu: &Vgpu, stream: &Stream) -> Result<Self> {
        Self::of(vgpu, stream, vgpu.info().is_software())
    }

    /// Operations by the kernels for cards of the compute capability that the virtual GPU reports, also on the software
    /// GPU, where others are faster: for tests of these kernels.
    ///
    /// # Errors
    /// If the virtual GPU cannot be reached.
    pub fn by_kernels_of_cards(vgpu: &Vgpu) -> Result<Self> {
        Self::of(vgpu, &vgpu.default_stream(), false)
    }

    fn of(vgpu: &Vgpu, stream: &Stream, is_software: bool) -> Result<Self> {
        let info = vgpu.info();
        let kernels = Kernels::new(vgpu);
        let (major, minor) = info.compute_capability;
        let library = gemm::Library::find(vgpu)?;
        let is_asked = major >= 8 && (!is_software || library.is_found());
        let allows_tensor_cores = is_asked && kernels.allows_tensor_cores()?;
        // The software GPU computes faster without them.
        let tensor_cores = !is_software && allows_tensor_cores;
        let driver = match info.is_software() {
            true => String::new(),
            false => format!(", driver {}", tune::driver_version()),
        };
        let setting = format!(
            "{} sm_{major}{minor} {} multiprocessors{driver}, tensor cores {}, kernels {}{}",
            info.name,
            info.multiprocessors,
            if tensor_cores { "on" } else { "off" },
            kernels::all_hash(),
            library.setting(),
        );
        Ok(Self {
            vgpu: vgpu.clone(),
            stream: Queue::of(stream),
            kernels: Arc::new(kernels),
            pool: Pool::new(vgpu)?,
            tuner: Arc::new(Tuner::new(tune::default_file(), setting)),
            tensor_maps: Arc::default(),
            library: Arc::new(library),
            is_software,
            allows_tensor_cores,
            tensor_cores,
            capability: (major, minor),
        })
    }

    /// The virtual GPU.
    pub fn vgpu(&self) -> &Vgpu {
        &self.vgpu
    }

    /// The stream.
    pub fn stream(&self) -> &Stream {
        self.stream.stream()
    }

    /// Waits for all work of the stream.
    ///
    /// # Errors
    /// What went wrong in it.
    pub fn synchronize(&self) -> Result<()> {
        Ok(self.stream().synchronize()?)
    }

    /// Gives memory that is kept for later tensors back to the virtual GPU.
    pub fn trim(&self) {
        self.pool.trim();
    }

    /// The most device memory that operations take beside tensors that are there already, in bytes, when they begin without
    /// memory that is kept for later tensors. Nothing is computed and no memory is taken; tensors that `operations` makes
    /// cannot be read. A product on a card counts with the kernel that was chosen for its size, or if none was chosen yet with
    /// the one that is likely to be.
    ///
    /// # Errors
    /// Those of the operations, but for memory that would not be had.
    pub fn memory_of<T>(&self, operations: impl FnOnce(&Self) -> Result<T>) -> Result<u64> {
        let counting = Self {
            stream: self.stream.counting(),
            pool: Pool::counting(&self.vgpu),
            ..self.clone()
        };
        operations(&counting)?;
        Ok(counting.pool.most_taken())
    }

    /// A dense tensor whose elements nobody has set.
    pub(crate) fn unset(&self, shape: &[usize], dtype: DType) -> Result<Tensor> {
        let count = tensor::count("a tensor", shape)?;
        let storage = self.pool.take(dtype.bytes_of(count))?;
        Ok(Tensor::dense(storage, dtype, shape))
    }

    /// A dense tensor of zeros.
    ///
    /// # Errors
    /// [`Error::is_out_of_memory`] says whether the limit was the reason.
    pub fn zeros(&self, shape: &[usize], dtype: DType) -> Result<Tensor> {
        let tensor = self.unset(shape, dtype)?;
        let timed = self.begin("zeros", &[]);
        timed.moves(&[&tensor]);
        if let Some(buffer) = tensor.storage.buffer() {
            self.stream.fill_bytes(buffer, 0)?;
        }
        Ok(tensor)
    }

    /// A dense tensor with these values, rounded to its type.
    ///
    /// # Errors
    /// If there are not as many values as the shape has elements.
    pub fn tensor(&self, shape: &[usize], dtype: DType, values: &[f32]) -> Result<Tensor> {
        let wanted = tensor::count("a tensor", shape)?;
        if wanted != values.len() {
            let given = values.len();
            let message = format!("{given} values for shape {shape:?}, which has {wanted}");
            return Err(Error::argument("a tensor", message));
        }
        self.from_bytes(shape, dtype, &dtype.encode_all(values))
    }

    /// A dense tensor with these bytes.
    ///
    /// # Errors
    /// If the bytes are not those of as many elements as the shape has.
    pub fn from_bytes(&self, shape: &[usize], dtype: DType, bytes: &[u8]) -> Result<Tensor> {
        let wanted = dtype.bytes_of(tensor::count("a tensor", shape)?);
        if wanted != bytes.len() {
            let given = bytes.len();
            let message =
                format!("{given} bytes for {dtype} of shape {shape:?}, which has {wanted}");
            return Err(Error::argument("a tensor", message));
        }
        let tensor = self.unset(shape, dtype)?;
        if wanted > 0 && !self.stream.is_counting() {
            self.vgpu
                .write_bytes(self.stream(), tensor.address(), bytes)?;
        }
        Ok(tensor)
    }

    /// A tensor in device memory of another library of this process, for which nothing is copied; `keeps` is dropped when
    /// the tensor and its views are. The other library's work on it must be over, or precede in the stream.
    ///
    /// # Errors
    /// If there are not as many strides as axes, or the elements and those between them could not be counted.
    pub fn adopt(
        &self,
        address: u64,
        dtype: DType,
        shape: &[usize],
        strides: Option<&[usize]>,
        keeps: Arc<dyn Any + Send + Sync>,
    ) -> Result<Tensor> {
        tensor::count("a tensor", shape)?;
        let dense = tensor::dense_strides(shape);
        let strides = strides.unwrap_or(&dense);
        // From the first element to the last one.
        let reach = (shape.iter().zip(strides)).try_fold(0_usize, |reach, (size, stride)| {
            let along = size.saturating_sub(1).checked_mul(*stride)?;
            reach.checked_add(along)
        });
        let most = 1_usize << 48;
        let fits = reach.is_some_and(|reach| reach <= most);
        if strides.len() != shape.len() || !fits || strides.iter().any(|stride| *stride > most) {
            let message = format!("strides {strides:?} for shape {shape:?}");
            return Err(Error::argument("a tensor", message));
        }
        let storage = storage::Storage::adopted(address, keeps);
        Ok(Tensor::strided(storage, dtype, shape, strides))
    }

    /// The values of a tensor in the order of its axes; waits for earlier work of the stream.
    ///
    /// # Errors
    /// What went wrong in the stream.
    pub fn values(&self, tensor: &Tensor) -> Result<Vec<f32>> {
        let bytes = self.bytes(tensor)?;
        Ok(tensor.dtype().decode_all(&bytes, tensor.len()))
    }

    /// The bytes of a tensor's elements in the order of its axes; waits for earlier work of the stream.
    ///
    /// # Errors
    /// What went wrong in the stream.
    pub fn bytes(&self, tensor: &Tensor) -> Result<Vec<u8>> {
        if tensor.is_empty() {
            return Ok(Vec::new());
        }
        if self.stream.is_counting() {
            let message = "while memory is counted nothing is computed that could be read";
            return Err(Error::argument("values", message));
        }
        let dense = self.dense(tensor)?;
        let mut bytes = vec![0; dense.dtype().bytes_of(dense.len())];
        self.vgpu
            .read_bytes(self.stream(), dense.address(), &mut bytes)?;
        Ok(bytes)
    }
}

/// The guide's page about this crate: its example is run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/src/ops.md")]
mod guide {}
