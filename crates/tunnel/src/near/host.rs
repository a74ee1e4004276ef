//! Host memory that the program shares with the device, beside the program.

use std::collections::{BTreeMap, HashMap};

use mica_wire::session::{HostRegister, MappedBytes, check_foreign};

use super::Near;
use crate::frame::{AT_ONCE, Draft, HEADER_BYTES, Header, Kind};
use crate::shadow::Shadow;
use crate::{TunnelError, lock};

/// Bytes of host memory in one frame.
pub(super) const PIECE: u64 = 256 << 10;
/// Ranges that copies read, as far as they are remembered one by one.
const MOST_READ: usize = 256;

/// One piece of host memory.
pub(super) struct Memory {
    pub(super) shadow: Shadow,
    context: u64,
    /// Where the device has it, once it is registered.
    device: Option<u64>,
}

/// All host memory of a program.
#[derive(Default)]
pub(super) struct HostMemory {
    by_tag: HashMap<u64, Memory>,
    /// First device address to tag.
    by_device: BTreeMap<u64, u64>,
    mapped: usize,
    /// What copies read that may not have run: a host function may change it before they do.
    read: Vec<(u64, u64, u64)>,
}

impl HostMemory {
    /// Makes a copy of the program's mapping. Managed memory is kept equal from the beginning.
    pub(super) fn add(
        &mut self,
        file: std::os::fd::OwnedFd,
        call: &HostRegister,
        out: &mut Vec<u8>,
    ) -> Result<(), TunnelError> {
        let failed = "mapping host memory of the program";
        check_foreign(&file, call.offset, call.bytes).map_err(TunnelError::system(failed))?;
        let mapped = MappedBytes::map(&file, call.offset, call.bytes as usize, 0);
        let mapped = mapped.map_err(TunnelError::system(failed))?;
        let mut shadow = Shadow::new(mapped, call.bytes);
        Header::new(Kind::HostNew, call.tag, call.bytes).put(out, &[]);
        if call.charge {
            shadow.map_as_zeros();
            self.mapped += 1;
            Header::new(Kind::HostMap, call.tag, 0).put(out, &[]);
        }
        let memory = Memory {
            shadow,
            context: call.context,
            device: None,
        };
        self.by_tag.insert(call.tag, memory);
        Ok(())
    }

    /// The device has it at an address.
    pub(super) fn registered(&mut self, tag: u64, device: u64) {
        if let Some(memory) = self.by_tag.get_mut(&tag) {
            memory.device = Some(device);
            self.by_device.insert(device, tag);
        }
    }

    /// The tag and offset of a device address that is host memory.
    pub(super) fn find(&self, address: u64) -> Option<(u64, u64)> {
        let (first, tag) = self.by_device.range(..=address).next_back()?;
        let bytes = self.by_tag.get(tag)?.shadow.bytes();
        (address - first < bytes).then_some((*tag, address - first))
    }

    pub(super) fn get(&self, tag: u64) -> Option<&Memory> {
        self.by_tag.get(&tag)
    }

    /// The tags of what a context has registered.
    pub(super) fn of_context(&self, context: u64) -> Vec<u64> {
        let of = self.by_tag.iter().filter(|(_, m)| m.context == context);
        of.map(|(tag, _)| *tag).collect()
    }

    /// The device has let go of it.
    pub(super) fn remove(&mut self, tag: u64) {
        if let Some(memory) = self.by_tag.remove(&tag) {
            self.mapped -= usize::from(memory.shadow.is_mapped());
            if let Some(device) = memory.device {
                self.by_device.remove(&device);
            }
        }
    }

    /// Takes over what the device has written.
    pub(super) fn merge(&mut self, tag: u64, offset: u64, bytes: &[u8]) -> bool {
        // What is gone needs nothing.
        let memory = self.by_tag.get_mut(&tag);
        memory.is_none_or(|memory| memory.shadow.merge(offset, bytes))
    }

    /// Keeps memory equal from now on whose address is anywhere in these bytes: a kernel may use it.
    pub(super) fn map_mentioned(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if self.by_device.is_empty() {
            return;
        }
        for window in bytes.windows(8) {
            let Ok(window) = window.try_into() else {
                continue;
            };
            let Some((tag, _)) = self.find(u64::from_le_bytes(window)) else {
                continue;
            };
            self.map(tag, out);
        }
    }

    fn map(&mut self, tag: u64, out: &mut Vec<u8>) {
        if let Some(memory) = self.by_tag.get_mut(&tag)
            && !memory.shadow.is_mapped()
        {
            memory.shadow.map();
            self.mapped += 1;
            Header::new(Kind::HostMap, tag, 0).put(out, &[]);
            memory
                .shadow
                .all(|offset, page| put(tag, offset, page, 0, out));
        }
    }

    /// Sends what the program has changed of memory that is kept equal.
    pub(super) fn send_changes(&mut self, flags: u8, out: &mut Vec<u8>) {
        if self.mapped == 0 {
            return;
        }
        for (tag, memory) in &mut self.by_tag {
            (memory.shadow).changes(|offset, page| put(*tag, offset, page, flags, out));
        }
    }

    /// Sends bytes that a copy will read, unless they are kept equal; at most [`PIECE`] of them, in a frame that `end` ends. Answers
    /// how many.
    pub(super) fn send_range(
        &mut self,
        tag: u64,
        offset: u64,
        bytes: u64,
        flags: u8,
        out: &mut Vec<u8>,
        end: impl FnOnce(Draft, usize, &mut Vec<u8>),
    ) -> u64 {
        let Some(memory) = self.by_tag.get(&tag) else {
            return bytes;
        };
        if memory.shadow.is_mapped() {
            return bytes;
        }
        let len = bytes.min(PIECE);
        let header = Header {
            flags,
            ..Header::new(Kind::HostData, tag, offset)
        };
        let draft = Draft::begin(header, out);
        let begun = out.len();
        match memory.shadow.append_to(offset, len as usize, out) {
            true => end(draft, len as usize, out),
            false => out.truncate(begun - HEADER_BYTES),
        }
        len
    }

    /// Remembers that a copy reads these bytes.
    pub(super) fn note_read(&mut self, tag: u64, offset: u64, bytes: u64) {
        if self.read.len() < MOST_READ {
            return self.read.push((tag, offset, bytes));
        }
        // From here on all of it.
        let all = self
            .by_tag
            .iter()
            .map(|(tag, m)| (*tag, 0, m.shadow.bytes()));
        self.read = all.collect();
    }

    /// All copies have run.
    pub(super) fn forget_reads(&mut self) {
        self.read.clear();
    }

    /// Sends again what copies read that may not have run yet.
    fn send_reads(&mut self, out: &mut Vec<u8>) {
        for (tag, mut offset, mut bytes) in self.read.clone() {
            while bytes > 0 {
                let sent = self.send_range(tag, offset, bytes, AT_ONCE, out, |draft, _, out| {
                    draft.end(out);
                });
                offset += sent;
                bytes -= sent;
            }
        }
    }
}

fn put(tag: u64, offset: u64, bytes: &[u8], flags: u8, out: &mut Vec<u8>) {
    let header = Header {
        flags,
        ..Header::new(Kind::HostData, tag, offset)
    };
    header.put(out, &[bytes]);
}

impl Near {
    /// Tells the far end of host functions that have returned, as they do.
    pub(super) fn tell_notices(&self) -> Result<(), TunnelError> {
        let mut told = 0;
        while !self.is_over() {
            let done = self.port.notices_done();
            if done == told {
                let pause = std::time::Duration::from_millis(100);
                self.port.wait_notice_done(told.wrapping_add(1), pause);
                continue;
            }
            let mut outbox = lock(&self.outbox);
            let mut host = lock(&self.host);
            // What the function has written is there before the stream goes on.
            host.send_changes(AT_ONCE, &mut outbox);
            host.send_reads(&mut outbox);
            drop(host);
            Header::new(Kind::NoticesDone, done.into(), 0).put(&mut outbox, &[]);
            // The far end deals with these at once and gives no credit for them.
            self.send_out(&mut outbox)?;
            told = done;
        }
        Ok(())
    }
}
