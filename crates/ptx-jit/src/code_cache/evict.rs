//! Keeps a directory of files within a size.
//!
//! Files go in the order of their last use (their modification time). Several processes may do this
//! at once: each works on what it saw, and a file that is gone already is no trouble.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A temporary file older than this was left by a process that died.
const ABANDONED_AFTER: Duration = Duration::from_secs(600);

struct File {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

/// Removes what was used longest ago until `most` bytes are left, and some more, so that the next
/// file does not start it again. Returns how many bytes stay.
pub(super) fn down_to(dir: &Path, most: u64) -> u64 {
    let mut files = list(dir);
    let mut total: u64 = files.iter().map(|f| f.bytes).sum();
    if total <= most {
        return total;
    }
    files.sort_by_key(|f| f.used);
    let goal = most / 4 * 3;
    let (mut count, before) = (0, total);
    for file in files {
        if total <= goal {
            break;
        }
        match std::fs::remove_file(&file.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {}
            _ => {
                total -= file.bytes;
                count += 1;
            }
        }
    }
    tracing::debug!(
        "{count} compiled kernels ({} bytes) made room in {}",
        before - total,
        dir.display()
    );
    total
}

/// What a file takes, about: small ones too.
fn on_disk(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(4096)
}

/// Files that can go, those that are being written too: writers that die leave them. Abandoned temporary files go at once.
fn list(dir: &Path) -> Vec<File> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let now = SystemTime::now();
    let mut files = Vec::new();
    for entry in entries.flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        if !meta.is_file() {
            continue;
        }
        let (path, used) = (
            entry.path(),
            meta.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        );
        let is_old = now.duration_since(used).unwrap_or_default() > ABANDONED_AFTER;
        if path.extension().is_some() && is_old {
            let _ = std::fs::remove_file(&path);
            continue;
        }
        files.push(File {
            path,
            bytes: on_disk(meta.len()),
            used,
        });
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dir: &Path, name: &str, bytes: usize, age_seconds: u64) {
        let path = dir.join(name);
        std::fs::write(&path, vec![0; bytes]).expect("writes");
        let file = std::fs::File::options().append(true).open(path);
        let used = SystemTime::now() - Duration::from_secs(age_seconds);
        file.and_then(|f| f.set_modified(used)).expect("sets");
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(dir)
            .expect("lists")
            .map(|f| f.expect("a file").file_name().to_string_lossy().into())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_longest_unused_go_first() {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, age) in [("old", 300), ("new", 100), ("older", 400), ("newest", 1)] {
            file(dir.path(), name, 100, age);
        }
        assert_eq!(down_to(dir.path(), 4 * 4096), 4 * 4096, "it fits");
        assert_eq!(down_to(dir.path(), 3 * 4096), 2 * 4096);
        assert_eq!(names(dir.path()), ["new", "newest"]);
    }

    #[test]
    fn what_dead_writers_left_goes() {
        let dir = tempfile::tempdir().expect("a directory");
        file(dir.path(), "k.17-0", 10, 2 * ABANDONED_AFTER.as_secs());
        file(dir.path(), "k.18-0", 10, 1);
        down_to(dir.path(), 1 << 20);
        assert_eq!(names(dir.path()), ["k.18-0"], "one may still be written");
    }

    #[test]
    fn a_missing_directory_is_empty() {
        assert_eq!(down_to(Path::new("/nonexistent/kernels"), 0), 0);
    }
}
