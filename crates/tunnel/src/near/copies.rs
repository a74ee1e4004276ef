//! Copies: those through staging chunks carry their data, those to host memory become reads.

use std::sync::atomic::Ordering::Relaxed;

use mica_wire::session::client::pieces;
use mica_wire::session::{CHUNK_BYTES, Copy, CopyBox, CopyPlace, Request, chunk_state};

use super::translate::Step;
use super::{Near, Target, blobs};
use crate::frame::{Draft, Header, Kind, NO_SLOT};
use crate::{TunnelError, lock};

/// Bytes from the first to the last of a box; `None` if that is more than there are.
pub(super) fn span(pitch: (u64, u64), (width, height, depth): (u64, u64, u64)) -> Option<u64> {
    if width == 0 || height == 0 || depth == 0 {
        return Some(0);
    }
    let slices = (depth - 1).checked_mul(pitch.1)?;
    let rows = (height - 1).checked_mul(pitch.0)?;
    slices.checked_add(rows)?.checked_add(width)
}

fn extent(area: &CopyBox) -> (u64, u64, u64) {
    (area.width_bytes, area.height, area.depth)
}

impl Near {
    /// Sends a copy.
    pub(super) fn copy(
        &self,
        copy: Copy,
        position: u64,
        steps: &mut std::collections::VecDeque<Step>,
        out: &mut Vec<u8>,
    ) -> Result<(), TunnelError> {
        let area = &copy.area;
        let mut host = lock(&self.host);
        host.send_changes(0, out);
        let source = match area.src {
            CopyPlace::Device(address) => host.find(address),
            _ => None,
        };
        let target = match area.dst {
            CopyPlace::Device(address) => host.find(address),
            _ => None,
        };
        if let (Some((tag, offset)), Some(bytes)) = (source, span(area.src_pitch, extent(area))) {
            let mapped = host
                .get(tag)
                .is_some_and(|memory| memory.shadow.is_mapped());
            if !mapped {
                host.note_read(tag, offset, bytes);
                steps.push_back(Step::Push(tag, offset, bytes));
            }
        }
        drop(host);
        steps.push_back(Step::Copy(Box::new(copy), position, target));
        Ok(())
    }

    /// Sends a copy whose source the far end has.
    pub(super) fn send_copy(
        &self,
        copy: &Copy,
        position: u64,
        target: Option<(u64, u64)>,
        out: &mut Vec<u8>,
    ) -> Result<(), TunnelError> {
        match (copy.area.src, copy.area.dst) {
            (CopyPlace::Staging { chunk, offset }, dst) => {
                let last = target.is_none();
                let position_here = if last { position } else { 0 };
                self.send_staged(copy, (chunk, offset), position_here, out)?;
                if let (Some(target), CopyPlace::Device(address)) = (target, dst) {
                    // What has come to the far end's copy of host memory comes back at once.
                    let area = CopyBox {
                        src: CopyPlace::Device(address),
                        src_pitch: copy.area.dst_pitch,
                        ..copy.area.clone()
                    };
                    let stream = copy.stream;
                    self.read_back(&Copy { stream, area }, position, target, out);
                }
            }
            (_, CopyPlace::Staging { chunk, offset }) => {
                let target = Target::Chunk(chunk, offset);
                self.read(copy, target, position, out);
            }
            _ => match target {
                Some(target) => self.read_back(copy, position, target, out),
                None => {
                    let body = copy.encode();
                    let header = Header {
                        call: Copy::NUMBER,
                        slot: NO_SLOT,
                        ..Header::new(Kind::Record, position, 0)
                    };
                    header.put(out, &[body.as_slice()]);
                }
            },
        }
        Ok(())
    }

    fn send_staged(
        &self,
        copy: &Copy,
        (chunk, offset): (u32, u32),
        position: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), TunnelError> {
        let area = self.port.area();
        let bytes = span(copy.area.src_pitch, extent(&copy.area));
        let bytes = bytes.filter(|bytes| *bytes <= CHUNK_BYTES as u64);
        let len = bytes.unwrap_or(0) as usize;
        let body = copy.encode();
        let header = blobs::staged_header(Copy::NUMBER, body.as_slice(), position, len);
        self.ask_for_pieces(len, out);
        let draft = Draft::begin(header, out);
        out.extend_from_slice(body.as_slice());
        let read = area.chunk_append_to(chunk, offset, len, out);
        if bytes.is_none() || read.is_none() {
            let text = format!("a copy of more bytes than staging chunk {chunk} has");
            return Err(TunnelError::Protocol(text));
        }
        // The program may fill it again: the bytes are on their way.
        self.port.chunk_done(chunk, chunk_state::FREE);
        self.end_with_bytes(draft, len, true, out);
        Ok(())
    }

    /// Sends a copy into a chunk of the far end, whose bytes go to `target`.
    fn read(&self, copy: &Copy, target: Target, position: u64, out: &mut Vec<u8>) {
        let tag = self.next_read.fetch_add(1, Relaxed);
        lock(&self.reads).insert(tag, target);
        let body = copy.encode();
        let header = Header {
            call: Copy::NUMBER,
            ..Header::new(Kind::Read, tag, position)
        };
        header.put(out, &[body.as_slice()]);
    }

    /// Sends a copy to host memory as reads, each of a part that fits a chunk.
    pub(super) fn read_back(
        &self,
        copy: &Copy,
        position: u64,
        (tag, first): (u64, u64),
        out: &mut Vec<u8>,
    ) {
        let area = &copy.area;
        let mut parts = pieces(extent(area)).peekable();
        while let Some(((x, y, z), width, rows)) = parts.next() {
            let inner = |pitch: (u64, u64)| {
                let slices = z.wrapping_mul(pitch.1);
                slices.wrapping_add(y.wrapping_mul(pitch.0)).wrapping_add(x)
            };
            let (src, src_offset) = match area.src {
                CopyPlace::Device(address) => {
                    let at = address.wrapping_add(inner(area.src_pitch));
                    (CopyPlace::Device(at), [0; 3])
                }
                other => {
                    let [ox, oy, oz] = area.src_offset;
                    (other, [ox + x, oy + y, oz + z])
                }
            };
            let part = CopyBox {
                src,
                src_pitch: area.src_pitch,
                src_offset,
                dst: CopyPlace::Staging {
                    chunk: 0,
                    offset: 0,
                },
                dst_pitch: (width, width * rows),
                dst_offset: [0; 3],
                width_bytes: width,
                height: rows,
                depth: 1,
            };
            let offset = first.wrapping_add(inner(area.dst_pitch));
            let target = Target::Memory(tag, offset, area.dst_pitch.0, width);
            let position = if parts.peek().is_none() { position } else { 0 };
            let stream = copy.stream;
            self.read(&Copy { stream, area: part }, target, position, out);
        }
    }
}
