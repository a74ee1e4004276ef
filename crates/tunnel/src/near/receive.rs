//! The frames that come back from the far end.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::Scope;

use mica_wire::session::{Field, Number, Reader, SLOTS, chunk_state};

use super::{Near, Target};
use crate::compress::unpack;
use crate::frame::{FrameReader, Header, Kind, LZ4, MORE};
use crate::{TunnelError, lock};

/// What is to be done when a call is answered, before the program hears of it.
pub(super) enum After {
    /// Host memory with this tag has a device address now.
    Register(u64),
    /// Host memory with these tags is not the device's any more.
    Unregister(Vec<u64>),
    /// The image with this number is loaded.
    Image(u64),
}

/// Bytes of an image in one frame.
const IMAGE_PIECE: usize = 256 << 10;

impl Near {
    /// The far end has taken data, and found pieces of it.
    fn take_credit(&self, header: Header) {
        lock(&self.pieces).found(header.b);
        let mut outstanding = lock(&self.outstanding);
        *outstanding = outstanding.saturating_sub(header.a);
        drop(outstanding);
        self.credit.notify_all();
    }

    /// Takes frames until there are no more.
    pub(super) fn receive<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
    ) -> Result<(), TunnelError> {
        let mut frames = FrameReader::new(Arc::clone(&self.carrier));
        let mut parts: HashMap<u16, Vec<u8>> = HashMap::new();
        let mut has_notices = false;
        loop {
            let (header, data) = frames.read()?;
            (self.stats.received_bytes).fetch_add(header.frame_bytes(), Relaxed);
            match header.kind {
                Kind::Answer => self.answer_part(header, data, &mut parts)?,
                Kind::ReadDone => self.read_done(header, data)?,
                Kind::Status => self.show_status(header),
                Kind::Notice => {
                    if !std::mem::replace(&mut has_notices, true) {
                        scope.spawn(|| self.end_if_failed(self.tell_notices()));
                    }
                    self.port.notify(header.a);
                }
                Kind::HostChanged => {
                    if !lock(&self.host).merge(header.a, header.b, data) {
                        return Err(TunnelError::protocol(
                            "a change of host memory that is not registered",
                        ));
                    }
                }
                Kind::BlobWanted => {
                    let blob = header.a;
                    scope.spawn(move || self.end_if_failed(self.send_image(blob)));
                }
                Kind::FarHas => self.carrier.acknowledge(header.a),
                Kind::PiecesOffer => lock(&self.pieces).offered(),
                Kind::PiecesKnown => lock(&self.pieces).told(data)?,
                Kind::PiecesOff => lock(&self.pieces).stop(),
                Kind::PieceWanted => {
                    let piece = lock(&self.pieces).held(data)?;
                    scope.spawn(move || self.end_if_failed(self.send_piece(&piece)));
                }
                Kind::Credit => self.take_credit(header),
                Kind::Ended => {
                    let text = String::from_utf8_lossy(data);
                    return Err(TunnelError::Ended(text.into_owned()));
                }
                Kind::Pong => {
                    let now = self.began.elapsed().as_micros() as u64;
                    let took = now.saturating_sub(header.a).max(1);
                    self.stats.round_trip_us.store(took, Relaxed);
                }
                _ => return Err(TunnelError::protocol("a frame that only this side sends")),
            }
            if let Some(received) = self.carrier.owed() {
                self.courier
                    .post(|out| Header::new(Kind::NearHas, received, 0).put(out, &[]))?;
            }
        }
    }

    /// For the thread of notices: its good end is not the session's.
    fn end_if_failed(&self, result: Result<(), TunnelError>) {
        if let Err(error) = result {
            self.end(Some(error));
        }
    }

    /// Takes a part of an answer; `parts` has those that came before, by slot.
    fn answer_part(
        &self,
        header: Header,
        data: &[u8],
        parts: &mut HashMap<u16, Vec<u8>>,
    ) -> Result<(), TunnelError> {
        if usize::from(header.slot) >= SLOTS {
            return Err(TunnelError::protocol("an answer without a call"));
        }
        let bytes = parts.entry(header.slot).or_default();
        bytes.extend_from_slice(data);
        if header.flags & MORE != 0 {
            return Ok(());
        }
        let bytes = parts.remove(&header.slot).unwrap_or_default();
        self.answer(header, bytes)
    }

    /// Shows the program how far its work is.
    fn show_status(&self, header: Header) {
        if header.a != u64::MAX {
            lock(&self.host).forget_reads();
            self.port.show_quiet_at(header.a);
        }
        self.port.show_late(header.code);
        self.port.show_output(header.slot != 0);
    }

    fn answer(&self, header: Header, bytes: Vec<u8>) -> Result<(), TunnelError> {
        let after = lock(&self.after).remove(&header.slot);
        match after {
            Some(After::Register(tag)) => {
                let address = Number::take(&mut Reader::new(&bytes));
                match (header.code, address) {
                    (0, Ok(address)) => lock(&self.host).registered(tag, address.value),
                    _ => self.gone(&[tag])?,
                }
            }
            Some(After::Unregister(tags)) => self.gone(&tags)?,
            Some(After::Image(blob)) => lock(&self.blobs).forget(blob),
            None => {}
        }
        self.port.answer(header.slot, header.code, bytes);
        Ok(())
    }

    /// Host memory is not used any more.
    fn gone(&self, tags: &[u64]) -> Result<(), TunnelError> {
        let mut host = lock(&self.host);
        for tag in tags {
            host.remove(*tag);
        }
        drop(host);
        // No tag is used twice, so the order of these frames among others does not matter.
        let bytes = (tags.len() * crate::HEADER_BYTES) as u64;
        *lock(&self.outstanding) += bytes;
        self.courier.post(|out| {
            for tag in tags {
                Header::new(Kind::HostGone, *tag, 0).put(out, &[]);
            }
        })
    }

    fn read_done(&self, header: Header, data: &[u8]) -> Result<(), TunnelError> {
        let target = lock(&self.reads).remove(&header.a);
        let target = target
            .ok_or_else(|| TunnelError::protocol("the answer to a read that was not sent"))?;
        let unpacked = match header.flags & LZ4 {
            0 => None,
            _ if header.b as usize > mica_wire::session::CHUNK_BYTES => {
                return Err(TunnelError::protocol("a read larger than a chunk"));
            }
            _ => Some(unpack(data, header.b as usize)?),
        };
        let data = unpacked.as_deref().unwrap_or(data);
        match target {
            Target::Chunk(chunk, offset) => {
                if header.code == chunk_state::FULL {
                    let written = self.port.area().chunk_write_at(chunk, offset, data);
                    written.ok_or_else(|| TunnelError::protocol("a read larger than its chunk"))?;
                }
                self.port.chunk_done(chunk, header.code);
            }
            Target::Memory(tag, first, pitch, width) => {
                let host = lock(&self.host);
                // Memory that the program has freed meanwhile needs nothing.
                if let (Some(memory), chunk_state::FULL, 1..) = (host.get(tag), header.code, width)
                {
                    for (row, bytes) in data.chunks(width as usize).enumerate() {
                        let offset = first.wrapping_add(pitch.wrapping_mul(row as u64));
                        memory.shadow.write(offset, bytes);
                    }
                }
            }
        }
        Ok(())
    }

    fn send_image(&self, blob: u64) -> Result<(), TunnelError> {
        let image = lock(&self.blobs).offered(blob);
        let image = image.ok_or_else(|| TunnelError::protocol("a module that was not offered"))?;
        let mut out = Vec::new();
        for (index, part) in image.chunks(IMAGE_PIECE).enumerate() {
            out.clear();
            let offset = (index * IMAGE_PIECE) as u64;
            Header::new(Kind::BlobData, blob, offset).put(&mut out, &[part]);
            self.carrier.send(&out).map_err(TunnelError::Lost)?;
            (self.stats.sent_bytes).fetch_add(out.len() as u64, Relaxed);
        }
        Ok(())
    }
}
