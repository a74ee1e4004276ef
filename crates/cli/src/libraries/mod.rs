//! Where a program finds Mica's `libcuda.so.1` and `libnvidia-ml.so.1`.
//!
//! ```text
//!   MICA_LIB_DIR ─► else the libraries that this mica carries, unpacked ─► else (debug build) those beside it
//! ```
//! The libraries are built as `libmica_shim.so` and `libmica_nvml_shim.so`; programs get a folder that holds them under
//! the driver's names. A release `mica` never takes libraries that lie beside it: they may be of another build. Where the
//! driver has names that Mica does not know, a second folder holds a `libcuda.so.1` that adds them
//! (`mica_backend_cuda::newer`), for direct mode.

mod for_containers;
mod unpack;

use std::fmt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

pub(crate) use for_containers::{Libc, of_libc, place, write_for_all};

use anyhow::{Context, Result, bail};
use mica_backend_cuda::{newer, symbols};
use mica_control::Paths;
use mica_control::api::Mode;

/// The libraries inside this executable, in the order of [`LIBRARIES`].
pub(crate) struct Embedded {
    /// Tells versions apart.
    hash: &'static str,
    files: [&'static [u8]; 2],
    /// The same for musl, where the build had what it takes.
    musl: Option<[&'static [u8]; 2]>,
}

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// Built name and the name programs ask for.
const LIBRARIES: [(&str, &[&str]); 2] = [
    ("libmica_shim.so", &["libcuda.so.1", "libcuda.so"]),
    (
        "libmica_nvml_shim.so",
        &["libnvidia-ml.so.1", "libnvidia-ml.so"],
    ),
];

/// Where libraries come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The environment names the folder.
    Chosen,
    /// This executable carries them.
    Carried,
    /// A debug build, which carries none.
    Beside,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Chosen => "from MICA_LIB_DIR",
            Self::Carried => "unpacked from mica itself",
            Self::Beside => "built beside mica, which is a debug build and carries none",
        })
    }
}

/// The libraries under the names they were built with.
pub(crate) struct Found {
    pub(crate) folder: PathBuf,
    pub(crate) origin: Origin,
}

/// What a program is started with.
pub(crate) struct Prepared {
    /// Where the libraries come from.
    pub(crate) origin: Origin,
    /// The folder with the libraries under the driver's names.
    pub(crate) folder: PathBuf,
    /// Direct mode has no driver to lead the program to.
    pub(crate) lacks_driver: bool,
}

/// Makes the folder if needed. In isolated mode the driver of this host means nothing to the program.
pub(crate) fn prepare(mode: Mode) -> Result<Prepared> {
    let found = find()?;
    let own = prepare_own(&found)?;
    let beyond = match mode {
        Mode::Direct => symbols::newer_entry_points(),
        Mode::Isolated => None,
    };
    Ok(Prepared {
        lacks_driver: mode == Mode::Direct && beyond.is_none(),
        origin: found.origin,
        folder: match beyond {
            Some((_, names)) if !names.is_empty() => prepare_newer(&found, &own, &names)?,
            _ => own,
        },
    })
}

/// Where the library with a newer driver's names is written.
pub(crate) fn newer_library() -> PathBuf {
    let paths = Paths::from_environment();
    paths.runtime_dir.join("lib-newer").join("libcuda.so.1")
}

/// The folder with a library that also has a newer driver's names.
fn prepare_newer(found: &Found, own: &Path, names: &[String]) -> Result<PathBuf> {
    Paths::from_environment().make_runtime_dir()?;
    let file = newer_library();
    let folder = file.parent().unwrap_or(own).to_path_buf();
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("{} cannot be made", folder.display()))?;
    let mica = found.folder.join(LIBRARIES[0].0);
    let library = newer::library(names, &mica);
    if std::fs::read(&file).ok().as_ref() != Some(&library) {
        let fresh = folder.join(format!("libcuda.{}.new", std::process::id()));
        std::fs::write(&fresh, &library)
            .and_then(|()| std::fs::rename(&fresh, &file))
            .with_context(|| format!("{} cannot be written", file.display()))?;
    }
    link(&file, &folder.join("libcuda.so"))?;
    for name in LIBRARIES[1].1 {
        link(&own.join(name), &folder.join(name))?;
    }
    Ok(folder)
}

/// The folder with the libraries under the driver's names.
fn prepare_own(found: &Found) -> Result<PathBuf> {
    if found.origin == Origin::Carried {
        return Ok(found.folder.clone());
    }
    let paths = Paths::from_environment();
    // In a folder another user could write, they would choose what the program loads.
    paths.make_runtime_dir()?;
    let folder = paths.runtime_dir.join("lib");
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("{} cannot be made", folder.display()))?;
    link_names(&found.folder, &folder)?;
    Ok(folder)
}

/// Gives the libraries in `from` the driver's names in `folder`.
fn link_names(from: &Path, folder: &Path) -> Result<()> {
    for (built, names) in LIBRARIES {
        for name in names {
            link(&from.join(built), &folder.join(name))?;
        }
    }
    Ok(())
}

/// Points `name` at `source`; many processes and threads may do so at once.
fn link(source: &Path, name: &Path) -> Result<()> {
    if std::fs::read_link(name).is_ok_and(|target| target == source) {
        return Ok(());
    }
    static LINKS: AtomicU64 = AtomicU64::new(0);
    let count = LINKS.fetch_add(1, Relaxed);
    let fresh = name.with_extension(format!("{}.{count}.new", std::process::id()));
    let _ = std::fs::remove_file(&fresh);
    symlink(source, &fresh)
        .and_then(|()| std::fs::rename(&fresh, name))
        .with_context(|| format!("{} cannot be made", name.display()))
}

/// The libraries that programs get.
pub(crate) fn find() -> Result<Found> {
    let found = |folder: PathBuf, origin| Found { folder, origin };
    if let Some(chosen) = std::env::var_os("MICA_LIB_DIR").filter(|chosen| !chosen.is_empty()) {
        return Ok(found(present(Path::new(&chosen))?, Origin::Chosen));
    }
    if let Some(embedded) = &EMBEDDED {
        let folder = unpack::unpack(embedded, &unpack::places()?)?;
        return Ok(found(folder, Origin::Carried));
    }
    let exe = std::env::current_exe()?.canonicalize()?;
    let beside = exe.parent().unwrap_or(Path::new("/"));
    let folder = present(beside)
        .or_else(|_| present(&beside.join("deps")))
        .context("this is a debug build of mica: `cargo build --workspace` builds its libraries")?;
    Ok(found(folder, Origin::Beside))
}

/// The whole path of a folder that has the libraries.
fn present(folder: &Path) -> Result<PathBuf> {
    for (name, _) in LIBRARIES {
        if !folder.join(name).is_file() {
            bail!("{} has no {name}", folder.display());
        }
    }
    Ok(folder.canonicalize()?)
}
