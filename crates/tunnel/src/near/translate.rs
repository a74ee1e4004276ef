//! Each record of the ring, as frames.

use std::collections::VecDeque;

use mica_wire::session::{
    Call, Copy, CopyBox, CopyPlace, Fill, HostRegister, Read, RecordHeader, Request, Violation,
    Write, chunk_state,
};

use super::copies::span;
use super::host::PIECE;
use super::receive::After;
use super::{Near, blobs};
use crate::frame::{Header, Kind, NO_SLOT};
use crate::shadow::{WAITS, WORK};
use crate::{TunnelError, lock};

/// What is left to do for a record.
pub(super) enum Step {
    /// Send bytes of host memory: tag, offset, how many.
    Push(u64, u64, u64),
    /// Send a copy, to host memory if the last names some.
    Copy(Box<Copy>, u64, Option<(u64, u64)>),
    /// Send a record that is as it should be: call, slot, position, body.
    Record(u16, u16, u64, Vec<u8>),
    /// Read back what the device has written to host memory: a copy from there to there.
    ReadBack(Box<Copy>, u64, (u64, u64)),
}

/// Calls that must be looked into.
const FIRST_LOOKED_AT: &[u16] = &[
    Copy::NUMBER,
    Fill::NUMBER,
    Write::NUMBER,
    Read::NUMBER,
    11,  // ContextDestroy
    40,  // BlobPart
    41,  // BlobChunk
    42,  // BlobDrop
    43,  // ModuleLoad
    51,  // GraphInstantiate
    53,  // GraphUpdate
    70,  // HostRegister
    71,  // HostUnregister
    100, // Continue
];

/// A record of the ring, as it goes through the tunnel.
#[derive(Clone, Copy)]
struct Record<'a> {
    call: u16,
    slot: u16,
    position: u64,
    body: &'a [u8],
}

impl Record<'_> {
    fn put(self, out: &mut Vec<u8>) {
        let header = Header {
            call: self.call,
            slot: self.slot,
            ..Header::new(Kind::Record, self.position, 0)
        };
        header.put(out, &[self.body]);
    }
}

/// A box of device memory that a call writes.
struct Written {
    stream: u64,
    address: u64,
    pitch: (u64, u64),
    width: u64,
    height: u64,
}

impl Near {
    /// Sends a record, or notes the steps that it takes.
    pub(super) fn translate(
        &self,
        header: RecordHeader,
        body: &[u8],
        position: u64,
        steps: &mut VecDeque<Step>,
        out: &mut Vec<u8>,
    ) -> Result<(), TunnelError> {
        if WORK.contains(&header.call) {
            let mut host = lock(&self.host);
            host.map_mentioned(body, out);
            host.send_changes(0, out);
        } else if WAITS.contains(&header.call) {
            lock(&self.host).send_changes(0, out);
        }
        let record = Record {
            call: header.call,
            slot: header.reply_slot().unwrap_or(NO_SLOT),
            position,
            body,
        };
        if FIRST_LOOKED_AT.contains(&header.call) {
            return self.look_into(record, steps, out);
        }
        record.put(out);
        Ok(())
    }

    /// Sends a record that names host memory or bytes that have gone ahead of it.
    fn look_into(
        &self,
        record: Record<'_>,
        steps: &mut VecDeque<Step>,
        out: &mut Vec<u8>,
    ) -> Result<(), TunnelError> {
        let (call, tail) = Call::decode(record.call, record.body).map_err(|source| {
            let number = record.call;
            Violation::Body { number, source }
        })?;
        match call {
            Call::Continue(more) => self.port.continue_answer(record.slot, more.offset),
            Call::Copy(copy) => self.copy(copy, record.position, steps, out)?,
            Call::HostRegister(register) => self.register(register, record, out)?,
            Call::BlobPart(part) => lock(&self.blobs).append(part.blob, tail)?,
            Call::BlobChunk(part) => self.append_chunk(part.blob, part.chunk, part.bytes)?,
            Call::BlobDrop(gone) => drop(lock(&self.blobs).take(gone.blob)),
            Call::ModuleLoad(load) => {
                self.offer_image(load.blob, record.slot, out);
                record.put(out);
            }
            Call::GraphInstantiate(graph) => {
                self.graph(graph.blob, out);
                record.put(out);
            }
            Call::GraphUpdate(graph) => {
                self.graph(graph.blob, out);
                record.put(out);
            }
            Call::HostUnregister(gone) => {
                if let Some((tag, 0)) = lock(&self.host).find(gone.address) {
                    self.note_after(record.slot, After::Unregister(vec![tag]));
                }
                record.put(out);
            }
            Call::ContextDestroy(gone) => {
                let tags = lock(&self.host).of_context(gone.context);
                self.note_after(record.slot, After::Unregister(tags));
                record.put(out);
            }
            Call::Read(read) => {
                self.push_source(read.address, read.bytes.into(), steps, out);
                let (slot, position) = (record.slot, record.position);
                let body = record.body.to_vec();
                steps.push_back(Step::Record(record.call, slot, position, body));
            }
            Call::Write(write) => self.written(Written::by_write(&write, tail), record, steps, out),
            Call::Fill(fill) => self.written(Written::by_fill(&fill), record, steps, out),
            _ => record.put(out),
        }
        Ok(())
    }

    /// Adds what lies in a chunk of shared memory to a blob.
    fn append_chunk(&self, blob: u64, chunk: u32, bytes: u32) -> Result<(), TunnelError> {
        let data = self.port.area().chunk_read(chunk, bytes);
        let data = data.ok_or(Violation::Chunk {
            chunk,
            offset: 0,
            bytes: bytes.into(),
        })?;
        self.port.chunk_done(chunk, chunk_state::FREE);
        lock(&self.blobs).append(blob, &data)
    }

    /// Offers the far end the image of a module.
    fn offer_image(&self, blob: u64, slot: u16, out: &mut Vec<u8>) {
        let mut blobs = lock(&self.blobs);
        if let Some(image) = blobs.take(blob) {
            blobs.send_image(blob, image, &self.compressor, out);
            self.note_after(slot, After::Image(blob));
        }
    }

    /// What is to be done when the call of a slot is answered.
    fn note_after(&self, slot: u16, after: After) {
        lock(&self.after).insert(slot, after);
    }

    fn graph(&self, blob: u64, out: &mut Vec<u8>) {
        let Some(nodes) = lock(&self.blobs).take(blob) else {
            return;
        };
        lock(&self.host).map_mentioned(&nodes, out);
        blobs::send(blob, &nodes, &self.compressor, out);
    }

    fn register(
        &self,
        register: HostRegister,
        record: Record<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), TunnelError> {
        let file = self.port.take_descriptor(register.tag)?;
        lock(&self.host).add(file, &register, out)?;
        self.note_after(record.slot, After::Register(register.tag));
        let there = HostRegister {
            offset: 0,
            ..register
        };
        let body = there.encode();
        Record {
            body: body.as_slice(),
            ..record
        }
        .put(out);
        Ok(())
    }

    /// Sends host memory that the device will read.
    fn push_source(&self, address: u64, bytes: u64, steps: &mut VecDeque<Step>, out: &mut Vec<u8>) {
        let mut host = lock(&self.host);
        host.send_changes(0, out);
        if let Some((tag, offset)) = host.find(address) {
            steps.push_back(Step::Push(tag, offset, bytes));
        }
    }

    /// Sends a record that writes a box of device memory; what of it is host memory comes back.
    fn written(
        &self,
        written: Written,
        record: Record<'_>,
        steps: &mut VecDeque<Step>,
        out: &mut Vec<u8>,
    ) {
        let mut host = lock(&self.host);
        host.send_changes(0, out);
        let target = host.find(written.address);
        drop(host);
        let Some(target) = target.filter(|_| written.has_span()) else {
            return record.put(out);
        };
        let position = record.position;
        Record {
            position: 0,
            ..record
        }
        .put(out);
        let copy = Box::new(written.as_copy());
        steps.push_back(Step::ReadBack(copy, position, target));
    }

    /// Takes one step.
    pub(super) fn take_step(
        &self,
        step: Step,
        steps: &mut VecDeque<Step>,
        out: &mut Vec<u8>,
    ) -> Result<(), TunnelError> {
        match step {
            Step::Push(tag, offset, bytes) => {
                self.ask_for_pieces(bytes as usize, out);
                let end = |draft, bytes, out: &mut _| self.end_with_bytes(draft, bytes, false, out);
                let sent = lock(&self.host).send_range(tag, offset, bytes, 0, out, end);
                debug_assert!(sent <= bytes.max(PIECE));
                if sent < bytes {
                    steps.push_front(Step::Push(tag, offset + sent, bytes - sent));
                }
            }
            Step::Copy(copy, position, target) => self.send_copy(&copy, position, target, out)?,
            Step::Record(call, slot, position, body) => {
                let body = body.as_slice();
                Record {
                    call,
                    slot,
                    position,
                    body,
                }
                .put(out);
            }
            Step::ReadBack(copy, position, target) => self.read_back(&copy, position, target, out),
        }
        Ok(())
    }
}

impl Written {
    fn by_write(write: &Write, tail: &[u8]) -> Self {
        let bytes = tail.len() as u64;
        Self {
            stream: write.stream,
            address: write.address,
            pitch: (bytes, bytes),
            width: bytes,
            height: 1,
        }
    }

    fn by_fill(fill: &Fill) -> Self {
        Self {
            stream: fill.stream,
            address: fill.address,
            pitch: (fill.pitch, fill.pitch.saturating_mul(fill.height)),
            width: fill.width.saturating_mul(fill.element_bytes.into()),
            height: fill.height,
        }
    }

    fn has_span(&self) -> bool {
        span(self.pitch, (self.width, self.height, 1)).is_some()
    }

    /// A copy of the box to where it is.
    fn as_copy(&self) -> Copy {
        let place = CopyPlace::Device(self.address);
        let area = CopyBox {
            src_pitch: self.pitch,
            dst_pitch: self.pitch,
            width_bytes: self.width,
            height: self.height,
            ..CopyBox::linear(place, place, self.width)
        };
        let stream = self.stream;
        Copy { stream, area }
    }
}
