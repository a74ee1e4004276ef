//! Compiled code that another process keeps: a process that may have become its tenant's writes no file.
//!
//! Owns both ends of the stream between the two. The keeper takes names, which are hashes, and bytes that it does not look
//! at. It keeps the directory within its size before each file, whatever is asked of it, and gives out copies only: who has
//! a file open that was removed would still take its room. For the same reason it has all bytes of a file before it makes one.
//!
//! ```text
//!   L name                  what is kept?   answer: length (0: nothing), bytes
//!   S name length bytes     keep this       no answer
//! ```

use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{CodeCache, DiskCodeCache, checked, evict, mark_used, name_of, open_own, sealed};

/// Longest file that is taken: more than twice what the largest kernel becomes.
const MOST_KEPT: u64 = 64 << 20;
/// How long a process waits for its keeper's disk before it compiles by itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a keeper waits until no other one adds a file. Whoever keeps it waiting longer costs a file, not a process.
const TURN_WITHIN: Duration = Duration::from_secs(2);
/// How often it looks.
const TURN_EVERY: Duration = Duration::from_millis(2);

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
    let length = read_length(stream)?;
    // All of it first, in memory that is the worker's group's: a file whose rest never comes would take room unseen, once
    // another keeper has removed it.
    let mut bytes = Vec::new();
    copy(stream, &mut bytes, length)?;
    let Some(_alone) = alone_in(&cache.dir) else {
        return Ok(());
    };
    // Before the file is there: the directory never holds more.
    evict::down_to(&cache.dir, cache.most_bytes.saturating_sub(length));
    let written = cache.put(&cache.path_of(name), |file: &mut File| {
        file.write_all(&bytes)
    });
    if let Err(error) = written {
        // A full disk.
        tracing::debug!(%error, "a compiled kernel is not kept");
    }
    Ok(())
}

/// Keeps other keepers from adding to the directory as long as it lives: each of many would find room for its own file.
/// `None` if that takes too long.
fn alone_in(dir: &Path) -> Option<File> {
    let dir = File::open(dir).ok()?;
    let until = Instant::now() + TURN_WITHIN;
    loop {
        match dir.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                std::thread::sleep(TURN_EVERY)
            }
            Err(TryLockError::WouldBlock) => return None,
            // A file system without locks is kept within its size by the daemon.
            Ok(()) | Err(TryLockError::Error(_)) => return Some(dir),
        }
    }
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
        // One may go between the two.
        let lengths = files.filter_map(|f| f.unwrap().metadata().ok());
        lengths.map(|file| file.len()).sum()
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

    #[test]
    fn a_process_that_waits_in_the_middle_takes_no_room() {
        let (dir, mut stream) = keeper(1 << 20);
        let head = [&[SAVE][..], &[3; 32], &500_000u32.to_le_bytes()].concat();
        stream.write_all(&head).unwrap();
        stream.write_all(&[3; 300_000]).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let files = std::fs::read_dir(dir.path().join("kernels")).unwrap();
        assert_eq!(files.count(), 0, "not even a removed one");
        stream.write_all(&[3; 200_000]).unwrap();
        let load = [&[LOAD][..], &[3; 32]].concat();
        stream.write_all(&load).unwrap();
        let mut answer = vec![0; 500_004];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(held(&dir), 500_000);
    }

    #[test]
    fn keepers_of_many_processes_together_stay_within_the_limit() {
        let (dir, _) = keeper(1 << 20);
        let folder = &dir.path().join("kernels");
        std::thread::scope(|scope| {
            let save = move |process: u8| {
                let cache = DiskCodeCache::open(folder, 1 << 20).unwrap();
                let (mut own, other) = UnixStream::pair().unwrap();
                scope.spawn(move || keep(other, &cache));
                for file in 0..20 {
                    let name = [[process; 16], [file; 16]].concat();
                    let head = [&[SAVE][..], &name, &200_000u32.to_le_bytes()].concat();
                    own.write_all(&head).unwrap();
                    own.write_all(&[process; 200_000]).unwrap();
                }
            };
            let all: Vec<_> = (0..8).map(|n| scope.spawn(move || save(n))).collect();
            while all.iter().any(|one| !one.is_finished()) {
                assert!(held(&dir) <= 1 << 20, "{}", held(&dir));
            }
        });
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
