//! The end beside the worker: plays its program.
//!
//! ```text
//!   caller's thread: carrier ─► posted at once, or lined up if that must wait
//!   post thread:     what is lined up ─► ring                       (waits for room, chunks, images)
//!   watch thread:    area: answers, reads, notices, words ─► carrier
//!   courier thread:  credit, pongs ─► carrier                        (so that receiving never waits for sending)
//!   keeping thread:  pieces ─► disk                                  (only where pieces are kept)
//! ```
//! The peer is hostile: whatever it makes this end hold is bounded, and what makes no sense ends the session.

mod host;
mod images;
mod pieces;
mod post;
mod watch;

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use mica_wire::session::SLOTS;
use mica_wire::session::client::RecordPort;

use crate::compress::Compressor;
use crate::courier::Courier;
use crate::frame::{FrameReader, Header, Kind};
use crate::{BlobCache, Carrier, PieceFolder, TunnelError, lock};
use host::HostCopies;
use images::Images;
use pieces::Pieces;

/// Bytes that may be lined up before the carrier is not read. The near end stops long before, by its credit.
const LINE_BYTES: u64 = 256 << 20;
/// Credit is given in steps of this size.
const CREDIT_BYTES: u64 = 1 << 20;

/// What a session may hold on this machine, besides what its worker counts.
#[derive(Clone, Debug)]
pub struct FarLimits {
    /// Bytes of host memory.
    pub host_bytes: u64,
    /// Bytes of an image.
    pub image_bytes: u64,
}

impl Default for FarLimits {
    fn default() -> Self {
        Self {
            host_bytes: 4 << 30,
            image_bytes: 1 << 30,
        }
    }
}

/// What is kept for one client between its sessions.
#[derive(Clone, Debug, Default)]
pub struct Caches {
    /// Modules.
    pub images: Option<BlobCache>,
    /// Pieces of uploads.
    pub pieces: Option<PieceFolder>,
}

/// A call that waits for its answer.
#[derive(Default)]
struct Waiting {
    /// Parts that the slot had before.
    before: u32,
    bytes: Vec<u8>,
}

/// A read whose chunk the worker fills.
struct PendingRead {
    tag: u64,
    chunk: u32,
    bytes: u32,
}

/// What waits for the worker.
struct Pending {
    /// One place a reply slot.
    calls: Vec<Option<Waiting>>,
    reads: Vec<PendingRead>,
    /// Positions: of this end's ring, and of the program's.
    marks: VecDeque<(u64, u64)>,
}

impl Default for Pending {
    fn default() -> Self {
        Self {
            calls: (0..SLOTS).map(|_| None).collect(),
            reads: Vec::new(),
            marks: VecDeque::new(),
        }
    }
}

/// Frames that could not be posted at once.
#[derive(Default)]
struct Line {
    frames: VecDeque<(Header, Vec<u8>)>,
    bytes: u64,
    /// The post thread has one in hand.
    busy: bool,
}

/// The end beside one worker.
struct Far {
    port: RecordPort,
    carrier: Arc<dyn Carrier>,
    compressor: Compressor,
    courier: Courier,
    over: AtomicBool,
    reason: Mutex<Option<TunnelError>>,
    pending: Mutex<Pending>,
    line: Mutex<Line>,
    moved: Condvar,
    host: Mutex<HostCopies>,
    images: Images,
    pieces: Pieces,
    /// Bytes dealt with since credit was last given.
    spent: AtomicU64,
    /// Work that may change host memory was posted.
    worked: AtomicBool,
}

/// Serves a program behind a carrier with a worker, until one of them ends.
///
/// # Errors
/// Why it ended, unless the other side closed the carrier.
pub fn serve(
    worker: RecordPort,
    carrier: Arc<dyn Carrier>,
    caches: Caches,
    limits: &FarLimits,
) -> Result<(), TunnelError> {
    let far = Far {
        port: worker,
        carrier,
        compressor: Compressor::default(),
        courier: Courier::default(),
        over: AtomicBool::new(false),
        reason: Mutex::default(),
        pending: Mutex::default(),
        line: Mutex::default(),
        moved: Condvar::new(),
        host: Mutex::new(HostCopies::new(limits.host_bytes)),
        images: Images::new(caches.images, limits.image_bytes),
        pieces: Pieces::new(caches.pieces),
        spent: AtomicU64::new(0),
        worked: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let far = &far;
        let run = |part: fn(&Far) -> Result<(), TunnelError>| {
            let _ender = EndsWithItsThread(far);
            far.end(part(far));
        };
        scope.spawn(move || run(Far::watch));
        scope.spawn(move || run(Far::post_line));
        scope.spawn(move || run(|far| far.courier.run(&*far.carrier)));
        if far.pieces.is_offered() {
            scope.spawn(move || run(Far::keep_pieces));
        }
        run(Far::receive);
    });
    match lock(&far.reason).take() {
        None | Some(TunnelError::Closed) => Ok(()),
        Some(reason) => Err(reason),
    }
}

/// Ends the session where a thread of it panics: the others would wait for that thread for ever.
struct EndsWithItsThread<'f>(&'f Far);

impl Drop for EndsWithItsThread<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let text = "a thread of the session has failed";
            self.0.end(Err(TunnelError::protocol(text)));
        }
    }
}

impl Far {
    fn is_over(&self) -> bool {
        self.over.load(Acquire)
    }

    /// Ends everything. The first reason counts and is sent to the other side.
    fn end(&self, result: Result<(), TunnelError>) {
        let mut first = lock(&self.reason);
        if !self.over.swap(true, Release) {
            *first = result.err();
            if let Some(reason @ (TunnelError::Session(_) | TunnelError::Protocol(_))) = &*first {
                let mut out = Vec::new();
                let text = reason.to_string();
                let end = text.floor_char_boundary(400);
                Header::new(Kind::Ended, 0, 0).put(&mut out, &[&text.as_bytes()[..end]]);
                let _ = self.carrier.send(&out);
            }
        }
        drop(first);
        self.carrier.close();
        self.port.wake();
        self.images.wake();
        self.pieces.wake();
        self.courier.stop();
        // Under the lock, so that a thread that has just looked does not sleep through it.
        drop(lock(&self.line));
        self.moved.notify_all();
    }

    /// Takes frames; posts what can be posted at once.
    fn receive(&self) -> Result<(), TunnelError> {
        if self.pieces.is_offered() {
            self.say(Kind::PiecesOffer, 0, 0)?;
        }
        let mut frames = FrameReader::new(Arc::clone(&self.carrier));
        loop {
            let (header, data) = frames.read()?;
            match header.kind {
                Kind::Ping => self.say(Kind::Pong, header.a, 0)?,
                Kind::NearHas => self.carrier.acknowledge(header.a),
                Kind::Bye => return Err(TunnelError::Closed),
                Kind::NoticesDone => self.port.notices_done(header.a as u32),
                Kind::BlobData => self.images.arrived(header.a, header.b, data)?,
                Kind::PieceData => self.pieces.arrived(data)?,
                Kind::HostData if header.flags & crate::frame::AT_ONCE != 0 => {
                    lock(&self.host).write(header.a, header.b, data)?;
                }
                kind if kind.is_near() => self.post_or_line_up(header, data)?,
                _ => return Err(TunnelError::protocol("a frame that only this side sends")),
            }
            if let Some(received) = self.carrier.owed() {
                self.say(Kind::FarHas, received, 0)?;
            }
        }
    }

    fn post_or_line_up(&self, header: Header, data: &[u8]) -> Result<(), TunnelError> {
        let mut line = lock(&self.line);
        let is_free = line.frames.is_empty() && !line.busy;
        if is_free && self.post(&header, data, false)? {
            drop(line);
            return self.dealt_with(&header);
        }
        while line.bytes > LINE_BYTES && !self.is_over() {
            line = self
                .moved
                .wait(line)
                .unwrap_or_else(PoisonError::into_inner);
        }
        line.bytes += header.frame_bytes();
        line.frames.push_back((header, data.to_vec()));
        self.moved.notify_all();
        Ok(())
    }

    /// Posts what is lined up, in order.
    fn post_line(&self) -> Result<(), TunnelError> {
        loop {
            let mut line = lock(&self.line);
            while line.frames.is_empty() {
                if self.is_over() {
                    return Ok(());
                }
                line = self
                    .moved
                    .wait(line)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            let Some((header, data)) = line.frames.pop_front() else {
                continue;
            };
            line.bytes -= header.frame_bytes();
            line.busy = true;
            drop(line);
            let posted = self.post(&header, &data, true);
            lock(&self.line).busy = false;
            self.moved.notify_all();
            posted?;
            self.dealt_with(&header)?;
        }
    }

    /// Counts a frame, and gives credit for it.
    fn dealt_with(&self, header: &Header) -> Result<(), TunnelError> {
        debug_assert!(header.kind.is_ordered());
        if header.is_known_piece() {
            self.pieces.count_found();
        }
        let spent = self.spent.fetch_add(header.weight(), Relaxed) + header.weight();
        if spent < CREDIT_BYTES {
            return Ok(());
        }
        let spent = self.spent.swap(0, Relaxed);
        self.say(Kind::Credit, spent, self.pieces.found())
    }

    /// Has a small frame sent.
    fn say(&self, kind: Kind, a: u64, b: u64) -> Result<(), TunnelError> {
        (self.courier).post(|out| Header::new(kind, a, b).put(out, &[]))
    }

    fn send(&self, bytes: &[u8]) -> Result<(), TunnelError> {
        self.carrier.send(bytes).map_err(TunnelError::Lost)
    }
}
