//! Mica's libraries as containers get them.
//!
//! They are copied to a folder whose path never changes, for it stands in files of the Container Device Interface. In a container
//! they are mounted over names in the folders that every loader searches by itself, so neither a variable nor the image's
//! list of libraries (`ld.so.cache`) has to know of them:
//!
//! | folder in the container | whose loader searches it |
//! |---|---|
//! | `/usr/lib` | musl (Alpine) |
//! | `/usr/lib64` | glibc: Fedora, RHEL, openSUSE, Arch |
//! | `/usr/lib/x86_64-linux-gnu` | glibc: Debian, Ubuntu |
//! | `/usr/local/nvidia/lib64` | images of NVIDIA, whose `LD_LIBRARY_PATH` begins there |
//!
//! A loader of glibc searches its own folder before `/usr/lib`. Where both are one folder (Arch) the later mount is seen, which
//! is the one for glibc.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use mica_control::Paths;

use super::document::Mount;
use crate::libraries::{self, Libc};

/// Folders in a container, in the order in which they are mounted.
const PLACES: [(Libc, &str); 4] = [
    (Libc::Musl, "/usr/lib"),
    (Libc::Gnu, "/usr/lib64"),
    (Libc::Gnu, "/usr/lib/x86_64-linux-gnu"),
    (Libc::Gnu, "/usr/local/nvidia/lib64"),
];

/// The libraries for containers.
pub(super) struct ContainerLibraries {
    pub(super) mounts: Vec<Mount>,
    /// Whether there are some for musl.
    pub(super) has_musl: bool,
}

/// Copies the libraries to their lasting place, and says how they are mounted.
pub(super) fn install() -> Result<ContainerLibraries> {
    let place = lasting_place(&Paths::from_environment());
    let mut mounts = Vec::new();
    let mut has_musl = false;
    for (libc, folder) in PLACES {
        let Some(files) = libraries::of_libc(libc)? else {
            continue;
        };
        has_musl |= libc == Libc::Musl;
        for (names, content) in files {
            let file = place.join(libc.name()).join(names[0]);
            libraries::place(&file, &content)?;
            let host = file.to_str();
            let host = host.context("the path of the libraries is not UTF-8")?;
            let mounted = names.iter().map(|name| format!("{folder}/{name}"));
            mounts.extend(mounted.map(|target| Mount::library(host, &target)));
        }
    }
    Ok(ContainerLibraries { mounts, has_musl })
}

/// Where the libraries stay, over restarts and upgrades. Users of root's containers must be able to read them, and the state of
/// root's daemon is closed to them.
fn lasting_place(paths: &Paths) -> PathBuf {
    if paths.state_dir == Path::new("/var/lib/mica") {
        return "/var/lib/mica-libraries".into();
    }
    paths.state_dir.join("libraries")
}
