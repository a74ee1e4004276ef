//! Machine code kept between processes.
//!
//! Owns the file format and the directory. Code needs no relocation, so a file holds it as it is,
//! with its line table and a checksum. Writers make a temporary file and rename it, so readers see
//! a whole file or none; a file that is damaged, or that another user could have written, is not
//! used. Which code belongs to which key is the caller's business ([`crate::JitModule::cache_key`]).

use sha2::{Digest, Sha256};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const MAGIC: &[u8; 8] = b"MicaJit1";
const CHECK: usize = 32;

/// Where compiled code is kept.
pub trait CodeStore: Send + Sync + std::fmt::Debug {
    /// What was saved under a key.
    fn load(&self, key: &str) -> Option<Vec<u8>>;
    /// Keeps `bytes`. Failing to is not an error: the code is compiled again next time.
    fn save(&self, key: &str, bytes: &[u8]);
}

/// A directory of compiled code, readable by its owner only.
#[derive(Debug)]
pub struct DiskStore {
    dir: PathBuf,
}

impl DiskStore {
    /// Opens or makes the directory.
    ///
    /// # Errors
    /// When it cannot be made, or when others may write to it: code from there could be anything.
    pub fn open(dir: &Path) -> std::io::Result<DiskStore> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)?;
        if !private(&std::fs::metadata(dir)?) {
            let text = format!("{} may be written by others", dir.display());
            return Err(std::io::Error::new(
                std::io::ErrorKind::PermissionDenied,
                text,
            ));
        }
        Ok(DiskStore {
            dir: dir.to_owned(),
        })
    }

    fn path(&self, key: &str) -> PathBuf {
        let hash = Sha256::digest(key.as_bytes());
        let name: String = hash.iter().map(|b| format!("{b:02x}")).collect();
        self.dir.join(name)
    }
}

/// Whether only this user can have written something.
fn private(m: &std::fs::Metadata) -> bool {
    // SAFETY: no preconditions.
    let me = unsafe { libc::geteuid() };
    m.uid() == me && m.mode() & 0o022 == 0
}

impl CodeStore for DiskStore {
    fn load(&self, key: &str) -> Option<Vec<u8>> {
        let path = self.path(key);
        let meta = std::fs::symlink_metadata(&path).ok()?;
        if !meta.is_file() || !private(&meta) {
            return None;
        }
        let bytes = std::fs::read(&path).ok()?;
        let body = bytes.strip_prefix(MAGIC)?;
        let (check, body) = body.split_at_checked(CHECK)?;
        if Sha256::digest(body).as_slice() != check {
            return None;
        }
        Some(body.to_vec())
    }

    fn save(&self, key: &str, bytes: &[u8]) {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let path = self.path(key);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let temporary = path.with_extension(format!("{}-{n}", std::process::id()));
        let write = || -> std::io::Result<()> {
            let mut f = std::fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&temporary)?;
            f.write_all(MAGIC)?;
            f.write_all(&Sha256::digest(bytes))?;
            f.write_all(bytes)?;
            drop(f);
            std::fs::rename(&temporary, &path)
        };
        if write().is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
    }
}

/// Code and its line table as bytes.
pub(crate) fn encode(code: &[u8], locations: &[(u32, u32, u32)]) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 + code.len() + 12 * locations.len());
    out.extend((code.len() as u32).to_le_bytes());
    out.extend((locations.len() as u32).to_le_bytes());
    out.extend(code);
    for (a, b, c) in locations {
        for x in [a, b, c] {
            out.extend(x.to_le_bytes());
        }
    }
    out
}

/// The opposite of [`encode`]; `None` for anything else.
#[allow(clippy::type_complexity, reason = "what `encode` takes")]
pub(crate) fn decode(bytes: &[u8]) -> Option<(&[u8], Vec<(u32, u32, u32)>)> {
    let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let (head, rest) = bytes.split_at_checked(8)?;
    let (code_len, count) = (word(head) as usize, word(&head[4..]) as usize);
    let (code, table) = rest.split_at_checked(code_len)?;
    if table.len() != count.checked_mul(12)? || code.is_empty() {
        return None;
    }
    let locations = table
        .chunks_exact(12)
        .map(|c| (word(c), word(&c[4..]), word(&c[8..])))
        .collect();
    Some((code, locations))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_loaded() {
        let dir = tempfile::tempdir().expect("a directory");
        let s = DiskStore::open(&dir.path().join("code")).expect("opens");
        assert_eq!(s.load("a"), None);
        s.save("a", b"one");
        s.save("a", b"two");
        assert_eq!(s.load("a").as_deref(), Some(&b"two"[..]));
        assert_eq!(s.load("b"), None);
        let left: Vec<_> = std::fs::read_dir(dir.path().join("code"))
            .expect("lists")
            .collect();
        assert_eq!(left.len(), 1, "no temporary files stay");
    }

    #[test]
    fn damaged_files_are_not_used() {
        let dir = tempfile::tempdir().expect("a directory");
        let s = DiskStore::open(&dir.path().join("code")).expect("opens");
        s.save("a", b"some bytes");
        let path = s.path("a");
        let good = std::fs::read(&path).expect("reads");
        for at in [0, 9, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&path, &bad).expect("writes");
            assert_eq!(s.load("a"), None, "byte {at}");
        }
        std::fs::write(&path, &good[..good.len() - 1]).expect("writes");
        assert_eq!(s.load("a"), None);
        std::fs::write(&path, &good).expect("writes");
        assert!(s.load("a").is_some());
    }

    #[test]
    fn directories_of_others_are_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).expect("chmod");
        assert!(DiskStore::open(dir.path()).is_err());
    }

    #[test]
    fn tables_survive_and_nonsense_does_not() {
        let bytes = encode(&[1, 2, 3], &[(0, 2, 7), (2, 3, 8)]);
        assert_eq!(
            decode(&bytes),
            Some((&[1u8, 2, 3][..], vec![(0, 2, 7), (2, 3, 8)]))
        );
        assert_eq!(decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(decode(&[0xff; 8]), None);
        assert_eq!(decode(&[]), None);
    }
}
