//! Pageable data: through staging chunks, in pieces, both sides at work at once.

use std::collections::VecDeque;
use std::iter::{Fuse, Peekable};
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::SessionClient;
use super::turns::Turn;
use crate::session::area::{CHUNK_BYTES, CHUNKS, chunk_state};
use crate::session::calls::{Copy, Read, Request, StreamQuery, Write};
use crate::session::patience::{MANY_PROCESSORS, processors};
use crate::session::ring::MAX_RECORD_BYTES;
use crate::session::streaming_copy;
use crate::session::transport::ClientTransport;
use crate::session::types::{CopyBox, CopyPlace};
use crate::session::{SessionArea, SessionError};

/// Copies up to this size travel inside a record.
const INLINE_BYTES: usize = 8 << 10;
/// The same where a real driver copies: it takes bytes from a record faster than it finishes a copy from a chunk.
const DRIVER_INLINE_BYTES: usize = 32 << 10;
/// Chunks a reader keeps in flight, and pieces of a small copy: the first one is there sooner.
const READ_AHEAD: usize = 8;
/// Copies of so many bytes from a driver's device are taken out of their chunks by two threads, and by three: one copies 12 to
/// 18 GB/s, as the driver itself does.
const TWO_READERS_BYTES: u64 = 4 << 20;
const THREE_READERS_BYTES: u64 = 32 << 20;
/// Pieces of a small copy to the device: nobody waits for the first one, and each costs the writer time.
const WRITTEN_PIECES: usize = 4;

/// The device's side of a copy between a box in pageable memory and the device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceBox {
    /// A device address or an array.
    pub place: CopyPlace,
    /// Bytes between rows and slices.
    pub pitch: (u64, u64),
    /// Offset in bytes, rows and slices, for arrays.
    pub offset: [u64; 3],
}

impl DeviceBox {
    fn at(&self, x: u64, y: u64, z: u64) -> (CopyPlace, [u64; 3]) {
        match self.place {
            CopyPlace::Device(address) => {
                let inner = z
                    .wrapping_mul(self.pitch.1)
                    .wrapping_add(y.wrapping_mul(self.pitch.0))
                    .wrapping_add(x);
                (CopyPlace::Device(address.wrapping_add(inner)), [0; 3])
            }
            other => {
                let [ox, oy, oz] = self.offset;
                (other, [ox + x, oy + y, oz + z])
            }
        }
    }
}

/// A box in pageable memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostBox {
    /// First byte.
    pub pointer: *mut u8,
    /// Bytes between rows and slices.
    pub pitch: (u64, u64),
    /// Bytes in a row, rows, slices.
    pub extent: (u64, u64, u64),
}

/// A part of a box that fits a chunk: origin, bytes in a row, rows.
pub type Piece = ((u64, u64, u64), u64, u64);

/// Cuts a box into pieces that fit a chunk each.
pub fn pieces((width, height, depth): (u64, u64, u64)) -> impl Iterator<Item = Piece> {
    let chunk = CHUNK_BYTES as u64;
    let columns = width.div_ceil(chunk);
    let rows_each = (chunk / width.max(1)).max(1).min(height.max(1));
    let steps = height.div_ceil(rows_each);
    (0..depth).flat_map(move |z| {
        (0..steps).flat_map(move |step| {
            (0..columns).map(move |column| {
                let (x, y) = (column * chunk, step * rows_each);
                let rows = if columns > 1 { 1 } else { rows_each };
                ((x, y, z), (width - x).min(chunk), (height - y).min(rows))
            })
        })
    })
}

impl HostBox {
    /// Both ends of a copy of a run of bytes.
    pub(super) fn line(pointer: *mut u8, len: usize, address: u64) -> (Self, DeviceBox) {
        let len = len as u64;
        let host = Self {
            pointer,
            pitch: (len, len),
            extent: (len, 1, 1),
        };
        let device = DeviceBox {
            place: CopyPlace::Device(address),
            pitch: (len, len),
            offset: [0; 3],
        };
        (host, device)
    }

    /// Bytes in it.
    fn bytes(&self) -> u64 {
        let (width, height, depth) = self.extent;
        width.saturating_mul(height).saturating_mul(depth)
    }

    /// Copies a piece between this memory and a chunk.
    ///
    /// # Safety
    /// The box is valid for reads (writes, if `into_host`), and nobody else uses the chunk.
    unsafe fn transfer(&self, piece: Piece, chunk: *mut u8, into_host: bool) {
        let ((x, y, z), width, rows) = piece;
        let streams = into_host && self.bytes() >= streaming_copy::LEAST_BYTES;
        for row in 0..rows {
            let inner = z * self.pitch.1 + (y + row) * self.pitch.0 + x;
            let host = self.pointer.wrapping_add(inner as usize);
            let staged = chunk.wrapping_add((row * width) as usize);
            let (from, to) = if into_host {
                (staged, host)
            } else {
                (host, staged)
            };
            // SAFETY: the caller vouches for the host's rows; the piece fits the chunk.
            unsafe {
                match streams {
                    true => streaming_copy::copy(from, to, width as usize),
                    false => std::ptr::copy_nonoverlapping(from, to, width as usize),
                }
            }
        }
    }
}

impl<T: ClientTransport> SessionClient<T> {
    fn need_area(&self) -> Result<&SessionArea, SessionError> {
        self.transport.area().ok_or(SessionError::Refused {
            code: 801,
            message: "this transport has no shared memory for boxes of bytes".into(),
        })
    }

    /// Copies up to this size travel inside a record.
    fn inline_bytes(&self) -> usize {
        match self.snapshot.has_driver {
            true => DRIVER_INLINE_BYTES,
            false => INLINE_BYTES,
        }
    }

    /// A turn on a stream for a copy in several pieces: nobody's work comes between them.
    fn turn_in_line(
        &self,
        stream: u64,
        is_needed: bool,
    ) -> Result<Option<Turn<'_, T>>, SessionError> {
        if !is_needed {
            return Ok(None);
        }
        self.transport.begin_turn(stream)?;
        Ok(Some(Turn(&self.transport, stream)))
    }

    /// A turn on a stream for a copy that is waited for. Earlier work is waited for without the turn, where others leave
    /// room for that.
    fn turn_after_work(&self, stream: u64) -> Result<Option<Turn<'_, T>>, SessionError> {
        if !self.snapshot.has_driver {
            let turn = self.turn(stream, true)?;
            return match turn {
                None => self.turn_in_line(stream, true),
                turn => Ok(turn),
            };
        }
        // Uploads alone end soon, and print nothing.
        if !self.has_only_uploads() {
            self.synchronize(stream)?;
        }
        self.turn_in_line(stream, true)
    }

    /// Posts a piece of a copy: at once if its turn is there, else as any call.
    fn post_piece(
        &self,
        turn: &Option<Turn<'_, T>>,
        stream: u64,
        area: CopyBox,
    ) -> Result<(), SessionError> {
        let copy = Copy { stream, area };
        if turn.is_none() {
            return self.post_upload(&copy, &[]);
        }
        let body = copy.encode();
        (self.transport).post(Copy::NUMBER, None, body.as_slice(), &[])
    }

    /// Takes a free staging chunk, waiting for one if need be.
    fn take_chunk(&self, area: &SessionArea) -> Result<u32, SessionError> {
        loop {
            if let Some(chunk) = take_free_chunk(area) {
                return Ok(chunk);
            }
            let chunk = self.cursor.fetch_add(1, Relaxed) as usize % CHUNKS;
            let state = area.chunk_word(chunk).load(Acquire);
            if state != chunk_state::FREE {
                self.transport.wait_chunk(chunk, state)?;
            }
        }
    }

    /// Gives back a chunk that the worker will not.
    fn give_chunk(&self, area: &SessionArea, chunk: u32) {
        area.set_chunk(chunk as usize, chunk_state::FREE);
    }

    /// A chunk that holds `bytes`, at most [`CHUNK_BYTES`] of them.
    pub(super) fn fill_chunk(&self, bytes: &[u8]) -> Result<u32, SessionError> {
        let area = self.need_area()?;
        let chunk = self.take_chunk(area)?;
        let len = bytes.len().min(CHUNK_BYTES);
        area.mapping()
            .write(area.chunk_at(chunk as usize), &bytes[..len]);
        Ok(chunk)
    }

    /// Copies pageable bytes to the device in stream order; they may be changed on return.
    pub fn write(&self, stream: u64, address: u64, bytes: &[u8]) -> Result<(), SessionError> {
        let (host, device) = HostBox::line(bytes.as_ptr().cast_mut(), bytes.len(), address);
        // SAFETY: `bytes` is borrowed, and only read.
        if unsafe { self.copy_here(stream, &host, &device, false, false)? } {
            return Ok(());
        }
        if bytes.len() <= self.inline_bytes() || self.transport.area().is_none() {
            let most = MAX_RECORD_BYTES / 2;
            for (index, part) in bytes.chunks(most).enumerate() {
                let address = address.wrapping_add((index * most) as u64);
                self.post_upload(&Write { stream, address }, part)?;
            }
            return Ok(());
        }
        let mut offset = 0;
        let step = piece_bytes(bytes.len(), WRITTEN_PIECES);
        let turn = self.turn_in_line(stream, bytes.len() > step)?;
        for part in bytes.chunks(step) {
            let chunk = self.fill_chunk(part)?;
            let area = CopyBox::linear(
                CopyPlace::Device(address.wrapping_add(offset)),
                CopyPlace::Staging { chunk, offset: 0 },
                part.len() as u64,
            );
            self.post_piece(&turn, stream, area)?;
            offset += part.len() as u64;
        }
        Ok(())
    }

    /// Copies device memory into pageable bytes; returns when they are there.
    pub fn read(&self, stream: u64, address: u64, bytes: &mut [u8]) -> Result<(), SessionError> {
        let (host, device) = HostBox::line(bytes.as_mut_ptr(), bytes.len(), address);
        // SAFETY: `bytes` is borrowed for the whole call.
        if unsafe { self.copy_here(stream, &host, &device, true, true)? } {
            return Ok(());
        }
        if bytes.len() <= self.inline_bytes() || self.transport.area().is_none() {
            for (index, part) in bytes.chunks_mut(1 << 20).enumerate() {
                let read = Read {
                    stream,
                    address: address.wrapping_add((index << 20) as u64),
                    bytes: part.len() as u32,
                };
                let data = self.ask(&read)?.bytes;
                let len = data.len().min(part.len());
                part[..len].copy_from_slice(&data[..len]);
            }
            return Ok(());
        }
        let step = piece_bytes(bytes.len(), READ_AHEAD) as u64;
        let len = bytes.len() as u64;
        let count = len.div_ceil(step);
        let parts = (0..count).map(|i| ((i * step, 0, 0), (len - i * step).min(step), 1));
        // SAFETY: `bytes` is borrowed for the whole call.
        unsafe { self.read_pieces(stream, &host, &device, parts) }
    }

    /// Copies a box of pageable memory to the device in stream order.
    ///
    /// # Safety
    /// `host` is valid for reads during the call.
    pub unsafe fn write_box(
        &self,
        stream: u64,
        host: &HostBox,
        device: &DeviceBox,
    ) -> Result<(), SessionError> {
        let area = self.need_area()?;
        let turn = self.turn_in_line(stream, pieces(host.extent).nth(1).is_some())?;
        for piece in pieces(host.extent) {
            let ((x, y, z), width, rows) = piece;
            let chunk = self.take_chunk(area)?;
            if let Some(staged) = area.chunk_pointer(chunk, 0, width * rows) {
                // SAFETY: the caller vouches for `host`; the chunk is ours until it is posted.
                unsafe { host.transfer(piece, staged, false) };
            }
            let (dst, dst_offset) = device.at(x, y, z);
            let copy = CopyBox {
                src: CopyPlace::Staging { chunk, offset: 0 },
                src_pitch: (width, width * rows),
                src_offset: [0; 3],
                dst,
                dst_pitch: device.pitch,
                dst_offset,
                width_bytes: width,
                height: rows,
                depth: 1,
            };
            self.post_piece(&turn, stream, copy)?;
        }
        Ok(())
    }

    /// Copies a box of the device into pageable memory; returns when it is there.
    ///
    /// # Safety
    /// `host` is valid for writes during the call.
    pub unsafe fn read_box(
        &self,
        stream: u64,
        host: &HostBox,
        device: &DeviceBox,
    ) -> Result<(), SessionError> {
        // SAFETY: passed on, twice.
        unsafe {
            if self.copy_here(stream, host, device, true, true)? {
                return Ok(());
            }
            self.read_pieces(stream, host, device, pieces(host.extent))
        }
    }

    /// # Safety
    /// As [`SessionClient::read_box`].
    unsafe fn read_pieces(
        &self,
        stream: u64,
        host: &HostBox,
        device: &DeviceBox,
        parts: impl Iterator<Item = Piece> + Send,
    ) -> Result<(), SessionError> {
        let area = self.need_area()?;
        let reads = Reads {
            stream,
            device,
            host: HostTarget(host),
            inside: Mutex::new(ReadsLeft {
                turn: self.turn_after_work(stream)?,
                flying: VecDeque::with_capacity(READ_AHEAD),
                parts: parts.fuse().peekable(),
                failed: false,
            }),
        };
        let readers = match self.snapshot.has_driver && processors() >= MANY_PROCESSORS {
            true => readers(host.bytes()),
            false => 1,
        };
        let copied = with_helpers(readers - 1, || {
            // SAFETY: the caller vouches for `host`, until this function returns.
            unsafe { self.copy_out(area, &reads, readers) }
        });
        copied?;
        if !reads.left().failed {
            // A fault may have let the copies pass undone; the query answers with it.
            return self.ask(&StreamQuery { stream }).map(drop);
        }
        let late = self.take_late(0)?;
        Err(SessionError::Refused {
            code: late.as_ref().map_or(999, |late| late.code),
            message: late.map_or_else(|| "the copy failed".into(), |late| late.message),
        })
    }

    /// Copies pieces out of chunks until there are none left; other threads may do the same.
    ///
    /// # Safety
    /// The host's box is valid for writes meanwhile.
    unsafe fn copy_out<I: Iterator<Item = Piece>>(
        &self,
        area: &SessionArea,
        reads: &Reads<'_, T, I>,
        readers: usize,
    ) -> Result<(), SessionError> {
        loop {
            let next = {
                let mut left = reads.left();
                self.ask_ahead(area, reads, &mut left, READ_AHEAD * readers)?;
                left.flying.pop_front()
            };
            let Some((chunk, piece)) = next else {
                return Ok(());
            };
            let state = self
                .transport
                .wait_chunk(chunk as usize, chunk_state::BUSY)?;
            let ((_, _, _), width, rows) = piece;
            if state == chunk_state::FULL
                && let Some(staged) = area.chunk_pointer(chunk, 0, width * rows)
            {
                // SAFETY: the caller vouches for the host's box, of which the piece is this thread's; the worker has given
                // the chunk back.
                unsafe { reads.host.get().transfer(piece, staged, true) };
            }
            // First, for a thread that waits for a chunk has the lock.
            self.give_chunk(area, chunk);
            if state != chunk_state::FULL {
                reads.left().failed = true;
            }
        }
    }

    /// Asks for more pieces, until so many are on their way.
    fn ask_ahead<I: Iterator<Item = Piece>>(
        &self,
        area: &SessionArea,
        reads: &Reads<'_, T, I>,
        left: &mut ReadsLeft<'_, T, I>,
        most: usize,
    ) -> Result<(), SessionError> {
        while !left.failed && left.flying.len() < most {
            if left.parts.peek().is_none() {
                // All of the copy is in its place.
                left.turn.take_if(|_| self.snapshot.has_driver);
                break;
            }
            // Only a copy that has no chunk waits for one: copies that all waited for more than they have would wait for ever.
            let chunk = match take_free_chunk(area) {
                Some(chunk) => chunk,
                None if left.flying.is_empty() => self.take_chunk(area)?,
                None => break,
            };
            let Some(piece) = left.parts.next() else {
                self.give_chunk(area, chunk);
                break;
            };
            let ((x, y, z), width, rows) = piece;
            let (src, src_offset) = reads.device.at(x, y, z);
            let copy = CopyBox {
                src,
                src_pitch: reads.device.pitch,
                src_offset,
                dst: CopyPlace::Staging { chunk, offset: 0 },
                dst_pitch: (width, width * rows),
                dst_offset: [0; 3],
                width_bytes: width,
                height: rows,
                depth: 1,
            };
            self.post_piece(&left.turn, reads.stream, copy)?;
            left.flying.push_back((chunk, piece));
        }
        Ok(())
    }
}

/// Takes a staging chunk, if one is free.
fn take_free_chunk(area: &SessionArea) -> Option<u32> {
    // The lowest one: chunks used again soon are still in the cache.
    (0..CHUNKS).find_map(|chunk| {
        let (free, busy) = (chunk_state::FREE, chunk_state::BUSY);
        let word = area.chunk_word(chunk);
        let taken = word.load(Relaxed) == free
            && word.compare_exchange(free, busy, AcqRel, Relaxed).is_ok();
        taken.then_some(chunk as u32)
    })
}

/// A copy out of staging chunks, by one thread or several.
struct Reads<'a, T: ClientTransport, I: Iterator<Item = Piece>> {
    stream: u64,
    device: &'a DeviceBox,
    host: HostTarget<'a>,
    inside: Mutex<ReadsLeft<'a, T, I>>,
}

/// What is left of such a copy.
struct ReadsLeft<'a, T: ClientTransport, I: Iterator<Item = Piece>> {
    turn: Option<Turn<'a, T>>,
    /// Chunks that are on their way, in order.
    flying: VecDeque<(u32, Piece)>,
    /// What has not been asked for.
    parts: Peekable<Fuse<I>>,
    failed: bool,
}

impl<'a, T: ClientTransport, I: Iterator<Item = Piece>> Reads<'a, T, I> {
    fn left(&self) -> MutexGuard<'_, ReadsLeft<'a, T, I>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory that threads of one copy write to, each its own pieces.
struct HostTarget<'a>(&'a HostBox);

// SAFETY: an address and numbers; who writes there vouches for it, and no two threads write to the same piece.
unsafe impl Send for HostTarget<'_> {}
// SAFETY: as for `Send`.
unsafe impl Sync for HostTarget<'_> {}

impl HostTarget<'_> {
    fn get(&self) -> &HostBox {
        self.0
    }
}

/// Threads that take so many bytes out of their chunks.
fn readers(bytes: u64) -> usize {
    match bytes {
        0..TWO_READERS_BYTES => 1,
        TWO_READERS_BYTES..THREE_READERS_BYTES => 2,
        _ => 3,
    }
}

/// Runs on this thread, and on so many others that the program's signals do not reach. With fewer it takes longer.
fn with_helpers(
    count: usize,
    run: impl Fn() -> Result<(), SessionError> + Sync,
) -> Result<(), SessionError> {
    if count == 0 {
        return run();
    }
    std::thread::scope(|scope| {
        let run = &run;
        let start = || {
            let thread = std::thread::Builder::new().name("mica-copy".into());
            thread.spawn_scoped(scope, run).ok()
        };
        let helpers = without_signals(|| (0..count).filter_map(|_| start()).collect::<Vec<_>>());
        let early = || SessionError::Ended("a thread of a copy ended before the copy".into());
        helpers.into_iter().fold(run(), |result, helper| {
            result.and(helper.join().unwrap_or_else(|_| Err(early())))
        })
    })
}

/// Starts threads with all signals blocked in them: they are the program's.
fn without_signals<R>(start: impl FnOnce() -> R) -> R {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: each call writes the set that it is given, and the mask is this thread's own.
    let is_blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    let started = start();
    if is_blocked {
        // SAFETY: the mask that the call above has written.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    started
}

/// Pieces small enough that both sides work at once, large enough that a piece costs little.
fn piece_bytes(total: usize, pieces: usize) -> usize {
    (total / pieces)
        .next_multiple_of(4096)
        .clamp(64 << 10, CHUNK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_byte_once() {
        for extent in [
            (1, 1, 1),
            (300_000, 3, 2),
            (1000, 1000, 2),
            (64, 5000, 1),
            (0, 4, 4),
            (262_144, 2, 1),
        ] {
            let mut covered = 0;
            let mut seen = std::collections::HashSet::new();
            for ((x, y, z), width, rows) in pieces(extent) {
                assert!(width * rows <= CHUNK_BYTES as u64);
                assert!(x + width <= extent.0 && y + rows <= extent.1 && z < extent.2);
                for row in 0..rows {
                    assert!(seen.insert((x, y + row, z)));
                    covered += width;
                }
            }
            assert_eq!(covered, extent.0 * extent.1 * extent.2);
        }
    }
}
