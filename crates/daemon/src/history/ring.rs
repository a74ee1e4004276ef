//! A file of records of one size that are overwritten in turn, the oldest first.
//!
//! Owns the layout of the file. What a record means is its user's business.
//!
//! ```text
//!   header: magic, record bytes, capacity, check     64 bytes
//!   slot 0: lap, check, payload
//!   slot 1: …                                         record N is in slot N % capacity, lap N / capacity
//! ```
//!
//! A record counts only if its check fits and its lap is the one that its place must have, so a record that was written half
//! (a killed daemon, a full disk, a crash of the machine) is left out. Nothing else depends on it.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use mica_control::files;

/// Bytes before the first record.
const HEADER_BYTES: u64 = 64;
/// First bytes of every file; the number is that of the layout.
const MAGIC: [u8; 8] = *b"micaring";
const LAYOUT: u32 = 1;
/// Bytes of a record before its payload: lap and check.
const FRAME_BYTES: usize = 8;
/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

/// A ring that is written.
#[derive(Debug)]
pub(crate) struct Ring {
    file: Arc<File>,
    payload_bytes: usize,
    capacity: u64,
    /// Number of the next record.
    next: u64,
}

/// What a ring held when this was made. Records that are overwritten meanwhile are left out.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    file: Arc<File>,
    payload_bytes: usize,
    capacity: u64,
    next: u64,
}

/// Whether a file was taken as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    /// It is new, or what it holds goes on.
    Kept,
    /// It was not a ring of this kind, and is empty now.
    Replaced,
}

impl Ring {
    /// Opens a ring, or makes an empty one.
    pub(crate) fn open(path: &Path, payload_bytes: usize, capacity: u64) -> Result<(Self, Opened)> {
        let file = files::open_or_create(path)?;
        let header = header(payload_bytes, capacity);
        let mut found = [0; HEADER_BYTES as usize];
        let opened = match file.metadata()?.len() {
            0 => Opened::Kept,
            _ => match file.read_exact_at(&mut found, 0) {
                Ok(()) if found == header => Opened::Kept,
                Ok(()) => Opened::Replaced,
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => Opened::Replaced,
                Err(error) => return Err(error),
            },
        };
        if opened == Opened::Replaced {
            file.set_len(0)?;
        }
        file.write_all_at(&header, 0)?;
        let mut ring = Self {
            file: Arc::new(file),
            payload_bytes,
            capacity,
            next: 0,
        };
        ring.next = ring.find_next()?;
        Ok((ring, opened))
    }

    /// One past the newest record.
    fn find_next(&self) -> Result<u64> {
        let mut next = 0;
        self.snapshot().blocks(0, self.capacity, |slot, lap, _| {
            next = next.max(u64::from(lap) * self.capacity + slot + 1);
        })?;
        Ok(next)
    }

    /// Adds records: their payloads, one behind the other.
    pub(crate) fn append(&mut self, payloads: &[u8]) -> Result<()> {
        let mut bytes = Vec::new();
        for payload in payloads.chunks_exact(self.payload_bytes) {
            let lap = u32::try_from(self.next / self.capacity).map_err(|_| {
                Error::new(
                    ErrorKind::StorageFull,
                    "the ring has no number for a record",
                )
            })?;
            bytes.clear();
            bytes.extend_from_slice(&lap.to_le_bytes());
            bytes.extend_from_slice(&check(lap.into(), payload).to_le_bytes());
            bytes.extend_from_slice(payload);
            let slot = self.next % self.capacity;
            self.file.write_all_at(&bytes, offset(slot, bytes.len()))?;
            self.next += 1;
        }
        Ok(())
    }

    /// Number of the next record: how many there were so far, the overwritten ones included.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// What the ring holds now.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            file: self.file.clone(),
            payload_bytes: self.payload_bytes,
            capacity: self.capacity,
            next: self.next,
        }
    }
}

impl Snapshot {
    /// Shows records from the newest to the oldest, a block at a time, until a whole block is unwanted.
    pub(crate) fn newest_first(&self, mut wanted: impl FnMut(&[u8]) -> bool) -> Result<()> {
        let per_block = (READ_BYTES / self.record_bytes()) as u64;
        let oldest = self.next.saturating_sub(self.capacity);
        let mut end = self.next;
        while end > oldest {
            // A block lies within one lap, so that its slots are neighbours.
            let lap_begin = (end - 1) / self.capacity * self.capacity;
            let begin = end.saturating_sub(per_block).max(oldest).max(lap_begin);
            let (mut seen, mut any) = (false, false);
            let lap = u32::try_from(begin / self.capacity).unwrap_or(u32::MAX);
            let mut payloads = Vec::new();
            self.blocks(begin % self.capacity, end - begin, |_, found, payload| {
                if found == lap {
                    payloads.extend_from_slice(payload);
                }
            })?;
            for payload in payloads.chunks_exact(self.payload_bytes).rev() {
                seen = true;
                any |= wanted(payload);
            }
            if seen && !any {
                return Ok(());
            }
            end = begin;
        }
        Ok(())
    }

    fn record_bytes(&self) -> usize {
        FRAME_BYTES + self.payload_bytes
    }

    /// Shows the sound records of neighbouring slots: slot, lap, payload. Slots beyond the end of the file are empty.
    fn blocks(&self, first: u64, count: u64, mut show: impl FnMut(u64, u32, &[u8])) -> Result<()> {
        let size = self.record_bytes();
        let per_block = READ_BYTES / size;
        let mut buffer = vec![0; per_block * size];
        let mut slot = first;
        while slot < first + count {
            let here =
                usize::try_from(first + count - slot).map_or(per_block, |n| n.min(per_block));
            let read = read_at_most(&self.file, &mut buffer[..here * size], offset(slot, size))?;
            for (index, record) in buffer[..read].chunks_exact(size).enumerate() {
                let word = |at: usize| {
                    let bytes = record[at..at + 4].try_into().unwrap_or_default();
                    u32::from_le_bytes(bytes)
                };
                let (lap, payload) = (word(0), &record[FRAME_BYTES..]);
                if word(4) == check(lap.into(), payload) {
                    show(slot + index as u64, lap, payload);
                }
            }
            if read < here * size {
                return Ok(());
            }
            slot += here as u64;
        }
        Ok(())
    }
}

fn offset(slot: u64, record_bytes: usize) -> u64 {
    HEADER_BYTES + slot * record_bytes as u64
}

/// Reads until the buffer is full or the file ends.
pub(super) fn read_at_most(file: &File, buffer: &mut [u8], offset: u64) -> Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

fn header(payload_bytes: usize, capacity: u64) -> [u8; HEADER_BYTES as usize] {
    let mut header = [0; HEADER_BYTES as usize];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&LAYOUT.to_le_bytes());
    header[12..16].copy_from_slice(&(payload_bytes as u32).to_le_bytes());
    header[16..24].copy_from_slice(&capacity.to_le_bytes());
    header
}

/// A checksum. Not zero for a record of zeros, so that a hole in the file is not a record.
pub(super) fn check(number: u64, payload: &[u8]) -> u32 {
    let mut sum = 0x6d69_6361_u64 ^ number.rotate_left(32);
    for word in payload.chunks(8) {
        let mut bytes = [0; 8];
        bytes[..word.len()].copy_from_slice(word);
        sum = (sum ^ u64::from_le_bytes(bytes)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        sum ^= sum >> 29;
    }
    (sum ^ (sum >> 32)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: u64 = 9000;

    fn open(path: &Path) -> Ring {
        Ring::open(path, 16, CAPACITY).unwrap().0
    }

    fn payload(number: u64) -> [u8; 16] {
        let mut payload = [7; 16];
        payload[..8].copy_from_slice(&number.to_le_bytes());
        payload
    }

    fn numbers(ring: &Ring) -> Vec<u64> {
        let mut all = Vec::new();
        let mut take = |payload: &[u8]| {
            all.push(u64::from_le_bytes(payload[..8].try_into().unwrap()));
            true
        };
        ring.snapshot().newest_first(&mut take).unwrap();
        all.reverse();
        all
    }

    #[test]
    fn a_ring_keeps_the_newest_over_laps_and_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ring");
        let mut written = 0;
        for more in [0, 1, 4000, 999, 1, 7000, 3] {
            let mut ring = open(&path);
            assert_eq!(ring.next(), written);
            let end = written + more;
            let bytes: Vec<u8> = (written..end).flat_map(payload).collect();
            ring.append(&bytes).unwrap();
            written = end;
            let kept: Vec<u64> = (written.saturating_sub(CAPACITY)..written).collect();
            assert_eq!(numbers(&ring), kept);
        }
        let most = HEADER_BYTES + CAPACITY * 24;
        assert_eq!(std::fs::metadata(&path).unwrap().len(), most);
    }

    #[test]
    fn a_torn_or_damaged_record_is_left_out_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ring");
        let mut ring = open(&path);
        ring.append(&(0..10).flat_map(payload).collect::<Vec<u8>>())
            .unwrap();
        // The last record has only half of its bytes, and a bit of the fourth is flipped.
        ring.file.set_len(HEADER_BYTES + 9 * 24 + 12).unwrap();
        ring.file
            .write_all_at(&[8], HEADER_BYTES + 3 * 24 + 20)
            .unwrap();
        drop(ring);
        let mut ring = open(&path);
        assert_eq!(numbers(&ring), [0, 1, 2, 4, 5, 6, 7, 8]);
        ring.append(&payload(100)).unwrap();
        assert_eq!(numbers(&ring), [0, 1, 2, 4, 5, 6, 7, 8, 100]);
        assert_eq!(numbers(&open(&path)), [0, 1, 2, 4, 5, 6, 7, 8, 100]);
    }

    #[test]
    fn reading_stops_where_a_whole_block_is_unwanted() {
        let dir = tempfile::tempdir().unwrap();
        let mut ring = open(&dir.path().join("ring"));
        ring.append(&(0..CAPACITY).flat_map(payload).collect::<Vec<u8>>())
            .unwrap();
        let mut shown = 0;
        let mut newer = |payload: &[u8]| {
            shown += 1;
            u64::from_le_bytes(payload[..8].try_into().unwrap()) >= CAPACITY - 10
        };
        ring.snapshot().newest_first(&mut newer).unwrap();
        let per_block = (READ_BYTES / 24) as u64;
        assert!(shown <= 2 * per_block && shown < CAPACITY, "{shown}");
    }

    #[test]
    fn a_file_of_another_kind_is_replaced_and_said_to_be() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ring");
        std::fs::write(&path, b"something else").unwrap();
        let (mut ring, opened) = Ring::open(&path, 16, CAPACITY).unwrap();
        assert_eq!(opened, Opened::Replaced);
        ring.append(&payload(1)).unwrap();
        let (_, opened) = Ring::open(&path, 16, CAPACITY).unwrap();
        assert_eq!(opened, Opened::Kept);
        let (other, opened) = Ring::open(&path, 16, CAPACITY + 1).unwrap();
        assert_eq!((numbers(&other), opened), (vec![], Opened::Replaced));
    }
}
