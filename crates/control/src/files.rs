//! Files and directories of a daemon: used only where they are this user's own.
//!
//! A FIFO would block the daemon, a symbolic link would lead it to another file, and a device could do anything.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Nobody else may read what the daemon keeps, nor lock it.
const MODE: u32 = 0o600;

/// Opens a file to read; it must exist.
///
/// # Errors
/// It is not a plain file of this user, or cannot be opened.
pub fn open(path: &Path) -> Result<File> {
    checked(path, OpenOptions::new().read(true))
}

/// Opens a file to read and write, and makes it if needed.
///
/// # Errors
/// As [`open`].
pub fn open_or_create(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    private(checked(path, &mut options)?)
}

/// Opens a file to add to its end, and makes it if needed.
///
/// # Errors
/// As [`open`].
pub fn append(path: &Path) -> Result<File> {
    private(checked(path, OpenOptions::new().append(true).create(true))?)
}

/// Makes a new file in the place of whatever has this name, unless that is a directory.
///
/// # Errors
/// It cannot be made.
pub fn replace(path: &Path) -> Result<File> {
    let _ = std::fs::remove_file(path);
    let mut options = OpenOptions::new();
    checked(path, options.write(true).create_new(true))
}

fn checked(path: &Path, options: &mut OpenOptions) -> Result<File> {
    // Looked at first: opening alone can block, or do something to a device.
    if let Ok(found) = std::fs::symlink_metadata(path) {
        check(&found)?;
    }
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = options.mode(MODE).custom_flags(flags).open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

/// Also a file that an earlier daemon made with other rights.
fn private(file: File) -> Result<File> {
    if file.metadata()?.mode() & 0o777 != MODE {
        file.set_permissions(PermissionsExt::from_mode(MODE))?;
    }
    Ok(file)
}

fn check(found: &Metadata) -> Result<()> {
    let kind = found.file_type();
    let what = if kind.is_file() && found.uid() == crate::uid() {
        return Ok(());
    } else if kind.is_file() {
        "a file of another user"
    } else if kind.is_symlink() {
        "a symbolic link"
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    let text = format!("it is {what} and not a file of this user: remove it");
    Err(Error::new(ErrorKind::InvalidInput, text))
}

/// A directory that cannot be made or is not safe to use.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {what}")]
pub struct DirectoryError {
    /// Which.
    pub path: PathBuf,
    /// What is wrong.
    pub what: String,
}

/// Makes a directory of this user with at least these rights, if it is not there yet.
///
/// # Errors
/// It cannot be made, is another user's, or other users may write to it.
pub fn make_directory(path: &Path, mode: u32) -> std::result::Result<(), DirectoryError> {
    let wrong = |what: String| DirectoryError {
        path: path.to_owned(),
        what,
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(|error| wrong(format!("cannot be made: {error}")))?;
    let metadata = std::fs::symlink_metadata(path)
        .map_err(|error| wrong(format!("cannot be looked at: {error}")))?;
    // A directory another user made in /tmp could hold sockets of theirs.
    if !metadata.is_dir() || metadata.uid() != crate::uid() {
        return Err(wrong("is not a directory of this user".into()));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(wrong("can be written by other users".into()));
    }
    // The umask may have taken away what workers, which are other users, need.
    if metadata.mode() & mode != mode {
        let wanted = PermissionsExt::from_mode((metadata.mode() | mode) & 0o777);
        std::fs::set_permissions(path, wanted)
            .map_err(|error| wrong(format!("cannot have mode {mode:o}: {error}")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name and something else than a file under it.
    fn others(dir: &Path) -> Vec<(&'static str, std::path::PathBuf)> {
        let at = |name: &str| dir.join(name);
        std::fs::write(at("target"), b"kept").unwrap();
        std::os::unix::fs::symlink(at("target"), at("link")).unwrap();
        std::os::unix::fs::symlink(at("nowhere"), at("dangling")).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        let made = std::process::Command::new("mkfifo")
            .arg(at("fifo"))
            .status();
        assert!(made.unwrap().success());
        vec![
            ("symbolic link", at("link")),
            ("symbolic link", at("dangling")),
            ("directory", at("folder")),
            ("FIFO", at("fifo")),
            ("device", "/dev/zero".into()),
        ]
    }

    #[test]
    fn whatever_is_not_a_file_is_refused_at_once_and_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        for (what, path) in others(dir.path()) {
            for refused in [open(&path), open_or_create(&path), append(&path)] {
                let text = refused.unwrap_err().to_string();
                assert!(text.contains(what), "{path:?}: {text}");
            }
        }
        assert!(!dir.path().join("nowhere").exists());
        assert_eq!(std::fs::read(dir.path().join("target")).unwrap(), b"kept");
    }

    #[test]
    fn a_file_is_private_whoever_made_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, b"old").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        for file in [append(&path).unwrap(), open_or_create(&path).unwrap()] {
            assert_eq!(file.metadata().unwrap().mode() & 0o777, MODE);
        }
        std::os::unix::fs::symlink(&path, dir.path().join("link")).unwrap();
        replace(&dir.path().join("link")).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
    }
}
