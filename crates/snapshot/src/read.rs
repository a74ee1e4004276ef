//! Reading a snapshot.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use mica_wire::session::{Field, Reader};

use crate::head::{HEAD_BYTES, Head};
use crate::write::form;
use crate::{BLOCK_BYTES, Manifest, Part, Result, SavedPort, SavedSession, SnapshotError};

/// Most bytes of objects and images.
const MOST_SESSION_BYTES: u64 = 1 << 30;

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

    /// The objects.
    ///
    /// # Errors
    /// They are not what was written.
    pub fn session(&self) -> Result<(SavedSession, SavedPort)> {
        let part = &self.manifest.session;
        let mut bytes = vec![0; part.bytes as usize];
        let read = self.file.read_exact_at(&mut bytes, part.at);
        read.map_err(SnapshotError::io("read"))?;
        if blake3::hash(&bytes).to_hex().as_str() != part.blake3 {
            return Err(damaged("the hash of its objects is another"));
        }
        let mut reader = Reader::new(&bytes);
        let parsed = SavedSession::take(&mut reader).and_then(|session| {
            let port = SavedPort::take(&mut reader)?;
            reader.finish().map(|()| (session, port))
        });
        parsed.map_err(|error| damaged(error.to_string()))
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

    /// Reads the next block, which fills `into`; whether there is anything but zeros in it.
    ///
    /// # Errors
    /// The file cannot be read, or what is there is no block of this length.
    pub fn next(&mut self, into: &mut [u8]) -> Result<bool> {
        let mut kind = [0];
        self.take(&mut kind)?;
        match kind[0] {
            form::ZEROS => {
                into.fill(0);
                Ok(false)
            }
            form::PLAIN => self.take(into).map(|()| true),
            form::PACKED => {
                let mut length = [0; 4];
                self.take(&mut length)?;
                let length = u32::from_le_bytes(length) as usize;
                if length >= into.len() || into.len() as u64 > BLOCK_BYTES {
                    return Err(damaged("a packed block is as long as what is in it"));
                }
                let mut packed = std::mem::take(&mut self.packed);
                packed.resize(packed.len().max(length), 0);
                let taken = self.take(&mut packed[..length]);
                let unpacked = taken.and_then(|()| {
                    match lz4_flex::block::decompress_into(&packed[..length], into) {
                        Ok(bytes) if bytes == into.len() => Ok(true),
                        _ => Err(damaged("a block cannot be unpacked")),
                    }
                });
                self.packed = packed;
                unpacked
            }
            _ => Err(damaged("a block is of no known form")),
        }
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
