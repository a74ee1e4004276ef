//! Finds and loads NVIDIA's own libraries, and never one of Mica's stand-ins for them.
//!
//! The tenant's library path may name a shim with the same file name first, so the dynamic linker's
//! own search is not used: an override, the linker's cache, then the usual places, each checked for
//! the mark every shim exports.

use std::ffi::{CStr, CString, c_void};
use std::path::{Path, PathBuf};

/// Every Mica shim exports a symbol of one of these names.
pub const SHIM_MARKERS: [&str; 2] = ["MICA_SHIM_MARKER", "mica_shim_marker"];

/// Where distributions, containers and WSL put the driver's libraries.
const USUAL_PLACES: [&str; 9] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/run/opengl-driver/lib",
    "/usr/lib/wsl/lib",
];

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
        // SAFETY: a terminated string; the library's constructors are the driver's own.
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

/// Existing files of this name, each real file once.
pub(crate) fn candidates(name: &str) -> Vec<PathBuf> {
    let cached = std::fs::read("/etc/ld.so.cache").unwrap_or_default();
    let listed = cache_entries(&cached, name).into_iter();
    let usual = USUAL_PLACES.iter().map(|place| Path::new(place).join(name));
    let mut real = Vec::new();
    listed
        .chain(usual)
        .filter(|path| match path.canonicalize() {
            Ok(file) if !real.contains(&file) => {
                real.push(file);
                true
            }
            _ => false,
        })
        .collect()
}

/// Paths that the linker's cache gives for a library, in its order.
fn cache_entries(cache: &[u8], name: &str) -> Vec<PathBuf> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache";
    const HEADER_BYTES: usize = 48;
    const ENTRY_BYTES: usize = 24;
    // Old files begin with an older table; offsets count from the newer one's header.
    let Some(start) = cache.windows(MAGIC.len()).position(|w| w == MAGIC) else {
        return Vec::new();
    };
    let table = &cache[start..];
    let word = |at: usize| {
        let bytes = table.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let text = |at: usize| {
        let bytes = table.get(at..)?;
        let end = bytes.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&bytes[..end]).ok()
    };
    let count = word(20).unwrap_or(0).min(table.len() / ENTRY_BYTES);
    let mut paths = Vec::new();
    for index in 0..count {
        let entry = HEADER_BYTES + index * ENTRY_BYTES;
        let (Some(key), Some(value)) = (word(entry + 4), word(entry + 8)) else {
            break;
        };
        if text(key) == Some(name)
            && let Some(path) = text(value)
        {
            paths.push(path.into());
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_linkers_cache_gives_the_c_library() {
        let cache = std::fs::read("/etc/ld.so.cache").expect("glibc systems have one");
        let found = cache_entries(&cache, "libc.so.6");
        assert!(found.iter().any(|path| path.exists()), "{found:?}");
        assert!(cache_entries(&cache, "libnothing.so.77").is_empty());
    }

    #[test]
    fn a_damaged_cache_gives_nothing() {
        let cache = std::fs::read("/etc/ld.so.cache").expect("glibc systems have one");
        for cut in [0, 10, 21, 47, 49, 60, cache.len() / 2] {
            let cut = cut.min(cache.len());
            cache_entries(&cache[..cut], "libc.so.6");
        }
        let mut noise = cache.clone();
        for byte in &mut noise[20..] {
            *byte = 0xFF;
        }
        assert!(cache_entries(&noise, "libc.so.6").is_empty());
    }

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
