//! Bytes that were sent and are not acknowledged.
//!
//! Large buffers are kept as they are, without a copy; small sends share one. A buffer whose bytes the peer has is used again, while it
//! is still in the processor's cache.

use std::collections::VecDeque;

/// Sends from this size on are not copied.
const LARGE: usize = 64 << 10;
/// Room of a buffer for small sends.
const SHARED_BYTES: usize = 256 << 10;
/// Buffers that are used again, and the largest of them: together what is under way on a fast network, since fresh memory costs more
/// than the encryption of what is put into it.
const MOST_SPARE: usize = 16;
const LARGEST_SPARE: usize = 1 << 20;

/// Bytes of a stream from a position on.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    parts: VecDeque<Vec<u8>>,
    /// Bytes of the first part that the peer has.
    gone: usize,
    /// Position of the first kept byte in the stream.
    first: u64,
    bytes: u64,
    spare: Vec<Vec<u8>>,
}

impl Kept {
    /// Position of the first kept byte.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Position of the byte that is sent next.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.bytes
    }

    /// How many bytes are kept.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keeps a copy of bytes, in one part.
    pub(crate) fn copy(&mut self, bytes: &[u8]) {
        let fits = |part: &Vec<u8>| part.capacity() - part.len() >= bytes.len();
        if !self.parts.back().is_some_and(fits) {
            let mut fresh = self.spare.pop().unwrap_or_default();
            fresh.reserve(SHARED_BYTES.max(bytes.len()));
            self.parts.push_back(fresh);
        }
        if let Some(part) = self.parts.back_mut() {
            part.extend_from_slice(bytes);
        }
        self.bytes += bytes.len() as u64;
    }

    /// Keeps bytes, in one part; the caller's buffer is empty then.
    pub(crate) fn take(&mut self, bytes: &mut Vec<u8>) {
        if bytes.len() < LARGE {
            self.copy(bytes);
            return bytes.clear();
        }
        self.bytes += bytes.len() as u64;
        let fresh = self.spare.pop().unwrap_or_default();
        self.parts.push_back(std::mem::replace(bytes, fresh));
    }

    /// The bytes that were kept last, as many as one call has kept.
    pub(crate) fn last(&self, bytes: usize) -> &[u8] {
        let part = self.parts.back().map_or(&[][..], Vec::as_slice);
        &part[part.len().saturating_sub(bytes)..]
    }

    /// All bytes.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let gone = std::iter::once(self.gone).chain(std::iter::repeat(0));
        self.parts
            .iter()
            .zip(gone)
            .map(|(part, gone)| &part[gone..])
    }

    /// Forgets what the peer has.
    pub(crate) fn trim(&mut self, acknowledged: u64) {
        let has = acknowledged.clamp(self.first, self.next());
        let mut rest = (has - self.first) as usize;
        (self.first, self.bytes) = (has, self.next() - has);
        while let Some(part) = self.parts.front_mut() {
            let left = part.len() - self.gone;
            if rest < left {
                self.gone += rest;
                return;
            }
            rest -= left;
            self.gone = 0;
            part.clear();
            if let Some(part) = self.parts.pop_front()
                && self.spare.len() < MOST_SPARE
                && part.capacity() <= LARGEST_SPARE
            {
                self.spare.push(part);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_what_was_kept_less_what_was_acknowledged() {
        let (mut kept, mut all) = (Kept::default(), Vec::new());
        let mut buffer = Vec::new();
        for round in 0..200_usize {
            let bytes: Vec<u8> = (0..round * 701).map(|i| (i * 7 + round) as u8).collect();
            all.extend_from_slice(&bytes);
            match round % 3 {
                0 => kept.copy(&bytes),
                _ => {
                    buffer.extend_from_slice(&bytes);
                    kept.take(&mut buffer);
                    assert!(buffer.is_empty());
                }
            }
            assert_eq!(kept.last(bytes.len()), bytes);
            assert_eq!(kept.next(), all.len() as u64);
            let acknowledged = kept.first() + kept.bytes() * (round as u64 % 5) / 4;
            // An old acknowledgement, and one of more than was sent, change nothing that they should not.
            kept.trim(acknowledged / 2);
            kept.trim(acknowledged);
            let expected = acknowledged.min(all.len() as u64);
            assert!(kept.first() >= expected.min(kept.next()));
            let parts: Vec<u8> = kept.parts().flatten().copied().collect();
            assert_eq!(parts, all[kept.first() as usize..]);
            assert_eq!(parts.len() as u64, kept.bytes());
        }
        kept.trim(u64::MAX);
        assert_eq!((kept.bytes(), kept.first()), (0, all.len() as u64));
        assert_eq!(kept.parts().count(), 0);
    }
}
