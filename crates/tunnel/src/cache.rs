//! Blobs on disk by their hash, so that a second start of a program sends no module again.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A folder of blobs of one tenant; the oldest go first.
#[derive(Clone, Debug)]
pub struct BlobCache {
    folder: PathBuf,
    most_bytes: u64,
}

impl BlobCache {
    /// A cache in a folder, which is made when it is needed.
    pub fn new(folder: PathBuf, most_bytes: u64) -> Self {
        Self { folder, most_bytes }
    }

    fn file(&self, hash: &[u8; 32]) -> PathBuf {
        self.folder
            .join(blake3::Hash::from_bytes(*hash).to_hex().as_str())
    }

    /// The blob with a hash, if it is there and is what it should be.
    pub fn get(&self, hash: &[u8; 32], bytes: u64) -> Option<Vec<u8>> {
        let path = self.file(hash);
        if fs::metadata(&path).ok()?.len() != bytes {
            return None;
        }
        let blob = fs::read(&path).ok()?;
        if blake3::hash(&blob).as_bytes() != hash {
            tracing::warn!(path = %path.display(), "a cached module is damaged and is fetched again");
            let _ = fs::remove_file(&path);
            return None;
        }
        // Used now: the last to go.
        let file = fs::File::options().append(true).open(&path);
        let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
        Some(blob)
    }

    /// Keeps a blob. What cannot be kept is sent again next time.
    pub fn put(&self, hash: &[u8; 32], blob: &[u8]) {
        if blob.len() as u64 > self.most_bytes / 2 {
            return;
        }
        if let Err(error) = self.try_put(hash, blob) {
            let folder = self.folder.display();
            tracing::warn!(%error, "modules cannot be kept in {folder}");
        }
    }

    fn try_put(&self, hash: &[u8; 32], blob: &[u8]) -> std::io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        self.make_room(blob.len() as u64);
        let path = self.file(hash);
        let fresh = path.with_extension(format!("{}.new", std::process::id()));
        let kept = fs::write(&fresh, blob).and_then(|()| fs::rename(&fresh, &path));
        if kept.is_err() {
            // Where the disk is full a part of it would keep it so.
            let _ = fs::remove_file(&fresh);
        }
        kept
    }

    fn make_room(&self, bytes: u64) {
        let mut files = entries(&self.folder);
        files.sort();
        let mut held: u64 = files.iter().map(|(_, _, bytes)| bytes).sum();
        for (_, path, size) in files {
            if held.saturating_add(bytes) <= self.most_bytes {
                return;
            }
            let _ = fs::remove_file(path);
            held -= size;
        }
    }
}

fn entries(folder: &Path) -> Vec<(SystemTime, PathBuf, u64)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let data = entry.metadata().ok()?;
            Some((data.modified().ok()?, entry.path(), data.len()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_come_back_unless_they_were_damaged_or_displaced() {
        let folder = tempfile::tempdir().unwrap();
        let cache = BlobCache::new(folder.path().join("blobs"), 10_000);
        let hash = |blob: &[u8]| *blake3::hash(blob).as_bytes();
        let (one, two, three) = (vec![1; 4000], vec![2; 4000], vec![3; 4000]);
        cache.put(&hash(&one), &one);
        assert_eq!(cache.get(&hash(&one), 4000), Some(one.clone()));
        assert_eq!(cache.get(&hash(&one), 3999), None);
        let old = SystemTime::now() - std::time::Duration::from_secs(60);
        let file = fs::File::options()
            .append(true)
            .open(cache.file(&hash(&one)));
        file.unwrap().set_modified(old).unwrap();
        cache.put(&hash(&two), &two);
        cache.put(&hash(&three), &three);
        assert_eq!(cache.get(&hash(&one), 4000), None, "the oldest went");
        assert_eq!(cache.get(&hash(&two), 4000), Some(two.clone()));
        fs::write(cache.file(&hash(&two)), vec![9; 4000]).unwrap();
        assert_eq!(cache.get(&hash(&two), 4000), None);
        assert!(!cache.file(&hash(&two)).exists());
    }
    #[test]
    fn what_cannot_be_kept_leaves_no_part_of_itself() {
        let folder = tempfile::tempdir().unwrap();
        let cache = BlobCache::new(folder.path().to_owned(), 10_000);
        let blob = vec![1; 4000];
        let hash = *blake3::hash(&blob).as_bytes();
        // In place of the file, so that the last step fails.
        fs::create_dir(cache.file(&hash)).unwrap();
        cache.put(&hash, &blob);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
