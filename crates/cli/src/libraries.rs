//! Where a program finds Mica's `libcuda.so.1` and `libnvidia-ml.so.1`.
//!
//! The libraries are built as `libmica_shim.so` and `libmica_nvml_shim.so`; a folder under the runtime
//! directory holds them under the driver's names.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Built name and the name programs ask for.
const LIBRARIES: [(&str, &[&str]); 2] = [
    ("libmica_shim.so", &["libcuda.so.1", "libcuda.so"]),
    (
        "libmica_nvml_shim.so",
        &["libnvidia-ml.so.1", "libnvidia-ml.so"],
    ),
];

/// The folder with the libraries under the driver's names; made if needed.
pub(crate) fn prepare() -> Result<PathBuf> {
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
