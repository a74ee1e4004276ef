//! The end beside the program: plays its worker.
//!
//! ```text
//!   forward thread:  ring ─► translated ─► outbox ─► carrier          (waits for credit before each batch)
//!   receive thread:  carrier ─► answers, finished reads, notices ─► area
//!   courier thread:  acknowledgements, memory that is gone ─► carrier (so that receiving never waits for sending)
//!   notice thread:   host functions that have returned ─► carrier     (from the first notice on; never waits for credit)
//!   caller's thread: watches the program's life, pings
//! ```

mod blobs;
mod copies;
mod host;
mod pieces;
mod receive;
mod translate;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use mica_wire::session::server::{Greeting, SessionPort};
use mica_wire::session::transport::ServerTransport;
use rustix::event::{PollFd, PollFlags, poll};

use crate::compress::Compressor;
use crate::courier::Courier;
use crate::frame::{Header, Kind};
use crate::{Carrier, PING_EVERY, TunnelError, lock};
use blobs::Blobs;
use host::HostMemory;
use pieces::Pieces;
use receive::After;
use translate::Step;

/// A batch is sent when it has this many bytes, or when the ring is empty.
const BATCH_BYTES: usize = 256 << 10;
/// Bytes that the far end has not dealt with, at most, before the ring is not read.
const WINDOW_BYTES: u64 = 32 << 20;

pub(crate) mod fuzzing {
    use super::pieces::Pieces;

    /// A list of pieces of any bytes, to one that has asked.
    pub(crate) fn told(bytes: &[u8]) {
        let mut pieces = Pieces::that_has_asked();
        let is_list = pieces.told(bytes).is_ok();
        assert_eq!(is_list, bytes.len().is_multiple_of(8));
        let _ = pieces.held(bytes);
    }
}

/// What is known of a link, for listings.
#[derive(Debug, Default)]
pub struct LinkStats {
    /// Microseconds of the last round trip; 0 while unknown.
    pub round_trip_us: AtomicU64,
    /// Bytes a second that the carrier took lately; 0 while unknown.
    pub send_rate: AtomicU64,
    /// Bytes sent.
    pub sent_bytes: AtomicU64,
    /// Bytes received.
    pub received_bytes: AtomicU64,
    /// Broken connections that were replaced.
    pub resumed: AtomicU64,
    /// Bytes of uploads that were not sent because the far end had them.
    pub saved_bytes: AtomicU64,
}

/// Where the data of a read goes.
enum Target {
    /// A staging chunk of the program, from an offset on.
    Chunk(u32, u32),
    /// Host memory: its tag, the first byte, bytes between rows, bytes in a row.
    Memory(u64, u64, u64, u64),
}

/// The end beside one program.
struct Near {
    port: Arc<SessionPort>,
    carrier: Arc<dyn Carrier>,
    compressor: Compressor,
    courier: Courier,
    stats: Arc<LinkStats>,
    began: Instant,
    over: AtomicBool,
    /// Why it is over: the first reason.
    reason: Mutex<Option<TunnelError>>,
    /// Frames that are not sent yet. Whoever adds to what host memory is there holds it until they are sent.
    outbox: Mutex<Vec<u8>>,
    /// Bytes of pieces that the frames in the outbox stand for and do not have.
    left_out: AtomicUsize,
    /// Bytes that the far end has not dealt with, those that were left out too.
    outstanding: Mutex<u64>,
    credit: Condvar,
    host: Mutex<HostMemory>,
    blobs: Mutex<Blobs>,
    pieces: Mutex<Pieces>,
    reads: Mutex<HashMap<u64, Target>>,
    after: Mutex<HashMap<u16, After>>,
    next_read: AtomicU64,
}

/// Serves a program on a socket until it ends or the carrier does; everything is closed on return. `life` can be read
/// once the program has ended.
///
/// # Errors
/// Why it ended, unless the program did.
pub fn serve(
    program: OwnedFd,
    life: Option<OwnedFd>,
    carrier: Arc<dyn Carrier>,
    stats: Arc<LinkStats>,
) -> Result<(), TunnelError> {
    let port = Greeting::receive(program)?.welcome_from_afar()?;
    let near = Near {
        port,
        carrier,
        compressor: Compressor::default(),
        courier: Courier::default(),
        stats,
        began: Instant::now(),
        over: AtomicBool::new(false),
        reason: Mutex::default(),
        outbox: Mutex::default(),
        left_out: AtomicUsize::new(0),
        outstanding: Mutex::default(),
        credit: Condvar::new(),
        host: Mutex::default(),
        blobs: Mutex::default(),
        pieces: Mutex::default(),
        reads: Mutex::default(),
        after: Mutex::default(),
        next_read: AtomicU64::new(1),
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ender = EndsWithItsThread(&near);
            near.end_with(near.forward());
        });
        scope.spawn(|| {
            let _ender = EndsWithItsThread(&near);
            near.end_with(near.receive(scope));
        });
        scope.spawn(|| {
            let _ender = EndsWithItsThread(&near);
            near.end_with(near.courier.run(&*near.carrier));
        });
        near.watch(life.as_ref());
        near.end(None);
    });
    match lock(&near.reason).take() {
        Some(reason) => Err(reason),
        None => Ok(()),
    }
}

/// Ends the session where a thread of it panics: the program would wait for that thread for ever.
struct EndsWithItsThread<'n>(&'n Near);

impl Drop for EndsWithItsThread<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let text = "a thread of the session has failed";
            self.0.end(Some(TunnelError::protocol(text)));
        }
    }
}

impl Near {
    fn is_over(&self) -> bool {
        self.over.load(Acquire)
    }

    fn end_with(&self, result: Result<(), TunnelError>) {
        self.end(result.err());
    }

    /// Ends everything; the first reason counts.
    fn end(&self, reason: Option<TunnelError>) {
        let mut first = lock(&self.reason);
        if !self.over.swap(true, Release) {
            let text = reason.as_ref().map_or_else(String::new, words_of);
            if reason.is_none() {
                // The far end need not wait for another connection.
                let mut bye = Vec::new();
                Header::new(Kind::Bye, 0, 0).put(&mut bye, &[]);
                let _ = self.carrier.send(&bye);
            }
            *first = reason;
            self.port.end(&text);
        }
        drop(first);
        self.carrier.close();
        self.port.wake_readers();
        self.port.wake_notice_waiters();
        self.credit.notify_all();
        self.courier.stop();
    }

    /// Returns when the program's end of the socket is closed, the program is dead, or it is over. Pings meanwhile.
    fn watch(&self, life: Option<&OwnedFd>) {
        let mut pinged = Instant::now();
        while !self.is_over() {
            let port = self.port.as_fd();
            let mut fds = vec![PollFd::from_borrowed_fd(port, PollFlags::RDHUP)];
            if let Some(life) = life {
                fds.push(PollFd::new(life, PollFlags::IN));
            }
            let pause = rustix::time::Timespec {
                tv_sec: 0,
                tv_nsec: 200_000_000,
            };
            let ready = poll(&mut fds, Some(&pause));
            if ready.is_ok() && fds.iter().any(|fd| !fd.revents().is_empty()) {
                return;
            }
            if pinged.elapsed() >= PING_EVERY {
                pinged = Instant::now();
                let mut ping = Vec::new();
                let now = self.began.elapsed().as_micros() as u64;
                Header::new(Kind::Ping, now, 0).put(&mut ping, &[]);
                if self.carrier.send(&ping).is_err() {
                    // The receiving thread says why.
                    self.carrier.close();
                }
            }
        }
    }

    /// Reads the ring and sends what is in it.
    fn forward(&self) -> Result<(), TunnelError> {
        let mut reader = self.port.reader();
        let mut body = Vec::new();
        let mut steps: VecDeque<Step> = VecDeque::new();
        self.port.attend();
        while !self.is_over() {
            self.wait_for_credit();
            let mut outbox = lock(&self.outbox);
            let mut is_empty = false;
            while outbox.len() + self.left_out.load(Relaxed) < BATCH_BYTES && !is_empty {
                if let Some(step) = steps.pop_front() {
                    self.take_step(step, &mut steps, &mut outbox)?;
                } else if let Some(header) = reader.next(&mut body)? {
                    let position = reader.position();
                    self.translate(header, &body, position, &mut steps, &mut outbox)?;
                } else {
                    is_empty = true;
                }
            }
            let sent = !outbox.is_empty();
            if sent {
                // Counted first: credit for it may come at once.
                let left_out = self.left_out.swap(0, Relaxed);
                *lock(&self.outstanding) += (outbox.len() + left_out) as u64;
                self.send_out(&mut outbox)?;
            }
            drop(outbox);
            if is_empty && !sent {
                self.wait_for_call();
            }
        }
        Ok(())
    }

    /// Looks for a call a moment, then sleeps until the program rings.
    fn wait_for_call(&self) {
        let port = &self.port;
        let Some(since) = port.look_for_call(|| {}) else {
            return;
        };
        let doorbell = port.doorbell();
        port.leave();
        if !port.left() && !self.is_over() {
            port.sleep(doorbell, Some(since));
        }
        port.attend();
    }

    fn wait_for_credit(&self) {
        let mut outstanding = lock(&self.outstanding);
        while *outstanding > WINDOW_BYTES && !self.is_over() {
            let waited = (self.credit).wait_timeout(outstanding, Duration::from_millis(100));
            (outstanding, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// Sends the outbox and empties it.
    fn send_out(&self, outbox: &mut Vec<u8>) -> Result<(), TunnelError> {
        if outbox.is_empty() {
            return Ok(());
        }
        let bytes = outbox.len();
        let began = Instant::now();
        (self.carrier.send_whole(outbox)).map_err(TunnelError::Lost)?;
        self.compressor.sent(bytes, began.elapsed());
        self.stats.send_rate.store(self.compressor.rate(), Relaxed);
        self.stats.sent_bytes.fetch_add(bytes as u64, Relaxed);
        Ok(())
    }
}

/// Messages for the program.
fn words_of(reason: &TunnelError) -> String {
    match reason {
        TunnelError::Lost(source) => {
            format!("the connection to the GPU's machine was lost: {source}")
        }
        TunnelError::Closed => "the GPU's machine closed the connection".into(),
        other => other.to_string(),
    }
}
