//! Carries out one call and answers it.

use mica_cuda_abi::CuResult;
use mica_gpu::profile::Activity;
use mica_vgpu::VgpuError;
use mica_wire::session::{Call, Effect, Late, Launch, Order, RecordHeader, Request, Violation};

use super::threads::SessionThreads;
use crate::dispatch::Failure;
use crate::profile::waiting;

/// What a call's answer, or a late error, is made of.
type Refusal = (CuResult, String);

impl SessionThreads {
    /// Carries out a call; `before_answer` runs when all is done but the telling.
    pub(super) fn carry_out(
        &self,
        header: RecordHeader,
        call: Call,
        tail: &[u8],
        before_answer: impl FnOnce(),
    ) -> Result<(), Violation> {
        let dispatcher = &self.dispatcher;
        if let (Call::Continue(more), Some(slot)) = (&call, header.reply_slot()) {
            dispatcher.port.continue_answer(slot, more.offset);
            return Ok(());
        }
        let (name, late) = (call.name(), call.late());
        let waited_for = waited_for(&call);
        // Looked up before a call that may end its owner. A launch needs the context only if it fails.
        let is_lasting = header.reply_slot().is_none() && call.effect() == Effect::None;
        let known = match is_lasting {
            true => None,
            false => Some(dispatcher.context_of(late.owner())),
        };
        let context = || known.unwrap_or_else(|| dispatcher.context_of(late.owner()));
        if let (Late::Before(_), Some(slot)) = (late, header.reply_slot())
            && let Some(kept) = self.take_late(context())
        {
            self.refuse(slot, kept);
            return Ok(());
        }
        let perform = || match &self.gated {
            Some(gated) => gated.perform(dispatcher, call, tail),
            None => dispatcher.perform(call, tail),
        };
        let recorder = dispatcher.output.recorder();
        let performed = match waited_for.filter(|_| recorder.is_on()) {
            Some(handle) => waiting(recorder, Activity::Wait, name, handle, perform),
            None => perform(),
        };
        dispatcher.output.show_lines();
        before_answer();
        let outcome = match performed {
            Err(Failure::Violation(violation)) => return Err(violation),
            Err(Failure::Refused(error)) => Err((error.code(), sentence(name, &error))),
            Ok(bytes) => Ok(bytes),
        };
        match (header.reply_slot(), outcome) {
            (None, Ok(_)) => {}
            (None, Err((code, message))) => {
                tracing::debug!(name, message, "a posted call failed");
                self.keep_late(context(), code, message);
            }
            (Some(slot), outcome) => self.answer(slot, late, context(), outcome),
        }
        Ok(())
    }

    /// Answers a call, or tells of an error of a posted call before it.
    fn answer(&self, slot: u16, late: Late, context: u64, outcome: Result<Vec<u8>, Refusal>) {
        match (outcome, late) {
            (Ok(bytes), Late::After(_)) => match self.take_late(context) {
                Some(kept) => self.refuse(slot, kept),
                None => self.dispatcher.port.answer(slot, 0, bytes),
            },
            (Ok(bytes), Late::Before(_) | Late::Kept(_) | Late::Never) => {
                self.dispatcher.port.answer(slot, 0, bytes);
            }
            (Err((code, message)), _) => {
                if context != 0 && code.is_sticky() {
                    // Posted calls that come later can be refused at once in the program.
                    self.keep_late(context, code, message.clone());
                }
                self.refuse(slot, (code, message));
            }
        }
    }

    /// Keeps the error of a launch for the program.
    pub(super) fn note_refused_launch(&self, context: u64, error: &VgpuError) {
        let message = sentence(Launch::NAME, error);
        tracing::debug!(name = Launch::NAME, message, "a posted call failed");
        self.keep_late(context, error.code(), message);
    }

    fn refuse(&self, slot: u16, (code, message): Refusal) {
        let port = &self.dispatcher.port;
        port.answer(slot, code as u32, message.into_bytes());
    }

    fn keep_late(&self, context: u64, code: CuResult, message: String) {
        let late = self.dispatcher.session.late();
        late.note(context, code, message);
        self.dispatcher.port.show_late(late.count());
    }

    /// The oldest error of a posted call of a context; none of no context.
    fn take_late(&self, context: u64) -> Option<Refusal> {
        let late = self.dispatcher.session.late();
        if context == 0 || late.count() == 0 {
            return None;
        }
        let taken = late.take(context);
        self.dispatcher.port.show_late(late.count());
        taken
    }
}

/// What a call waits for: the handle of a stream, a context or an event.
fn waited_for(call: &Call) -> Option<u64> {
    match call.order() {
        Order::WaitsForStream(handle)
        | Order::WaitsForContext(handle)
        | Order::WaitsForEvent(handle) => Some(handle),
        _ => None,
    }
}

fn sentence(call: &str, error: &VgpuError) -> String {
    format!("{call}: {}", error.sentence())
}
