//! What kernels print and what is recorded of them, until the program takes it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use mica_coverage::CoverageLog;
use mica_gpu::profile::Recorder;
use mica_wire::session::server::SessionPort;

use crate::profile;

/// Bytes kept; the oldest go first, as in the driver's own ring.
const KEPT: usize = 1 << 20;
/// Counted for a piece beside its bytes, so that there are not many without any.
const PIECE: usize = 32;

/// The kind of output that is lines for the command which started the program: of a profile, or of its coverage.
const LINES: u8 = 3;
/// Bytes of coverage that are taken at once; the rest waits.
const MOST_COVERAGE: usize = 1 << 20;

#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    pieces: VecDeque<(u8, Vec<u8>)>,
}

/// Output of one session's kernels.
#[derive(Debug, Default)]
pub struct OutputBuffer {
    held: Mutex<Held>,
    port: OnceLock<Arc<SessionPort>>,
    recorder: Arc<Recorder>,
    coverage: Arc<CoverageLog>,
}

impl OutputBuffer {
    /// A buffer whose device tells this recorder what it does.
    pub fn recorded_by(recorder: &Arc<Recorder>) -> Self {
        Self {
            recorder: Arc::clone(recorder),
            ..Self::default()
        }
    }

    /// Who is told what the device does.
    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// Where the device notes which lines of kernels were reached.
    pub fn coverage(&self) -> &Arc<CoverageLog> {
        &self.coverage
    }

    /// Shows the program that there are lines to take. Called before answers.
    pub(crate) fn show_lines(&self) {
        if (self.recorder.waiting() > 0 || self.coverage.is_waiting())
            && let Some(port) = self.port.get()
        {
            port.show_output(true);
        }
    }

    pub(crate) fn attach(&self, port: &Arc<SessionPort>) {
        let _ = self.port.set(Arc::clone(port));
    }

    /// Adds output: 0 for standard output, 1 for standard error, 2 for records of a check.
    pub fn add(&self, kind: u8, bytes: &[u8]) {
        let mut guard = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let Held {
            bytes: held,
            pieces,
        } = &mut *guard;
        let bytes = &bytes[bytes.len().saturating_sub(KEPT)..];
        while *held + PIECE + bytes.len() > KEPT
            && let Some((_, oldest)) = pieces.pop_front()
        {
            *held -= PIECE + oldest.len();
        }
        *held += bytes.len();
        match pieces.back_mut() {
            Some((last, text)) if *last == kind => text.extend_from_slice(bytes),
            _ => {
                *held += PIECE;
                pieces.push_back((kind, bytes.to_vec()));
            }
        }
        // Shown while the lock is held, so that a take cannot come between.
        if let Some(port) = self.port.get() {
            port.show_output(true);
        }
    }

    /// What waits to be taken.
    pub(crate) fn held(&self) -> Vec<(u8, Vec<u8>)> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.pieces.iter().cloned().collect()
    }

    /// Takes all of it.
    pub fn take(&self) -> Vec<(u8, Vec<u8>)> {
        let mut guard = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(port) = self.port.get() {
            port.show_output(false);
        }
        guard.bytes = 0;
        let mut pieces: Vec<_> = std::mem::take(&mut guard.pieces).into();
        drop(guard);
        if self.recorder.waiting() > 0 {
            pieces.push((LINES, profile::lines(&self.recorder)));
        }
        if self.coverage.is_waiting() {
            let lines = self.coverage.take(MOST_COVERAGE);
            if !lines.is_empty() {
                pieces.push((LINES, lines));
            }
        }
        self.show_lines();
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_kept_in_order_and_bounded() {
        let output = OutputBuffer::default();
        output.add(0, b"one ");
        output.add(0, b"two");
        output.add(1, b"bad");
        assert_eq!(
            output.take(),
            [(0, b"one two".to_vec()), (1, b"bad".to_vec())]
        );
        for _ in 0..40 {
            output.add(0, &[b'x'; 100_000]);
            output.add(1, &[b'y'; 10]);
        }
        let held: usize = output.take().iter().map(|(_, bytes)| bytes.len()).sum();
        assert!(held <= KEPT);
        for _ in 0..KEPT {
            output.add(0, b"");
            output.add(1, b"");
        }
        assert!(output.take().len() <= KEPT / PIECE);
    }
}
