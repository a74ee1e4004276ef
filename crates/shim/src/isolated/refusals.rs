//! Tells the one who runs the program what was refused, whatever the program does with the error.
//!
//! A sentence goes into the log and, once, over the worker to the daemon, whose events `mica run` prints at the end.

use std::sync::Mutex;

use mica_cuda_abi::CuResult;
use mica_wire::session::{NoteRefused, SessionError};

use crate::isolated::state::state;
use crate::isolated::support::lock;
use crate::log;

/// Different sentences of one process that are told: a program may make them up by the thousand.
const MOST_TOLD: usize = 64;

/// Says what was refused.
#[cold]
pub(crate) fn tell(text: &str) {
    log::line(text);
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let Ok(state) = state() else {
        return;
    };
    let mut told = lock(&TOLD);
    if told.len() >= MOST_TOLD || told.iter().any(|known| known == text) {
        return;
    }
    told.push(text.to_owned());
    drop(told);
    // The program gets its error whether or not this can be said.
    let _ = state.client.post(&NoteRefused {}, text.as_bytes());
}

/// Says what the worker has refused. Codes that are part of ordinary work stay in the log.
#[cold]
pub(crate) fn note(error: &SessionError) {
    let code = error.cuda_code();
    if code == CuResult::NotSupported as u32 {
        tell(&error.to_string());
    } else if code != CuResult::NotReady as u32 {
        // Asking whether work is done is answered by a code, and often.
        log::line(&error.to_string());
    }
}
