//! A product, described to the library.
//!
//! The library counts in columns: it is asked for the transposed product `dᵀ = bᵀ aᵀ`, whose matrices lie in memory as the
//! caller's do in rows.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use crate::abi::{self, Algorithm, Functions, Heuristic, Raw, check};
use crate::{CublasLt, Error};

/// Type of a matrix's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// 16-bit floats with the exponent of 32-bit floats.
    Bf16,
    /// 8-bit integers, whose products are 32-bit integers.
    I8,
    /// 32-bit integers.
    I32,
}

impl Element {
    fn code(self) -> c_int {
        match self {
            Self::F32 => abi::data_type::R_32F,
            Self::F16 => abi::data_type::R_16F,
            Self::Bf16 => abi::data_type::R_16BF,
            Self::I8 => abi::data_type::R_8I,
            Self::I32 => abi::data_type::R_32I,
        }
    }
}

/// How products of floats are computed; sums are 32 bits wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compute {
    /// In the factors' type; 32-bit factors are not rounded.
    Full,
    /// 32-bit factors stay what they are whatever variables of the environment say, without tensor cores.
    Pedantic,
    /// 32-bit factors are rounded to TF32.
    Tf32,
}

/// A factor with `rows` × `cols` elements, or a stack of such.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Factor {
    /// Whether columns are contiguous and not rows.
    pub by_columns: bool,
    /// Elements between rows (or columns).
    pub distance: u64,
    /// Elements between matrices of the stack; 0: all products share one.
    pub stack: i64,
}

/// The result, or what is added to it, in rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Elements between rows.
    pub distance: u64,
    /// Elements between matrices of the stack.
    pub stack: i64,
}

/// `d = relu?(alpha · a b + beta · c + bias?)`, of which nothing but the addresses and the two numbers can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Rows of the result, its columns, and the length of sums.
    pub sizes: [u64; 3],
    /// Products of the stack.
    pub stack: i32,
    /// `m` × `k`.
    pub a: Factor,
    /// `k` × `n`.
    pub b: Factor,
    /// `m` × `n`, added; the result's place if nothing is.
    pub c: Target,
    /// `m` × `n`.
    pub d: Target,
    /// Type of both factors.
    pub factors: Element,
    /// Type of the result, of `c` and of the bias.
    pub result: Element,
    /// How.
    pub compute: Compute,
    /// Whether there is a bias for each column.
    pub bias: bool,
    /// Whether negative values become 0.
    pub relu: bool,
    /// Largest powers of two that divide the addresses of a, b, c and d, up to 256.
    pub alignments: [u32; 4],
    /// Most bytes of workspace.
    pub workspace_bytes: u64,
}

/// Where a plan finds its matrices: addresses of the context's device.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// The first factor.
    pub a: u64,
    /// The second.
    pub b: u64,
    /// What is added; the result's if nothing is.
    pub c: u64,
    /// The result.
    pub d: u64,
    /// The bias, or 0.
    pub bias: u64,
    /// As many bytes as the plan asks for.
    pub workspace: u64,
}

/// A descriptor of the library, destroyed when dropped.
struct Descriptor {
    raw: usize,
    destroy: unsafe extern "C" fn(Raw) -> c_int,
}

impl Descriptor {
    fn raw(&self) -> Raw {
        self.raw as Raw
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made by the function's counterpart, and used by nobody else.
        unsafe { (self.destroy)(self.raw()) };
    }
}

type SetAttribute = unsafe extern "C" fn(Raw, c_int, *const c_void, usize) -> c_int;

/// Sets an attribute, whose value is a plain number.
fn set<T: Copy>(
    name: &'static str,
    function: SetAttribute,
    of: &Descriptor,
    attribute: c_int,
    value: T,
) -> Result<(), Error> {
    let value: *const T = &value;
    // SAFETY: the descriptor lives; the library copies as many bytes as the value has.
    check(name, unsafe {
        function(of.raw(), attribute, value.cast(), size_of::<T>())
    })
}

/// Descriptors of a problem; its plans share them.
struct Described {
    library: Arc<CublasLt>,
    /// Locked for the time of a call: the bias is a part of it.
    operation: Mutex<Descriptor>,
    a: Descriptor,
    b: Descriptor,
    c: Descriptor,
    d: Descriptor,
    has_bias: bool,
    sums_integers: bool,
}

/// A product with one algorithm of the library.
pub struct Plan {
    described: Arc<Described>,
    algorithm: Algorithm,
    workspace_bytes: usize,
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Plan({:x?}, {})", self.algorithm, self.workspace_bytes)
    }
}

fn layout(
    f: &Functions,
    element: Element,
    sizes: [u64; 2],
    distance: u64,
    stack: (i32, i64),
) -> Result<Descriptor, Error> {
    let mut raw: Raw = std::ptr::null_mut();
    let [rows, cols] = sizes;
    // SAFETY: writes one handle.
    check("cublasLtMatrixLayoutCreate", unsafe {
        (f.layout_create)(&mut raw, element.code(), rows, cols, distance as i64)
    })?;
    let made = Descriptor {
        raw: raw as usize,
        destroy: f.layout_destroy,
    };
    let (count, step) = stack;
    if count > 1 {
        let name = "cublasLtMatrixLayoutSetAttribute";
        set(name, f.layout_set, &made, abi::layout::BATCH_COUNT, count)?;
        set(name, f.layout_set, &made, abi::layout::BATCH_STRIDE, step)?;
    }
    Ok(made)
}

impl Described {
    fn new(library: &Arc<CublasLt>, problem: &Problem) -> Result<Self, Error> {
        let f = library.functions;
        let sums_integers = problem.factors == Element::I8;
        let (compute, scale) = match (sums_integers, problem.compute) {
            (true, _) => (abi::compute::I32, Element::I32),
            (_, Compute::Full) => (abi::compute::F32, Element::F32),
            (_, Compute::Pedantic) => (abi::compute::F32_PEDANTIC, Element::F32),
            (_, Compute::Tf32) => (abi::compute::F32_FAST_TF32, Element::F32),
        };
        let mut raw: Raw = std::ptr::null_mut();
        // SAFETY: writes one handle.
        check("cublasLtMatmulDescCreate", unsafe {
            (f.operation_create)(&mut raw, compute, scale.code())
        })?;
        let operation = Descriptor {
            raw: raw as usize,
            destroy: f.operation_destroy,
        };
        use abi::operation::{BIAS_DATA_TYPE, EPILOGUE, TRANSPOSE_A, TRANSPOSE_B};
        let name = "cublasLtMatmulDescSetAttribute";
        // The library's first factor is the second one here.
        let turned = [problem.b.by_columns, problem.a.by_columns].map(c_int::from);
        set(name, f.operation_set, &operation, TRANSPOSE_A, turned[0])?;
        set(name, f.operation_set, &operation, TRANSPOSE_B, turned[1])?;
        use abi::epilogue::{BIAS, DEFAULT, RELU};
        let epilogue = match (problem.bias, problem.relu) {
            (false, false) => DEFAULT,
            (bias, relu) => BIAS * u32::from(bias) + RELU * u32::from(relu),
        };
        set(name, f.operation_set, &operation, EPILOGUE, epilogue)?;
        if problem.bias {
            let code = problem.result.code();
            set(name, f.operation_set, &operation, BIAS_DATA_TYPE, code)?;
        }
        let [m, n, k] = problem.sizes;
        let factor = |factor: &Factor, rows: u64, cols: u64| {
            // In memory, contiguous elements are a column of the library's matrix.
            let sizes = match factor.by_columns {
                true => [rows, cols],
                false => [cols, rows],
            };
            let stack = (problem.stack, factor.stack);
            layout(f, problem.factors, sizes, factor.distance, stack)
        };
        let target = |target: &Target| {
            let stack = (problem.stack, target.stack);
            layout(f, problem.result, [n, m], target.distance, stack)
        };
        Ok(Self {
            a: factor(&problem.a, m, k)?,
            b: factor(&problem.b, k, n)?,
            c: target(&problem.c)?,
            d: target(&problem.d)?,
            library: Arc::clone(library),
            operation: Mutex::new(operation),
            has_bias: problem.bias,
            sums_integers,
        })
    }

    fn heuristics(&self, problem: &Problem, most: usize) -> Result<Vec<Heuristic>, Error> {
        let f = self.library.functions;
        let mut raw: Raw = std::ptr::null_mut();
        // SAFETY: writes one handle.
        check("cublasLtMatmulPreferenceCreate", unsafe {
            (f.preference_create)(&mut raw)
        })?;
        let wishes = Descriptor {
            raw: raw as usize,
            destroy: f.preference_destroy,
        };
        use abi::preference::{ALIGNMENT_A, WORKSPACE_BYTES};
        let name = "cublasLtMatmulPreferenceSetAttribute";
        let bytes = problem.workspace_bytes;
        set(name, f.preference_set, &wishes, WORKSPACE_BYTES, bytes)?;
        // The library's order: its first factor is the second one here.
        let [a, b, c, d] = problem.alignments;
        for (at, alignment) in [b, a, c, d].into_iter().enumerate() {
            let attribute = ALIGNMENT_A + at as c_int;
            set(name, f.preference_set, &wishes, attribute, alignment)?;
        }
        let mut found = vec![Heuristic::default(); most];
        let mut count = 0;
        let operation = self
            .operation
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // SAFETY: all descriptors live; there is room for `most` results.
        let status = unsafe {
            (f.heuristic)(
                self.library.handle(),
                operation.raw(),
                self.b.raw(),
                self.a.raw(),
                self.c.raw(),
                self.d.raw(),
                wishes.raw(),
                most as c_int,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        check("cublasLtMatmulAlgoGetHeuristic", status)?;
        found.truncate(usize::try_from(count).unwrap_or(0).min(most));
        let fits = |h: &Heuristic| h.state == 0 && h.workspace_bytes as u64 <= bytes;
        found.retain(fits);
        Ok(found)
    }
}

impl CublasLt {
    /// Plans for a problem, the one that the library expects to be fastest first; none where it has no algorithm.
    ///
    /// # Errors
    /// If the library cannot describe the problem.
    pub fn plans(self: &Arc<Self>, problem: &Problem, most: usize) -> Result<Vec<Plan>, Error> {
        /// `CUBLAS_STATUS_NOT_SUPPORTED`.
        const NOT_SUPPORTED: i32 = 15;
        let described = Arc::new(Described::new(self, problem)?);
        let found = match described.heuristics(problem, most) {
            Err(Error::Status { status, .. }) if status == NOT_SUPPORTED => return Ok(Vec::new()),
            found => found?,
        };
        let plans = found.into_iter().map(|heuristic| Plan {
            described: Arc::clone(&described),
            algorithm: heuristic.algorithm,
            workspace_bytes: heuristic.workspace_bytes,
        });
        Ok(plans.collect())
    }
}

impl Plan {
    /// Bytes of workspace that [`Plan::queue`] wants.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// Queues the product in a stream (`CUstream`) of the context, which is current on this thread. Addresses are used on the
    /// device alone; `alpha` and `beta` are rounded to integers where sums are.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn queue(&self, at: &Addresses, alpha: f32, beta: f32, stream: u64) -> Result<(), Error> {
        let it = &*self.described;
        let f = it.library.functions;
        let (floats, integers) = ([alpha, beta], [alpha, beta].map(|x| x as i32));
        let [alpha, beta]: [*const c_void; 2] = match it.sums_integers {
            true => [
                (&raw const integers[0]).cast(),
                (&raw const integers[1]).cast(),
            ],
            false => [(&raw const floats[0]).cast(), (&raw const floats[1]).cast()],
        };
        let operation = it.operation.lock().unwrap_or_else(PoisonError::into_inner);
        if it.has_bias {
            let attribute = abi::operation::BIAS_POINTER;
            let name = "cublasLtMatmulDescSetAttribute";
            set(name, f.operation_set, &operation, attribute, at.bias)?;
        }
        let place = |address: u64| address as *mut c_void;
        // SAFETY: all descriptors live; the two numbers are read before the function returns; the library hands addresses to
        // the device, which refuses what is not the context's memory.
        check("cublasLtMatmul", unsafe {
            (f.matmul)(
                it.library.handle(),
                operation.raw(),
                alpha,
                place(at.b),
                it.b.raw(),
                place(at.a),
                it.a.raw(),
                beta,
                place(at.c),
                it.c.raw(),
                place(at.d),
                it.d.raw(),
                &self.algorithm,
                place(at.workspace),
                self.workspace_bytes,
                stream as Raw,
            )
        })
    }
}
