//! Pieces that the near end names: from disk, or asked for. What it sends with a hash is kept beside the session.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::Far;
use crate::frame::{Header, Kind};
use crate::piece_store::{Found, PieceFolder, PieceStore};
use crate::pieces::{Hash, PIECE_BYTES, hash_of, prefix};
use crate::{TunnelError, lock};

/// Pieces that wait to be written. What comes faster than the disk takes it is not kept.
const MOST_WAITING: usize = 64;
/// Uses of pieces that wait to be noted.
const MOST_NOTES: usize = 1024;
/// Pieces that are told of at once, while more are being written.
const TOLD_AT_ONCE: usize = 64;
/// How long what waits at the end of a session may take: its worker's memory is freed after that.
const LAST_WRITES: Duration = Duration::from_millis(500);
/// Reads that tell how fast the disk is.
const TELLING_READS: u64 = 64;

/// What the keeping thread has to do.
enum Job {
    Open,
    Keep(Hash, Vec<u8>),
    Note(Hash, Found),
}

/// Pieces of one session.
pub(super) struct Pieces {
    folder: Option<PieceFolder>,
    store: OnceLock<PieceStore>,
    jobs: Mutex<VecDeque<Job>>,
    ready: Condvar,
    /// The piece that was asked for, and its bytes once they have come.
    wanted: Mutex<Option<(Hash, Option<Vec<u8>>)>>,
    came: Condvar,
    /// Known pieces that were found.
    found: AtomicU64,
    speed: Mutex<Speed>,
    /// A buffer to read into.
    spare: Mutex<Vec<u8>>,
}

/// How fast pieces are read.
#[derive(Default)]
struct Speed {
    /// Bytes a second that the link takes, as the near end has said.
    link: u64,
    reads: u64,
    took: Duration,
}

impl Speed {
    /// Notes a read; whether the last ones were slower than the link.
    fn is_slow(&mut self, took: Duration) -> bool {
        (self.reads, self.took) = (self.reads + 1, self.took + took);
        if self.reads < TELLING_READS {
            return false;
        }
        let bytes = (self.reads * PIECE_BYTES as u64) as f64;
        let is_slow = bytes < self.link as f64 * self.took.as_secs_f64();
        (self.reads, self.took) = (0, Duration::ZERO);
        is_slow
    }
}

impl Pieces {
    pub(super) fn new(folder: Option<PieceFolder>) -> Self {
        Self {
            folder,
            store: OnceLock::new(),
            jobs: Mutex::default(),
            ready: Condvar::new(),
            wanted: Mutex::default(),
            came: Condvar::new(),
            found: AtomicU64::new(0),
            speed: Mutex::default(),
            spare: Mutex::default(),
        }
    }

    /// Whether pieces can be kept.
    pub(super) fn is_offered(&self) -> bool {
        self.folder.is_some()
    }

    /// A known piece was found; how many in all is told with credit.
    pub(super) fn count_found(&self) {
        self.found.fetch_add(1, Relaxed);
    }

    pub(super) fn found(&self) -> u64 {
        self.found.load(Relaxed)
    }

    fn add(&self, job: Job) {
        let mut jobs = lock(&self.jobs);
        let most = match job {
            Job::Keep(..) => MOST_WAITING,
            _ => MOST_NOTES,
        };
        if jobs.len() < most {
            jobs.push_back(job);
            self.ready.notify_one();
        }
    }

    /// The near end asks which pieces are here.
    pub(super) fn ask(&self, link_rate: u64) -> Result<(), TunnelError> {
        let mut speed = lock(&self.speed);
        if self.folder.is_none() || speed.link != 0 {
            return Err(TunnelError::protocol("a second question for pieces"));
        }
        speed.link = link_rate.max(1);
        drop(speed);
        self.add(Job::Open);
        Ok(())
    }

    /// Has a piece kept, if there is time for that.
    pub(super) fn keep(&self, hash: &Hash, piece: impl FnOnce() -> Vec<u8>) {
        if self.store.get().is_some() && lock(&self.jobs).len() < MOST_WAITING {
            self.add(Job::Keep(*hash, piece()));
        }
    }

    /// Gives a buffer back.
    pub(super) fn give_back(&self, buffer: Vec<u8>) {
        *lock(&self.spare) = buffer;
    }

    /// The bytes of the piece that was asked for.
    pub(super) fn arrived(&self, data: &[u8]) -> Result<(), TunnelError> {
        let mut wanted = lock(&self.wanted);
        let is_piece = |hash: &Hash| data.len() == PIECE_BYTES && hash_of(data) == *hash;
        match &mut *wanted {
            Some((hash, bytes @ None)) if is_piece(hash) => *bytes = Some(data.to_vec()),
            _ => return Err(TunnelError::protocol("a piece that was not asked for")),
        }
        drop(wanted);
        self.came.notify_all();
        Ok(())
    }

    /// Wakes who waits.
    pub(super) fn wake(&self) {
        // Under the locks, so that threads that have just looked do not sleep through it.
        drop(lock(&self.wanted));
        self.came.notify_all();
        drop(lock(&self.jobs));
        self.ready.notify_all();
    }
}

impl Far {
    /// The bytes of a known piece; `None` if they must be waited for and may not.
    pub(super) fn known_piece(
        &self,
        hash: &Hash,
        may_wait: bool,
    ) -> Result<Option<Vec<u8>>, TunnelError> {
        let pieces = &self.pieces;
        let store = pieces.store.get();
        let store = store.ok_or_else(|| TunnelError::protocol("a known piece of no list"))?;
        let mut buffer = std::mem::take(&mut *lock(&pieces.spare));
        buffer.resize(PIECE_BYTES, 0);
        let began = Instant::now();
        let found = store.get(hash, &mut buffer);
        if found != Found::Nowhere {
            pieces.add(Job::Note(*hash, found));
        }
        if found == Found::Here {
            if lock(&pieces.speed).is_slow(began.elapsed()) {
                self.say(Kind::PiecesOff, 0, 0)?;
            }
            return Ok(Some(buffer));
        }
        pieces.give_back(buffer);
        match may_wait {
            true => {
                let piece = self.fetch_piece(hash)?;
                pieces.keep(hash, || piece.clone());
                Ok(Some(piece))
            }
            false => Ok(None),
        }
    }

    /// Asks for a piece and waits for it.
    fn fetch_piece(&self, hash: &Hash) -> Result<Vec<u8>, TunnelError> {
        let pieces = &self.pieces;
        *lock(&pieces.wanted) = Some((*hash, None));
        let mut out = Vec::new();
        Header::new(Kind::PieceWanted, 0, 0).put(&mut out, &[hash]);
        self.send(&out)?;
        let mut wanted = lock(&pieces.wanted);
        loop {
            if let Some((_, Some(piece))) = &mut *wanted {
                let piece = std::mem::take(piece);
                *wanted = None;
                return Ok(piece);
            }
            if self.is_over() {
                return Err(TunnelError::Closed);
            }
            let woken = pieces.came.wait(wanted);
            wanted = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Writes what is to be kept, until it is over.
    pub(super) fn keep_pieces(&self) -> Result<(), TunnelError> {
        let pieces = &self.pieces;
        let mut told = Vec::new();
        let mut over_since = None;
        loop {
            let mut jobs = lock(&pieces.jobs);
            let job = loop {
                if let Some(job) = jobs.pop_front() {
                    break job;
                }
                if self.is_over() {
                    return Ok(());
                }
                let woken = pieces.ready.wait(jobs);
                jobs = woken.unwrap_or_else(PoisonError::into_inner);
            };
            let is_last = jobs.is_empty();
            drop(jobs);
            if self.is_over() {
                let since = *over_since.get_or_insert_with(Instant::now);
                if since.elapsed() > LAST_WRITES {
                    return Ok(());
                }
            }
            if let Err(error) = self.do_job(job, &mut told) {
                tracing::warn!(%error, "what programs send again cannot be kept");
                if self.is_over() {
                    return Ok(());
                }
            }
            if is_last || told.len() >= 8 * TOLD_AT_ONCE {
                self.tell_pieces(&mut told, false)?;
            }
        }
    }

    fn do_job(&self, job: Job, told: &mut Vec<u8>) -> io::Result<()> {
        let pieces = &self.pieces;
        match (job, pieces.store.get(), &pieces.folder) {
            (Job::Open, None, Some(folder)) => {
                let store = folder.open()?;
                for prefix in store.prefixes() {
                    told.extend(prefix.to_le_bytes());
                }
                // Before the list, which lets the near end name them.
                let _ = pieces.store.set(store);
                self.tell_pieces(told, true).map_err(io::Error::other)
            }
            (Job::Keep(hash, piece), Some(store), _) => {
                if store.put(&hash, &piece)? {
                    told.extend(prefix(&hash).to_le_bytes());
                }
                Ok(())
            }
            (Job::Note(hash, found), Some(store), _) => store.note(&hash, found),
            _ => Ok(()),
        }
    }

    /// Tells which pieces are here now; also that there are none, if that was asked.
    fn tell_pieces(&self, told: &mut Vec<u8>, is_answer: bool) -> Result<(), TunnelError> {
        if told.is_empty() && !is_answer {
            return Ok(());
        }
        self.courier
            .post(|out| Header::new(Kind::PiecesKnown, 0, 0).put(out, &[told]))?;
        told.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_is_slow_when_the_link_is_faster() {
        let mut speed = Speed {
            link: 100 << 20,
            ..Speed::default()
        };
        let piece = |micros| Duration::from_micros(micros);
        // A piece takes 2.5 ms on the link.
        for _ in 0..3 * TELLING_READS {
            assert!(!speed.is_slow(piece(2400)));
        }
        let slow = (0..2 * TELLING_READS).filter(|_| speed.is_slow(piece(2600)));
        assert_eq!(slow.count(), 2);
    }
}
