//! Keeps the folders of compiled kernels within their size, whatever workers do.
//!
//! A worker keeps its owner's folder small by itself. One that has become its tenant's may fill the disk instead. Once a second
//! the free room of the file system is compared; when it shrinks, or a minute has passed, the daemon measures the folder, and
//! what workers still hold of files that have no name any more. So it does where root's daemon gives each owner a folder. Where
//! the daemon is not root's, workers on a card write one folder of its own user, what a card's driver has compiled; files
//! without a name are not seen there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use mica_control::api::Severity;
use mica_limits::worker_variables::{KERNEL_CACHE_MIB, driver_cache_beside, own_kernel_cache};
use mica_wire::host::message::Role;

use crate::confinement::{kernel_cache_of, worker_user};
use crate::daemon::Daemon;

/// As the device's own default.
const DEFAULT_MIB: u64 = 512;
/// Files in one folder: far more kernels than fit, so only empty ones reach it.
const MOST_FILES: usize = 1 << 16;
/// What the folder of the driver's compiled kernels may hold, twice what the driver is told to keep.
const MOST_DRIVER_BYTES: u64 = 512 << 20;
/// Folders in folders that the driver makes there, with room for later drivers.
const TREE_DEPTH: u32 = 6;
/// A folder is measured so often at least.
const LOOK_WITHIN: Duration = Duration::from_secs(60);

/// What is remembered between two looks.
#[derive(Debug)]
pub(crate) struct KernelCaches {
    most_bytes: u64,
    /// When each owner's folder was measured, and what was free then: bytes and files.
    looks: BTreeMap<u32, (Instant, u64, u64)>,
}

/// A worker of an owner.
struct Holder {
    pid: u32,
    client: u64,
    vgpu: String,
}

impl KernelCaches {
    pub(crate) fn new() -> Self {
        let set = std::env::var(KERNEL_CACHE_MIB).ok();
        let mib = set.and_then(|text| text.trim().parse().ok());
        Self {
            most_bytes: mib.unwrap_or(DEFAULT_MIB).saturating_mul(1 << 20),
            looks: BTreeMap::new(),
        }
    }

    /// Looks at the folders of all owners that have workers now.
    pub(crate) fn check(&mut self, daemon: &Daemon) {
        let own = rustix::process::getuid();
        if !own.is_root() {
            let folder = own_kernel_cache().and_then(|kernels| driver_cache_beside(&kernels));
            return self.check_own(daemon, own.as_raw(), folder.as_deref());
        }
        let owners = workers_by_owner(daemon);
        self.looks.retain(|owner, _| owners.contains_key(owner));
        for (owner, workers) in owners {
            let Some(folder) = kernel_cache_of(owner) else {
                return;
            };
            if self.is_due(owner, &folder) {
                self.tidy(daemon, &folder, &workers);
                if let Some(driver) = driver_cache_beside(&folder) {
                    self.tidy_driver(daemon, &driver);
                }
            }
        }
    }

    /// Looks at the one folder that the workers of a daemon which is not root's can write.
    fn check_own(&mut self, daemon: &Daemon, user: u32, folder: Option<&Path>) {
        let has_workers = {
            let registry = daemon.registry();
            let mut clients = registry.clients.values();
            clients.any(|client| client.role == Role::Worker)
        };
        if let Some(folder) = folder
            && has_workers
            && self.is_due(user, folder)
        {
            self.tidy_driver(daemon, folder);
        }
    }

    fn is_due(&mut self, owner: u32, folder: &Path) -> bool {
        let Ok(room) = rustix::fs::statvfs(folder) else {
            return false;
        };
        let free = room.f_bfree.saturating_mul(room.f_frsize);
        let due = self.looks.get(&owner).is_none_or(|(since, bytes, files)| {
            since.elapsed() > LOOK_WITHIN
                || bytes.saturating_sub(free) > self.most_bytes / 4
                || files.saturating_sub(room.f_ffree) > MOST_FILES as u64 / 4
        });
        if due {
            let look = (Instant::now(), free, room.f_ffree);
            self.looks.insert(owner, look);
        }
        due
    }

    /// The driver keeps its folder below 256 MiB by itself. A worker that does not leaves nothing in it.
    fn tidy_driver(&self, daemon: &Daemon, folder: &Path) {
        let Some(held) = emptied(folder, self.most_bytes.max(MOST_DRIVER_BYTES)) else {
            return;
        };
        let text = format!(
            "{} held {held} bytes of the driver's compiled kernels, more than it may, and was emptied",
            folder.display()
        );
        let (severity, kind) = (Severity::Warning, "kernel_cache_overrun");
        daemon.events.add(severity, kind, None, None, text);
    }

    fn tidy(&self, daemon: &Daemon, folder: &Path, workers: &[Holder]) {
        let most = self.most_bytes;
        // Workers at work at the same time may each add a file beyond the limit before they look.
        if let Some(freed) = trim(folder, most.saturating_mul(2), most) {
            let text = format!(
                "{} held more compiled kernels than twice the limit of {most} bytes: {freed} bytes were removed",
                folder.display()
            );
            let (severity, kind) = (Severity::Warning, "kernel_cache_overrun");
            daemon.events.add(severity, kind, None, None, text);
        }
        let Ok(device) = folder.metadata().map(|m| m.dev()) else {
            return;
        };
        for worker in workers {
            let hidden = hidden_bytes(worker.pid, device);
            if hidden <= most {
                continue;
            }
            let registry = daemon.registry();
            let client = registry.clients.get(&worker.client);
            if let Some(process) = client.and_then(|client| client.process.as_ref()) {
                process.kill();
            }
            drop(registry);
            let text = format!(
                "worker {} held {hidden} bytes on the disk in files without a name, more than {most}, and was ended",
                worker.pid
            );
            let (severity, kind) = (Severity::Error, "kernel_cache_overrun");
            let (vgpu, pid) = (Some(worker.vgpu.as_str()), Some(worker.pid));
            daemon.events.add(severity, kind, vgpu, pid, text);
        }
    }
}

fn workers_by_owner(daemon: &Daemon) -> BTreeMap<u32, Vec<Holder>> {
    let registry = daemon.registry();
    let mut owners: BTreeMap<u32, Vec<Holder>> = BTreeMap::new();
    for (id, client) in &registry.clients {
        let Some(vgpu) = registry.vgpus.get(&client.vgpu) else {
            continue;
        };
        let owner = vgpu.owner_uid;
        if client.role == Role::Worker && worker_user(&registry.config.workers, owner).is_some() {
            owners.entry(owner).or_default().push(Holder {
                pid: client.pid,
                client: *id,
                vgpu: vgpu.name.clone(),
            });
        }
    }
    owners
}

/// Bytes that a file takes on the disk.
fn disk_bytes(found: &Metadata) -> u64 {
    found.blocks().saturating_mul(512)
}

/// If a folder holds more than `most` bytes, too many files or folders, removes the files that were used longest ago, until `goal`
/// bytes and half the files are left; says how many bytes that were. Folders are removed where they are empty: confined workers
/// can make none. The folder's parent is the daemon's own,
/// so the path leads nowhere else; links in the folder are not followed.
fn trim(folder: &Path, most: u64, goal: u64) -> Option<u64> {
    let mut files: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    let (mut strange, mut removed) = (false, 0);
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let Ok(found) = entry.metadata() else {
            continue;
        };
        if found.is_dir() {
            strange = true;
            let _ = std::fs::remove_dir(entry.path());
            continue;
        }
        if files.len() > 2 * MOST_FILES {
            // More than is worth remembering.
            strange = true;
            removed += std::fs::remove_file(entry.path()).map_or(0, |()| disk_bytes(&found));
            continue;
        }
        let used = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        files.push((used, disk_bytes(&found), entry.path()));
    }
    let mut left: u64 = files.iter().map(|file| file.1).sum();
    let mut count = files.len();
    if left <= most && count <= MOST_FILES {
        return strange.then_some(removed);
    }
    files.sort();
    let before = left;
    for (_, bytes, path) in files {
        if left <= goal && count <= MOST_FILES / 2 {
            break;
        }
        if std::fs::remove_file(path).is_ok() {
            left -= bytes;
            count -= 1;
        }
    }
    Some(removed + before - left)
}

/// Bytes on the disk of a folder and of those in it, `None` if it is not there. A file counts at least a page, so that empty ones
/// count too. Folders deeper than `depth` count as more than any limit: the driver makes none.
fn tree_bytes(folder: &Path, depth: u32) -> Option<u64> {
    let mut bytes = 0_u64;
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let Ok(found) = entry.metadata() else {
            continue;
        };
        let held = match (found.is_dir(), depth) {
            (true, 0) => u64::MAX,
            (true, _) => tree_bytes(&entry.path(), depth - 1).unwrap_or(0),
            (false, _) => disk_bytes(&found),
        };
        bytes = bytes.saturating_add(held.max(4096));
    }
    Some(bytes)
}

/// Empties a folder of the driver's that holds more than it may; says how many bytes that were.
fn emptied(folder: &Path, most: u64) -> Option<u64> {
    let held = tree_bytes(folder, TREE_DEPTH).filter(|held| *held > most)?;
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        // Links are removed, not followed.
        let _ = match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => std::fs::remove_dir_all(entry.path()),
            false => std::fs::remove_file(entry.path()),
        };
    }
    Some(held)
}

/// Bytes of files on this device that a process has open or mapped and that have no name any more.
fn hidden_bytes(pid: u32, device: u64) -> u64 {
    let mut seen = BTreeSet::new();
    let mut bytes = 0_u64;
    for list in ["fd", "map_files"] {
        let entries = std::fs::read_dir(format!("/proc/{pid}/{list}"));
        for entry in entries.into_iter().flatten().flatten() {
            // Leads to the file itself, also where it has no name.
            let Ok(found) = std::fs::metadata(entry.path()) else {
                continue;
            };
            let hidden = found.is_file() && found.dev() == device && found.nlink() == 0;
            if hidden && seen.insert(found.ino()) {
                bytes = bytes.saturating_add(disk_bytes(&found));
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, name: &str, kib: usize, age_seconds: u64) {
        let path = folder.join(name);
        std::fs::write(&path, vec![1; kib << 10]).unwrap();
        let used = SystemTime::now() - Duration::from_secs(age_seconds);
        let file = std::fs::File::options().append(true).open(path).unwrap();
        file.set_modified(used).unwrap();
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn folders_in_folders_are_counted_and_too_deep_ones_are_too_many() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(tree_bytes(&dir.path().join("none"), 2), None);
        let inner = dir.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        write(&inner, "code", 64, 1);
        std::os::unix::fs::symlink("/", dir.path().join("root")).unwrap();
        let bytes = tree_bytes(dir.path(), 2).unwrap();
        assert!((64 << 10..128 << 10).contains(&bytes), "{bytes}");
        assert_eq!(tree_bytes(dir.path(), 1), Some(u64::MAX));
    }

    #[test]
    fn a_folder_of_the_drivers_that_is_too_large_is_emptied() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(other.path(), "precious", 64, 1);
        let inner = dir.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        write(&inner, "code", 256, 1);
        write(dir.path(), "index", 4, 1);
        std::os::unix::fs::symlink(other.path(), dir.path().join("link")).unwrap();
        assert_eq!(emptied(dir.path(), 1 << 20), None);
        assert_eq!(names(dir.path()), ["a", "index", "link"]);
        let held = emptied(dir.path(), 128 << 10).unwrap();
        assert!(held > 256 << 10, "{held}");
        assert!(names(dir.path()).is_empty());
        assert_eq!(names(other.path()), ["precious"]);
    }

    #[test]
    fn a_folder_that_is_too_large_loses_its_oldest_files_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        for (name, age) in [("old", 300), ("older.tmp", 400), ("new", 1)] {
            write(dir.path(), name, 64, age);
        }
        assert_eq!(trim(dir.path(), 1 << 20, 1 << 20), None, "it fits");
        let freed = trim(dir.path(), 128 << 10, 100 << 10).unwrap();
        assert!(freed >= 128 << 10, "{freed}");
        assert_eq!(names(dir.path()), ["new"]);
    }

    #[test]
    fn links_are_not_followed_and_folders_go() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(other.path(), "precious", 64, 900);
        std::os::unix::fs::symlink(other.path(), dir.path().join("link")).unwrap();
        std::fs::create_dir(dir.path().join("folder")).unwrap();
        assert_eq!(trim(dir.path(), 1 << 20, 1 << 20), Some(0));
        assert_eq!(names(dir.path()), ["link"]);
        write(dir.path(), "large", 256, 1);
        assert!(trim(dir.path(), 64 << 10, 0).is_some());
        assert_eq!(names(other.path()), ["precious"]);
    }

    #[test]
    fn open_files_without_a_name_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().metadata().unwrap().dev();
        let pid = std::process::id();
        let before = hidden_bytes(pid, device);
        write(dir.path(), "file", 1024, 1);
        let file = std::fs::File::open(dir.path().join("file")).unwrap();
        assert!(
            hidden_bytes(pid, device) < before + (1 << 20),
            "it has a name"
        );
        std::fs::remove_file(dir.path().join("file")).unwrap();
        assert!(hidden_bytes(pid, device) >= before + (1 << 20));
        drop(file);
        assert!(hidden_bytes(pid, device) < before + (1 << 20));
    }
}
