//! Sends what the worker shows, as it shows it.
//!
//! Order matters: a program that is answered must find on its side all that had happened before. So what is answered is
//! looked at first, the rest after that, and the answers are sent last.

use std::sync::atomic::Ordering::{AcqRel, Release};
use std::time::{Duration, Instant};

use mica_wire::session::chunk_state;
use mica_wire::session::client::{AnswerPart, ProgressWords};

use super::Far;
use crate::frame::{Draft, Header, Kind, MORE};
use crate::{TunnelError, lock};

/// How often the worker's life is looked at while nothing happens.
const LIVENESS: Duration = Duration::from_millis(20);
/// Bytes of an answer in one frame.
const ANSWER_PIECE: usize = 256 << 10;
/// Reads that are sent at once: their chunks are free again soon, and their bytes are still in the processor's cache when they are
/// encrypted.
const READS_AT_ONCE: usize = 2;

/// What the other side was last told.
#[derive(Default)]
struct Told {
    late: u32,
    output: bool,
}

impl Far {
    /// Watches until it is over.
    pub(super) fn watch(&self) -> Result<(), TunnelError> {
        let mut out = Vec::new();
        let mut told = Told::default();
        while !self.is_over() {
            let seen = self.port.progress();
            let answers = self.take_answers()?;
            let notices: Vec<u64> = std::iter::from_fn(|| self.port.next_notice()).collect();
            let words = self.port.words();
            self.send_reads(&mut out)?;
            let is_told = !answers.is_empty() || !notices.is_empty();
            self.put_host_changes(&words, is_told, &mut out)?;
            self.put_status(&words, &mut told, &mut out);
            for notice in notices {
                Header::new(Kind::Notice, notice, 0).put(&mut out, &[]);
            }
            for (slot, code, bytes) in &answers {
                put_answer(*slot, *code, bytes, &mut out);
            }
            match out.is_empty() {
                true => self.port.wait(seen, LIVENESS)?,
                false => self.send_timed(&mut out)?,
            }
        }
        Ok(())
    }

    /// Adds what work has changed of host memory, where the program is about to be told something; sends what is much.
    fn put_host_changes(
        &self,
        words: &ProgressWords,
        is_told: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), TunnelError> {
        // Taken first: what is posted from here on sets it again.
        if !self.worked.swap(false, AcqRel) {
            return Ok(());
        }
        if is_told {
            let mut sweep = lock(&self.host).begin_sweep();
            // Not locked while it is sent: who receives needs the memory too, and must never wait for who sends.
            while lock(&self.host).sweep(&mut sweep, out) {
                self.send_timed(out)?;
            }
        }
        if !is_told || words.quiet != self.port.position() {
            self.worked.store(true, Release);
        }
        Ok(())
    }

    /// Answers that are complete.
    fn take_answers(&self) -> Result<Vec<(u16, u32, Vec<u8>)>, TunnelError> {
        let mut complete = Vec::new();
        let mut more = Vec::new();
        let mut pending = lock(&self.pending);
        for (slot, place) in pending.calls.iter_mut().enumerate() {
            let slot = slot as u16;
            let Some(waiting) = place else { continue };
            let Some(part) = self.port.answer(slot, waiting.before) else {
                continue;
            };
            let AnswerPart {
                count,
                code,
                total,
                bytes,
            } = part;
            let is_last = bytes.is_empty() || waiting.bytes.len() + bytes.len() >= total;
            waiting.bytes.extend_from_slice(&bytes);
            waiting.before = count;
            match is_last {
                true => {
                    complete.push((slot, code, std::mem::take(&mut waiting.bytes)));
                    *place = None;
                }
                false => more.push((slot, waiting.bytes.len() as u64)),
            }
        }
        drop(pending);
        for (slot, offset) in more {
            self.port.continue_answer(slot, offset)?;
        }
        Ok(complete)
    }

    /// Sends reads that are done, a few at a time.
    fn send_reads(&self, out: &mut Vec<u8>) -> Result<(), TunnelError> {
        loop {
            let mut done = Vec::new();
            let mut pending = lock(&self.pending);
            pending.reads.retain(|read| {
                let state = self.port.chunk_state(read.chunk);
                let is_done = state != chunk_state::BUSY && done.len() < READS_AT_ONCE;
                if is_done {
                    done.push((read.tag, read.chunk, read.bytes, state));
                }
                !is_done
            });
            drop(pending);
            let is_all = done.len() < READS_AT_ONCE;
            for (tag, chunk, bytes, state) in done {
                self.put_read(tag, chunk, bytes, state, out);
            }
            if is_all {
                return Ok(());
            }
            self.send_timed(out)?;
        }
    }

    fn put_read(&self, tag: u64, chunk: u32, bytes: u32, state: u32, out: &mut Vec<u8>) {
        // A read has at most the bytes of a chunk (`Far::read`), so a full chunk has them.
        let len = if state == chunk_state::FULL { bytes } else { 0 };
        let header = Header {
            code: state,
            ..Header::new(Kind::ReadDone, tag, len.into())
        };
        let mut draft = Draft::begin(header, out);
        let read = self.port.append_chunk_to(chunk, len as usize, out);
        debug_assert!(read.is_some());
        self.port.give_chunk(chunk);
        draft.pack(len as usize, &self.compressor, out);
        draft.end(out);
    }

    fn put_status(&self, words: &ProgressWords, told: &mut Told, out: &mut Vec<u8>) {
        let mut quiet = None;
        let marks = &mut lock(&self.pending).marks;
        while let Some((here, there)) = marks.front()
            && *here <= words.quiet
        {
            quiet = Some(*there);
            marks.pop_front();
        }
        if quiet.is_none() && (told.late, told.output) == (words.late, words.output) {
            return;
        }
        (told.late, told.output) = (words.late, words.output);
        let header = Header {
            code: words.late,
            slot: words.output.into(),
            ..Header::new(Kind::Status, quiet.unwrap_or(u64::MAX), 0)
        };
        header.put(out, &[]);
    }

    /// Sends and empties.
    fn send_timed(&self, out: &mut Vec<u8>) -> Result<(), TunnelError> {
        let (bytes, began) = (out.len(), Instant::now());
        self.carrier.send_whole(out).map_err(TunnelError::Lost)?;
        self.compressor.sent(bytes, began.elapsed());
        Ok(())
    }
}

fn put_answer(slot: u16, code: u32, bytes: &[u8], out: &mut Vec<u8>) {
    let header = Header {
        slot,
        code,
        ..Header::new(Kind::Answer, 0, 0)
    };
    let mut parts = bytes.chunks(ANSWER_PIECE).peekable();
    if parts.peek().is_none() {
        return header.put(out, &[]);
    }
    while let Some(part) = parts.next() {
        let flags = if parts.peek().is_some() { MORE } else { 0 };
        Header { flags, ..header }.put(out, &[part]);
    }
}
