//! The threads that carry out a session's calls: how many there are, when they sleep, how they end.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

use mica_wire::session::server::RingServer;
use mica_wire::session::{SLOTS, Violation};

use super::ring_reader::Turn;
use crate::WorkerError;
use crate::dispatch::Dispatcher;
use crate::gated::{Gated, Submitter};

/// Enough for blocks of kernels.
const STACK_BYTES: usize = 8 << 20;

/// What the threads of one session share.
pub(crate) struct SessionThreads {
    pub(super) dispatcher: Dispatcher,
    pub(super) reader: Mutex<RingServer>,
    /// Threads that sleep until there is something to do.
    resting: AtomicUsize,
    threads: AtomicUsize,
    over: AtomicBool,
    /// The rule that the program broke.
    broken: Mutex<Option<String>>,
    /// Calls that are carried out by threads that have given up the ring.
    pub(super) without_ring: AtomicUsize,
    /// Whether calls are to wait, because the session is being saved.
    pub(super) held: AtomicBool,
    /// What threads sleep on meanwhile.
    pub(super) letting_go: (Mutex<()>, Condvar),
    /// The way to the gate, where submissions must pass one before the device.
    pub(super) gated: Option<Gated>,
}

impl SessionThreads {
    /// Starts the first thread.
    pub(super) fn start(
        dispatcher: Dispatcher,
        submitter: Option<Arc<Submitter>>,
    ) -> Result<Arc<Self>, WorkerError> {
        let threads = Arc::new(Self {
            reader: Mutex::new(dispatcher.port.reader()),
            dispatcher,
            resting: AtomicUsize::new(0),
            threads: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            broken: Mutex::default(),
            without_ring: AtomicUsize::new(0),
            held: AtomicBool::new(false),
            letting_go: Default::default(),
            gated: submitter.map(Gated::new),
        });
        let started = threads.spawn(Self::run_first);
        started.map_err(WorkerError::Thread)?;
        Ok(threads)
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Acquire)
    }

    /// Ends the session: nothing new is begun, what runs is cancelled and freed. Says what rule the program broke.
    pub(super) fn close(&self) -> Option<String> {
        let dispatcher = &self.dispatcher;
        self.over.store(true, Release);
        // A program that can still copy through windows must not take emptied memory for its own.
        dispatcher.port.mark_ended("its session was closed");
        dispatcher.callbacks.end(&dispatcher.port);
        dispatcher.port.wake_readers();
        if let Some(gated) = &self.gated {
            gated.wake();
        }
        dispatcher.session.close();
        if let Some(gated) = &self.gated {
            gated.ended();
        }
        dispatcher.port.end("its session was closed");
        self.broken().take()
    }

    /// Ends the session of a program that broke the rules.
    pub(super) fn end(&self, violation: &Violation) {
        let reason = violation.to_string();
        tracing::warn!(reason, "a session is ended");
        self.over.store(true, Release);
        self.broken().get_or_insert(reason.clone());
        // Closes the socket, which the watcher sees.
        self.dispatcher.port.end(&reason);
    }

    fn broken(&self) -> MutexGuard<'_, Option<String>> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts one more thread, if there may be one.
    fn spawn(self: &Arc<Self>, run: fn(Arc<Self>)) -> std::io::Result<()> {
        if !self.count_one_more() {
            return Ok(());
        }
        let threads = Arc::clone(self);
        std::thread::Builder::new()
            .name("calls".into())
            .stack_size(STACK_BYTES)
            .spawn(move || run(threads))
            .map(drop)
    }

    /// The first thread of a session that was parked: from here on the file is of an earlier state. Where no thread can be
    /// started the session stays parked, and its program asks for another worker.
    fn run_first(self: Arc<Self>) {
        self.dispatcher.port.go_on();
        self.run();
    }

    fn run(self: Arc<Self>) {
        mica_backend_software::lend_this_thread();
        let mut body = Vec::new();
        while !self.is_over() {
            if let Err(violation) = self.attend(&mut body) {
                self.end(&violation);
            }
        }
        self.one_less();
    }

    /// Counts one more thread, if there may be one: a program can wait in as many calls as there are reply slots;
    /// one more thread reads.
    pub(super) fn count_one_more(&self) -> bool {
        let may = self.threads.fetch_add(1, AcqRel) <= SLOTS;
        if !may {
            self.one_less();
        }
        may
    }

    pub(super) fn one_less(&self) {
        self.threads.fetch_sub(1, AcqRel);
    }

    /// Gives the ring up: another thread reads it from now on.
    pub(super) fn leave_ring(self: &Arc<Self>, reader: MutexGuard<'_, RingServer>) {
        let port = &self.dispatcher.port;
        port.leave();
        drop(reader);
        if self.resting.load(Acquire) == 0 && self.spawn(Self::run).is_err() {
            tracing::error!("no thread can be started; calls of this session wait in line");
        }
        if port.left() {
            port.wake_one();
        }
    }

    /// Leads if nobody does; then sleeps until there is something to do.
    fn attend(self: &Arc<Self>, body: &mut Vec<u8>) -> Result<(), Violation> {
        let port = &self.dispatcher.port;
        if self.is_held() {
            self.wait_until_let_go();
        }
        let doorbell = port.doorbell();
        let turn = match self.reader.try_lock() {
            Ok(reader) => self.lead(reader, body)?,
            Err(TryLockError::Poisoned(reader)) => self.lead(reader.into_inner(), body)?,
            Err(TryLockError::WouldBlock) => Turn::Relieved,
        };
        let (doorbell, looked) = match turn {
            Turn::Again => return Ok(()),
            Turn::Relieved => (doorbell, None),
            Turn::Idle(since, doorbell) => (doorbell, Some(since)),
        };
        self.resting.fetch_add(1, AcqRel);
        if !self.is_over() {
            port.sleep(doorbell, looked);
        }
        self.resting.fetch_sub(1, AcqRel);
        Ok(())
    }
}
