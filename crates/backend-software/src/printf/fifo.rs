//! What kernels printed, until it is shown.

use std::collections::VecDeque;

use mica_gpu::{Result, Share};

use crate::memory::DeviceMemory;

const DEFAULT_CAPACITY: usize = 1 << 20;
/// Most bytes of a buffer: it is emptied in one go.
const MOST_CAPACITY: usize = 64 << 20;
/// Bytes that a line costs beside its text.
const LINE_BYTES: usize = 64;

/// Printed lines not yet shown. When full, the oldest go, as in CUDA.
#[derive(Debug)]
pub(crate) struct Fifo {
    capacity: usize,
    /// Of all lines, with what each costs.
    bytes: usize,
    lines: VecDeque<Vec<u8>>,
    /// What the buffer is charged as, from the first line on.
    share: Option<Share>,
}

impl Default for Fifo {
    fn default() -> Self {
        Self {
            capacity: DEFAULT_CAPACITY,
            bytes: 0,
            lines: VecDeque::new(),
            share: None,
        }
    }
}

impl Fifo {
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Sets the size; a larger buffer is charged at once.
    pub(crate) fn set_capacity(&mut self, bytes: u64) -> Result<()> {
        let capacity = usize::try_from(bytes).unwrap_or(usize::MAX);
        let capacity = capacity.clamp(1024, MOST_CAPACITY);
        if let Some(share) = &mut self.share {
            share.resize(cost(capacity), CHARGED_AS)?;
        }
        self.capacity = capacity;
        Ok(())
    }

    /// Adds a line. Without host memory for the buffer it is lost, as one that is too old is.
    pub(crate) fn push(&mut self, memory: &DeviceMemory, text: Vec<u8>) {
        if text.is_empty() {
            return;
        }
        if self.share.is_none() {
            match memory.charge_host(cost(self.capacity), CHARGED_AS) {
                Ok(share) => self.share = share,
                Err(error) => {
                    tracing::warn!(%error, "what a kernel printed is lost");
                    return;
                }
            }
        }
        self.bytes += text.len() + LINE_BYTES;
        self.lines.push_back(text);
        while self.bytes > self.capacity + LINE_BYTES
            && let Some(oldest) = self.lines.pop_front()
        {
            self.bytes -= oldest.len() + LINE_BYTES;
        }
    }

    /// Everything printed so far.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.bytes = 0;
        self.lines.drain(..).flatten().collect()
    }
}

/// What the buffer is called where it is refused.
const CHARGED_AS: &str = "the output of kernels";

/// Host bytes of a buffer: the lines, and all of them once more while they are handed over.
fn cost(capacity: usize) -> u64 {
    2 * capacity as u64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mica_gpu::SessionBudget;

    use super::*;

    fn memory() -> DeviceMemory {
        DeviceMemory::new(16 << 20, 1 << 30).unwrap()
    }

    #[test]
    fn a_full_buffer_loses_the_oldest() {
        let memory = memory();
        let mut fifo = Fifo::default();
        fifo.set_capacity(1024).unwrap();
        for n in 0..100 {
            fifo.push(&memory, format!("{n:032}").into_bytes());
        }
        let text = fifo.take();
        assert!(text.len() <= 1024 && text.len() >= 32, "{}", text.len());
        assert!(text.ends_with(b"99"));
        assert!(fifo.take().is_empty());
    }

    #[test]
    fn lines_without_text_are_not_kept_and_short_ones_count_for_what_they_cost() {
        let memory = memory();
        let mut fifo = Fifo::default();
        fifo.set_capacity(1 << 20).unwrap();
        for _ in 0..100_000 {
            fifo.push(&memory, Vec::new());
        }
        assert_eq!(fifo.lines.len(), 0);
        for _ in 0..100_000 {
            fifo.push(&memory, vec![b'x']);
        }
        let held = fifo.lines.len() * (size_of::<Vec<u8>>() + 1);
        assert!(held <= 1 << 20, "{held} bytes");
        assert!(fifo.lines.len() > 10_000);
    }

    #[test]
    fn the_buffer_counts_against_the_budget() {
        let memory = memory();
        let budget = Arc::new(SessionBudget::new(3 << 20));
        memory.attach_budget(&budget);
        let mut fifo = Fifo::default();
        fifo.push(&memory, b"shown".to_vec());
        assert_eq!(budget.used_bytes(), 2 << 20);
        assert!(fifo.set_capacity(2 << 20).is_err());
        assert_eq!(fifo.capacity(), 1 << 20);
        let mut other = Fifo::default();
        other.push(&memory, b"lost".to_vec());
        assert_eq!((fifo.take(), other.take()), (b"shown".to_vec(), Vec::new()));
        drop(fifo);
        assert_eq!(budget.used_bytes(), 0);
    }
}
