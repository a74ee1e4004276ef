//! Calls about the session itself: what the program is shown, and what waits for it.

use std::sync::atomic::Ordering::Relaxed;

use mica_wire::session as wire;
use mica_wire::session::Done;

use super::{Dispatcher, handlers};
use crate::convert;

handlers! { dispatcher, session, tail;
    Attach(call) => {
        let program = String::from_utf8_lossy(tail);
        tracing::info!(pid = call.pid, %program, "a program attached");
        let vgpu = session.vgpu();
        let limit = vgpu.memory().limit_bytes;
        Ok(convert::snapshot(&vgpu.spec(), limit, &**session.gpu()))
    };
    MemoryInfo(_) => {
        let mut view = session.vgpu().memory();
        // The daemon looks at the card now and then; the driver knows it now.
        if session.gpu().has_driver()
            && let Ok((free, _)) = session.gpu().memory_info()
        {
            view.device_free_bytes = Some(free);
        }
        Ok(wire::MemoryState {
            free_bytes: view.free_bytes(),
            limit_bytes: view.limit_bytes,
            used_bytes: view.used_bytes,
        })
    };
    Counters(_) => Ok(convert::counters(&session.vgpu().statistics()));
    TakeLate(call) => {
        let late = session.late().take(call.context);
        dispatcher.port.show_late(session.late().count());
        let (code, message) = late.map_or((0, String::new()), |(code, text)| (code as u32, text));
        Ok(wire::LateError { code, message })
    };
    TakeOutput(_) => Ok(wire::KernelOutput { pieces: dispatcher.output.take() });
    NoteRefused(_) => {
        dispatcher.note_refused(tail);
        Ok(Done {})
    };
    Ping(_) => Ok(Done {});
    // Answered where answers are given, without a look at the device.
    Continue(_) => Ok(Done {});
}

/// Sentences of a session that reach the daemon's events, and how long each may be.
const MOST_REFUSALS: u32 = 64;
const REFUSAL_BYTES: usize = 1024;

impl Dispatcher {
    /// Passes a sentence of the program's library on to the one who runs the program.
    fn note_refused(&self, text: &[u8]) {
        let Some(host) = &self.files else {
            return;
        };
        if self.refusals.fetch_add(1, Relaxed) < MOST_REFUSALS {
            let text = text.get(..REFUSAL_BYTES).unwrap_or(text);
            host.note_refused(&String::from_utf8_lossy(text));
        }
    }
}
