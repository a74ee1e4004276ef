//! Copies of large results that pass by the processor's caches.
//!
//! The bytes of a large copy leave the caches before anybody reads them, and an ordinary store first fetches the line
//! that it overwrites. A streaming store does not: copies from staging memory to fresh memory are 1.3 to 1.9 times as
//! fast (Intel Xeon, pieces of 256 KiB).

/// Copies from which on the caches cannot hold the result anyway.
pub(crate) const LEAST_BYTES: u64 = 8 << 20;

/// Copies `len` bytes with streaming stores where the processor has them.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, and the two do not overlap.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LANE: usize = size_of::<__m128i>();
    const STEP: usize = 4 * LANE;
    let head = to.align_offset(LANE).min(len);
    let steps = (len - head) / STEP;
    let tail_at = head + steps * STEP;
    // SAFETY: the caller vouches for the whole; the three parts make it up without a gap. Every x86-64 processor has
    // these instructions, and after `head` bytes `to` is a multiple of their size.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for step in 0..steps {
            let at = head + step * STEP;
            let (source, target) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            let lanes = [0, 1, 2, 3].map(|lane| _mm_loadu_si128(source.add(lane)));
            for (lane, value) in lanes.into_iter().enumerate() {
                _mm_stream_si128(target.add(lane), value);
            }
        }
        // Streaming stores are ordered with nothing else, and the staging memory is about to be given back.
        _mm_sfence();
        std::ptr::copy_nonoverlapping(from.add(tail_at), to.add(tail_at), len - tail_at);
    }
}

/// Copies `len` bytes.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, and the two do not overlap.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller vouches for both.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_byte_arrives_whatever_the_alignment() {
        let source: Vec<u8> = (0..1000_u32).map(|index| (index * 7 % 251) as u8).collect();
        for (skip, len) in [(0, 1000), (1, 999), (3, 130), (5, 64), (7, 3), (9, 0)] {
            let mut target = vec![0xEE; 1064];
            // SAFETY: both vectors are longer, and apart.
            unsafe { super::copy(source.as_ptr(), target.as_mut_ptr().add(skip), len) };
            assert_eq!(target[skip..skip + len], source[..len]);
            assert!(
                target[..skip]
                    .iter()
                    .chain(&target[skip + len..])
                    .all(|byte| *byte == 0xEE)
            );
        }
    }
}
