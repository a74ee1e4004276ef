//! LZ4 where it pays: a slow carrier, and data of which a sample shrinks.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::rate::Rate;
use crate::{TunnelError, lock};

/// A carrier that takes more bytes than this in a second is faster than compression.
const FAST: u64 = 400 << 20;
/// Less is not worth a look.
const LEAST_BYTES: usize = 16 << 10;
/// What is tried first.
const SAMPLE_BYTES: usize = 4 << 10;
/// Sends that say something of the carrier's speed, and not of its buffers.
const TELLING_BYTES: usize = 128 << 10;

/// Decides what is compressed.
#[derive(Debug, Default)]
pub(crate) struct Compressor {
    measured: Mutex<Rate>,
    /// Bytes a second that the carrier took lately; 0 while unknown.
    rate: AtomicU64,
}

impl Compressor {
    /// Notes how long the carrier took to send these bytes.
    pub(crate) fn sent(&self, bytes: usize, took: Duration) {
        if bytes < TELLING_BYTES {
            return;
        }
        let mut measured = lock(&self.measured);
        measured.note(bytes, took);
        self.rate.store(measured.get(), Relaxed);
    }

    /// Bytes a second that the carrier takes, as far as is known.
    pub(crate) fn rate(&self) -> u64 {
        self.rate.load(Relaxed)
    }

    /// Whether the carrier is slow, as far as is known.
    pub(crate) fn is_slow(&self) -> bool {
        (1..FAST).contains(&self.rate())
    }

    /// The bytes as a block of LZ4, if that pays.
    pub(crate) fn pack(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        if bytes.len() < LEAST_BYTES || !self.is_slow() {
            return None;
        }
        let middle = (bytes.len() - SAMPLE_BYTES) / 2;
        let sample = lz4_flex::block::compress(&bytes[middle..middle + SAMPLE_BYTES]);
        if sample.len() > SAMPLE_BYTES * 3 / 4 {
            return None;
        }
        let packed = lz4_flex::block::compress(bytes);
        (packed.len() < bytes.len() * 7 / 8).then_some(packed)
    }
}

/// The bytes that a block of LZ4 stands for, just `bytes` of them.
pub(crate) fn unpack(block: &[u8], bytes: usize) -> Result<Vec<u8>, TunnelError> {
    let mut data = vec![0; bytes];
    match lz4_flex::block::decompress_into(block, &mut data) {
        Ok(got) if got == bytes => Ok(data),
        Ok(_) | Err(_) => Err(TunnelError::protocol("a block of LZ4 that makes no sense")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_shrinks_is_packed_and_only_on_a_slow_carrier() {
        let compressor = Compressor::default();
        let text: Vec<u8> = (0..100_000_u32).map(|i| (i / 900) as u8).collect();
        assert_eq!(compressor.pack(&text), None, "nothing is known yet");
        compressor.sent(1 << 20, Duration::from_millis(10));
        let packed = compressor.pack(&text).unwrap();
        assert!(packed.len() < text.len() / 4);
        assert_eq!(unpack(&packed, text.len()).unwrap(), text);
        assert!(unpack(&packed, text.len() - 1).is_err());
        assert!(unpack(&packed[1..], text.len()).is_err());
        let mut state = 1_u64;
        let noise: Vec<u8> = (0..100_000)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        assert_eq!(compressor.pack(&noise), None);
        for _ in 0..256 {
            compressor.sent(1 << 20, Duration::from_micros(500));
        }
        assert_eq!(compressor.pack(&text), None, "a fast carrier");
    }
}
