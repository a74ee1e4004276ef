//! Machine code kept between processes.
//!
//! Owns the file format and the directory. Code needs no relocation, so a file holds it as it is,
//! with its line table, the key that it was saved under, and a hash of both. Writers make a temporary
//! file and rename it, so readers see a whole file or none; a file that is damaged, that belongs to
//! another key, or that another user could have written, is not used. The directory is kept within a size: the
//! least recently used file goes first. An error of the directory is logged and the code is compiled again; it
//! never reaches the program. Which code belongs to
//! which key is the caller's business ([`crate::JitModule::cache_key`]).

mod evict;
mod kept;

pub use kept::{KeptCodeCache, keep};

use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// magic, hash of all that follows, length of the key as 4 bytes, the key, the code.
const MAGIC: &[u8; 8] = b"MicaJit2";
const CHECK: usize = 32;

/// No kernel that is compiled becomes more code than this.
const MOST_FILE: u64 = 256 << 20;

/// A hit marks its file as used when the last mark is older than this: once an hour is enough to
/// tell what is in use, and costs a hit nothing.
const USED_AGAIN_AFTER: Duration = Duration::from_secs(3600);

/// Where compiled code is kept.
pub trait CodeCache: Send + Sync + std::fmt::Debug {
    /// What was saved under a key.
    fn load(&self, key: &str) -> Option<Vec<u8>>;
    /// Keeps `bytes`. Failing to is not an error: the code is compiled again next time.
    fn save(&self, key: &str, bytes: &[u8]);
}

/// A directory of compiled code, readable by its owner only.
#[derive(Debug)]
pub struct DiskCodeCache {
    dir: PathBuf,
    most_bytes: u64,
    /// Bytes this process may still add before it looks at the directory's size again.
    until_look: AtomicU64,
    /// Whether a failure to write was logged: a full disk would otherwise fill the log too.
    complained: AtomicBool,
}

impl DiskCodeCache {
    /// Opens or makes the directory, which is kept at `most_bytes` or less.
    ///
    /// # Errors
    /// When it cannot be made, or when others may write to it: code from there could be anything.
    pub fn open(dir: &Path, most_bytes: u64) -> io::Result<DiskCodeCache> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)?;
        if !private(&std::fs::metadata(dir)?) {
            let text = format!("{} may be written by others", dir.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(DiskCodeCache {
            dir: dir.to_owned(),
            most_bytes,
            until_look: AtomicU64::new(0),
            complained: AtomicBool::new(false),
        })
    }

    fn path(&self, key: &str) -> PathBuf {
        self.path_of(&name_of(key))
    }

    fn path_of(&self, name: &[u8; 32]) -> PathBuf {
        let name: String = name.iter().map(|b| format!("{b:02x}")).collect();
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

/// What a key's file is called, as bytes.
fn name_of(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// Whether only this user can have written something.
fn private(m: &std::fs::Metadata) -> bool {
    // SAFETY: no preconditions.
    let me = unsafe { libc::geteuid() };
    m.uid() == me && m.mode() & 0o022 == 0
}

/// The code in a file, if the file is whole and was saved under this key.
fn checked<'f>(bytes: &'f [u8], key: &str) -> Option<&'f [u8]> {
    let (check, body) = bytes.strip_prefix(MAGIC)?.split_at_checked(CHECK)?;
    if Sha256::digest(body).as_slice() != check {
        return None;
    }
    let (len, rest) = body.split_first_chunk::<4>()?;
    let (own, code) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    (own == key.as_bytes()).then_some(code)
}

/// A file as [`checked`] takes it.
fn sealed(key: &str, code: &[u8]) -> Vec<u8> {
    let len = (key.len() as u32).to_le_bytes();
    let body = [&len, key.as_bytes(), code].concat();
    [MAGIC.as_slice(), &Sha256::digest(&body), &body].concat()
}

/// Opens a file of this user's own. What is looked at is what is read: nothing can be put in its place
/// between the two, a link is not followed and a pipe not waited for.
fn open_own(path: &Path) -> io::Result<(File, std::fs::Metadata)> {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() || !private(&meta) || meta.len() > MOST_FILE {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok((file, meta))
}

fn mark_used(file: &File, meta: &std::fs::Metadata) {
    let now = SystemTime::now();
    let fresh = meta
        .modified()
        .is_ok_and(|at| now.duration_since(at).unwrap_or_default() < USED_AGAIN_AFTER);
    if !fresh {
        let _ = file.set_modified(now);
    }
}

impl CodeCache for DiskCodeCache {
    fn load(&self, key: &str) -> Option<Vec<u8>> {
        let path = self.path(key);
        let (mut file, meta) = match open_own(&path) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(_) => {
                tracing::warn!("{} is not this user's own file", path.display());
                return None;
            }
        };
        let mut bytes = Vec::with_capacity(meta.len() as usize);
        (&mut file).take(MOST_FILE).read_to_end(&mut bytes).ok()?;
        let Some(code) = checked(&bytes, key) else {
            tracing::warn!(
                "{} is damaged or another kernel's: its kernel is compiled again",
                path.display()
            );
            return None;
        };
        mark_used(&file, &meta);
        Some(code.to_vec())
    }

    fn save(&self, key: &str, bytes: &[u8]) {
        let sealed = sealed(key, bytes);
        let written = self.put(&self.path(key), |file| file.write_all(&sealed));
        match written {
            Ok(()) => self.make_room(sealed.len() as u64),
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
mod tests;
