//! Products by the user's cuBLASLt: a candidate beside the kernels of this crate.
//!
//! The library works in the program's process, on memory and streams of the driver library there. What its epilogues do not do, or
//! do only nearly (its GELU is an approximation), a kernel of this crate does to its sums.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mica::Vgpu;
use mica_cublas::{Addresses, Compute, CublasLt, Element, Factor, Plan, Problem, Target};

use super::check::{Product, matrix};
use super::launch::{Epilogue, Variant};
use super::spec::{Activation, Gemm, Precision};
use crate::pack::{Matrix, wide};
use crate::{DType, Error, Ops, Result, Tensor};

/// Algorithms of the library that are measured for a product.
const MOST_PLANS: usize = 6;
/// Problems whose plans are remembered.
const MOST_PROBLEMS: usize = 1024;
/// Most workspace that the library is offered, as PyTorch does on Hopper, and its part of the memory limit.
const WORKSPACE_BYTES: u64 = 32 << 20;
const WORKSPACE_PART: u64 = 16;

/// Where products, beside this crate's own kernels, can be computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// Its name.
    pub name: &'static str,
    /// Whether its kernels are candidates.
    pub is_used: bool,
    /// The file and its version, or the reason why it is not used.
    pub state: String,
}

/// cuBLASLt, or the reason why it is not used.
pub(crate) struct Library {
    found: Result<Arc<CublasLt>, String>,
    plans: Mutex<HashMap<Problem, Arc<Vec<Plan>>>>,
    workspace_bytes: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(error: mica_cublas::Error) -> Error {
    Error::Library {
        library: "cuBLASLt",
        message: error.to_string(),
    }
}

impl Library {
    /// Opens the library for a virtual GPU whose memory is in this process.
    pub(crate) fn find(vgpu: &Vgpu) -> Result<Self> {
        let found = match vgpu.driver_context() {
            None => Err(
                "the virtual GPU is not reached through the driver library of this \
                         process: make it with Vgpu::through_driver"
                    .into(),
            ),
            Some(_) => vgpu
                .with_driver_context(CublasLt::open)?
                .map_err(|e| e.to_string()),
        };
        Ok(Self {
            found,
            plans: Mutex::default(),
            workspace_bytes: WORKSPACE_BYTES.min(vgpu.memory()?.limit_bytes / WORKSPACE_PART),
        })
    }

    pub(crate) fn is_found(&self) -> bool {
        self.found.is_ok()
    }

    pub(crate) fn provider(&self) -> Provider {
        let state = match &self.found {
            Ok(library) => format!(
                "{}, version {}",
                library.path().display(),
                library.version()
            ),
            Err(reason) => reason.clone(),
        };
        Provider {
            name: "cuBLASLt",
            is_used: self.found.is_ok(),
            state,
        }
    }

    /// What distinguishes choices with this library from choices without.
    pub(crate) fn setting(&self) -> String {
        match &self.found {
            Ok(library) => format!(", cuBLASLt {}", library.version()),
            Err(_) => String::new(),
        }
    }

    fn plans(&self, vgpu: &Vgpu, problem: &Problem) -> Result<Arc<Vec<Plan>>> {
        let Ok(library) = &self.found else {
            return Ok(Arc::default());
        };
        if let Some(plans) = lock(&self.plans).get(problem) {
            return Ok(Arc::clone(plans));
        }
        let found = vgpu.with_driver_context(|| library.plans(problem, MOST_PLANS))?;
        let found = Arc::new(found.map_err(refused)?);
        let mut plans = lock(&self.plans);
        if plans.len() >= MOST_PROBLEMS {
            plans.clear();
        }
        plans.insert(*problem, Arc::clone(&found));
        Ok(found)
    }
}

fn element(dtype: DType) -> Element {
    match dtype {
        DType::F32 => Element::F32,
        DType::F16 => Element::F16,
        DType::BF16 => Element::Bf16,
        DType::I8 | DType::I4 => Element::I8,
        DType::I32 => Element::I32,
    }
}

/// The largest power of two that divides an address, up to 256.
fn alignment(address: u64) -> u32 {
    1 << address.trailing_zeros().min(8)
}

/// A factor as the library reads it, if it can: contiguous rows, or contiguous columns, that do not overlap.
fn as_factor(factor: &Matrix) -> Option<Factor> {
    let by_rows = |f: &Matrix| {
        let contiguous = f.col == 1 || f.cols == 1;
        let apart = f.row >= f.cols || f.rows == 1;
        (contiguous && apart).then_some(f.row.max(f.cols) as u64)
    };
    let stack = factor.batch as i64;
    let made = |distance, by_columns| Factor {
        by_columns,
        distance,
        stack,
    };
    by_rows(factor)
        .map(|distance| made(distance, false))
        .or_else(|| by_rows(&factor.turned()).map(|distance| made(distance, true)))
}

/// A result, or what is added to it, as the library reaches it.
fn as_target(tensor: &Matrix) -> Option<Target> {
    let factor = as_factor(tensor).filter(|factor| !factor.by_columns)?;
    Some(Target {
        distance: factor.distance,
        stack: factor.stack,
    })
}

/// A product as the library is asked for it.
struct Asked {
    problem: Problem,
    at: Addresses,
    /// `alpha` and `beta`.
    scales: [f32; 2],
    /// Sums that a kernel of this crate finishes, where the library does not.
    sums: Option<Tensor>,
    _packed: [Option<Tensor>; 2],
}

/// Whether the library can do what follows the sums, but for the places of the result and of `c`.
pub(super) fn does_epilogue(product: &Product, spec: &Gemm) -> bool {
    let plain = spec.scale == 1.0
        && spec.residual.is_none()
        && matches!(spec.activation, Activation::None | Activation::Relu);
    match product.a.dtype {
        DType::I8 | DType::I4 => {
            let nothing = spec.bias.is_none() && spec.beta == 0.0 && spec.alpha == 1.0;
            plain && nothing && product.out == DType::I32 && spec.activation == Activation::None
        }
        _ => plain,
    }
}

/// A factor as it will be packed, before it is.
fn as_packed(factor: &Matrix) -> Matrix {
    let row = factor.cols.next_multiple_of(16 / factor.dtype.size_bytes());
    Matrix {
        address: 256,
        first: 0,
        row,
        col: 1,
        batch: if factor.batch == 0 {
            0
        } else {
            factor.rows * row
        },
        ..*factor
    }
}

/// A dense result at an aligned address, as candidates are made before there is one.
fn dense(product: &Product) -> Matrix {
    let (rows, cols) = (product.a.rows, product.b.cols);
    Matrix {
        address: 256,
        first: 0,
        dtype: product.out,
        rows,
        cols,
        row: cols,
        col: 1,
        batch: if product.batches > 1 { rows * cols } else { 0 },
    }
}

/// A product as it is asked of the library.
struct Wanted<'a> {
    product: &'a Product,
    spec: &'a Gemm<'a>,
    compute: Compute,
    /// What is added, if anything is.
    c: Option<Matrix>,
}

/// Where the library writes, and what it adds.
struct Places {
    /// Whether the library does all that follows the sums.
    is_direct: bool,
    target: Target,
    added: Target,
    c_address: u64,
    d: Matrix,
    sums: Option<Tensor>,
}

impl Ops {
    /// Libraries of the user that may compute products, and why they are not used where they are not.
    pub fn providers(&self) -> Vec<Provider> {
        vec![self.library.provider()]
    }

    /// How the library may compute a product; `None` if it may not.
    fn library_compute(&self, product: &Product, spec: &Gemm) -> Result<Option<Compute>> {
        let tensor_cores = self.allows_tensor_cores_for(product, spec)?;
        Ok(match (product.a.dtype, tensor_cores) {
            (DType::F32, true) if spec.precision == Precision::Tf32 => Some(Compute::Tf32),
            // Without tensor cores no variable of the environment may bring them back.
            (DType::F32, _) if self.allows_tensor_cores => Some(Compute::Full),
            (DType::F32, _) => Some(Compute::Pedantic),
            (_, true) => Some(Compute::Full),
            (_, false) => None,
        })
    }

    /// The library's candidates for a product, the one that it expects to be fastest first.
    pub(super) fn library_candidates(
        &self,
        product: &Product,
        spec: &Gemm,
    ) -> Result<Vec<Variant>> {
        let sizes = [product.a.rows, product.b.cols, product.a.cols];
        if self.library.found.is_err() || sizes.contains(&0) || product.batches == 0 {
            return Ok(Vec::new());
        }
        let Some(compute) = self.library_compute(product, spec)? else {
            return Ok(Vec::new());
        };
        let c = spec.c.filter(|_| spec.beta != 0.0).map(matrix);
        let (a, b) = (product.a, product.b);
        let factors = match a.dtype {
            DType::I8 => [as_packed(&a), as_packed(&b.turned()).turned()],
            _ => [a, b].map(|f| {
                if as_factor(&f).is_some() {
                    f
                } else {
                    as_packed(&f)
                }
            }),
        };
        let wanted = Wanted {
            product,
            spec,
            compute,
            c,
        };
        let asked = self.ask(&wanted, factors, &dense(product), false)?;
        // A product that the library cannot describe has no candidates; that is no failure.
        let plans = self
            .library
            .plans(&self.vgpu, &asked.problem)
            .unwrap_or_default();
        Ok((1..=plans.len() as u32).map(Variant::Library).collect())
    }

    /// Describes a product to the library; `makes_sums` makes the memory for sums that it leaves.
    fn ask(
        &self,
        wanted: &Wanted<'_>,
        [a, b]: [Matrix; 2],
        d: &Matrix,
        makes_sums: bool,
    ) -> Result<Asked> {
        let (product, spec) = (wanted.product, wanted.spec);
        let overlaps = || Error::argument("gemm", "a factor overlaps itself");
        let (factor_a, factor_b) = (
            as_factor(&a).ok_or_else(overlaps)?,
            as_factor(&b).ok_or_else(overlaps)?,
        );
        let places = self.places(wanted, d, makes_sums)?;
        let d = places.d;
        let bias = spec.bias.filter(|_| places.is_direct);
        let sizes = [product.a.rows, product.b.cols, product.a.cols];
        let problem = Problem {
            sizes: sizes.map(|size| size as u64),
            stack: i32::try_from(product.batches).unwrap_or(i32::MAX),
            a: factor_a,
            b: factor_b,
            c: places.added,
            d: places.target,
            factors: element(product.a.dtype),
            result: element(d.dtype),
            compute: wanted.compute,
            bias: bias.is_some(),
            relu: places.is_direct && spec.activation == Activation::Relu,
            alignments: [a.address, b.address, places.c_address, d.address].map(alignment),
            workspace_bytes: self.library.workspace_bytes,
        };
        let at = Addresses {
            a: a.address,
            b: b.address,
            c: places.c_address,
            d: d.address,
            bias: bias.map_or(0, Tensor::address),
            workspace: 0,
        };
        Ok(Asked {
            problem,
            at,
            scales: match places.is_direct {
                true => [spec.alpha, spec.beta],
                false => [1.0, 0.0],
            },
            sums: places.sums,
            _packed: [None, None],
        })
    }

    /// Where the library writes: the result itself if it can do all that follows the sums, else sums of their own.
    fn places(&self, wanted: &Wanted<'_>, d: &Matrix, makes_sums: bool) -> Result<Places> {
        let product = wanted.product;
        let c_target = wanted.c.as_ref().map(as_target);
        let direct = match (does_epilogue(product, wanted.spec), as_target(d), c_target) {
            (true, Some(target), None) => Some((target, target, d.address)),
            (true, Some(target), Some(Some(added))) => {
                let address = wanted.c.as_ref().map_or(0, |c| c.address);
                Some((target, added, address))
            }
            _ => None,
        };
        if let Some((target, added, c_address)) = direct {
            return Ok(Places {
                is_direct: true,
                target,
                added,
                c_address,
                d: *d,
                sums: None,
            });
        }
        let (rows, cols) = (product.a.rows, product.b.cols);
        let mut d = Matrix {
            address: 256,
            dtype: wide(product.a.dtype),
            ..dense(product)
        };
        let sums = match makes_sums {
            true => Some(self.unset(&[product.batches, rows, cols], d.dtype)?),
            false => None,
        };
        if let Some(memory) = &sums {
            d.address = memory.address();
        }
        let target = Target {
            distance: cols as u64,
            stack: d.batch as i64,
        };
        Ok(Places {
            is_direct: false,
            target,
            added: target,
            c_address: d.address,
            d,
            sums,
        })
    }

    /// A factor as the library reads it, packed where it cannot be read as it is.
    fn library_factor(&self, factor: &Matrix, batches: usize) -> Result<(Option<Tensor>, Matrix)> {
        match as_factor(factor) {
            Some(_) => Ok((None, *factor)),
            None => self.pack_factor(factor, batches, factor.dtype),
        }
    }

    /// Queues a product by the library's algorithm of this number, from 1.
    pub(super) fn launch_by_library(
        &self,
        product: &Product,
        spec: &Gemm,
        d: &Tensor,
        number: u32,
    ) -> Result<()> {
        let compute = self.library_compute(product, spec)?;
        let batches = product.batches;
        let (a, b) = match product.a.dtype {
            // The library multiplies 8-bit integers of contiguous sums alone.
            DType::I8 => {
                let (a_memory, a) = self.aligned_factor(&product.a, batches)?;
                let (b_memory, b) = self.aligned_factor(&product.b.turned(), batches)?;
                ((a_memory, a), (b_memory, b.turned()))
            }
            _ => (
                self.library_factor(&product.a, batches)?,
                self.library_factor(&product.b, batches)?,
            ),
        };
        let c = spec.c.filter(|_| spec.beta != 0.0).map(matrix);
        let wanted = Wanted {
            product,
            spec,
            compute: compute.unwrap_or(Compute::Pedantic),
            c,
        };
        let mut asked = self.ask(&wanted, [a.1, b.1], &matrix(d), true)?;
        asked._packed = [a.0, b.0];
        let plans = self.library.plans(&self.vgpu, &asked.problem)?;
        // A result at another place may have fewer algorithms than the one that was measured.
        let at = (number.max(1) as usize).min(plans.len());
        let Some(plan) = at.checked_sub(1).and_then(|at| plans.get(at)) else {
            return Err(Error::Library {
                library: "cuBLASLt",
                message: "no algorithm for this product".into(),
            });
        };
        // Back in the pool when the product is queued: the stream has passed it before the memory is used again.
        let workspace = match plan.workspace_bytes() {
            0 => None,
            bytes => Some(self.unset(&[bytes], DType::I8)?),
        };
        asked.at.workspace = workspace.as_ref().map_or(0, Tensor::address);
        let name = || format!("cublaslt_{number}");
        self.stream.queue(Some("cuBLASLt"), name, || {
            let stream = self.stream().driver_handle().unwrap_or(0);
            let [alpha, beta] = asked.scales;
            let queue = || plan.queue(&asked.at, alpha, beta, stream);
            self.vgpu.with_driver_context(queue)?.map_err(refused)
        })?;
        match &asked.sums {
            Some(sums) => {
                let file = Variant::Tile.file(product.a.dtype);
                self.finish_sums(&file, sums, Epilogue::new(spec, d), d)
            }
            None => Ok(()),
        }
    }
}
