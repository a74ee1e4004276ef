//! Carries out one call and answers it.

use mica_cuda_abi::CuResult;
use mica_vgpu::VgpuError;
use mica_wire::session::{Call, RecordHeader, Violation};

use super::Crew;
use crate::dispatch::Failure;

impl Crew {
    /// Carries out a call; `before_answer` runs when all is done but the telling.
    pub(super) fn carry_out(
        &self,
        header: RecordHeader,
        call: Call,
        tail: &[u8],
        before_answer: impl FnOnce(),
    ) -> Result<(), Violation> {
        let desk = &self.desk;
        if let (Call::Continue(more), Some(slot)) = (&call, header.reply_slot()) {
            desk.port.continue_answer(slot, more.offset);
            return Ok(());
        }
        let context = desk.context_of(&call);
        let name = call.name();
        // A call that makes something is refused before it is made; one that waits, after.
        let late_first = matches!(
            call,
            Call::ModuleLoad(_)
                | Call::MemoryAlloc(_)
                | Call::MemoryAllocAsync(_)
                | Call::StreamCreate(_)
                | Call::EventCreate(_)
                | Call::GraphInstantiate(_)
        );
        let tells_late = header.reply_slot().is_some() && context != 0;
        if let (true, true, Some(slot)) = (tells_late, late_first, header.reply_slot())
            && let Some((code, message)) = self.take_late(context)
        {
            desk.port.answer(slot, code as u32, message.into_bytes());
            return Ok(());
        }
        let performed = match &self.gated {
            Some(gated) => gated.perform(desk, call, tail),
            None => desk.perform(call, tail),
        };
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
                desk.session.late().note(context, code, message);
                desk.port.show_late(desk.session.late().count());
            }
            (Some(slot), Ok(bytes)) => {
                let late = match tells_late && !late_first {
                    true => self.take_late(context),
                    false => None,
                };
                match late {
                    Some((code, message)) => {
                        desk.port.answer(slot, code as u32, message.into_bytes());
                    }
                    None => desk.port.answer(slot, 0, bytes),
                }
            }
            (Some(slot), Err((code, message))) => {
                if tells_late && code.is_sticky() {
                    // Posted calls that come later can be refused at once in the program.
                    desk.session.late().note(context, code, message.clone());
                    desk.port.show_late(desk.session.late().count());
                }
                desk.port.answer(slot, code as u32, message.into_bytes());
            }
        }
        Ok(())
    }

    fn take_late(&self, context: u64) -> Option<(CuResult, String)> {
        let late = self.desk.session.late();
        if late.count() == 0 {
            return None;
        }
        let taken = late.take(context);
        self.desk.port.show_late(late.count());
        taken
    }
}

fn sentence(call: &str, error: &VgpuError) -> String {
    format!("{call}: {}", error.sentence())
}
