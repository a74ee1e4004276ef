//! The log of a daemon that was started on demand: a file of bounded size.
//!
//! The daemon and its workers have the file as their standard error. It is copied and cut, not renamed, so that all of them go
//! on in the same file.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use mica_control::files;
use rustix::fs::{fstat, ftruncate};

/// The log is cut when it is longer.
pub(crate) const MOST_BYTES: u64 = 4 << 20;

/// Opens the log to add to it.
pub(crate) fn open(path: &Path) -> std::io::Result<File> {
    let file = files::append(path)?;
    cut(path, &file, MOST_BYTES)?;
    Ok(file)
}

/// Cuts the log if standard error is the log, and it is too long.
pub(crate) fn cut_own(path: &Path) {
    let stderr = std::io::stderr();
    let own = stderr.as_fd();
    let same = |file: &File| {
        let (own, file) = (fstat(own).ok()?, fstat(file).ok()?);
        Some((own.st_dev, own.st_ino) == (file.st_dev, file.st_ino))
    };
    let Ok(file) = files::append(path) else {
        return;
    };
    if same(&file) == Some(true)
        && let Err(error) = cut(path, &file, MOST_BYTES)
    {
        tracing::warn!("the log cannot be cut: {error}");
    }
}

/// Moves the log to a second file, which is overwritten, if the log is longer than its bound.
fn cut(path: &Path, file: &File, most_bytes: u64) -> std::io::Result<()> {
    if file.metadata()?.len() <= most_bytes {
        return Ok(());
    }
    let mut old = files::replace(&old(path))?;
    std::io::copy(&mut files::open(path)?, &mut old)?;
    ftruncate(file, 0)?;
    Ok(())
}

fn old(path: &Path) -> PathBuf {
    path.with_extension("log.old")
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_long_log_is_kept_once_and_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.log");
        let mut log = open(&path).unwrap();
        assert_eq!(log.metadata().unwrap().mode() & 0o777, 0o600);
        for round in 0..5 {
            log.write_all(format!("{round}{}\n", "x".repeat(98)).as_bytes())
                .unwrap();
            cut(&path, &log, 250).unwrap();
            assert!(std::fs::metadata(&path).unwrap().len() <= 250);
        }
        // Those who have the file open go on in it.
        assert!(std::fs::read_to_string(&path).unwrap().starts_with('3'));
        let old = std::fs::read_to_string(old(&path)).unwrap();
        assert!(old.starts_with('0') && old.len() == 300, "{old}");
    }
}
