//! Images and graphs, until the call that uses them: then a large image travels as its hash.

use std::collections::HashMap;
use std::sync::Arc;

use mica_wire::session::{BlobChunk, BlobPart, CHUNK_BYTES, Request};

use crate::TunnelError;
use crate::compress::Compressor;
use crate::frame::{Draft, Header, Kind, NO_SLOT};

/// Images from this size on travel as their hash.
const LEAST_HASHED: usize = 4 << 10;
/// Parts up to this size travel inside records.
const INLINE_BYTES: usize = 32 << 10;
/// Most bytes of blobs that wait for their calls.
const MOST_BYTES: usize = 4 << 30;

/// Blobs of a session.
#[derive(Default)]
pub(super) struct Blobs {
    /// Blobs that no call has used yet.
    waiting: HashMap<u64, Vec<u8>>,
    held: usize,
    /// Those whose hash was sent.
    offered: HashMap<u64, Arc<Vec<u8>>>,
}

impl Blobs {
    /// Appends bytes to a blob.
    pub(super) fn append(&mut self, blob: u64, bytes: &[u8]) -> Result<(), TunnelError> {
        self.held = self.held.saturating_add(bytes.len());
        if self.held > MOST_BYTES {
            return Err(TunnelError::protocol("too many bytes of modules at once"));
        }
        self.waiting
            .entry(blob)
            .or_default()
            .extend_from_slice(bytes);
        Ok(())
    }

    /// A call uses a blob: its bytes.
    pub(super) fn take(&mut self, blob: u64) -> Option<Vec<u8>> {
        let bytes = self.waiting.remove(&blob)?;
        self.held -= bytes.len();
        Some(bytes)
    }

    /// Sends an image ahead of the call that loads it: its hash, if it is large.
    pub(super) fn send_image(
        &mut self,
        blob: u64,
        bytes: Vec<u8>,
        pack: &Compressor,
        out: &mut Vec<u8>,
    ) {
        if bytes.len() < LEAST_HASHED {
            return send(blob, &bytes, pack, out);
        }
        let hash = blake3::hash(&bytes);
        let header = Header::new(Kind::BlobRef, blob, bytes.len() as u64);
        header.put(out, &[hash.as_bytes()]);
        self.offered.insert(blob, Arc::new(bytes));
    }

    /// An image that the far end does not have.
    pub(super) fn offered(&self, blob: u64) -> Option<Arc<Vec<u8>>> {
        self.offered.get(&blob).cloned()
    }

    /// The image has been loaded.
    pub(super) fn forget(&mut self, blob: u64) {
        self.offered.remove(&blob);
    }
}

/// Sends a blob in parts.
pub(super) fn send(blob: u64, bytes: &[u8], pack: &Compressor, out: &mut Vec<u8>) {
    if bytes.len() <= INLINE_BYTES {
        let body = BlobPart { blob }.encode();
        let header = Header {
            call: BlobPart::NUMBER,
            slot: NO_SLOT,
            ..Header::new(Kind::Record, 0, 0)
        };
        return header.put(out, &[body.as_slice(), bytes]);
    }
    for part in bytes.chunks(CHUNK_BYTES) {
        let bytes = part.len() as u32;
        let body = BlobChunk {
            blob,
            chunk: 0,
            bytes,
        };
        staged(
            BlobChunk::NUMBER,
            body.encode().as_slice(),
            part,
            0,
            pack,
            out,
        );
    }
}

/// A record that reads a staging chunk, with the chunk's bytes.
pub(super) fn staged(
    call: u16,
    body: &[u8],
    data: &[u8],
    position: u64,
    pack: &Compressor,
    out: &mut Vec<u8>,
) {
    let header = staged_header(call, body, position, data.len());
    let mut draft = Draft::begin(header, out);
    out.extend_from_slice(body);
    out.extend_from_slice(data);
    draft.pack(data.len(), pack, out);
    draft.end(out);
}

/// The header of a record that reads these bytes of a staging chunk.
pub(super) fn staged_header(call: u16, body: &[u8], position: u64, bytes: usize) -> Header {
    Header {
        call,
        slot: NO_SLOT,
        code: body.len() as u32,
        ..Header::new(Kind::Staged, position, bytes as u64)
    }
}
