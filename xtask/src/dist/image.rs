//! The container image: an OCI image layout in a tar archive, with no base image.
//!
//! It holds the packages' files and the C library of the machine that built it. A static program would need none, but
//! Mica's libraries are loaded into programs beside NVIDIA's driver, and both need the same dynamic C library.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::archive::{gzip, sha256, tar};
use super::contents::Contents;
use super::deb;
use super::files::{Files, Node};
use crate::command::target;

/// Parts of glibc that libraries linked against a version before 2.34 ask for by these names: Mica's own, and NVIDIA's
/// driver, which the container's engine adds.
const PARTS_OF_GLIBC: [&str; 4] = ["libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1"];

/// The archive's bytes.
pub(super) fn archive(contents: &Contents) -> Result<Vec<u8>> {
    let layer = tar(&root_files(contents)?, contents.date)?;
    let mut blobs = Files::default();
    let config = add(&mut blobs, &bytes(&config(&layer)?)?);
    let layer = add(&mut blobs, &gzip(&layer)?);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip", layer)],
    });
    let manifest = add(&mut blobs, &bytes(&manifest)?);
    let mut manifest = descriptor("application/vnd.oci.image.manifest.v1+json", manifest);
    manifest["annotations"] = json!({
        "org.opencontainers.image.ref.name": contents.version,
        "io.containerd.image.name": format!("localhost/mica:{}", contents.version),
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });
    let mut files = blobs;
    files.add("index.json", Node::File(bytes(&index)?));
    let layout = json!({ "imageLayoutVersion": "1.0.0" });
    files.add("oci-layout", Node::File(bytes(&layout)?));
    tar(&files, contents.date)
}

/// Adds a blob under its hash; hash and size.
fn add(blobs: &mut Files, content: &[u8]) -> (String, usize) {
    let hash = sha256(content);
    let path = format!("blobs/sha256/{hash}");
    blobs.add(&path, Node::File(content.to_vec()));
    (hash, content.len())
}

fn descriptor(kind: &str, (hash, size): (String, usize)) -> Value {
    json!({ "mediaType": kind, "digest": format!("sha256:{hash}"), "size": size })
}

fn bytes(value: &Value) -> Result<Vec<u8>> {
    Ok(serde_json::to_vec(value)?)
}

/// How the image is run. No time of creation: the contents alone decide its hash.
fn config(layer: &[u8]) -> Result<Value> {
    Ok(json!({
        // Containers have Debian's names of architectures.
        "architecture": deb::architecture()?,
        "os": "linux",
        "config": {
            // The last two have NVIDIA's container tools add the driver.
            "Env": [
                "PATH=/usr/local/bin:/usr/bin:/bin",
                "NVIDIA_VISIBLE_DEVICES=all",
                "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            ],
            "Entrypoint": ["/usr/bin/mica"],
            "Cmd": ["--help"],
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", sha256(layer))] },
    }))
}

/// Everything in the image.
fn root_files(contents: &Contents) -> Result<Files> {
    let mut files = contents.for_prefix("/usr").below("usr");
    for folder in [
        "dev",
        "etc",
        "proc",
        "root",
        "run",
        "sys",
        "var/cache",
        "var/lib",
    ] {
        files.add(folder, Node::Folder);
    }
    files.add("tmp", Node::OpenFolder);
    for library in with_all_of_glibc(&target().join("release/mica"))? {
        let content = std::fs::read(&library).with_context(|| library.display().to_string())?;
        files.add(&library.to_string_lossy(), Node::Program(content));
    }
    let licence = Node::File(licences_of_libraries()?);
    files.add("usr/share/doc/mica/licences-of-the-c-library.txt", licence);
    Ok(files)
}

/// The libraries that a program needs, and the parts of glibc that libraries loaded later may need.
pub(super) fn with_all_of_glibc(program: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut libraries = BTreeSet::from_iter(needed_libraries(program)?);
    let of_libc = libraries.iter().find(|path| path.ends_with("libc.so.6"));
    let beside = of_libc.and_then(|path| path.parent()).map(Path::to_owned);
    let beside = beside.with_context(|| format!("{} does not use glibc", program.display()))?;
    libraries.extend(PARTS_OF_GLIBC.iter().map(|name| beside.join(name)));
    Ok(libraries)
}

/// The licences of glibc and libgcc, from where distributions keep them.
fn licences_of_libraries() -> Result<Vec<u8>> {
    let mut text = Vec::new();
    for (package, places) in [
        (
            "glibc",
            ["doc/libc6/copyright", "licenses/glibc/COPYING.LIB"],
        ),
        (
            "libgcc",
            ["doc/libgcc-s1/copyright", "licenses/libgcc/COPYING.RUNTIME"],
        ),
    ] {
        let mut places = places
            .iter()
            .map(|place| Path::new("/usr/share").join(place));
        let found = places.find_map(|path| std::fs::read(path).ok());
        let found = found.with_context(|| format!("the licence of {package} is not installed"))?;
        text.extend(format!("{package}:\n\n").into_bytes());
        text.extend(found);
    }
    Ok(text)
}

/// The libraries that the loader maps for a program, and the loader.
fn needed_libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output();
    let output = output.context("ldd cannot start")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || text.contains("not found") {
        bail!("ldd {}: {text}", program.display());
    }
    // `name => path (address)`, or for the loader `path (address)`.
    let paths = text.lines().filter_map(|line| {
        let path = line.split_whitespace().find(|word| word.starts_with('/'))?;
        Some(PathBuf::from(path))
    });
    Ok(paths.collect())
}
