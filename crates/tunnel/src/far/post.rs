//! Puts what a frame says into the worker's ring.

use std::borrow::Cow;
use std::sync::atomic::Ordering::Release;
use std::time::Duration;

use mica_wire::session::{
    BlobChunk, CHUNK_BYTES, Call, Copy, CopyPlace, Malformed, Request, SLOTS,
};

use super::{Far, PendingRead, Waiting};
use crate::compress::unpack;
use crate::frame::{Header, Kind, LZ4, NO_SLOT};
use crate::pieces::{Named, PIECE_BYTES, named};
use crate::shadow::WORK;
use crate::{TunnelError, lock};

/// How long the receiving thread waits for a staging chunk before it lines up a frame, which copies it once more. Not for ever: the
/// worker may be waiting for a host function, whose end comes over the same connection.
const CHUNK_WAIT: Duration = Duration::from_millis(5);
/// Positions that are remembered; the oldest say least.
const MOST_MARKS: usize = 4096;

fn malformed(source: Malformed) -> TunnelError {
    TunnelError::Protocol(format!("a record that makes no sense: {source}"))
}

impl Far {
    /// Deals with a frame; false, and nothing done, if that must wait and may not.
    pub(super) fn post(
        &self,
        header: &Header,
        data: &[u8],
        may_wait: bool,
    ) -> Result<bool, TunnelError> {
        match header.kind {
            Kind::Record => return self.record(header, data, may_wait),
            Kind::Staged => return self.staged(header, data, may_wait),
            Kind::Read => return self.read(header, data, may_wait),
            Kind::BlobRef if !may_wait => return Ok(false),
            Kind::BlobRef => self.image(header, data)?,
            Kind::HostNew => lock(&self.host).add(&self.port, header.a, header.b)?,
            Kind::HostData => return self.host_data(header, data, may_wait),
            Kind::HostMap => lock(&self.host).map(header.a),
            Kind::HostGone => lock(&self.host).remove(header.a),
            Kind::PiecesAsk => self.pieces.ask(header.a)?,
            _ => return Err(TunnelError::protocol("a frame out of place")),
        }
        Ok(true)
    }

    /// Writes a record into the ring, and notes where the program's ring is then.
    fn push(
        &self,
        call: u16,
        slot: Option<u16>,
        body: &[u8],
        position: u64,
        may_wait: bool,
    ) -> Result<bool, TunnelError> {
        if WORK.contains(&call) {
            self.worked.store(true, Release);
        }
        loop {
            // Held so that a program that sees the answer also finds the mark.
            let mut pending = lock(&self.pending);
            if self.port.try_push(call, slot, body)? {
                if position != 0 {
                    if pending.marks.len() >= MOST_MARKS {
                        pending.marks.pop_front();
                    }
                    pending.marks.push_back((self.port.position(), position));
                }
                return Ok(true);
            }
            drop(pending);
            if !may_wait {
                return Ok(false);
            }
            self.port.wait_for_room()?;
        }
    }

    fn record(&self, header: &Header, body: &[u8], may_wait: bool) -> Result<bool, TunnelError> {
        let slot = (header.slot != NO_SLOT).then_some(header.slot);
        if let Some(slot) = slot {
            self.begin_call(slot)?;
        }
        let posted = self.push(header.call, slot, body, header.a, may_wait)?;
        if let (Some(slot), false) = (slot, posted) {
            lock(&self.pending).calls[usize::from(slot)] = None;
        }
        Ok(posted)
    }

    fn begin_call(&self, slot: u16) -> Result<(), TunnelError> {
        let mut pending = lock(&self.pending);
        let place = pending.calls.get_mut(usize::from(slot));
        let (Some(place), Some(before)) = (place, self.port.answered(slot)) else {
            let text = format!("reply slot {slot} where there are {SLOTS}");
            return Err(TunnelError::Protocol(text));
        };
        if place.is_some() {
            return Err(TunnelError::protocol("a second call in one reply slot"));
        }
        let bytes = Vec::new();
        *place = Some(Waiting { before, bytes });
        Ok(())
    }

    fn chunk(&self, may_wait: bool) -> Result<Option<u32>, TunnelError> {
        match may_wait {
            true => Ok(Some(self.port.take_chunk()?)),
            false => Ok(self.port.take_chunk_within(CHUNK_WAIT)?),
        }
    }

    /// A record that reads a chunk.
    fn staged(&self, header: &Header, data: &[u8], may_wait: bool) -> Result<bool, TunnelError> {
        let bytes = header.b as usize;
        let (body, data) = (data.split_at_checked(header.code as usize))
            .ok_or_else(|| TunnelError::protocol("a record longer than its frame"))?;
        let (data, piece) = named(header, data)?;
        let is_sized = match piece {
            Named::No => bytes <= CHUNK_BYTES,
            Named::Here(_) | Named::Known(_) => bytes == PIECE_BYTES,
        };
        if !is_sized {
            return Err(TunnelError::protocol("staged bytes of a wrong size"));
        }
        let Some(chunk) = self.chunk(may_wait)? else {
            return Ok(false);
        };
        let Some(data) = self.bytes_of(header, bytes, data, piece, may_wait)? else {
            self.port.give_chunk(chunk);
            return Ok(false);
        };
        let filled = self.port.fill_chunk(chunk, &data);
        filled.ok_or_else(|| TunnelError::protocol("staged bytes of a wrong size"))?;
        let (call, rest) = Call::decode(header.call, body).map_err(malformed)?;
        let offset = 0;
        let body = match call {
            Call::Copy(mut copy) if rest.is_empty() => {
                copy.area.src = CopyPlace::Staging { chunk, offset };
                copy.encode()
            }
            Call::BlobChunk(part) => {
                let bytes = part.bytes.min(header.b as u32);
                let blob = part.blob;
                BlobChunk { blob, chunk, bytes }.encode()
            }
            _ => return Err(TunnelError::protocol("a call that stages nothing")),
        };
        let posted = self.push(header.call, None, body.as_slice(), header.a, may_wait)?;
        match posted {
            true => self.done_with(piece, data),
            false => self.port.give_chunk(chunk),
        }
        Ok(posted)
    }

    /// The bytes that a frame stands for, so many of them; `None` if they must be waited for and may not.
    fn bytes_of<'a>(
        &self,
        header: &Header,
        bytes: usize,
        data: &'a [u8],
        piece: Named,
        may_wait: bool,
    ) -> Result<Option<Cow<'a, [u8]>>, TunnelError> {
        let found = match piece {
            Named::Known(hash) if data.is_empty() => {
                return Ok(self.known_piece(hash, may_wait)?.map(Cow::Owned));
            }
            _ if header.flags & LZ4 != 0 => Cow::Owned(unpack(data, bytes)?),
            _ => Cow::Borrowed(data),
        };
        match found.len() == bytes {
            true => Ok(Some(found)),
            false => Err(TunnelError::protocol("bytes of a wrong size")),
        }
    }

    /// The worker has the bytes of a frame.
    fn done_with(&self, piece: Named, bytes: Cow<'_, [u8]>) {
        match (piece, bytes) {
            (Named::Here(hash), bytes) => self.pieces.keep(hash, || bytes.into_owned()),
            (Named::Known(_), Cow::Owned(buffer)) => self.pieces.give_back(buffer),
            _ => {}
        }
    }

    /// Bytes of host memory.
    fn host_data(&self, header: &Header, data: &[u8], may_wait: bool) -> Result<bool, TunnelError> {
        let (data, piece) = named(header, data)?;
        if header.flags & LZ4 != 0 {
            return Err(TunnelError::protocol("host memory that is packed"));
        }
        let bytes = match piece {
            Named::No => data.len(),
            Named::Here(_) | Named::Known(_) => PIECE_BYTES,
        };
        let Some(bytes) = self.bytes_of(header, bytes, data, piece, may_wait)? else {
            return Ok(false);
        };
        lock(&self.host).write(header.a, header.b, &bytes)?;
        self.done_with(piece, bytes);
        Ok(true)
    }

    /// A copy into a chunk.
    fn read(&self, header: &Header, body: &[u8], may_wait: bool) -> Result<bool, TunnelError> {
        let (Call::Copy(mut copy), []) = Call::decode(Copy::NUMBER, body).map_err(malformed)?
        else {
            return Err(TunnelError::protocol("a call that reads nothing"));
        };
        let area = &copy.area;
        let rows = area.height.checked_mul(area.depth);
        let bytes = rows.and_then(|rows| area.width_bytes.checked_mul(rows));
        let bytes = bytes.filter(|bytes| *bytes <= CHUNK_BYTES as u64);
        let bytes = bytes.ok_or_else(|| TunnelError::protocol("a read larger than a chunk"))?;
        let Some(chunk) = self.chunk(may_wait)? else {
            return Ok(false);
        };
        copy.area.dst = CopyPlace::Staging { chunk, offset: 0 };
        let tag = header.a;
        let bytes = bytes as u32;
        (lock(&self.pending).reads).push(PendingRead { tag, chunk, bytes });
        let body = copy.encode();
        let posted = self.push(Copy::NUMBER, None, body.as_slice(), header.b, may_wait)?;
        if !posted {
            let mut pending = lock(&self.pending);
            pending.reads.retain(|read| read.chunk != chunk);
            drop(pending);
            self.port.give_chunk(chunk);
        }
        Ok(posted)
    }

    /// An image by its hash.
    fn image(&self, header: &Header, hash: &[u8]) -> Result<(), TunnelError> {
        let hash =
            (hash.try_into()).map_err(|_| TunnelError::protocol("a hash of a wrong size"))?;
        let ask = || {
            let mut out = Vec::new();
            Header::new(Kind::BlobWanted, header.a, 0).put(&mut out, &[]);
            self.send(&out)
        };
        let image = self
            .images
            .get(header.a, hash, header.b, ask, || self.is_over())?;
        for part in image.chunks(CHUNK_BYTES) {
            let chunk = self.port.take_chunk()?;
            let filled = self.port.fill_chunk(chunk, part);
            filled.ok_or_else(|| TunnelError::protocol("a module that does not fit"))?;
            let bytes = part.len() as u32;
            let blob = header.a;
            let body = BlobChunk { blob, chunk, bytes }.encode();
            self.push(BlobChunk::NUMBER, None, body.as_slice(), 0, true)?;
        }
        Ok(())
    }
}
