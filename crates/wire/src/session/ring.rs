//! The submission ring: many threads of one program write, the worker reads.
//!
//! Records are a header of 16 bytes and a body, rounded up to 8 bytes, and may wrap around the end.
//! Positions only grow, so empty and full differ and a position that runs backwards is a lie.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use super::area::{RING_BYTES, SLOTS, SessionArea};
use crate::codec::Malformed;

/// Most bytes of a record, its header included.
pub const MAX_RECORD_BYTES: usize = RING_BYTES / 8;
/// Bytes of a record's header.
pub(crate) const HEADER_BYTES: usize = 16;
/// Bytes that are read before the program is shown that there is room for as many.
const PUBLISH_BYTES: u64 = RING_BYTES as u64 / 8;
/// The slot number of a posted call.
pub(crate) const NO_SLOT: u16 = u16::MAX;

/// A peer that broke the rules: what it did. Ends its session.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Violation {
    /// More was announced than the ring holds, or the position ran backwards.
    #[error("the ring's end {tail} is not within {RING_BYTES} bytes after {head}")]
    Position {
        /// What was announced.
        tail: u64,
        /// Where the worker is.
        head: u64,
    },
    /// A record's length is impossible or passes the announced end.
    #[error("a record claims {length} bytes where {available} were announced")]
    Length {
        /// What the record claims.
        length: u32,
        /// What there is.
        available: u64,
    },
    /// A reply slot that does not exist.
    #[error("reply slot {0} does not exist")]
    Slot(u16),
    /// A posted call with a slot, or a synchronous one without.
    #[error("{call} came with the wrong kind of reply slot")]
    Class {
        /// The call.
        call: &'static str,
    },
    /// A body that does not decode.
    #[error("call {number} is malformed: {source}")]
    Body {
        /// The call's number.
        number: u16,
        /// What is wrong.
        #[source]
        source: Malformed,
    },
    /// A staging chunk or a range in it that does not exist.
    #[error("staging chunk {chunk}, bytes {offset}+{bytes}, does not exist")]
    Chunk {
        /// Which.
        chunk: u32,
        /// Where.
        offset: u64,
        /// How much.
        bytes: u64,
    },
    /// More was asked for than one session may hold.
    #[error("{what}: more than {limit}")]
    Excess {
        /// Of what.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
}

/// A record's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Bytes of the record, this header included.
    pub length: u32,
    /// The call's number.
    pub call: u16,
    /// The reply slot, or `u16::MAX`.
    pub slot: u16,
}

impl RecordHeader {
    fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.call.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.slot.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; HEADER_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = bytes;
        Self {
            length: u32::from_le_bytes([a, b, c, d]),
            call: u16::from_le_bytes([e, f]),
            slot: u16::from_le_bytes([g, h]),
        }
    }

    /// The slot to answer in, if the call wants an answer.
    pub fn reply_slot(self) -> Option<u16> {
        (self.slot != NO_SLOT).then_some(self.slot)
    }
}

const fn padded(length: usize) -> u64 {
    (length as u64 + 7) & !7
}

/// The program's end. One lock outside serializes its threads.
#[derive(Debug, Default)]
pub struct Producer {
    tail: u64,
    head_seen: u64,
}

impl Producer {
    /// Writes a record if there is room; `false` if there is none now.
    #[inline]
    pub fn try_push(
        &mut self,
        area: &SessionArea,
        call: u16,
        slot: u16,
        body: &[u8],
        tail: &[u8],
    ) -> bool {
        let length = HEADER_BYTES + body.len() + tail.len();
        let needed = padded(length);
        let ring = RING_BYTES as u64;
        if self.tail + needed - self.head_seen > ring {
            self.head_seen = area.control().worker.head.load(Acquire);
            // The worker is trusted, yet a nonsensical head must not wrap the subtraction.
            if self.tail.wrapping_sub(self.head_seen) > ring
                || self.tail + needed - self.head_seen > ring
            {
                return false;
            }
        }
        let header = RecordHeader {
            length: length as u32,
            call,
            slot,
        };
        let mut at = self.tail;
        for part in [&header.to_bytes()[..], body, tail] {
            write_wrapping(area, at, part);
            at += part.len() as u64;
        }
        self.tail += needed;
        let control = area.control();
        control.program.tail.store(self.tail, Release);
        // Either the worker sees the new tail before it sleeps, or we see that it sleeps.
        fence(SeqCst);
        if area.must_ring() {
            wake_worker(area);
        }
        true
    }
}

#[cold]
fn wake_worker(area: &SessionArea) {
    ring_doorbell(area, 1);
}

/// Wakes so many of the worker's threads that wait for calls.
pub(crate) fn ring_doorbell(area: &SessionArea, sleepers: u32) {
    let doorbell = &area.control().program.doorbell;
    doorbell.fetch_add(1, SeqCst);
    area.wake_peer(doorbell, sleepers);
}

#[inline]
fn write_wrapping(area: &SessionArea, position: u64, bytes: &[u8]) {
    let start = area.ring_at(position);
    let room = area.ring_at(0) + RING_BYTES - start;
    let (first, second) = bytes.split_at(bytes.len().min(room));
    area.mapping().write(start, first);
    if !second.is_empty() {
        area.mapping().write(area.ring_at(0), second);
    }
}

fn read_wrapping(area: &SessionArea, position: u64, bytes: &mut [u8]) {
    let start = area.ring_at(position);
    let room = area.ring_at(0) + RING_BYTES - start;
    let split = bytes.len().min(room);
    let (first, second) = bytes.split_at_mut(split);
    area.mapping().read(start, first);
    if !second.is_empty() {
        area.mapping().read(area.ring_at(0), second);
    }
}

/// The worker's end. Its position is its own; the shared one is only for the program to see.
#[derive(Debug, Default)]
pub struct RingReader {
    head: u64,
    tail: u64,
    published: u64,
}

impl RingReader {
    /// Copies the next record's body into `body`; `None` if there is none now.
    ///
    /// # Errors
    /// A [`Violation`] if what is in the ring cannot be a record.
    pub fn try_next(
        &mut self,
        area: &SessionArea,
        body: &mut Vec<u8>,
    ) -> Result<Option<RecordHeader>, Violation> {
        if self.head == self.tail {
            self.publish(area);
            // Read once; everything below uses this copy.
            let tail = area.control().program.tail.load(Acquire);
            if tail.wrapping_sub(self.head) > RING_BYTES as u64 {
                let head = self.head;
                return Err(Violation::Position { tail, head });
            }
            self.tail = tail;
            if self.head == tail {
                return Ok(None);
            }
        }
        let available = self.tail.wrapping_sub(self.head);
        let mut header = [0; HEADER_BYTES];
        if available < HEADER_BYTES as u64 {
            let length = 0;
            return Err(Violation::Length { length, available });
        }
        read_wrapping(area, self.head, &mut header);
        let header = RecordHeader::from_bytes(header);
        let length = header.length as usize;
        if !(HEADER_BYTES..=MAX_RECORD_BYTES).contains(&length) || padded(length) > available {
            return Err(Violation::Length {
                length: header.length,
                available,
            });
        }
        if header.slot != NO_SLOT && header.slot as usize >= SLOTS {
            return Err(Violation::Slot(header.slot));
        }
        // All of it is overwritten.
        body.resize(length - HEADER_BYTES, 0);
        read_wrapping(area, self.head.wrapping_add(HEADER_BYTES as u64), body);
        self.head = self.head.wrapping_add(padded(length));
        if self.head != self.tail {
            // Another processor wrote it: on its way here while this record is carried out.
            area.prefetch_ring(self.head);
        }
        // The program needs room now and then, not after every record.
        if self.head.wrapping_sub(self.published) >= PUBLISH_BYTES {
            self.publish(area);
        }
        Ok(Some(header))
    }

    /// Whether there is a record behind those that were read, without a look at what the program has written since.
    #[inline]
    pub fn has_next(&self) -> bool {
        self.head != self.tail
    }

    /// A reader that goes on behind what another one has taken.
    pub fn behind(position: u64) -> Self {
        Self {
            head: position,
            tail: position,
            // Another number, so that the program is shown the room there is.
            published: position.wrapping_sub(8),
        }
    }

    /// Shows the program how much room there is.
    fn publish(&mut self, area: &SessionArea) {
        if self.published == self.head {
            return;
        }
        self.published = self.head;
        let control = area.control();
        control.worker.head.store(self.head, Release);
        fence(SeqCst);
        if control.program.waiting_for_room.load(Relaxed) != 0 {
            control.worker.room.fetch_add(1, SeqCst);
            area.wake_peer(&control.worker.room, i32::MAX as u32);
            area.show_progress();
        }
    }

    /// Bytes ever taken from the ring, by this reader's own count.
    pub fn position(&self) -> u64 {
        self.head
    }
}

/// Passes a moment: mostly a pause, now and then the processor to whoever else needs it.
#[inline]
pub(crate) fn relax(spin: u32) {
    if spin % 32 == 31 {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area() -> SessionArea {
        SessionArea::create().unwrap()
    }

    #[test]
    fn records_come_out_as_they_went_in_across_many_wraps() {
        let area = area();
        let (mut producer, mut reader) = (Producer::default(), RingReader::default());
        let mut body = Vec::new();
        for round in 0..20_000_u32 {
            let tail = vec![round as u8; (round % 777) as usize];
            assert!(producer.try_push(&area, 7, NO_SLOT, &round.to_le_bytes(), &tail));
            let header = reader.try_next(&area, &mut body).unwrap().unwrap();
            assert_eq!(header.call, 7);
            assert_eq!(body[..4], round.to_le_bytes());
            assert_eq!(body[4..], tail);
        }
        assert_eq!(reader.try_next(&area, &mut body), Ok(None));
    }

    #[test]
    fn a_full_ring_refuses_and_takes_again_after_a_read() {
        let area = area();
        let (mut producer, mut reader) = (Producer::default(), RingReader::default());
        let big = vec![1; MAX_RECORD_BYTES - HEADER_BYTES];
        let mut pushed = 0;
        while producer.try_push(&area, 1, NO_SLOT, &big, &[]) {
            pushed += 1;
        }
        assert_eq!(pushed, RING_BYTES / MAX_RECORD_BYTES);
        reader.try_next(&area, &mut Vec::new()).unwrap().unwrap();
        assert!(producer.try_push(&area, 1, NO_SLOT, &big, &[]));
    }

    #[test]
    fn another_reader_goes_on_where_one_was() {
        let area = area();
        let (mut producer, mut first) = (Producer::default(), RingReader::default());
        let mut body = Vec::new();
        for number in 0..3_u8 {
            assert!(producer.try_push(&area, 7, NO_SLOT, &[number], &[]));
        }
        first.try_next(&area, &mut body).unwrap().unwrap();
        let mut second = RingReader::behind(first.position());
        for number in 1..3_u8 {
            second.try_next(&area, &mut body).unwrap().unwrap();
            assert_eq!(body, [number]);
        }
        assert_eq!(second.try_next(&area, &mut body), Ok(None));
        let head = area.control().worker.head.load(Relaxed);
        assert_eq!(head, second.position());
        // Whatever a file says: a position that the program has not come to is a violation.
        let mut lying = RingReader::behind(second.position() + 8);
        assert!(lying.try_next(&area, &mut body).is_err());
    }

    #[test]
    fn lying_positions_and_lengths_are_found() {
        for tail in [RING_BYTES as u64 + 1, u64::MAX, 1 << 63] {
            let area = area();
            area.control().program.tail.store(tail, Relaxed);
            assert!(matches!(
                RingReader::default().try_next(&area, &mut Vec::new()),
                Err(Violation::Position { .. })
            ));
        }
        for (length, announced) in [(0, 64), (15, 64), (65, 64), (u32::MAX, 64), (16, 8)] {
            let area = area();
            let header = RecordHeader {
                length,
                call: 1,
                slot: NO_SLOT,
            };
            write_wrapping(&area, 0, &header.to_bytes());
            area.control().program.tail.store(announced, Relaxed);
            assert!(matches!(
                RingReader::default().try_next(&area, &mut Vec::new()),
                Err(Violation::Length { .. })
            ));
        }
    }

    #[test]
    fn a_slot_out_of_range_is_found() {
        let area = area();
        assert!(Producer::default().try_push(&area, 1, 64, &[], &[]));
        assert_eq!(
            RingReader::default().try_next(&area, &mut Vec::new()),
            Err(Violation::Slot(64))
        );
    }

    #[test]
    fn random_rings_never_panic() {
        let mut state = 88_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let area = area();
        for _ in 0..2000 {
            let mut reader = RingReader::default();
            for at in 0..32 {
                write_wrapping(&area, at * 8, &(random() % 300).to_le_bytes());
            }
            area.control().program.tail.store(random() % 512, Relaxed);
            let mut body = Vec::new();
            while let Ok(Some(_)) = reader.try_next(&area, &mut body) {}
        }
    }
}
