//! What a container needs besides to use a card itself: device files and the driver's libraries.
//!
//! A program in such a container can pass its limits on purpose, as every program in direct mode can.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use mica_driver_files::{CONTAINER_DRIVER_DIR, library_files, nodes_of};

use super::document::{DeviceNode, Edits, Mount};

/// Folders that a loader searches, for what the driver loads by name.
const SEARCHED: [&str; 2] = ["/usr/lib64", "/usr/lib/x86_64-linux-gnu"];
/// What the driver loads by name.
const LOADED_BY_DRIVER: [&str; 4] = [
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-nvvm70.so.4",
    "libnvidia-gpucomp.so.",
];

/// Device files of the cards with these ids, and the driver.
pub(super) fn edits(uuids: &[String]) -> Result<Edits> {
    let mut nodes: Vec<PathBuf> = uuids.iter().flat_map(|uuid| nodes_of(uuid)).collect();
    nodes.sort();
    nodes.dedup();
    if nodes.is_empty() {
        bail!("direct mode needs a card, and this host has no device file of one (/dev/nvidia0)");
    }
    let cuda = real("libcuda.so.1", "MICA_LIBCUDA")
        .context("direct mode needs the driver's libcuda.so.1")?;
    let folder = cuda.parent().unwrap_or(Path::new("/")).to_owned();
    let mut edits = Edits {
        env: vec![
            "MICA_MODE=direct".into(),
            format!("MICA_LIBCUDA={CONTAINER_DRIVER_DIR}/libcuda.so.1"),
        ],
        device_nodes: nodes
            .iter()
            .map(|node| text(node).map(|path| DeviceNode { path }))
            .collect::<Result<_>>()?,
        mounts: vec![Mount::library(
            &text(&cuda)?,
            &format!("{CONTAINER_DRIVER_DIR}/libcuda.so.1"),
        )],
    };
    if let Some(nvml) = real("libnvidia-ml.so.1", "MICA_LIBNVML") {
        edits.env.push(format!(
            "MICA_LIBNVML={CONTAINER_DRIVER_DIR}/libnvidia-ml.so.1"
        ));
        let target = format!("{CONTAINER_DRIVER_DIR}/libnvidia-ml.so.1");
        edits.mounts.push(Mount::library(&text(&nvml)?, &target));
    }
    for (name, file) in beside(&folder) {
        for searched in SEARCHED {
            edits
                .mounts
                .push(Mount::library(&text(&file)?, &format!("{searched}/{name}")));
        }
    }
    Ok(edits)
}

/// NVIDIA's own library of this name, by the version in its file's name. Mica's has none. The variable names it where it lies
/// elsewhere.
fn real(name: &str, variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let given = std::env::var_os(variable).map(PathBuf::from);
    let files = given.into_iter().chain(library_files(name, &path));
    let files = files.filter_map(|file| file.canonicalize().ok());
    files.into_iter().find(|file| version(file).is_some())
}

/// `580.159.04` of `libcuda.so.580.159.04`.
fn version(file: &Path) -> Option<&str> {
    let (_, version) = file.file_name()?.to_str()?.split_once(".so.")?;
    version.contains('.').then_some(version)
}

/// The libraries in a folder that the driver loads by name, with those names.
fn beside(folder: &Path) -> Vec<(String, PathBuf)> {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let is_loaded = |name: &String| {
        LOADED_BY_DRIVER
            .iter()
            .any(|wanted| match wanted.ends_with('.') {
                true => name.starts_with(wanted),
                false => name == wanted,
            })
    };
    let mut found: Vec<(String, PathBuf)> = names
        .filter(is_loaded)
        .filter_map(|name| {
            let file = folder.join(&name).canonicalize().ok()?;
            Some((name, file))
        })
        .collect();
    found.sort();
    found
}

fn text(path: &Path) -> Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.with_context(|| format!("the path {} is not UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_with_a_drivers_version_are_the_drivers() {
        let of = |name: &str| version(Path::new(name)).map(str::to_owned);
        assert_eq!(
            of("/x/libcuda.so.580.159.04").as_deref(),
            Some("580.159.04")
        );
        assert_eq!(of("/x/libcuda.so.1"), None);
        assert_eq!(of("/x/libmica_shim.so"), None);
    }

    #[test]
    fn what_the_driver_loads_is_found_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("libnvidia-nvvm.so.580.1.2"), b"").unwrap();
        std::os::unix::fs::symlink("libnvidia-nvvm.so.580.1.2", at("libnvidia-nvvm.so.4")).unwrap();
        std::fs::write(at("libnvidia-gpucomp.so.580.1.2"), b"").unwrap();
        std::fs::write(at("libnvidia-eglcore.so.580.1.2"), b"").unwrap();
        let names: Vec<String> = beside(dir.path())
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(
            names,
            ["libnvidia-gpucomp.so.580.1.2", "libnvidia-nvvm.so.4"]
        );
    }
}
