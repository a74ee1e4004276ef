//! A root directory that holds what a worker needs and nothing else.
//!
//! Paths keep their names, so nothing has to be told anew: each is a mount of its own below an empty root that
//! cannot be written. What is mounted is taken hold of before the new root covers anything.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};

use crate::{Jail, JailError, Profile};

/// Folders that are nearly always there and may be covered by the new root while it is built.
const BUILDING_PLACES: [&str; 4] = ["/tmp", "/run", "/var", "/proc"];

// Attributes of mounts, from <linux/mount.h>.
const RDONLY: u64 = 0x1;
const NOSUID: u64 = 0x2;
const NODEV: u64 = 0x4;
const NOEXEC: u64 = 0x8;

/// A mount that is not attached yet.
struct Piece {
    path: PathBuf,
    is_folder: bool,
    tree: OwnedFd,
}

/// Makes the new root the process's own, in a mount namespace of its own.
pub(crate) fn move_in(jail: &Jail) -> Result<(), JailError> {
    let failed = |what: &'static str| move |e: rustix::io::Errno| JailError::new(what, e);
    // Nothing that is mounted here may reach the namespace outside.
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).map_err(failed("private mounts"))?;
    let pieces = pieces(jail)?;
    let place = building_place()?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let options = c"mode=0755,size=64k,nr_inodes=512";
    rustix::mount::mount("mica", &place, "tmpfs", flags, Some(options))
        .map_err(failed("the new root directory"))?;
    attach_all(&pieces, &place)?;
    mount_proc(&place, jail.profile);
    // The old root ends up on top of the new one and is let go there, so no folder for it is needed.
    rustix::process::chdir(&place).map_err(failed("the new root directory"))?;
    rustix::process::pivot_root(".", ".").map_err(failed("the change of root directory"))?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(failed("leaving the old root"))?;
    rustix::process::chdir("/").map_err(failed("the new root directory"))?;
    let root = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(failed("the new root directory"))?;
    restrict(&root, RDONLY, 0).map_err(|e| JailError::new("a root that cannot be written", e))
}

fn pieces(jail: &Jail) -> Result<Vec<Piece>, JailError> {
    let inert = NOSUID | NODEV | NOEXEC;
    let of = |paths: &[PathBuf], attributes: u64| -> Result<Vec<Piece>, JailError> {
        outermost(paths)
            .map(|path| piece(path, attributes))
            .collect()
    };
    let mut pieces = of(&jail.read_only, inert | RDONLY)?;
    pieces.extend(of(&jail.libraries, NOSUID | NODEV | RDONLY)?);
    pieces.extend(of(&jail.read_write, inert)?);
    pieces.extend(of(&jail.devices, NOSUID | NOEXEC)?);
    // A folder comes before what lies in it.
    pieces.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(pieces)
}

/// Those of the paths that exist and lie below no other of them: a folder is mounted with all it holds.
fn outermost(paths: &[PathBuf]) -> impl Iterator<Item = &PathBuf> {
    let is_covered = |path: &Path| {
        let mut others = paths.iter().filter(|other| other.is_dir());
        others.any(|other| path != other && path.starts_with(other))
    };
    paths
        .iter()
        .filter(move |path| path.exists() && !is_covered(path))
}

fn piece(path: &Path, attributes: u64) -> Result<Piece, JailError> {
    let name = |what: &str| format!("{what} {}", path.display());
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    let tree = rustix::mount::open_tree(CWD, path, flags)
        .map_err(|e| JailError::new(&name("a mount of"), e))?;
    restrict(&tree, attributes, libc::AT_RECURSIVE)
        .map_err(|e| JailError::new(&name("the rights of"), e))?;
    Ok(Piece {
        path: path.to_owned(),
        is_folder: path.is_dir(),
        tree,
    })
}

/// Adds attributes to a mount, and with `AT_RECURSIVE` to all below it; takes none away, as a namespace without
/// privileges may not.
fn restrict(mount: &OwnedFd, attributes: u64, recursive: i32) -> io::Result<()> {
    #[repr(C)]
    struct MountAttr {
        attr_set: u64,
        attr_clr: u64,
        propagation: u64,
        userns_fd: u64,
    }
    let attr = MountAttr {
        attr_set: attributes,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    let flags = AtFlags::EMPTY_PATH.bits() | recursive as u32;
    // SAFETY: the path is a constant, the structure lives through the call and its size is given.
    let code = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    match code {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn building_place() -> Result<CString, JailError> {
    let found = BUILDING_PLACES.into_iter().find(|p| Path::new(p).is_dir());
    let place = found.ok_or_else(|| {
        let missing = io::Error::from(io::ErrorKind::NotFound);
        JailError::new("a folder to build the new root directory on", missing)
    })?;
    CString::new(place).map_err(|e| JailError::new("the new root directory", e))
}

/// Attaches the pieces below the new root. The folders on the way must let the worker's user through, whatever umask
/// the daemon has.
fn attach_all(pieces: &[Piece], root: &CString) -> Result<(), JailError> {
    let umask = rustix::process::umask(Mode::WGRP | Mode::WOTH);
    let attached = pieces.iter().try_for_each(|piece| {
        attach(piece, root).map_err(|e| {
            let what = format!("{} in the new root directory", piece.path.display());
            JailError::new(&what, e)
        })
    });
    rustix::process::umask(umask);
    attached
}

fn attach(piece: &Piece, root: &CString) -> io::Result<()> {
    let root = Path::new(std::ffi::OsStr::from_bytes(root.as_bytes()));
    let below = piece.path.strip_prefix("/").unwrap_or(&piece.path);
    let target = root.join(below);
    if !target.exists() {
        match piece.is_folder {
            true => std::fs::create_dir_all(&target)?,
            false => {
                std::fs::create_dir_all(target.parent().unwrap_or(root))?;
                std::fs::File::create(&target)?;
            }
        }
    }
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(rustix::mount::move_mount(
        &piece.tree,
        "",
        CWD,
        &target,
        flags,
    )?)
}

/// Shows the process itself and nobody else under `/proc`. A worker does without where that is not permitted:
/// windows then move whole pieces instead of touched pages.
fn mount_proc(root: &CString, profile: Profile) {
    let root = Path::new(std::ffi::OsStr::from_bytes(root.as_bytes()));
    let target = root.join("proc");
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    // The driver of a card reads its settings below /proc/driver, and names its threads: a write to
    // /proc/self/task/N/comm that fails ends cuInit with error 304.
    let (flags, options) = match profile {
        Profile::Software | Profile::Connection => {
            (flags | MountFlags::RDONLY, c"subset=pid,hidepid=2")
        }
        Profile::Nvidia => (flags, c"hidepid=2"),
    };
    if std::fs::create_dir_all(&target).is_ok() {
        let _ = rustix::mount::mount("proc", &target, "proc", flags, Some(options));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_a_folder_that_is_mounted_is_not_mounted_again() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let paths = [
            inner.clone(),
            dir.path().to_owned(),
            dir.path().join("absent"),
        ];
        assert_eq!(outermost(&paths).collect::<Vec<_>>(), [dir.path()]);
        let apart = [inner.clone(), dir.path().join("in")];
        assert_eq!(outermost(&apart).collect::<Vec<_>>(), [&inner]);
    }
}
