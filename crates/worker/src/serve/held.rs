//! Carries out what waits for its turn at the gate, in order.

use std::sync::{Arc, Mutex, PoisonError};

use mica_wire::session::{Class, Violation};

use super::threads::SessionThreads;
use crate::gated::Held;

impl SessionThreads {
    /// Waits for the turn of a call and carries it out, then those in line behind it. The ring is somebody else's
    /// meanwhile.
    pub(super) fn hold(self: &Arc<Self>, first: Held) -> Result<(), Violation> {
        let Some(gated) = &self.gated else {
            return Ok(());
        };
        let over = || self.is_over();
        let mut next = Some(first);
        while let Some(one) = next {
            if !gated.wait_turn(&one, &over) {
                return Ok(());
            }
            let carry_out = |one: Held| self.carry_out(one.header, one.call, &one.tail, || {});
            if one.call.class() != Class::Waiting {
                carry_out(one)?;
                next = gated.next();
                continue;
            }
            // Whoever waits for the device keeps nobody in line, as it keeps nobody from the ring.
            next = match gated.next() {
                Some(rest) => self.hold_elsewhere(rest),
                None => None,
            };
            carry_out(one)?;
        }
        Ok(())
    }

    /// Goes on with the line on another thread; gives it back if there cannot be one.
    fn hold_elsewhere(self: &Arc<Self>, rest: Held) -> Option<Held> {
        if !self.count_one_more() {
            return Some(rest);
        }
        let threads = Arc::clone(self);
        // Taken by the thread, or left here if there is none.
        let slot = Arc::new(Mutex::new(Some(rest)));
        let taken = Arc::clone(&slot);
        let take = |slot: &Mutex<Option<Held>>| {
            let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
            slot.take()
        };
        let started = std::thread::Builder::new()
            .name("held".into())
            .spawn(move || {
                if let Some(rest) = take(&taken)
                    && let Err(violation) = threads.hold(rest)
                {
                    threads.end(&violation);
                }
                threads.one_less();
            });
        match started {
            Ok(_) => None,
            Err(error) => {
                tracing::error!(%error, "no thread can be started; calls of this session wait in line");
                self.one_less();
                take(&slot)
            }
        }
    }
}
