//! Compiled code that another process keeps: a process that may have become its tenant's writes no file.
//!
//! Owns both ends of the stream between the two. The keeper takes names, which are hashes, and bytes that it does not look
//! at. It keeps the directory within its size before each file, whatever is asked of it, and gives out copies only: who has
//! a file open that was removed would still take its room.
//!
//! ```text
//!   L name                  what is kept?   answer: length (0: nothing), bytes
//!   S name length bytes     keep this       no answer
//! ```

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{CodeCache, DiskCodeCache, checked, evict, mark_used, name_of, open_own, sealed};

/// Longest file that is taken: more than twice what the largest kernel becomes.
const MOST_KEPT: u64 = 64 << 20;
/// How long a process waits for its keeper's disk before it compiles by itself.
const PATIENCE: Duration = Duration::from_secs(10);

const LOAD: u8 = b'L';
const SAVE: u8 = b'S';

type Name = [u8; 32];

/// The side of the process that compiles.
#[derive(Debug)]
pub struct KeptCodeCache(Mutex<Option<UnixStream>>);

impl KeptCodeCache {
    /// With the stream to the keeper.
    pub fn new(stream: UnixStream) -> Self {
        let is_bounded = stream.set_read_timeout(Some(PATIENCE)).is_ok()
            && stream.set_write_timeout(Some(PATIENCE)).is_ok();
        Self(Mutex::new(is_bounded.then_some(stream)))
    }

    /// Asks the keeper. After an error it is not asked again: the stream may be in the middle of something.
    fn ask<T>(&self, ask: impl FnOnce(&mut UnixStream) -> io::Result<T>) -> Option<T> {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match ask(stream.as_mut()?) {
            Ok(answer) => Some(answer),
            Err(error) => {
                tracing::warn!(%error, "compiled kernels are not kept any more");
                *stream = None;
                None
            }
        }
    }
}

impl CodeCache for KeptCodeCache {
    fn load(&self, key: &str) -> Option<Vec<u8>> {
        let bytes = self.ask(|stream| {
            stream.write_all(&[&[LOAD][..], &name_of(key)].concat())?;
            let length = read_length(stream)?;
            let mut bytes = Vec::new();
            stream.take(length).read_to_end(&mut bytes)?;
            match bytes.len() as u64 == length {
                true => Ok(bytes),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        })?;
        // The other workers of the owner may have said anything.
        checked(&bytes, key).map(<[u8]>::to_vec)
    }

    fn save(&self, key: &str, bytes: &[u8]) {
        let sealed = sealed(key, bytes);
        if sealed.len() as u64 > MOST_KEPT {
            return;
        }
        self.ask(|stream| {
            let length = (sealed.len() as u32).to_le_bytes();
            stream.write_all(&[&[SAVE][..], &name_of(key), &length].concat())?;
            stream.write_all(&sealed)
        });
    }
}

/// Keeps code for the process at the other end until it is gone, or asks for something that nobody would.
pub fn keep(mut stream: UnixStream, cache: &DiskCodeCache) {
    while answer(&mut stream, cache).is_ok() {}
}

fn answer(stream: &mut UnixStream, cache: &DiskCodeCache) -> io::Result<()> {
    let mut head = [0; 33];
    stream.read_exact(&mut head)?;
    let mut name = Name::default();
    name.copy_from_slice(&head[1..]);
    match head[0] {
        LOAD => give(stream, cache, &name),
        SAVE => take(stream, cache, &name),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn read_length(stream: &mut UnixStream) -> io::Result<u64> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    match u64::from(u32::from_le_bytes(length)) {
        length if length <= MOST_KEPT => Ok(length),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn give(stream: &mut UnixStream, cache: &DiskCodeCache, name: &Name) -> io::Result<()> {
    let none = 0u32.to_le_bytes();
    let Ok((mut file, meta)) = open_own(&cache.path_of(name)) else {
        return stream.write_all(&none);
    };
    if meta.len() > MOST_KEPT {
        return stream.write_all(&none);
    }
    mark_used(&file, &meta);
    stream.write_all(&(meta.len() as u32).to_le_bytes())?;
    copy(&mut file, stream, meta.len())
}

fn take(stream: &mut UnixStream, cache: &DiskCodeCache, name: &Name) -> io::Result<()> {
    let mut left = read_length(stream)?;
    // Before the file is there: the directory never holds more.
    evict::down_to(&cache.dir, cache.most_bytes.saturating_sub(left));
    let written = cache.put(&cache.path_of(name), |file: &mut File| {
        let mut part = [0; 64 << 10];
        while left > 0 {
            let most = left.min(part.len() as u64) as usize;
            stream.read_exact(&mut part[..most])?;
            left -= most as u64;
            file.write_all(&part[..most])?;
        }
        Ok(())
    });
    if let Err(error) = written {
        // A full disk, or a stream that has ended, which is found next.
        tracing::debug!(%error, "a compiled kernel is not kept");
    }
    copy(stream, &mut io::sink(), left)
}

/// So many bytes, no fewer.
fn copy(from: &mut impl Read, to: &mut impl Write, bytes: u64) -> io::Result<()> {
    match io::copy(&mut from.take(bytes), to)? {
        copied if copied == bytes => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeper(most_bytes: u64) -> (tempfile::TempDir, UnixStream) {
        let dir = tempfile::tempdir().unwrap();
        let cache = DiskCodeCache::open(&dir.path().join("kernels"), most_bytes).unwrap();
        let (own, other) = UnixStream::pair().unwrap();
        std::thread::spawn(move || keep(other, &cache));
        (dir, own)
    }

    fn held(dir: &tempfile::TempDir) -> u64 {
        let files = std::fs::read_dir(dir.path().join("kernels")).unwrap();
        files.map(|f| f.unwrap().metadata().unwrap().len()).sum()
    }

    #[test]
    fn what_was_kept_comes_back_also_from_a_directory_that_another_made() {
        let (dir, stream) = keeper(1 << 20);
        let kept = KeptCodeCache::new(stream);
        assert_eq!(kept.load("a"), None);
        kept.save("a", b"code of a");
        kept.save("b", &[7; 100_000]);
        assert_eq!(kept.load("a").as_deref(), Some(&b"code of a"[..]));
        assert_eq!(kept.load("b").map(|b| b.len()), Some(100_000));
        let disk = DiskCodeCache::open(&dir.path().join("kernels"), 1 << 20).unwrap();
        assert_eq!(disk.load("a").as_deref(), Some(&b"code of a"[..]));
        disk.save("c", b"code of c");
        assert_eq!(kept.load("c").as_deref(), Some(&b"code of c"[..]));
    }

    #[test]
    fn a_process_that_saves_without_end_never_fills_more_than_the_limit() {
        let (dir, mut stream) = keeper(1 << 20);
        for i in 0..60u8 {
            // Straight on the wire, as one would that wants to fill the disk. No name comes twice.
            let length = 100_000u32.to_le_bytes();
            let head = [&[SAVE][..], &[i; 32], &length].concat();
            stream.write_all(&head).unwrap();
            stream.write_all(&[i; 100_000]).unwrap();
        }
        // Its answer says that all before it is done.
        stream
            .write_all(&[&[LOAD][..], &[59; 32]].concat())
            .unwrap();
        let mut answer = vec![0; 100_004];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..4], 100_000u32.to_le_bytes());
        assert!(held(&dir) <= 1 << 20, "{}", held(&dir));
    }

    #[test]
    fn many_small_files_count_as_what_they_take_on_the_disk() {
        let (dir, mut stream) = keeper(64 << 10);
        for i in 0..100u8 {
            let head = [&[SAVE][..], &[i; 32], &1u32.to_le_bytes(), &[i]].concat();
            stream.write_all(&head).unwrap();
        }
        stream
            .write_all(&[&[LOAD][..], &[99; 32]].concat())
            .unwrap();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).unwrap();
        let files = std::fs::read_dir(dir.path().join("kernels")).unwrap();
        assert!(files.count() <= 16);
    }

    #[test]
    fn one_that_talks_nonsense_is_left_alone() {
        for nonsense in [
            [&[b'X'][..], &[0; 32]].concat(),
            [&[SAVE][..], &[0; 32], &u32::MAX.to_le_bytes()].concat(),
        ] {
            let (dir, mut stream) = keeper(1 << 20);
            stream.write_all(&nonsense).unwrap();
            assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "the keeper has gone");
            assert_eq!(held(&dir), 0);
        }
    }

    #[test]
    fn a_keeper_that_has_gone_costs_the_cache_and_nothing_else() {
        let (own, other) = UnixStream::pair().unwrap();
        drop(other);
        let kept = KeptCodeCache::new(own);
        kept.save("a", &[7; 1 << 20]);
        assert_eq!(kept.load("a"), None);
    }

    /// Half a file is no file, and is gone when its writer is.
    #[test]
    fn a_process_that_ends_in_the_middle_leaves_nothing() {
        let (dir, mut stream) = keeper(1 << 20);
        let head = [&[SAVE][..], &[3; 32], &1000u32.to_le_bytes(), &[3; 500]].concat();
        stream.write_all(&head).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
        assert_eq!(held(&dir), 0);
    }
}
