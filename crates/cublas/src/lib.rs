//! The user's cuBLASLt, opened at run time where it is installed.
//!
//! Owns the search for the library, the few functions of it that are called, and [`Plan`]s: a product described to the library
//! with one of its algorithms. Nothing of NVIDIA's is part of this crate. Which plan is used, and whether any, is for the caller
//! to decide.
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod abi;
mod find;
mod plan;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

pub use find::Missing;
pub use plan::{Addresses, Compute, Element, Factor, Plan, Problem, Target};

use abi::{Functions, Raw};

/// Versions of the library that are asked for, newest first: their interfaces are the same as far as it is used here.
const MAJOR_VERSIONS: [usize; 2] = [13, 12];

/// Why the library did not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is not here.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// It refused.
    #[error("{function} returned {status}{}", abi::status_name(*status))]
    Status {
        /// The function.
        function: &'static str,
        /// `cublasStatus_t`.
        status: i32,
    },
}

/// The library with a handle in one context.
pub struct CublasLt {
    functions: &'static Functions,
    path: PathBuf,
    version: usize,
    handle: usize,
}

impl std::fmt::Debug for CublasLt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CublasLt({}, {})", self.path.display(), self.version)
    }
}

impl CublasLt {
    /// Finds the library and makes a handle in the context that is current on this thread.
    ///
    /// # Errors
    /// [`Error::Missing`] says where it was looked for, or what is wrong with what was found.
    pub fn open() -> Result<Arc<Self>, Error> {
        static FOUND: OnceLock<Result<(Functions, PathBuf), Missing>> = OnceLock::new();
        let found = FOUND.get_or_init(|| find::library(&MAJOR_VERSIONS));
        match found {
            Ok((functions, path)) => Self::with(functions, path),
            Err(missing) => Err(missing.clone().into()),
        }
    }

    /// The same with one file.
    ///
    /// # Errors
    /// If the file is no such library, or one of another version.
    pub fn open_file(path: &Path) -> Result<Arc<Self>, Error> {
        let functions = find::open(path, &MAJOR_VERSIONS)?;
        // A library stays loaded until the process ends, and so do its functions.
        Self::with(Box::leak(Box::new(functions)), path)
    }

    fn with(functions: &'static Functions, path: &Path) -> Result<Arc<Self>, Error> {
        let mut handle: Raw = std::ptr::null_mut();
        // SAFETY: writes one handle.
        abi::check("cublasLtCreate", unsafe { (functions.create)(&mut handle) })?;
        Ok(Arc::new(Self {
            functions,
            path: path.into(),
            version: functions.version(),
            handle: handle as usize,
        }))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version, as `cublasLtGetVersion` has it: 10000 × major + 100 × minor + patch.
    pub fn version(&self) -> usize {
        self.version
    }

    fn handle(&self) -> Raw {
        self.handle as Raw
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: made by `with`; plans keep this alive, so none uses it any more.
        unsafe { (self.functions.destroy)(self.handle()) };
    }
}
