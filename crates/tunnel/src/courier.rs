//! Sends what a receiving thread has to say.
//!
//! A thread that receives must never wait until the peer receives: if both did, both streams would stand still. So it hands its small
//! frames (credit, acknowledgements, answers to pings) to a thread that does nothing but send them.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::{Carrier, TunnelError, lock};

/// Most bytes that may wait. A peer that asks for more without reading is hostile.
const MOST_WAITING: usize = 1 << 20;

/// Frames that wait for the sending thread.
#[derive(Default)]
pub(crate) struct Courier {
    waiting: Mutex<Vec<u8>>,
    ready: Condvar,
    over: AtomicBool,
}

impl Courier {
    /// Hands over frames.
    ///
    /// # Errors
    /// Too much waits already.
    pub(crate) fn post(&self, put: impl FnOnce(&mut Vec<u8>)) -> Result<(), TunnelError> {
        let mut waiting = lock(&self.waiting);
        put(&mut waiting);
        if waiting.len() > MOST_WAITING {
            return Err(TunnelError::protocol(
                "the other side does not read its messages",
            ));
        }
        drop(waiting);
        self.ready.notify_one();
        Ok(())
    }

    /// Sends what is handed over, until it is over.
    pub(crate) fn run(&self, carrier: &dyn Carrier) -> Result<(), TunnelError> {
        let mut sending = Vec::new();
        loop {
            let mut waiting = lock(&self.waiting);
            while waiting.is_empty() {
                if self.over.load(Acquire) {
                    return Ok(());
                }
                let woken = self.ready.wait(waiting);
                waiting = woken.unwrap_or_else(PoisonError::into_inner);
            }
            std::mem::swap(&mut *waiting, &mut sending);
            drop(waiting);
            carrier.send_aside(&sending).map_err(TunnelError::Lost)?;
            sending.clear();
        }
    }

    /// Lets the sending thread end.
    pub(crate) fn stop(&self) {
        // Under the lock, so that a thread that has just looked does not sleep through it.
        let waiting = lock(&self.waiting);
        self.over.store(true, Release);
        drop(waiting);
        self.ready.notify_all();
    }
}
