//! Machine code kept between processes.
//!
//! Owns the file format and the directory. Code needs no relocation, so a file holds it as it is,
//! with its line table and a checksum. Writers make a temporary file and rename it, so readers see
//! a whole file or none; a file that is damaged, or that another user could have written, is not
//! used. The directory is kept within a size: what was used longest ago goes first. No trouble with
//! it reaches the program: it is logged, and the code is compiled again. Which code belongs to
//! which key is the caller's business ([`crate::JitModule::cache_key`]).

mod evict;

use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

const MAGIC: &[u8; 8] = b"MicaJit1";
const CHECK: usize = 32;

/// A hit marks its file as used when the last mark is older than this: once an hour is enough to
/// tell what is in use, and costs a hit nothing.
const USED_AGAIN_AFTER: Duration = Duration::from_secs(3600);

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
    most_bytes: u64,
    /// Bytes this process may still add before it looks at the directory's size again.
    until_look: AtomicU64,
    /// Whether a failure to write was logged: a full disk would otherwise fill the log too.
    complained: AtomicBool,
}

impl DiskStore {
    /// Opens or makes the directory, which is kept at `most_bytes` or less.
    ///
    /// # Errors
    /// When it cannot be made, or when others may write to it: code from there could be anything.
    pub fn open(dir: &Path, most_bytes: u64) -> io::Result<DiskStore> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)?;
        if !private(&std::fs::metadata(dir)?) {
            let text = format!("{} may be written by others", dir.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(DiskStore {
            dir: dir.to_owned(),
            most_bytes,
            until_look: AtomicU64::new(0),
            complained: AtomicBool::new(false),
        })
    }

    fn path(&self, key: &str) -> PathBuf {
        let hash = Sha256::digest(key.as_bytes());
        let name: String = hash.iter().map(|b| format!("{b:02x}")).collect();
        self.dir.join(name)
    }

    /// Writes a file so that readers see all of it or nothing.
    fn put(&self, path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let temporary = path.with_extension(format!("{}-{n}", std::process::id()));
        let written = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)
            .and_then(|mut file| write(&mut file))
            .and_then(|()| std::fs::rename(&temporary, path));
        if written.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        written
    }

    /// Looks at the directory's size now and then, and makes room.
    fn make_room(&self, added: u64) {
        let left = self.until_look.load(Ordering::Relaxed);
        if left > added {
            self.until_look.store(left - added, Ordering::Relaxed);
            return;
        }
        let kept = evict::down_to(&self.dir, self.most_bytes);
        // Others write too, so look again well before this process alone could fill it.
        let room = self.most_bytes.saturating_sub(kept) / 4;
        self.until_look.store(room, Ordering::Relaxed);
    }
}

/// Whether only this user can have written something.
fn private(m: &std::fs::Metadata) -> bool {
    // SAFETY: no preconditions.
    let me = unsafe { libc::geteuid() };
    m.uid() == me && m.mode() & 0o022 == 0
}

/// The code in a file, if the file is whole.
fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (check, body) = bytes.strip_prefix(MAGIC)?.split_at_checked(CHECK)?;
    (Sha256::digest(body).as_slice() == check).then_some(body)
}

fn mark_used(path: &Path, meta: &std::fs::Metadata) {
    let now = SystemTime::now();
    let fresh = meta
        .modified()
        .is_ok_and(|at| now.duration_since(at).unwrap_or_default() < USED_AGAIN_AFTER);
    if !fresh && let Ok(file) = File::options().append(true).open(path) {
        let _ = file.set_modified(now);
    }
}

impl CodeStore for DiskStore {
    fn load(&self, key: &str) -> Option<Vec<u8>> {
        let path = self.path(key);
        let meta = std::fs::symlink_metadata(&path).ok()?;
        if !meta.is_file() || !private(&meta) {
            tracing::warn!("{} is not this user's own file", path.display());
            return None;
        }
        let bytes = std::fs::read(&path).ok()?;
        let Some(body) = checked(&bytes) else {
            tracing::warn!(
                "{} is damaged: its kernel is compiled again",
                path.display()
            );
            return None;
        };
        mark_used(&path, &meta);
        Some(body.to_vec())
    }

    fn save(&self, key: &str, bytes: &[u8]) {
        let written = self.put(&self.path(key), |file| {
            file.write_all(MAGIC)?;
            file.write_all(&Sha256::digest(bytes))?;
            file.write_all(bytes)
        });
        match written {
            Ok(()) => self.make_room((MAGIC.len() + CHECK + bytes.len()) as u64),
            Err(error) if !self.complained.swap(true, Ordering::Relaxed) => {
                tracing::warn!(%error, "a compiled kernel is not kept in {}", self.dir.display());
            }
            Err(_) => {}
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

    fn store() -> (tempfile::TempDir, DiskStore) {
        let dir = tempfile::tempdir().expect("a directory");
        let store = DiskStore::open(&dir.path().join("code"), 1 << 20).expect("opens");
        (dir, store)
    }

    fn files(store: &DiskStore) -> usize {
        std::fs::read_dir(&store.dir).expect("lists").count()
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let (_dir, s) = store();
        assert_eq!(s.load("a"), None);
        s.save("a", b"one");
        s.save("a", b"two");
        assert_eq!(s.load("a").as_deref(), Some(&b"two"[..]));
        assert_eq!(s.load("b"), None);
        assert_eq!(files(&s), 1, "no temporary files stay");
    }

    #[test]
    fn damaged_files_are_not_used_and_are_replaced() {
        let (_dir, s) = store();
        s.save("a", b"some bytes");
        let path = s.path("a");
        let good = std::fs::read(&path).expect("reads");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&path, &bad).expect("writes");
            assert_eq!(s.load("a"), None, "byte {at}");
        }
        for length in 0..good.len() {
            std::fs::write(&path, &good[..length]).expect("writes");
            assert_eq!(s.load("a"), None, "cut to {length} bytes");
        }
        s.save("a", b"some bytes");
        assert_eq!(s.load("a").as_deref(), Some(&b"some bytes"[..]));
    }

    #[test]
    fn directories_and_files_of_others_are_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).expect("chmod");
        assert!(DiskStore::open(dir.path(), 1 << 20).is_err());

        let (_dir, s) = store();
        s.save("a", b"one");
        std::fs::set_permissions(s.path("a"), PermissionsExt::from_mode(0o666)).expect("chmod");
        assert_eq!(s.load("a"), None);
        std::fs::remove_file(s.path("a")).expect("removes");
        std::os::unix::fs::symlink("/dev/zero", s.path("a")).expect("links");
        assert_eq!(s.load("a"), None, "a link is not followed");
    }

    #[test]
    fn writers_of_one_key_never_mix() {
        let (_dir, s) = store();
        let value = |who: u8| vec![who; 3000 + usize::from(who)];
        std::thread::scope(|scope| {
            for who in 0..4 {
                let (s, value) = (&s, &value);
                scope.spawn(move || {
                    for _ in 0..50 {
                        s.save("a", &value(who));
                        let found = s.load("a").expect("someone's");
                        assert_eq!(found, value(found[0]));
                    }
                });
            }
        });
        assert_eq!(files(&s), 1);
    }

    #[test]
    fn a_disk_that_fills_up_leaves_nothing_behind() {
        let (_dir, s) = store();
        let full = s.put(&s.path("a"), |file| {
            file.write_all(b"the beginning")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert!(full.is_err());
        assert_eq!((files(&s), s.load("a")), (0, None));
    }

    #[test]
    fn a_directory_that_cannot_be_had_is_an_error_and_one_that_vanishes_is_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        std::fs::write(&file, b"").expect("writes");
        assert!(DiskStore::open(&file.join("code"), 1 << 20).is_err());

        let (_dir, s) = store();
        std::fs::remove_dir(&s.dir).expect("removes");
        s.save("a", b"one");
        assert_eq!(s.load("a"), None);
    }

    #[test]
    fn the_directory_stays_within_its_size() {
        let dir = tempfile::tempdir().expect("a directory");
        let s = DiskStore::open(&dir.path().join("code"), 20_000).expect("opens");
        for i in 0..100 {
            s.save(&i.to_string(), &[0; 1000]);
        }
        let total: u64 = std::fs::read_dir(&s.dir)
            .expect("lists")
            .map(|f| f.expect("an entry").metadata().expect("its size").len())
            .sum();
        assert!(total <= 20_000, "{total} bytes");
        assert!(files(&s) > 5, "not everything goes");
        assert!(s.load("99").is_some(), "the newest stays");
    }

    #[test]
    fn a_hit_counts_as_use() {
        let (_dir, s) = store();
        s.save("a", b"one");
        let old = SystemTime::now() - 2 * USED_AGAIN_AFTER;
        let file = File::options()
            .append(true)
            .open(s.path("a"))
            .expect("opens");
        file.set_modified(old).expect("sets");
        assert!(s.load("a").is_some());
        let now = std::fs::metadata(s.path("a")).and_then(|m| m.modified());
        assert!(now.expect("a time") > old + USED_AGAIN_AFTER);
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
