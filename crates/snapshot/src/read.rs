//! Reading a snapshot.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use mica_wire::session::{Field, Reader};

use crate::head::{HEAD_BYTES, Head};
use crate::write::form;
use crate::{
    BLOCK_BYTES, MOST_SESSION_BYTES, Manifest, Part, Result, SavedPort, SavedSession, SnapshotError,
};

/// Bytes of memory beside their length that objects take: many short ones. A session has no more of them than these are for.
const MOST_OVERHEAD: u64 = 64 << 20;
/// The same of an almost empty session.
const LEAST_OVERHEAD: u64 = 64 << 10;

/// Host memory that objects take which lie so long in a file.
pub fn objects_room(bytes: u64) -> u64 {
    let overhead = bytes.saturating_mul(2).min(MOST_OVERHEAD) + LEAST_OVERHEAD;
    bytes.saturating_add(overhead)
}

/// A snapshot whose head and manifest are right.
#[derive(Debug)]
pub struct Snapshot<'a> {
    file: &'a File,
    manifest: Manifest,
}

fn damaged(what: impl Into<String>) -> SnapshotError {
    SnapshotError::Damaged(what.into())
}

impl<'a> Snapshot<'a> {
    /// Looks at a file.
    ///
    /// # Errors
    /// It is no snapshot, or not a whole one.
    pub fn open(file: &'a File) -> Result<Self> {
        let io = || SnapshotError::io("read");
        let length = file.metadata().map_err(io())?.len();
        let mut head = [0; HEAD_BYTES as usize];
        if length < HEAD_BYTES {
            return Err(SnapshotError::NotASnapshot(
                "the file is not a snapshot of Mica's",
            ));
        }
        file.read_exact_at(&mut head, 0).map_err(io())?;
        let head = Head::from_bytes(&head, length)?;
        let mut text = vec![0; head.manifest_bytes as usize];
        let read = file.read_exact_at(&mut text, head.manifest_at);
        read.map_err(io())?;
        if blake3::hash(&text) != head.manifest_hash {
            return Err(damaged("the hash of its manifest is another"));
        }
        let manifest: Manifest =
            serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        let (session, memory) = (&manifest.session, &manifest.memory);
        let ends = |part: &Part| part.at.checked_add(part.bytes);
        if session.at != HEAD_BYTES
            || ends(session) != Some(memory.at)
            || ends(memory) != Some(head.manifest_at)
            || session.bytes > MOST_SESSION_BYTES
        {
            return Err(damaged("its parts do not lie one behind the other"));
        }
        Ok(Self { file, manifest })
    }

    /// What it is of.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Most host memory that [`Snapshot::session`] takes while it reads, and what of it is left in the objects.
    pub fn session_room(&self) -> (u64, u64) {
        let bytes = self.manifest.session.bytes;
        let left = objects_room(bytes);
        (left.saturating_add(bytes), left)
    }

    /// The objects.
    ///
    /// # Errors
    /// They are not what was written, or take more memory than [`Snapshot::session_room`] says.
    pub fn session(&self) -> Result<(SavedSession, SavedPort)> {
        let part = &self.manifest.session;
        let mut bytes = vec![0; part.bytes as usize];
        let read = self.file.read_exact_at(&mut bytes, part.at);
        read.map_err(SnapshotError::io("read"))?;
        if blake3::hash(&bytes).to_hex().as_str() != part.blake3 {
            return Err(damaged("the hash of its objects is another"));
        }
        let room = usize::try_from(objects_room(part.bytes)).unwrap_or(usize::MAX);
        let mut reader = Reader::within(&bytes, room);
        let parsed = SavedSession::take(&mut reader).and_then(|session| {
            let port = SavedPort::take(&mut reader)?;
            reader.finish().map(|()| (session, port))
        });
        parsed.map_err(|error| damaged(error.to_string()))
    }

    /// Whether all of it is as it was written, objects and memory. Takes as long as the file is, whatever it says of the memory.
    ///
    /// # Errors
    /// It is not.
    pub fn check(&self) -> Result<()> {
        let (session, _) = self.session()?;
        let mut blocks = self.blocks()?;
        for (_, _, bytes) in session.memory() {
            let mut left = *bytes;
            while left > 0 {
                let length = left.min(BLOCK_BYTES);
                blocks.pass(length)?;
                left -= length;
            }
        }
        blocks.finish()
    }

    /// The memory, from its first block on.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn blocks(&self) -> Result<Blocks<'a>> {
        let part = &self.manifest.memory;
        let mut reader = BufReader::with_capacity(1 << 20, self.file);
        let sought = reader.seek(SeekFrom::Start(part.at));
        sought.map_err(SnapshotError::io("read"))?;
        Ok(Blocks {
            reader,
            left: part.bytes,
            hasher: blake3::Hasher::new(),
            hash: part.blake3.clone(),
            packed: Vec::new(),
        })
    }
}

/// Memory as it lies in the file.
#[derive(Debug)]
pub struct Blocks<'a> {
    reader: BufReader<&'a File>,
    left: u64,
    hasher: blake3::Hasher,
    hash: String,
    packed: Vec<u8>,
}

impl Blocks<'_> {
    fn take(&mut self, into: &mut [u8]) -> Result<()> {
        let bytes = into.len() as u64;
        self.left =
            (self.left.checked_sub(bytes)).ok_or_else(|| damaged("its memory ends early"))?;
        let read = self.reader.read_exact(into);
        read.map_err(SnapshotError::io("read"))?;
        self.hasher.update(into);
        Ok(())
    }

    /// How the next block of so many bytes lies in the file, and how many bytes of it follow.
    fn head(&mut self, bytes: u64) -> Result<(u8, usize)> {
        let mut kind = [0];
        self.take(&mut kind)?;
        let length = match kind[0] {
            form::ZEROS => 0,
            form::PLAIN => bytes,
            form::PACKED => {
                let mut length = [0; 4];
                self.take(&mut length)?;
                let length = u64::from(u32::from_le_bytes(length));
                if length >= bytes || bytes > BLOCK_BYTES {
                    return Err(damaged("a packed block is as long as what is in it"));
                }
                length
            }
            _ => return Err(damaged("a block is of no known form")),
        };
        Ok((kind[0], length as usize))
    }

    /// Takes so many bytes for `then`.
    fn take_for<T>(&mut self, length: usize, then: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
        let mut packed = std::mem::take(&mut self.packed);
        packed.resize(packed.len().max(length), 0);
        let taken = self.take(&mut packed[..length]);
        let result = taken.and_then(|()| then(&packed[..length]));
        self.packed = packed;
        result
    }

    /// Reads the next block, which fills `into`; whether there is anything but zeros in it.
    ///
    /// # Errors
    /// The file cannot be read, or what is there is no block of this length.
    pub fn next(&mut self, into: &mut [u8]) -> Result<bool> {
        match self.head(into.len() as u64)? {
            (form::ZEROS, _) => {
                into.fill(0);
                Ok(false)
            }
            (form::PLAIN, _) => self.take(into).map(|()| true),
            (_, length) => self.take_for(length, |packed| {
                match lz4_flex::block::decompress_into(packed, into) {
                    Ok(bytes) if bytes == into.len() => Ok(true),
                    _ => Err(damaged("a block cannot be unpacked")),
                }
            }),
        }
    }

    /// Passes the next block, of so many bytes, as it lies in the file. Whether it is as it was written is found at the end.
    ///
    /// # Errors
    /// The file cannot be read, or what is there is no block of this length.
    pub fn pass(&mut self, bytes: u64) -> Result<()> {
        let (_, length) = self.head(bytes.min(BLOCK_BYTES))?;
        self.take_for(length, |_| Ok(()))
    }

    /// Says that all blocks have been read.
    ///
    /// # Errors
    /// There are more, or they are not what was written.
    pub fn finish(self) -> Result<()> {
        if self.left > 0 {
            return Err(damaged(format!(
                "{} bytes of memory are left over",
                self.left
            )));
        }
        match self.hasher.finalize().to_hex().as_str() == self.hash {
            true => Ok(()),
            false => Err(damaged("the hash of its memory is another")),
        }
    }
}
