//! A file of blocks of packed records that are overwritten in turn, the oldest block first.
//!
//! Owns the layout of the file; [`super::pack`] owns that of a record.
//!
//! ```text
//!   header: magic, layout, block bytes, blocks          64 bytes
//!   block:  number │ chunk │ chunk │ …                   block N is in place N % blocks
//!   chunk:  length │ check over number and records │ packed records
//! ```
//!
//! A chunk is what was written at once. It counts only if its check fits, so one that was written half (a killed daemon, a
//! full disk, a crash of the machine) ends its block there and is overwritten by the next one. Each block can be read on its
//! own. A daemon that starts reads the newest block and goes on in it.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use mica_control::files;

use super::pack::{MOST_BYTES, Memory};
use super::record::Record;
use super::ring::{Opened, check, read_at_most};

/// Bytes before the first block.
pub(crate) const HEADER_BYTES: u64 = 64;
/// First bytes of every file, and the number of the layout.
const MAGIC: [u8; 8] = *b"micapack";
const LAYOUT: u32 = 1;
/// Bytes of a block before its first chunk: its number.
const NUMBER_BYTES: usize = 8;
/// Bytes of a chunk before its records: length and check.
const FRAME_BYTES: usize = 6;

/// How large a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// At most 64 KiB, so that a chunk's length fits its two bytes.
    pub(crate) block_bytes: usize,
    pub(crate) blocks: u64,
}

impl Shape {
    /// Bytes of a file that is full.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        HEADER_BYTES + self.block_bytes as u64 * self.blocks
    }

    fn offset(&self, number: u64) -> u64 {
        HEADER_BYTES + number % self.blocks * self.block_bytes as u64
    }

    fn header(&self) -> [u8; HEADER_BYTES as usize] {
        let mut header = [0; HEADER_BYTES as usize];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&LAYOUT.to_le_bytes());
        header[12..16].copy_from_slice(&(self.block_bytes as u32).to_le_bytes());
        header[16..24].copy_from_slice(&self.blocks.to_le_bytes());
        header
    }
}

/// A file that is written.
#[derive(Debug)]
pub(crate) struct Blocks {
    file: Arc<File>,
    shape: Shape,
    /// Number of the block that is written now.
    number: u64,
    /// Bytes of it that are written; 0 in a block that is not begun.
    used: usize,
    /// What a reader of this block knows at its end.
    memory: Memory,
}

/// What a file held when this was made. Blocks that are overwritten meanwhile are left out.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    file: Arc<File>,
    shape: Shape,
    number: u64,
    used: usize,
}

impl Blocks {
    /// Opens a file, or makes an empty one.
    pub(crate) fn open(path: &Path, shape: Shape) -> Result<(Self, Opened)> {
        let file = files::open_or_create(path)?;
        let mut found = [0; HEADER_BYTES as usize];
        let length = read_at_most(&file, &mut found, 0)?;
        let opened = match length == 0 || found == shape.header() {
            true => Opened::Kept,
            false => Opened::Replaced,
        };
        if opened == Opened::Replaced {
            file.set_len(0)?;
        }
        file.write_all_at(&shape.header(), 0)?;
        let mut blocks = Self {
            file: Arc::new(file),
            shape,
            number: 0,
            used: 0,
            memory: Memory::default(),
        };
        blocks.go_on()?;
        Ok((blocks, opened))
    }

    /// Finds the newest block with a sound chunk, and its end.
    fn go_on(&mut self) -> Result<()> {
        let mut numbers = Vec::new();
        for place in 0..self.shape.blocks {
            let mut bytes = [0; NUMBER_BYTES];
            let read = read_at_most(&self.file, &mut bytes, self.shape.offset(place))?;
            if read < NUMBER_BYTES {
                break;
            }
            let number = u64::from_le_bytes(bytes);
            if number % self.shape.blocks == place {
                numbers.push(number);
            }
        }
        numbers.sort_unstable();
        for number in numbers.into_iter().rev() {
            let mut memory = Memory::default();
            let block = self.snapshot_of(number, self.shape.block_bytes);
            let used = block.read(number, &mut memory, |_| ())?;
            if used > NUMBER_BYTES {
                (self.number, self.used, self.memory) = (number, used, memory);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Adds records, in the order in which they are read again.
    pub(crate) fn append(&mut self, records: &[Record]) -> Result<()> {
        let mut chunk = Vec::new();
        let mut packed = Vec::with_capacity(MOST_BYTES);
        self.memory.begin_chunk();
        for record in records {
            let used = self.used.max(NUMBER_BYTES) + FRAME_BYTES + chunk.len();
            if used + MOST_BYTES > self.shape.block_bytes {
                self.write(&chunk)?;
                chunk.clear();
                self.next_block()?;
            }
            packed.clear();
            self.memory.pack(record, &mut packed);
            chunk.extend_from_slice(&packed);
        }
        self.write(&chunk)
    }

    fn next_block(&mut self) -> Result<()> {
        self.memory = Memory::default();
        if self.used > 0 {
            let next = self.number.checked_add(1);
            self.number = next.ok_or_else(|| {
                Error::new(ErrorKind::StorageFull, "the file has no number for a block")
            })?;
            self.used = 0;
        }
        Ok(())
    }

    fn write(&mut self, chunk: &[u8]) -> Result<()> {
        if chunk.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::with_capacity(NUMBER_BYTES + FRAME_BYTES + chunk.len());
        if self.used == 0 {
            bytes.extend_from_slice(&self.number.to_le_bytes());
        }
        bytes.extend_from_slice(&(chunk.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&check(self.number, chunk).to_le_bytes());
        bytes.extend_from_slice(chunk);
        let offset = self.shape.offset(self.number) + self.used as u64;
        if let Err(error) = self.file.write_all_at(&bytes, offset) {
            // The memory knows records that no reader will find: the next records begin a block.
            let _ = self.next_block();
            return Err(error);
        }
        self.used += bytes.len();
        Ok(())
    }

    /// What the file holds now.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.snapshot_of(self.number, self.used)
    }

    fn snapshot_of(&self, number: u64, used: usize) -> Snapshot {
        Snapshot {
            file: self.file.clone(),
            shape: self.shape,
            number,
            used,
        }
    }
}

impl Snapshot {
    /// Shows records, the newest block first, until a whole block is unwanted.
    pub(crate) fn newest_first(&self, mut wanted: impl FnMut(&Record) -> bool) -> Result<()> {
        for number in self.numbers().rev() {
            let (mut seen, mut any) = (false, false);
            self.read(number, &mut Memory::default(), |record| {
                seen = true;
                any |= wanted(record);
            })?;
            if seen && !any {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Numbers of the blocks that are kept.
    fn numbers(&self) -> std::ops::RangeInclusive<u64> {
        let oldest = self.number.saturating_sub(self.shape.blocks - 1);
        oldest..=self.number
    }

    /// The records of the oldest chunk that is left, where older ones were overwritten.
    pub(crate) fn overwritten_until(&self) -> Result<Vec<Record>> {
        let mut first = Vec::new();
        if *self.numbers().start() > 0 {
            // The oldest block may be overwritten meanwhile.
            for number in self.numbers().take(2) {
                let (mut memory, mut bytes) = (Memory::default(), self.block(number)?);
                bytes.truncate(self.shape.block_bytes);
                if let Some(chunk) = chunks(number, &bytes).next() {
                    unpack(chunk, &mut memory, |record| first.push(*record));
                    break;
                }
            }
        }
        Ok(first)
    }

    /// The bytes of a block from the file, as far as this snapshot goes.
    fn block(&self, number: u64) -> Result<Vec<u8>> {
        let length = match number == self.number {
            true => self.used,
            false => self.shape.block_bytes,
        };
        let mut bytes = vec![0; length];
        let read = read_at_most(&self.file, &mut bytes, self.shape.offset(number))?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// Shows the records of a block; returns the bytes of its sound part.
    fn read(
        &self,
        number: u64,
        memory: &mut Memory,
        mut show: impl FnMut(&Record),
    ) -> Result<usize> {
        let bytes = self.block(number)?;
        let mut used = NUMBER_BYTES;
        for chunk in chunks(number, &bytes) {
            used += FRAME_BYTES + chunk.len();
            unpack(chunk, memory, &mut show);
        }
        Ok(used)
    }
}

/// The sound chunks at the begin of a block.
fn chunks(number: u64, block: &[u8]) -> impl Iterator<Item = &[u8]> {
    let is_own = block.get(..NUMBER_BYTES) == Some(&number.to_le_bytes()[..]);
    let mut rest = if is_own { &block[NUMBER_BYTES..] } else { &[] };
    std::iter::from_fn(move || {
        let (length, after) = rest.split_first_chunk()?;
        let (sum, after) = after.split_first_chunk()?;
        let length = usize::from(u16::from_le_bytes(*length));
        let (chunk, after) = after.split_at_checked(length)?;
        rest = after;
        (length > 0 && u32::from_le_bytes(*sum) == check(number, chunk)).then_some(chunk)
    })
}

fn unpack(mut chunk: &[u8], memory: &mut Memory, mut show: impl FnMut(&Record)) {
    memory.begin_chunk();
    while let Some(record) = memory.unpack(&mut chunk) {
        show(&record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mica_control::api::Point;

    const SHAPE: Shape = Shape {
        block_bytes: 512,
        blocks: 8,
    };

    fn open(path: &Path) -> Blocks {
        Blocks::open(path, SHAPE).unwrap().0
    }

    fn record(number: u64) -> Record {
        let point = Point {
            time_seconds: 1_790_000_000 + number,
            launches: number * 7 % 4000,
            ..Point::default()
        };
        let series = (number % 3) as u32;
        Record { series, point }
    }

    fn records(range: std::ops::Range<u64>) -> Vec<Record> {
        range.map(record).collect()
    }

    /// The times of all records, oldest first.
    fn numbers(blocks: &Blocks) -> Vec<u64> {
        let mut all = Vec::new();
        let take = |r: &Record| {
            assert_eq!(*r, record(r.point.time_seconds - 1_790_000_000));
            all.push(r.point.time_seconds - 1_790_000_000);
            true
        };
        blocks.snapshot().newest_first(take).unwrap();
        all.sort_unstable();
        all
    }

    #[test]
    fn a_file_keeps_the_newest_over_laps_and_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blocks");
        let mut written = 0;
        for more in [0, 1, 400, 999, 1, 700, 3] {
            let mut blocks = open(&path);
            blocks.append(&records(written..written + more)).unwrap();
            written += more;
            let kept = numbers(&blocks);
            let first = written - kept.len() as u64;
            assert_eq!(kept, (first..written).collect::<Vec<u64>>());
            assert!(first == 0 || kept.len() > 400, "{}", kept.len());
            assert_eq!(numbers(&open(&path)), kept);
        }
        let size = std::fs::metadata(&path).unwrap().len();
        assert!(size <= SHAPE.bytes() && size > SHAPE.bytes() - 80, "{size}");
    }

    #[test]
    fn restarts_waste_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blocks");
        for number in 0..40 {
            open(&path).append(&records(number..number + 1)).unwrap();
        }
        assert_eq!(numbers(&open(&path)).len(), 40);
        let size = std::fs::metadata(&path).unwrap().len();
        assert!(size < HEADER_BYTES + 2 * 512, "{size}");
    }

    #[test]
    fn a_torn_chunk_is_left_out_and_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blocks");
        let mut blocks = open(&path);
        blocks.append(&records(0..5)).unwrap();
        blocks.append(&records(5..10)).unwrap();
        let size = std::fs::metadata(&path).unwrap().len();
        blocks.file.set_len(size - 1).unwrap();
        drop(blocks);
        let mut blocks = open(&path);
        assert_eq!(numbers(&blocks), [0, 1, 2, 3, 4]);
        blocks.append(&records(20..22)).unwrap();
        assert_eq!(numbers(&open(&path)), [0, 1, 2, 3, 4, 20, 21]);
    }

    #[test]
    fn a_damaged_block_costs_no_other_block() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blocks");
        let mut blocks = open(&path);
        for number in 0..300 {
            blocks.append(&records(number..number + 1)).unwrap();
        }
        let before = numbers(&blocks).len();
        blocks
            .file
            .write_all_at(&[0xa5; 40], HEADER_BYTES + 512)
            .unwrap();
        let after = numbers(&open(&path)).len();
        assert!(after < before && after > before - 80, "{after} of {before}");
    }

    #[test]
    fn a_snapshot_does_not_see_what_comes_later() {
        let dir = tempfile::tempdir().unwrap();
        let mut blocks = open(&dir.path().join("blocks"));
        blocks.append(&records(0..5)).unwrap();
        let snapshot = blocks.snapshot();
        blocks.append(&records(5..400)).unwrap();
        let mut count = 0;
        snapshot
            .newest_first(|_| {
                count += 1;
                true
            })
            .unwrap();
        assert_eq!(count, 5);
        // Until the block is overwritten.
        blocks.append(&records(400..2000)).unwrap();
        snapshot.newest_first(|_| panic!("overwritten")).unwrap();
    }

    #[test]
    fn reading_stops_where_a_whole_block_is_unwanted() {
        let dir = tempfile::tempdir().unwrap();
        let mut blocks = open(&dir.path().join("blocks"));
        blocks.append(&records(0..2000)).unwrap();
        let mut shown = 0;
        let newer = |record: &Record| {
            shown += 1;
            record.point.time_seconds >= 1_790_000_000 + 1990
        };
        blocks.snapshot().newest_first(newer).unwrap();
        assert!(shown < 300, "{shown}");
        let oldest = blocks.snapshot().overwritten_until().unwrap();
        let kept = numbers(&blocks);
        assert_eq!(
            oldest[0].point.time_seconds - 1_790_000_000,
            kept[0],
            "{oldest:?}"
        );
    }

    #[test]
    fn a_file_of_another_kind_is_replaced_and_said_to_be() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blocks");
        std::fs::write(&path, b"something else").unwrap();
        let (mut blocks, opened) = Blocks::open(&path, SHAPE).unwrap();
        assert_eq!(opened, Opened::Replaced);
        blocks.append(&records(0..1)).unwrap();
        assert_eq!(Blocks::open(&path, SHAPE).unwrap().1, Opened::Kept);
        let other = Shape { blocks: 9, ..SHAPE };
        let (other, opened) = Blocks::open(&path, other).unwrap();
        assert_eq!((numbers(&other), opened), (vec![], Opened::Replaced));
    }
}
