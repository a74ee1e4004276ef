//! Where the library is.
//!
//! `MICA_CUDA_LIBRARIES` (folders, separated by colons; `off`: no library is used), then the loader's own search, then
//! `CUDA_HOME` and `CUDA_PATH`. In a folder that the variable names, the `nvidia/*/lib` of Python's packages are looked into too.

use std::ffi::{CStr, OsString};
use std::path::{Path, PathBuf};

use mica_driver_files::library::{Library, LibraryError};

use crate::abi::Functions;

/// Why there is no library to use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// The user does not want one.
    #[error("MICA_CUDA_LIBRARIES is off")]
    Off,
    /// It is nowhere.
    #[error("no {names} in the loader's path, CUDA_HOME, CUDA_PATH or MICA_CUDA_LIBRARIES")]
    Nowhere {
        /// What was looked for.
        names: String,
    },
    /// The loader does not take what was found.
    #[error("{} cannot be loaded: {message}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// The loader's words.
        message: String,
    },
    /// A function is not in it.
    #[error("{} has no {symbol}", path.display())]
    Symbol {
        /// The file.
        path: PathBuf,
        /// The function.
        symbol: String,
    },
    /// It is too old or too new.
    #[error("{} has version {version}: versions {wanted} are used", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// What it says.
        version: usize,
        /// Major versions that are used.
        wanted: String,
    },
}

/// Folders that the variables name, in which a file is looked for.
fn folders(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let named = variable("MICA_CUDA_LIBRARIES").unwrap_or_default();
    for folder in std::env::split_paths(&named).filter(|folder| folder.is_absolute()) {
        let packages = std::fs::read_dir(folder.join("nvidia"))
            .into_iter()
            .flatten();
        let mut below: Vec<_> = packages.flatten().map(|p| p.path().join("lib")).collect();
        below.sort();
        folders.push(folder);
        folders.extend(below);
    }
    for name in ["CUDA_HOME", "CUDA_PATH"] {
        let home = variable(name).map(PathBuf::from);
        let home = home.filter(|home| home.is_absolute());
        folders.extend(home.map(|home| home.join("lib64")));
    }
    folders
}

/// Opens one file, or what the loader finds for a name.
pub(crate) fn open(path: &Path, majors: &[usize]) -> Result<Functions, Missing> {
    let library = Library::open(path).map_err(|error| Missing::Load {
        path: path.into(),
        message: match error {
            LibraryError::Load { message, .. } => message,
            other => other.to_string(),
        },
    })?;
    let symbol = |name: &CStr| library.symbol(&name.to_string_lossy());
    let functions = Functions::of(symbol).map_err(|symbol| Missing::Symbol {
        path: path.into(),
        symbol,
    })?;
    let version = functions.version();
    if !majors.contains(&(version / 10_000)) {
        let wanted: Vec<String> = majors.iter().map(usize::to_string).collect();
        return Err(Missing::Version {
            path: path.into(),
            version,
            wanted: wanted.join(" and "),
        });
    }
    Ok(functions)
}

/// The first library that can be used; else the problem that says most.
pub(crate) fn library(majors: &[usize]) -> Result<(Functions, PathBuf), Missing> {
    if std::env::var_os("MICA_CUDA_LIBRARIES").is_some_and(|value| value == "off") {
        return Err(Missing::Off);
    }
    let name = |major: &usize| format!("libcublasLt.so.{major}");
    let folders = folders(|name| std::env::var_os(name).filter(|value| !value.is_empty()));
    // A folder that is named comes before the loader's search, which takes a bare name.
    let files = (majors.iter()).flat_map(|major| folders.iter().map(move |f| f.join(name(major))));
    let files = files.filter(|file| file.exists());
    let mut problem = None;
    for path in files.chain(majors.iter().map(|major| PathBuf::from(name(major)))) {
        match open(&path, majors) {
            Ok(functions) => return Ok((functions, path)),
            // That the loader finds nothing for a bare name is no problem of a file.
            Err(Missing::Load { path, .. }) if path.is_relative() => {}
            Err(missing) => problem = problem.or(Some(missing)),
        }
    }
    let names: Vec<String> = majors.iter().map(name).collect();
    Err(problem.unwrap_or(Missing::Nowhere {
        names: names.join(" or "),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_python_packages_are_looked_into_only_where_named() {
        let folder = tempfile::tempdir().unwrap();
        let packages = folder.path().join("nvidia/cu13/lib");
        std::fs::create_dir_all(&packages).unwrap();
        let found = folders(|name| match name {
            "MICA_CUDA_LIBRARIES" => Some(format!("{}:relative", folder.path().display()).into()),
            "CUDA_HOME" => Some("/cuda".into()),
            _ => None,
        });
        assert_eq!(
            found,
            [folder.path(), &packages, Path::new("/cuda/lib64")].map(PathBuf::from)
        );
        let homes = folders(|name| (name == "CUDA_PATH").then(|| folder.path().into()));
        assert_eq!(homes, [folder.path().join("lib64")]);
    }

    #[test]
    fn a_file_that_is_no_library_says_so() {
        let missing = open(Path::new("/etc/passwd"), &[13]).err().unwrap();
        assert!(matches!(missing, Missing::Load { .. }), "{missing}");
        let missing = open(Path::new("libc.so.6"), &[13]).err().unwrap();
        assert!(
            missing.to_string().contains("cublasLtGetVersion"),
            "{missing}"
        );
    }
}
