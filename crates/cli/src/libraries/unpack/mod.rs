//! Unpacks the libraries that this executable carries into a private folder.
//!
//! ```text
//!   PLACE/HASH/libmica_shim.so      the bytes inside this executable, compared before every use
//!   PLACE/HASH/libcuda.so.1         a link to it, under the driver's name
//! ```
//! A place is used only where nobody else can write, in it or above it, and where the loader may map code. Each file is
//! written beside its name and renamed, so of two starts at once both find whole files. Folders of other versions are
//! removed when they have not been used for a week and no process has them mapped.

use std::fs::{DirBuilder, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use mica_control::Paths;
use rustix::fs::StatVfsMountFlags;

use super::{Embedded, LIBRARIES, link_names};

/// How often the time of the last use is written.
const USE_STEP: Duration = Duration::from_secs(3600);
/// How long another version must have been unused before it is removed.
const UNUSED: Duration = Duration::from_secs(7 * 24 * 3600);

/// The map of a process that is in no user namespace of its own.
const ALL_USERS: &str = "0 0 4294967295";

/// Where the libraries may be unpacked, the best place first.
///
/// # Errors
/// The runtime directory cannot be used.
pub(super) fn places() -> Result<Vec<PathBuf>> {
    let absolute = |name| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let cache = match (absolute("XDG_CACHE_HOME"), absolute("HOME")) {
        (Some(cache), _) => Some(cache.join("mica/libraries")),
        // Not below /var/cache/mica: that folder is closed to other users, and a program that root starts may give
        // its privileges up.
        (None, _) if is_root() => Some("/var/cache/mica-libraries".into()),
        (None, home) => home.map(|home| home.join(".cache/mica/libraries")),
    };
    let paths = Paths::from_environment();
    paths.make_runtime_dir()?;
    let runtime = paths.runtime_dir.join("libraries");
    Ok(cache.into_iter().chain([runtime]).collect())
}

/// The folder with the unpacked libraries, in the first place that can be used.
///
/// # Errors
/// No place can be used; says why of each.
pub(super) fn unpack(embedded: &Embedded, places: &[PathBuf]) -> Result<PathBuf> {
    let mut reasons = Vec::new();
    for place in places {
        match unpack_at(embedded, place) {
            Ok(folder) => return Ok(folder),
            Err(error) => reasons.push(format!("{error:#}")),
        }
    }
    bail!(
        "the libraries that mica carries cannot be unpacked: {} (XDG_CACHE_HOME names another place)",
        reasons.join("; ")
    )
}

fn unpack_at(embedded: &Embedded, place: &Path) -> Result<PathBuf> {
    let place = private(place)?;
    allows_code(&place, rustix::fs::statvfs(&place)?.f_flag)?;
    let folder = private(&place.join(embedded.hash))?;
    let mut wrote = false;
    for ((name, _), content) in LIBRARIES.iter().zip(embedded.files) {
        wrote |= write_if_different(&folder.join(name), content)?;
    }
    link_names(&folder, &folder)?;
    note_use(&folder);
    if wrote {
        remove_unused(&place, &folder);
    }
    Ok(folder)
}

/// Makes a folder that only this user can write, and answers its path without links.
pub(super) fn private(folder: &Path) -> Result<PathBuf> {
    // Programs that give up root's privileges still load the libraries.
    let mode = if is_root() { 0o755 } else { 0o700 };
    let mut builder = DirBuilder::new();
    (builder.recursive(true).mode(mode).create(folder))
        .with_context(|| format!("{} cannot be made", folder.display()))?;
    let folder = folder.canonicalize()?;
    let own = rustix::process::geteuid().as_raw();
    if folder.symlink_metadata()?.uid() != own {
        bail!("{} belongs to another user", folder.display());
    }
    // Without /proc nobody outside is trusted.
    let users = std::fs::read_to_string("/proc/self/uid_map").unwrap_or(ALL_USERS.into());
    for above in folder.ancestors() {
        let data = above.symlink_metadata()?;
        let shared = data.mode() & 0o022 != 0;
        let sticky = data.mode() & 0o1000 != 0 && above != folder;
        if !is_trusted(data.uid(), own, &users) || shared && !sticky {
            bail!("{} can be changed by other users", above.display());
        }
    }
    Ok(folder)
}

/// Whether the owner of a folder above the libraries is this user or root. In a user namespace (`users` is its map) root outside
/// looks like everybody else outside, so owners from outside are trusted there: else nothing below `/` would be.
fn is_trusted(owner: u32, own: u32, users: &str) -> bool {
    const OUTSIDE: u32 = 65534;
    let counts = users
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2));
    let mapped: u64 = counts.filter_map(|count| count.parse::<u64>().ok()).sum();
    let in_namespace = mapped < u64::from(u32::MAX);
    owner == own || owner == 0 || in_namespace && owner == OUTSIDE
}

/// Refuses a folder whose files cannot be mapped as code.
fn allows_code(folder: &Path, flags: StatVfsMountFlags) -> Result<()> {
    if flags.contains(StatVfsMountFlags::NOEXEC) {
        bail!("{} is mounted with noexec", folder.display());
    }
    Ok(())
}

/// Leaves a file with this content; whether it had to be written.
pub(super) fn write_if_different(path: &Path, content: &[u8]) -> Result<bool> {
    let is_file = path.symlink_metadata().is_ok_and(|data| data.is_file());
    if is_file && has_content(path, content).unwrap_or(false) {
        return Ok(false);
    }
    let write = || -> Result<()> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        let mut fresh = tempfile::NamedTempFile::new_in(folder)?;
        fresh.write_all(content)?;
        fresh
            .as_file()
            .set_permissions(Permissions::from_mode(0o555))?;
        fresh.persist(path)?;
        Ok(())
    };
    write().with_context(|| format!("{} cannot be written", path.display()))?;
    Ok(true)
}

/// Compares a file piece by piece: memory for all of it would cost more than the comparison.
fn has_content(path: &Path, content: &[u8]) -> std::io::Result<bool> {
    let mut file = File::open(path)?;
    let mut found = [0; 1 << 16];
    for expected in content.chunks(found.len()) {
        let found = &mut found[..expected.len()];
        file.read_exact(found)?;
        if found != expected {
            return Ok(false);
        }
    }
    Ok(file.read(&mut found)? == 0)
}

/// Marks a version as used now. Failure only brings its removal nearer.
fn note_use(folder: &Path) {
    if idle_for(folder).is_some_and(|idle| idle < USE_STEP) {
        return;
    }
    let _ = File::open(folder).and_then(|folder| folder.set_modified(SystemTime::now()));
}

/// How long ago a version was last used.
fn idle_for(folder: &Path) -> Option<Duration> {
    let used = folder.symlink_metadata().ok()?.modified().ok()?;
    used.elapsed().ok()
}

/// Removes other versions. What cannot be removed stays for the next time.
fn remove_unused(place: &Path, current: &Path) {
    let Ok(entries) = std::fs::read_dir(place) else {
        return;
    };
    for folder in entries.flatten().map(|entry| entry.path()) {
        let is_folder = folder.symlink_metadata().is_ok_and(|data| data.is_dir());
        let is_old = idle_for(&folder).is_some_and(|idle| idle > UNUSED);
        if is_folder && folder != current && is_old && !is_mapped(&folder) {
            let _ = std::fs::remove_dir_all(&folder);
        }
    }
}

/// Whether a process that this user may look at has mapped a file of `folder`.
fn is_mapped(folder: &Path) -> bool {
    let prefix = format!("{}/", folder.display());
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return true;
    };
    let mut maps = processes.flatten().map(|entry| entry.path().join("maps"));
    maps.any(|maps| std::fs::read_to_string(maps).is_ok_and(|text| text.contains(&prefix)))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests;
