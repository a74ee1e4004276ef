//! Writing a snapshot.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;

use mica_wire::session::{Field, Sink};

use crate::head::{HEAD_BYTES, Head, MOST_MANIFEST_BYTES};
use crate::{
    BLOCK_BYTES, MOST_SESSION_BYTES, Manifest, Part, Result, SavedPort, SavedSession, SnapshotError,
};

/// A file that is being written; it becomes a snapshot with [`Writer::finish`].
#[derive(Debug)]
pub struct Writer<'a> {
    file: &'a File,
    buffer: BufWriter<&'a File>,
    at: u64,
    part_at: u64,
    hasher: blake3::Hasher,
    packed: Vec<u8>,
}

/// How a block lies in the file.
pub(crate) mod form {
    /// Nothing follows: all bytes are zero.
    pub(crate) const ZEROS: u8 = 0;
    /// The bytes as they are.
    pub(crate) const PLAIN: u8 = 1;
    /// LZ4; its length comes first.
    pub(crate) const PACKED: u8 = 2;
}

/// Takes objects and writes them piece by piece: images of modules may be large.
struct Objects<'w, 'a> {
    writer: &'w mut Writer<'a>,
    waiting: Vec<u8>,
    /// The first error; nothing is written after it.
    written: Result<()>,
}

impl Objects<'_, '_> {
    /// Bytes that are hashed and written at once.
    const PIECE: usize = 64 << 10;

    fn write(&mut self, bytes: &[u8]) {
        if self.written.is_ok() {
            self.written = self.writer.put(bytes);
        }
    }

    fn end(mut self) -> Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        self.write(&waiting);
        self.written
    }
}

impl Sink for Objects<'_, '_> {
    fn put(&mut self, bytes: &[u8]) {
        if self.waiting.len() + bytes.len() > Self::PIECE {
            let mut waiting = std::mem::take(&mut self.waiting);
            self.write(&waiting);
            waiting.clear();
            self.waiting = waiting;
        }
        match bytes.len() > Self::PIECE {
            true => self.write(bytes),
            false => self.waiting.extend_from_slice(bytes),
        }
    }
}

impl<'a> Writer<'a> {
    /// Begins a snapshot in an empty file.
    ///
    /// # Errors
    /// The file is not empty or cannot be written.
    pub fn new(file: &'a File) -> Result<Self> {
        let length = file
            .metadata()
            .map_err(SnapshotError::io("looked at"))?
            .len();
        if length > 0 {
            let what = "the file that a snapshot is to be written to is not empty";
            return Err(SnapshotError::NotASnapshot(what));
        }
        let mut writer = Self {
            file,
            buffer: BufWriter::with_capacity(1 << 20, file),
            at: 0,
            part_at: HEAD_BYTES,
            hasher: blake3::Hasher::new(),
            packed: Vec::new(),
        };
        writer.put(&[0; HEAD_BYTES as usize])?;
        writer.hasher.reset();
        Ok(writer)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.hasher.update(bytes);
        self.at += bytes.len() as u64;
        let written = self.buffer.write_all(bytes);
        written.map_err(SnapshotError::io("written"))
    }

    fn end_part(&mut self) -> Part {
        let part = Part {
            at: self.part_at,
            bytes: self.at - self.part_at,
            blake3: self.hasher.finalize().to_hex().to_string(),
        };
        self.part_at = self.at;
        self.hasher.reset();
        part
    }

    /// Writes the objects; answers where they are.
    ///
    /// # Errors
    /// The file cannot be written, or there is more than could be read back.
    pub fn session(&mut self, session: &SavedSession, port: &SavedPort) -> Result<Part> {
        let mut objects = Objects {
            writer: self,
            waiting: Vec::new(),
            written: Ok(()),
        };
        session.put(&mut objects);
        port.put(&mut objects);
        objects.end()?;
        let part = self.end_part();
        if part.bytes > MOST_SESSION_BYTES {
            return Err(SnapshotError::TooLarge(part.bytes));
        }
        Ok(part)
    }

    /// Writes memory, at most [`BLOCK_BYTES`] of it. Blocks come in the order of [`SavedSession::memory`].
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn block(&mut self, bytes: &[u8]) -> Result<()> {
        debug_assert!(bytes.len() as u64 <= BLOCK_BYTES);
        if bytes.iter().all(|byte| *byte == 0) {
            return self.put(&[form::ZEROS]);
        }
        let room = lz4_flex::block::get_maximum_output_size(bytes.len());
        let mut packed = std::mem::take(&mut self.packed);
        packed.resize(packed.len().max(room), 0);
        let length = lz4_flex::block::compress_into(bytes, &mut packed).unwrap_or(usize::MAX);
        let put = match packed.get(..length) {
            Some(packed) if length < bytes.len() => {
                let head = self.put(&[form::PACKED]);
                let head = head.and_then(|()| self.put(&(length as u32).to_le_bytes()));
                head.and_then(|()| self.put(packed))
            }
            _ => self.put(&[form::PLAIN]).and_then(|()| self.put(bytes)),
        };
        self.packed = packed;
        put
    }

    /// Ends the contents of memory; answers where they are.
    pub fn memory(&mut self) -> Part {
        self.end_part()
    }

    /// Writes the manifest and then the head, and waits until all is on the disk.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self, manifest: &Manifest) -> Result<()> {
        let text = serde_json::to_vec_pretty(manifest);
        let text = text.map_err(|error| SnapshotError::Damaged(error.to_string()))?;
        let manifest_bytes = u32::try_from(text.len()).unwrap_or(u32::MAX);
        if manifest_bytes > MOST_MANIFEST_BYTES {
            return Err(SnapshotError::NotASnapshot("the manifest is too long"));
        }
        let head = Head {
            manifest_bytes,
            manifest_at: self.at,
            file_bytes: self.at + u64::from(manifest_bytes),
            manifest_hash: *blake3::hash(&text).as_bytes(),
        };
        self.put(&text)?;
        (self.buffer.flush()).map_err(SnapshotError::io("written"))?;
        let saved = SnapshotError::io("brought to the disk");
        self.file.sync_data().map_err(saved)?;
        let written = self.file.write_all_at(&head.to_bytes(), 0);
        written.map_err(SnapshotError::io("written"))?;
        let saved = SnapshotError::io("brought to the disk");
        self.file.sync_all().map_err(saved)
    }
}
