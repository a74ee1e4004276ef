//! A hash for first addresses of chunks.

use std::hash::Hasher;

use crate::FRAME_BYTES;

/// Spreads multiples of [`FRAME_BYTES`] over all bits. Addresses come from the device, so nobody chooses them to collide.
#[derive(Debug, Default)]
pub(super) struct BaseHasher(u64);

impl Hasher for BaseHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0.rotate_left(8) ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, base: u64) {
        let product = (base / FRAME_BYTES).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}
