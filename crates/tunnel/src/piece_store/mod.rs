//! Pieces on disk by their hash, so that a second start of a program sends no weights again.
//!
//! ```text
//!   index    a record of 64 bytes for each place
//!   pieces   256 KiB for each place
//! ```
//! The files never grow past the limit: a piece for which there is no free place takes another one's. Pieces that were sent
//! again stay longer than those that were not, so that data which is sent once, as that of a training loop, displaces no weights; and one session writes
//! each place once at most.
//!
//! All sessions of one client use the files at once. Records are changed under the lock of the index. Pieces are read without it and compared with
//! their hash, so one that was displaced or damaged meanwhile is one that is not there.

mod index;

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock, fstatvfs};
use rustix::io::Errno;

use crate::lock;
use crate::pieces::{Hash, PIECE_BYTES, hash_of};
use index::{Index, RECORD_BYTES, Record};

/// Most pieces that are told: their prefixes fit a frame.
const MOST_TOLD: usize = 60_000;
/// How often, and after which pauses, the lock is tried. A process that stands still with it keeps nobody's session.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(2);
/// Bytes of the file system that are left free.
const LEFT_FREE_BYTES: u64 = 2 << 30;
/// A use is noted if the last one is older.
const NOTED_EVERY_US: u64 = 60_000_000;

pub(crate) mod fuzzing {
    use super::index::{Index, Record};

    /// An index of any bytes: it names places that it has, and goes on.
    pub(crate) fn index(bytes: &[u8]) {
        const PLACES: u32 = 40;
        let mut index = Index::new(bytes, PLACES, 1 << 40);
        assert!(index.prefixes(10).len() <= 10);
        for place in 0..PLACES {
            let record = index.get(place);
            assert!(record.is_free() || index.find(&record.hash).is_some_and(|at| at < PLACES));
        }
        for round in 0..2 * PLACES as u8 {
            let Some(place) = index.next_place(true) else {
                break;
            };
            let record = Record {
                hash: [round + 1; 32],
                used_us: (1 << 41) + u64::from(round),
                found: 0,
            };
            index.set(place, record);
            assert_eq!(index.find(&record.hash), Some(place));
        }
    }
}

/// Where the pieces of one client are kept, and how many bytes of them.
#[derive(Clone, Debug)]
pub struct PieceFolder {
    folder: PathBuf,
    most_bytes: u64,
}

impl PieceFolder {
    /// A folder, which is made when it is needed.
    pub fn new(folder: PathBuf, most_bytes: u64) -> Self {
        Self { folder, most_bytes }
    }

    pub(crate) fn open(&self) -> io::Result<PieceStore> {
        PieceStore::open(&self.folder, self.most_bytes)
    }
}

/// The open files. One thread writes ([`PieceStore::put`], [`PieceStore::note`]); others read.
#[derive(Debug)]
pub(crate) struct PieceStore {
    index_file: File,
    pieces: File,
    places: u32,
    index: Mutex<Index>,
    /// Places that this session may still write.
    left: Mutex<u32>,
}

/// What came of reading a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It is in the buffer.
    Here,
    /// It is not known.
    Nowhere,
    /// It should be there and is not.
    Damaged,
}

fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_micros() as u64
}

fn open_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).mode(0o600);
    options.open(path)
}

impl PieceStore {
    fn open(folder: &Path, most_bytes: u64) -> io::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        let index_file = open_file(&folder.join("index"))?;
        let pieces = open_file(&folder.join("pieces"))?;
        let places = u32::try_from(most_bytes / PIECE_BYTES as u64).unwrap_or(u32::MAX);
        let mut store = Self {
            index_file,
            pieces,
            places,
            index: Mutex::default(),
            left: Mutex::new(places),
        };
        {
            let _locked = Locked::take(&store.index_file)?;
            // The limit may be lower than it was.
            for (file, each) in [
                (&store.index_file, RECORD_BYTES),
                (&store.pieces, PIECE_BYTES),
            ] {
                let most = u64::from(places) * each as u64;
                if file.metadata()?.len() > most {
                    file.set_len(most)?;
                }
            }
            store.index = Mutex::new(store.read_index()?);
        }
        Ok(store)
    }

    fn read_index(&self) -> io::Result<Index> {
        let most = self.places as usize * RECORD_BYTES;
        let len = self.index_file.metadata()?.len().min(most as u64);
        let mut bytes = vec![0; len as usize];
        self.index_file.read_exact_at(&mut bytes, 0)?;
        Ok(Index::new(&bytes, self.places, now_us()))
    }

    /// Prefixes of what is here.
    pub(crate) fn prefixes(&self) -> Vec<u64> {
        lock(&self.index).prefixes(MOST_TOLD)
    }

    /// Reads a piece into a buffer of its size.
    pub(crate) fn get(&self, hash: &Hash, buffer: &mut [u8]) -> Found {
        let Some(place) = lock(&self.index).find(hash) else {
            return Found::Nowhere;
        };
        let at = u64::from(place) * PIECE_BYTES as u64;
        match self.pieces.read_exact_at(buffer, at) {
            Ok(()) if hash_of(buffer) == *hash => Found::Here,
            _ => Found::Damaged,
        }
    }

    /// Keeps a piece; whether it is here now.
    pub(crate) fn put(&self, hash: &Hash, piece: &[u8]) -> io::Result<bool> {
        if lock(&self.index).find(hash).is_some() {
            return Ok(true);
        }
        if *lock(&self.left) == 0 || piece.len() != PIECE_BYTES {
            return Ok(false);
        }
        let _locked = Locked::take(&self.index_file)?;
        let Some(place) = self.choose_place()? else {
            return Ok(false);
        };
        // While the bytes change the place has no piece, for others and after a crash.
        self.set_record(place, Record::default())?;
        (self.pieces).write_all_at(piece, u64::from(place) * PIECE_BYTES as u64)?;
        let record = Record {
            hash: *hash,
            used_us: now_us(),
            found: 0,
        };
        self.set_record(place, record)?;
        *lock(&self.left) -= 1;
        Ok(true)
    }

    /// Notes that a piece was used, or looks at one that seemed to be damaged.
    pub(crate) fn note(&self, hash: &Hash, found: Found) -> io::Result<()> {
        let Some(place) = lock(&self.index).find(hash) else {
            return Ok(());
        };
        let known = lock(&self.index).get(place);
        let is_noted = known.found > 0 && now_us() < known.used_us + NOTED_EVERY_US;
        if found == Found::Here && is_noted {
            return Ok(());
        }
        let _locked = Locked::take(&self.index_file)?;
        let mut record = self.read_record(place)?;
        if record.hash == *hash {
            let mut piece = vec![0; PIECE_BYTES];
            match found {
                Found::Here => {
                    record.found = record.found.saturating_add(1);
                    record.used_us = now_us();
                }
                // Displaced and written again meanwhile, perhaps.
                _ if self.get(hash, &mut piece) == Found::Here => {}
                _ => {
                    tracing::warn!(place, "a kept piece is damaged and will be sent again");
                    record = Record::default();
                }
            }
            return self.set_record(place, record);
        }
        lock(&self.index).set(place, record);
        Ok(())
    }

    /// A place for one more piece, as the file has it now.
    fn choose_place(&self) -> io::Result<Option<u32>> {
        let may_grow = self.may_grow();
        let next = lock(&self.index).next_place(may_grow);
        let Some(place) = next else {
            return Ok(None);
        };
        if self.read_record(place)? == lock(&self.index).get(place) {
            return Ok(Some(place));
        }
        // Another session has used it.
        let fresh = self.read_index()?;
        let next = fresh.next_place(may_grow);
        *lock(&self.index) = fresh;
        Ok(next)
    }

    /// Whether the file system has room for more than it has now.
    fn may_grow(&self) -> bool {
        let Ok(system) = fstatvfs(&self.pieces) else {
            return false;
        };
        system.f_bavail.saturating_mul(system.f_frsize) > LEFT_FREE_BYTES
    }

    fn read_record(&self, place: u32) -> io::Result<Record> {
        let mut bytes = [0; RECORD_BYTES];
        let at = u64::from(place) * RECORD_BYTES as u64;
        match self.index_file.read_exact_at(&mut bytes, at) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Record::default()),
            Err(error) => Err(error),
            Ok(()) => Ok(Record::from_bytes(&bytes, now_us())),
        }
    }

    fn set_record(&self, place: u32, record: Record) -> io::Result<()> {
        lock(&self.index).set(place, record);
        let at = u64::from(place) * RECORD_BYTES as u64;
        self.index_file.write_all_at(&record.to_bytes(), at)
    }
}

/// The lock of the index, while it lives. Only one thread of a process takes it.
struct Locked<'a>(&'a File);

impl<'a> Locked<'a> {
    fn take(file: &'a File) -> io::Result<Self> {
        for _ in 0..TRIES {
            match flock(file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(file)),
                Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(PAUSE),
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests;
