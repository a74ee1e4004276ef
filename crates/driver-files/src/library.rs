//! Finds and loads NVIDIA's own libraries, and never one of Mica's stand-ins for them.
//!
//! The tenant's library path may name a shim with the same file name first, so the dynamic linker's
//! own search is not used: an override, or what the linker would find ([`library_files`]), each checked for
//! the mark every shim exports.

use std::ffi::{CStr, CString, c_void};
use std::path::{Path, PathBuf};

use crate::library_files;

/// Every Mica shim exports a symbol of one of these names.
pub const SHIM_MARKERS: [&str; 2] = ["MICA_SHIM_MARKER", "mica_shim_marker"];

/// Why no library was loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// It is nowhere.
    #[error(
        "{name} was not found: is the NVIDIA driver installed here? (set {variable} to say where it is)"
    )]
    NotFound {
        /// The library.
        name: String,
        /// The variable that names its path.
        variable: &'static str,
    },
    /// What was found is one of ours.
    #[error("{} is Mica's own stand-in for the driver, not the driver", path.display())]
    Shim {
        /// The file.
        path: PathBuf,
    },
    /// The linker refused it.
    #[error("{} cannot be loaded: {message}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// The linker's words.
        message: String,
    },
    /// A function is missing: the library is older than supported.
    #[error("{} lacks {symbol}: the driver is too old", path.display())]
    Symbol {
        /// The file.
        path: PathBuf,
        /// The function.
        symbol: String,
    },
}

/// A loaded library; it stays loaded until the process ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    handle: usize,
    path: PathBuf,
}

impl Library {
    /// Finds and loads `name`; `variable` of the environment overrides the search.
    ///
    /// # Errors
    /// The library is absent, is a Mica shim, or does not load.
    pub fn find(name: &str, variable: &'static str) -> Result<Self, LibraryError> {
        let given = std::env::var_os(variable).filter(|value| !value.is_empty());
        if let Some(path) = given {
            return Self::open(Path::new(&path));
        }
        let mut problem = None;
        for path in candidates(name) {
            match Self::open(&path) {
                Ok(library) => return Ok(library),
                // One of ours is in every tenant's library path, and says nothing of the real one.
                Err(LibraryError::Shim { .. }) => {}
                // Another place may have the real one; the first problem says most.
                Err(error) => problem = problem.or(Some(error)),
            }
        }
        Err(problem.unwrap_or(LibraryError::NotFound {
            name: name.into(),
            variable,
        }))
    }

    /// Loads one file.
    ///
    /// # Errors
    /// It is a Mica shim, or does not load.
    pub fn open(path: &Path) -> Result<Self, LibraryError> {
        let failed = |message: String| LibraryError::Load {
            path: path.into(),
            message,
        };
        let c_path = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| failed("the path holds a zero byte".into()))?;
        // SAFETY: a terminated string; the library's constructors are NVIDIA's own, as in any program that uses it.
        let handle = unsafe { libc::dlopen(c_path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(failed(last_message()));
        }
        let library = Self {
            handle: handle as usize,
            path: path.into(),
        };
        if SHIM_MARKERS
            .iter()
            .any(|name| library.symbol(name).is_some())
        {
            // SAFETY: the handle is ours, and nothing of it has been used.
            unsafe { libc::dlclose(handle) };
            return Err(LibraryError::Shim { path: path.into() });
        }
        Ok(library)
    }

    /// The file it came from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The handle `dlopen` gave.
    pub fn handle(&self) -> *mut c_void {
        self.handle as *mut c_void
    }

    /// The address of an exported symbol.
    pub fn symbol(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: the handle is live and the name terminated.
        let address = unsafe { libc::dlsym(self.handle(), name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }

    /// As [`Library::symbol`], or the error that names it.
    ///
    /// # Errors
    /// The library has no such symbol.
    pub fn require(&self, name: &str) -> Result<*mut c_void, LibraryError> {
        self.symbol(name).ok_or_else(|| LibraryError::Symbol {
            path: self.path.clone(),
            symbol: name.into(),
        })
    }
}

fn last_message() -> String {
    // SAFETY: gives this thread's last message, or null.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "no reason given".into();
    }
    // SAFETY: a terminated string that lives until the next call on this thread.
    let message = unsafe { CStr::from_ptr(message) };
    message.to_string_lossy().into_owned()
}

/// Existing files of this name, best first.
pub fn candidates(name: &str) -> Vec<PathBuf> {
    library_files(
        name,
        &std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_names_its_variable() {
        let error = Library::find("libmica-nowhere.so.9", "MICA_TEST_UNSET").expect_err("absent");
        assert!(error.to_string().contains("MICA_TEST_UNSET"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_library_says_so() {
        let error = Library::open(Path::new("/etc/passwd")).expect_err("no ELF file");
        assert!(matches!(error, LibraryError::Load { .. }), "{error}");
    }
}
