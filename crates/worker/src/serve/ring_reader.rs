//! One thread's turn at the ring: reads calls, and has each of them carried out in its place.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use mica_wire::session::server::{RingServer, SessionPort};
use mica_wire::session::transport::ServerTransport;
use mica_wire::session::{Call, Class, Field, RecordHeader, Truth, Violation};

use super::launch_path::{LaunchPath, Place};
use super::threads::SessionThreads;
use crate::gated::{Held, Placed};

/// How a thread's turn at the ring ended.
pub(super) enum Turn {
    /// Another has taken the ring meanwhile.
    Relieved,
    /// There was nothing to do: since when, and the doorbell before the last look.
    Idle(Instant, u32),
    /// There may be more to do at once.
    Again,
}

/// The ring, while it is a thread's own.
type Ring<'a> = MutexGuard<'a, RingServer>;

impl SessionThreads {
    /// Reads calls and carries them out. While it waits for the device, the ring is anybody's; it is
    /// back before the program hears of it, so the next call finds it looking.
    pub(super) fn lead<'a>(
        self: &'a Arc<Self>,
        mut ring: Ring<'a>,
        body: &mut Vec<u8>,
    ) -> Result<Turn, Violation> {
        let port = &self.dispatcher.port;
        let gpu = self.dispatcher.session.gpu();
        let mut launches = LaunchPath::default();
        port.attend();
        while !self.is_over() && !self.is_held() {
            let Some(header) = ring.next(body)? else {
                launches.rest(self);
                self.dispatcher.settle();
                match port.look_for_call(|| self.dispatcher.look_at_uploads()) {
                    None => continue,
                    Some(since) => return Ok(leave_idle(port, ring, since)),
                }
            };
            let place = Place {
                position: ring.position(),
                has_next: ring.has_next(),
            };
            if self.launched(&mut launches, header, body, place)? {
                continue;
            }
            launches.end(self);
            let position = place.position;
            let (call, tail) = checked(header, body)?;
            if call.settles() {
                gpu.settle();
            }
            let back = match self.place(header, call, tail) {
                Placed::Now(call) if call.class() != Class::Waiting => {
                    self.carry_out_here(header, call, tail, position)?;
                    continue;
                }
                Placed::Now(call) => {
                    port.carried_out(position);
                    self.wait_without_ring(ring, header, call, tail)?
                }
                Placed::First(held) => self.hold_without_ring(ring, held)?,
                Placed::InLine => continue,
                Placed::NotReady => {
                    answer_not_ready(port, header);
                    continue;
                }
            };
            launches.rest(self);
            match back {
                Some(again) => ring = again,
                None => return Ok(Turn::Relieved),
            }
            port.attend();
        }
        launches.end(self);
        Ok(Turn::Again)
    }

    /// Where a call has its place: at once, where submissions pass no gate.
    #[inline]
    fn place(&self, header: RecordHeader, call: Call, tail: &[u8]) -> Placed {
        match &self.gated {
            None => Placed::Now(call),
            Some(gated) => {
                let over = || self.is_over();
                gated.place(&self.dispatcher, header, call, tail, &over)
            }
        }
    }

    /// Carries out a call that does not wait, with the ring held.
    fn carry_out_here(
        &self,
        header: RecordHeader,
        call: Call,
        tail: &[u8],
        position: u64,
    ) -> Result<(), Violation> {
        let port = &self.dispatcher.port;
        let is_posted = call.class() == Class::Posted;
        self.carry_out(header, call, tail, || {
            port.carried_out(position);
            if !is_posted {
                port.show_quiet(|| self.dispatcher.session.gpu().is_idle());
            }
        })
    }

    /// Carries out a call that waits for the device. The ring is back before the answer, if nobody has it.
    fn wait_without_ring<'a>(
        self: &'a Arc<Self>,
        ring: Ring<'_>,
        header: RecordHeader,
        call: Call,
        tail: &[u8],
    ) -> Result<Option<Ring<'a>>, Violation> {
        let port = &self.dispatcher.port;
        // Before the ring is anybody's: whoever has it knows of all calls before it.
        self.without_ring.fetch_add(1, SeqCst);
        self.leave_ring(ring);
        let mut back = None;
        let done = self.carry_out(header, call, tail, || {
            back = self.reader.try_lock().ok();
            if back.is_some() {
                port.attend();
            }
            port.show_quiet(|| self.dispatcher.session.gpu().is_idle());
        });
        self.without_ring.fetch_sub(1, SeqCst);
        done?;
        Ok(back.or_else(|| self.reader.try_lock().ok()))
    }

    /// Waits for the turn of a call at the gate.
    fn hold_without_ring<'a>(
        self: &'a Arc<Self>,
        ring: Ring<'_>,
        held: Held,
    ) -> Result<Option<Ring<'a>>, Violation> {
        self.leave_ring(ring);
        self.hold(held)?;
        Ok(self.reader.try_lock().ok())
    }
}

/// The call of a record, if it is one and names a reply slot just when it is answered.
fn checked(header: RecordHeader, body: &[u8]) -> Result<(Call, &[u8]), Violation> {
    let (call, tail) = Call::decode(header.call, body).map_err(|source| {
        let number = header.call;
        Violation::Body { number, source }
    })?;
    let is_posted = call.class() == Class::Posted;
    if is_posted == header.reply_slot().is_some() {
        let call = call.name();
        return Err(Violation::Class { call });
    }
    Ok((call, tail))
}

/// Gives up a ring in which there is nothing.
fn leave_idle(port: &SessionPort, ring: Ring<'_>, since: Instant) -> Turn {
    let doorbell = port.doorbell();
    port.leave();
    drop(ring);
    match port.left() {
        true => Turn::Again,
        false => Turn::Idle(since, doorbell),
    }
}

/// Answers whether work is done that waits at the gate.
fn answer_not_ready(port: &SessionPort, header: RecordHeader) {
    if let Some(slot) = header.reply_slot() {
        let mut bytes = Vec::new();
        Truth { value: false }.put(&mut bytes);
        port.answer(slot, 0, bytes);
    }
}
