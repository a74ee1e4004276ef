//! A stream that outlives the connections that carry it.
//!
//! ```text
//!   send ─► kept (until the peer says that it has it) ─► connection 1 ╳ connection 2 ─► peer
//!                                                        └─ broken ────┘ the peer says how many bytes it has;
//!                                                                        the kept bytes from there on are sent again
//! ```
//! Both sides count the bytes of the stream from its beginning. A sender keeps what the peer has not acknowledged. When a connection
//! breaks, the side that made it makes another, both sides tell how many bytes they have, and each sends the rest again: no byte is
//! lost, none comes twice. Who the peer is, is [`Reconnect`]'s business.

use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::kept::Kept;
use crate::{Carrier, lock};

/// A sender waits while so many bytes are kept. More are kept by one send that began with fewer, and by what never waits.
const MOST_KEPT: u64 = 64 << 20;
/// Bytes that senders which never wait may add: a peer that acknowledges none of them is hostile.
const MOST_ASIDE: u64 = 8 << 20;
/// Received bytes are acknowledged in steps of this size.
const TELL_EVERY: u64 = 1 << 20;
/// How often a sender without room looks whether there is some.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// How a broken connection is replaced.
pub trait Reconnect: Send + Sync {
    /// A new connection to the same peer, and how many bytes of the stream the peer has. The peer is told that this side has `received`;
    /// `why` says how the last connection broke.
    ///
    /// # Errors
    /// There is none, and the stream is lost.
    fn again(&self, received: u64, why: &io::Error) -> io::Result<(Arc<dyn Carrier>, u64)>;
    /// The stream has ended here: whoever waits in [`Reconnect::again`] returns.
    fn give_up(&self);
}

/// What is sent.
struct Outgoing {
    kept: Kept,
    /// The connection that carries what is sent; `None` while there is none, or while kept bytes are being sent again.
    up: Option<Arc<dyn Carrier>>,
}

impl Outgoing {
    /// Sends the last bytes that were kept, if there is a connection. One that breaks is noticed by the reading thread, and the bytes
    /// are sent again.
    fn send_last(&mut self, bytes: usize) {
        if let Some(up) = &self.up
            && up.send(self.kept.last(bytes)).is_err()
        {
            up.close();
            self.up = None;
        }
    }
}

/// A stream over one connection after another.
pub struct Resuming {
    me: Weak<Self>,
    way: Box<dyn Reconnect>,
    over: AtomicBool,
    /// Held while bytes are sent, so that they are kept in the order in which they are sent.
    outgoing: Mutex<Outgoing>,
    /// Bytes that the peer has. Apart from `kept`, since a sender may hold that for long.
    acknowledged: AtomicU64,
    room: Condvar,
    /// The connection that is read.
    reading: Mutex<Arc<dyn Carrier>>,
    received: AtomicU64,
    /// The last acknowledged value of `received`.
    told: AtomicU64,
    breaks: AtomicU64,
}

impl Resuming {
    /// Carries a stream, from its beginning, over a first connection.
    pub fn new(first: Arc<dyn Carrier>, way: Box<dyn Reconnect>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            way,
            over: AtomicBool::new(false),
            outgoing: Mutex::new(Outgoing {
                kept: Kept::default(),
                up: Some(Arc::clone(&first)),
            }),
            acknowledged: AtomicU64::new(0),
            room: Condvar::new(),
            reading: Mutex::new(first),
            received: AtomicU64::new(0),
            told: AtomicU64::new(0),
            breaks: AtomicU64::new(0),
        })
    }

    /// Ends the present connection, so that another one is made or waited for.
    pub fn interrupt(&self) {
        lock(&self.reading).close();
    }

    /// How often a connection was replaced.
    pub fn breaks(&self) -> u64 {
        self.breaks.load(Relaxed)
    }

    fn is_over(&self) -> bool {
        self.over.load(Acquire)
    }

    /// Waits until more may be kept; what is kept may be locked by others meanwhile.
    ///
    /// The peer acknowledges in steps, so the last bytes may stay kept for long: what is sent now need not fit beside them.
    fn wait_for_room(&self) -> io::Result<MutexGuard<'_, Outgoing>> {
        let mut outgoing = lock(&self.outgoing);
        loop {
            outgoing.kept.trim(self.acknowledged.load(Acquire));
            if self.is_over() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            if outgoing.kept.bytes() < MOST_KEPT {
                return Ok(outgoing);
            }
            // Acknowledgements do not lock what is kept, so one may come just before this wait.
            let waited = self.room.wait_timeout(outgoing, LOOK_AGAIN);
            (outgoing, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Replaces the connection that is read.
    fn mend(&self, broken: &Arc<dyn Carrier>, why: io::Error) -> io::Result<()> {
        if self.is_over() {
            return Err(why);
        }
        // Whoever is sending over it stops, and lets go of what is kept.
        broken.close();
        lock(&self.outgoing).up = None;
        let received = self.received.load(Acquire);
        let again = self.way.again(received, &why);
        let (fresh, has) =
            again.map_err(|error| io::Error::new(error.kind(), format!("{why}; {error}")))?;
        let mut outgoing = lock(&self.outgoing);
        let (first, next) = (outgoing.kept.first(), outgoing.kept.next());
        if has < first || has > next {
            fresh.close();
            let text = format!("the peer has {has} bytes of a stream of {first} to {next}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        outgoing.kept.trim(has);
        drop(outgoing);
        self.breaks.fetch_add(1, Relaxed);
        self.told.store(received, Relaxed);
        *lock(&self.reading) = Arc::clone(&fresh);
        if self.is_over() {
            fresh.close();
        }
        // By another thread: both sides may have much to send again, and this one must read.
        let Some(me) = self.me.upgrade() else {
            return Err(why);
        };
        let replay = move || me.replay(&fresh);
        std::thread::Builder::new()
            .name("replay".into())
            .spawn(replay)?;
        Ok(())
    }

    /// Sends again what the peer does not have, then lets others send.
    fn replay(&self, fresh: &Arc<dyn Carrier>) {
        let mut outgoing = lock(&self.outgoing);
        // This connection may have broken before this thread began, and another may carry the stream by now.
        if !Arc::ptr_eq(fresh, &lock(&self.reading)) {
            return;
        }
        let sent = outgoing.kept.parts().try_for_each(|part| fresh.send(part));
        match sent {
            Ok(()) => outgoing.up = Some(Arc::clone(fresh)),
            // The reading thread notices, and mends again.
            Err(_) => fresh.close(),
        }
    }
}

impl Carrier for Resuming {
    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let mut outgoing = self.wait_for_room()?;
        outgoing.kept.copy(bytes);
        outgoing.send_last(bytes.len());
        Ok(())
    }

    fn send_whole(&self, bytes: &mut Vec<u8>) -> io::Result<()> {
        let mut outgoing = self.wait_for_room()?;
        let len = bytes.len();
        outgoing.kept.take(bytes);
        outgoing.send_last(len);
        Ok(())
    }

    fn send_aside(&self, bytes: &[u8]) -> io::Result<()> {
        let mut outgoing = lock(&self.outgoing);
        outgoing.kept.trim(self.acknowledged.load(Acquire));
        if self.is_over() || outgoing.kept.bytes() > MOST_KEPT + MOST_ASIDE {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        outgoing.kept.copy(bytes);
        outgoing.send_last(bytes.len());
        Ok(())
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let reading = Arc::clone(&lock(&self.reading));
            let why = match reading.receive(buffer) {
                Ok(0) => io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the other side closed the connection",
                ),
                Ok(got) => {
                    self.received.fetch_add(got as u64, Release);
                    return Ok(got);
                }
                Err(error) => error,
            };
            self.mend(&reading, why)?;
        }
    }

    fn close(&self) {
        self.over.store(true, Release);
        self.way.give_up();
        lock(&self.reading).close();
        self.room.notify_all();
    }

    fn owed(&self) -> Option<u64> {
        let received = self.received.load(Acquire);
        let is_much = received - self.told.load(Relaxed) >= TELL_EVERY;
        is_much.then(|| {
            self.told.store(received, Relaxed);
            received
        })
    }

    fn acknowledge(&self, received: u64) {
        self.acknowledged.fetch_max(received, Release);
        self.room.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::SocketCarrier;

    struct Nobody;

    impl Reconnect for Nobody {
        fn again(&self, _: u64, _: &io::Error) -> io::Result<(Arc<dyn Carrier>, u64)> {
            Err(io::ErrorKind::NotConnected.into())
        }

        fn give_up(&self) {}
    }

    /// A connection broke again before the thread that sends the rest over it had begun.
    #[test]
    fn a_late_replay_does_not_take_a_broken_connection_for_the_present_one() {
        let pair = || {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let ours: Arc<dyn Carrier> = Arc::new(SocketCarrier::new(ours));
            (ours, theirs)
        };
        let ((broken, _), (present, mut peer)) = (pair(), pair());
        let stream = Resuming::new(present, Box::new(Nobody));
        broken.close();
        stream.replay(&broken);
        stream.send(b"hi").unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let mut got = [0; 2];
        peer.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hi");
    }
}
