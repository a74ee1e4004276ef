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

fn record(call: u16, slot: u16, position: u64, body: &[u8], out: &mut Vec<u8>) {
    let header = Header {
        call,
        slot,
        ..Header::new(Kind::Record, position, 0)
    };
    header.put(out, &[body]);
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
        let slot = header.reply_slot().unwrap_or(NO_SLOT);
        if WORK.contains(&header.call) {
            let mut host = lock(&self.host);
            host.map_mentioned(body, out);
            host.send_changes(0, out);
        } else if WAITS.contains(&header.call) {
            lock(&self.host).send_changes(0, out);
        }
        if !FIRST_LOOKED_AT.contains(&header.call) {
            record(header.call, slot, position, body, out);
            return Ok(());
        }
        let (call, tail) = Call::decode(header.call, body).map_err(|source| {
            let number = header.call;
            Violation::Body { number, source }
        })?;
        let plain = |out: &mut Vec<u8>| record(header.call, slot, position, body, out);
        match call {
            Call::Continue(more) => self.port.continue_answer(slot, more.offset),
            Call::Copy(copy) => self.copy(copy, position, steps, out)?,
            Call::BlobPart(part) => lock(&self.blobs).append(part.blob, tail)?,
            Call::BlobChunk(part) => {
                let bytes = self.port.area().chunk_read(part.chunk, part.bytes);
                let bytes = bytes.ok_or(Violation::Chunk {
                    chunk: part.chunk,
                    offset: 0,
                    bytes: part.bytes.into(),
                })?;
                self.port.chunk_done(part.chunk, chunk_state::FREE);
                lock(&self.blobs).append(part.blob, &bytes)?;
            }
            Call::BlobDrop(gone) => drop(lock(&self.blobs).take(gone.blob)),
            Call::ModuleLoad(load) => {
                let mut blobs = lock(&self.blobs);
                if let Some(image) = blobs.take(load.blob) {
                    blobs.send_image(load.blob, image, &self.compressor, out);
                    self.note_after(slot, After::Image(load.blob));
                }
                plain(out);
            }
            Call::GraphInstantiate(graph) => {
                self.graph(graph.blob, out);
                plain(out);
            }
            Call::GraphUpdate(graph) => {
                self.graph(graph.blob, out);
                plain(out);
            }
            Call::HostRegister(register) => self.register(register, slot, position, out)?,
            Call::HostUnregister(gone) => {
                if let Some((tag, 0)) = lock(&self.host).find(gone.address) {
                    self.note_after(slot, After::Unregister(vec![tag]));
                }
                plain(out);
            }
            Call::ContextDestroy(gone) => {
                let tags = lock(&self.host).of_context(gone.context);
                self.note_after(slot, After::Unregister(tags));
                plain(out);
            }
            Call::Read(read) => {
                self.push_source(read.address, read.bytes.into(), steps, out);
                steps.push_back(Step::Record(header.call, slot, position, body.to_vec()));
            }
            Call::Write(write) => {
                let bytes = tail.len() as u64;
                let area = (write.stream, write.address, (bytes, bytes));
                self.written(
                    area,
                    (bytes, 1),
                    (header.call, slot, position, body),
                    steps,
                    out,
                );
            }
            Call::Fill(fill) => {
                let width = fill.width.saturating_mul(fill.element_bytes.into());
                let pitch = (fill.pitch, fill.pitch.saturating_mul(fill.height));
                let area = (fill.stream, fill.address, pitch);
                let record = (header.call, slot, position, body);
                self.written(area, (width, fill.height), record, steps, out);
            }
            _ => plain(out),
        }
        Ok(())
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
        slot: u16,
        position: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), TunnelError> {
        let file = self.port.take_descriptor(register.tag)?;
        lock(&self.host).add(file, &register, out)?;
        self.note_after(slot, After::Register(register.tag));
        let there = HostRegister {
            offset: 0,
            ..register
        };
        let body = there.encode();
        record(HostRegister::NUMBER, slot, position, body.as_slice(), out);
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
        (stream, address, pitch): (u64, u64, (u64, u64)),
        (width, height): (u64, u64),
        (call, slot, position, body): (u16, u16, u64, &[u8]),
        steps: &mut VecDeque<Step>,
        out: &mut Vec<u8>,
    ) {
        let mut host = lock(&self.host);
        host.send_changes(0, out);
        let target = host.find(address);
        drop(host);
        let Some(target) = target.filter(|_| span(pitch, (width, height, 1)).is_some()) else {
            return record(call, slot, position, body, out);
        };
        record(call, slot, 0, body, out);
        let place = CopyPlace::Device(address);
        let area = CopyBox {
            src_pitch: pitch,
            dst_pitch: pitch,
            width_bytes: width,
            height,
            ..CopyBox::linear(place, place, width)
        };
        let copy = Box::new(Copy { stream, area });
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
                let sent = lock(&self.host).send_range(tag, offset, bytes, 0, out);
                debug_assert!(sent <= bytes.max(PIECE));
                if sent < bytes {
                    steps.push_front(Step::Push(tag, offset + sent, bytes - sent));
                }
            }
            Step::Copy(copy, position, target) => self.send_copy(&copy, position, target, out)?,
            Step::Record(call, slot, position, body) => record(call, slot, position, &body, out),
            Step::ReadBack(copy, position, target) => self.read_back(&copy, position, target, out),
        }
        Ok(())
    }
}
