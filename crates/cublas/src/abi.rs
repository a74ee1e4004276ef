//! The part of `cublasLt.h` that is called: stable since CUDA 11.

use std::ffi::{c_int, c_void};

use crate::Error;

/// A handle, or a descriptor that the library allocates.
pub(crate) type Raw = *mut c_void;

/// `cublasLtMatmulAlgo_t`.
pub(crate) type Algorithm = [u64; 8];

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Heuristic {
    pub(crate) algorithm: Algorithm,
    pub(crate) workspace_bytes: usize,
    pub(crate) state: c_int,
    pub(crate) waves: f32,
    pub(crate) reserved: [c_int; 4],
}

const _: () = assert!(size_of::<Heuristic>() == 96);

/// `cudaDataType`.
pub(crate) mod data_type {
    pub(crate) const R_32F: i32 = 0;
    pub(crate) const R_16F: i32 = 2;
    pub(crate) const R_8I: i32 = 3;
    pub(crate) const R_32I: i32 = 10;
    pub(crate) const R_16BF: i32 = 14;
}

/// `cublasComputeType_t`.
pub(crate) mod compute {
    pub(crate) const F32: i32 = 68;
    pub(crate) const F32_PEDANTIC: i32 = 69;
    pub(crate) const F32_FAST_TF32: i32 = 77;
    pub(crate) const I32: i32 = 72;
}

/// `cublasLtMatmulDescAttributes_t`.
pub(crate) mod operation {
    pub(crate) const TRANSPOSE_A: c_int = 3;
    pub(crate) const TRANSPOSE_B: c_int = 4;
    pub(crate) const EPILOGUE: c_int = 7;
    pub(crate) const BIAS_POINTER: c_int = 8;
    pub(crate) const BIAS_DATA_TYPE: c_int = 26;
    use std::ffi::c_int;
}

/// `cublasLtMatrixLayoutAttribute_t`.
pub(crate) mod layout {
    pub(crate) const BATCH_COUNT: c_int = 5;
    pub(crate) const BATCH_STRIDE: c_int = 6;
    use std::ffi::c_int;
}

/// `cublasLtMatmulPreferenceAttributes_t`; alignments of A, B, C and D follow each other.
pub(crate) mod preference {
    pub(crate) const WORKSPACE_BYTES: c_int = 1;
    pub(crate) const ALIGNMENT_A: c_int = 5;
    use std::ffi::c_int;
}

/// `cublasLtEpilogue_t`: flags.
pub(crate) mod epilogue {
    pub(crate) const DEFAULT: u32 = 1;
    pub(crate) const RELU: u32 = 2;
    pub(crate) const BIAS: u32 = 4;
}

macro_rules! functions {
    ($($field:ident = $name:literal : fn($($argument:ty),* $(,)?);)*) => {
        /// Functions of the library.
        pub(crate) struct Functions {
            version: unsafe extern "C" fn() -> usize,
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            /// All functions, by a search for a symbol, which answers no null; else the name of what is missing.
            pub(crate) fn of(
                symbol: impl Fn(&std::ffi::CStr) -> Option<*mut c_void>,
            ) -> Result<Self, String> {
                let require = |name: &std::ffi::CStr| {
                    symbol(name).ok_or_else(|| name.to_string_lossy().into_owned())
                };
                Ok(Self {
                    version: {
                        let address = require(c"cublasLtGetVersion")?;
                        // SAFETY: cublasLt.h gives the function this type.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> usize>(address)
                        }
                    },
                    $($field: {
                        let address = require($name)?;
                        // SAFETY: cublasLt.h gives the function this type.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) -> c_int,
                            >(address)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    create = c"cublasLtCreate": fn(*mut Raw);
    destroy = c"cublasLtDestroy": fn(Raw);
    operation_create = c"cublasLtMatmulDescCreate": fn(*mut Raw, c_int, c_int);
    operation_set = c"cublasLtMatmulDescSetAttribute": fn(Raw, c_int, *const c_void, usize);
    operation_destroy = c"cublasLtMatmulDescDestroy": fn(Raw);
    layout_create = c"cublasLtMatrixLayoutCreate": fn(*mut Raw, c_int, u64, u64, i64);
    layout_set = c"cublasLtMatrixLayoutSetAttribute": fn(Raw, c_int, *const c_void, usize);
    layout_destroy = c"cublasLtMatrixLayoutDestroy": fn(Raw);
    preference_create = c"cublasLtMatmulPreferenceCreate": fn(*mut Raw);
    preference_set = c"cublasLtMatmulPreferenceSetAttribute": fn(Raw, c_int, *const c_void, usize);
    preference_destroy = c"cublasLtMatmulPreferenceDestroy": fn(Raw);
    heuristic = c"cublasLtMatmulAlgoGetHeuristic": fn(
        Raw, Raw, Raw, Raw, Raw, Raw, Raw, c_int, *mut Heuristic, *mut c_int,
    );
    matmul = c"cublasLtMatmul": fn(
        Raw, Raw, *const c_void, *const c_void, Raw, *const c_void, Raw, *const c_void,
        *const c_void, Raw, *mut c_void, Raw, *const Algorithm, *mut c_void, usize, Raw,
    );
}

impl Functions {
    pub(crate) fn version(&self) -> usize {
        // SAFETY: no parameters.
        unsafe { (self.version)() }
    }
}

pub(crate) fn check(function: &'static str, status: c_int) -> Result<(), Error> {
    match status {
        0 => Ok(()),
        status => Err(Error::Status { function, status }),
    }
}

pub(crate) fn status_name(status: c_int) -> &'static str {
    match status {
        1 => " (not initialized)",
        3 => " (allocation failed)",
        7 => " (invalid value)",
        8 => " (the device lacks what it needs)",
        13 => " (execution failed)",
        14 => " (internal error)",
        15 => " (not supported)",
        _ => "",
    }
}
