//! Where a program finds Mica's `libcuda.so.1` and `libnvidia-ml.so.1`.
//!
//! The libraries are built as `libmica_shim.so` and `libmica_nvml_shim.so`; a folder under the runtime
//! directory holds them under the driver's names. Where the driver has names that Mica does not know, a
//! second folder holds a `libcuda.so.1` that adds them (`mica_backend_cuda::newer`), for direct mode.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use mica_backend_cuda::{newer, symbols};
use mica_daemon::api::Mode;

/// Built name and the name programs ask for.
const LIBRARIES: [(&str, &[&str]); 2] = [
    ("libmica_shim.so", &["libcuda.so.1", "libcuda.so"]),
    (
        "libmica_nvml_shim.so",
        &["libnvidia-ml.so.1", "libnvidia-ml.so"],
    ),
];

/// What a program is started with.
pub(crate) struct Prepared {
    /// The folder with the libraries under the driver's names.
    pub(crate) folder: PathBuf,
    /// Direct mode has no driver to lead the program to.
    pub(crate) lacks_driver: bool,
}

/// Makes the folder if needed. In isolated mode the driver of this host means nothing to the program.
pub(crate) fn prepare(mode: Mode) -> Result<Prepared> {
    let own = prepare_own()?;
    let beyond = match mode {
        Mode::Direct => symbols::newer_entry_points(),
        Mode::Isolated => None,
    };
    Ok(Prepared {
        lacks_driver: mode == Mode::Direct && beyond.is_none(),
        folder: match beyond {
            Some((_, names)) if !names.is_empty() => prepare_newer(&own, &names)?,
            _ => own,
        },
    })
}

/// Where the library with a newer driver's names is written.
pub(crate) fn newer_library() -> PathBuf {
    let paths = mica_daemon::Paths::from_environment();
    paths.runtime_dir.join("lib-newer").join("libcuda.so.1")
}

/// The folder with a library that also has a newer driver's names.
fn prepare_newer(own: &Path, names: &[String]) -> Result<PathBuf> {
    let file = newer_library();
    let folder = file.parent().unwrap_or(own).to_path_buf();
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("{} cannot be made", folder.display()))?;
    let mica = find()?.join(LIBRARIES[0].0);
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

fn prepare_own() -> Result<PathBuf> {
    let built = find()?;
    let paths = mica_daemon::Paths::from_environment();
    // In a folder another user could write, they would choose what the program loads.
    paths.make_runtime_dir()?;
    let folder = paths.runtime_dir.join("lib");
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("{} cannot be made", folder.display()))?;
    for (from, names) in LIBRARIES {
        let source = built.join(from);
        for name in names {
            link(&source, &folder.join(name))?;
        }
    }
    Ok(folder)
}

/// Points `name` at `source`; many processes may do so at once.
fn link(source: &Path, name: &Path) -> Result<()> {
    if std::fs::read_link(name).is_ok_and(|target| target == source) {
        return Ok(());
    }
    let fresh = name.with_extension(format!("{}.new", std::process::id()));
    let _ = std::fs::remove_file(&fresh);
    symlink(source, &fresh)
        .and_then(|()| std::fs::rename(&fresh, name))
        .with_context(|| format!("{} cannot be made", name.display()))
}

/// The folder the libraries were built or installed into.
pub(crate) fn find() -> Result<PathBuf> {
    let exe = std::env::current_exe()?.canonicalize()?;
    let beside = exe.parent().unwrap_or(Path::new("/"));
    let mut places: Vec<PathBuf> = std::env::var_os("MICA_LIB_DIR")
        .map(PathBuf::from)
        .into_iter()
        .collect();
    places.extend([
        beside.to_path_buf(),
        beside.join("deps"),
        beside.join("../lib/mica"),
    ]);
    for place in &places {
        if LIBRARIES.iter().all(|(name, _)| place.join(name).is_file()) {
            return Ok(place.canonicalize()?);
        }
    }
    let tried: Vec<String> = places
        .iter()
        .map(|place| place.display().to_string())
        .collect();
    bail!(
        "libmica_shim.so and libmica_nvml_shim.so are not in {} (set MICA_LIB_DIR, or build them \
         with `cargo build --release --workspace`)",
        tried.join(", ")
    )
}
