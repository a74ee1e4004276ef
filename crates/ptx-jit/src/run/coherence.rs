//! Registers of a group as one value, or as one for each thread.

use crate::kernel::Kernel;
use crate::plan::Saved;
use crate::scratch;
use crate::uniformity::Uniformity;
use crate::unit::Class;

/// Address of a slot's element.
pub(crate) fn slot(k: &Kernel, scratch_ptr: *mut u8, offset: u32, class: Class, t: u32) -> *mut u8 {
    let at = scratch::FRAMES as usize
        + (t >> 5) as usize * k.plan.frame_bytes as usize
        + offset as usize
        + (t & 31) as usize * class.slot_bytes() as usize;
    // SAFETY: `scratch_bytes` covers every frame.
    unsafe { scratch_ptr.add(at) }
}

/// The elements of a slot for the `lanes` threads from `t` on.
fn elements<'a, T>(k: &Kernel, scratch_ptr: *mut u8, s: &Saved, t: u32, lanes: u32) -> &'a mut [T] {
    let p = slot(k, scratch_ptr, s.slot.offset, s.slot.class, t);
    // SAFETY: a group's elements lie side by side in its warp's frame, aligned to their size, and one
    // host thread runs the block.
    unsafe { std::slice::from_raw_parts_mut(p.cast::<T>(), lanes as usize) }
}

/// What the lanes of a group have that saved a register once: the same, or `stride` more each.
fn stride(s: &Saved) -> Option<i64> {
    match s.uniformity {
        Uniformity::Varying => None,
        Uniformity::Affine(stride) => Some(stride),
        Uniformity::Uniform | Uniformity::Undef => Some(0),
    }
}

/// Gives each thread of a group its own copy of what the group saved once.
pub(crate) fn decohere(k: &Kernel, scratch_ptr: *mut u8, t: u32, lanes: u32, saved: &[Saved]) {
    for s in saved {
        let Some(stride) = stride(s) else { continue };
        match s.slot.class.slot_bytes() {
            4 => {
                let all = elements::<u32>(k, scratch_ptr, s, t, lanes);
                let mut v = all[0];
                if stride == 0 {
                    all.fill(v);
                    continue;
                }
                for x in &mut all[1..] {
                    v = v.wrapping_add(stride as u32);
                    *x = v;
                }
            }
            8 => {
                let all = elements::<u64>(k, scratch_ptr, s, t, lanes);
                let mut v = all[0];
                if stride == 0 {
                    all.fill(v);
                    continue;
                }
                for x in &mut all[1..] {
                    v = v.wrapping_add(stride as u64);
                    *x = v;
                }
            }
            // Wide values are not affine.
            _ => {
                let all = elements::<[u64; 2]>(k, scratch_ptr, s, t, lanes);
                let v = all[0];
                all[1..].fill(v);
            }
        }
    }
}

/// Whether the threads' registers are what the group would have: then it can go on together.
pub(crate) fn cohere(
    k: &Kernel,
    scratch_ptr: *mut u8,
    t: u32,
    lanes: u32,
    saved: &[Saved],
) -> bool {
    saved.iter().all(|s| {
        let Some(stride) = stride(s) else { return true };
        match s.slot.class.slot_bytes() {
            4 => {
                let all = elements::<u32>(k, scratch_ptr, s, t, lanes);
                if s.slot.class == Class::Pred {
                    let first = all[0];
                    return all.iter().all(|x| (*x != 0) == (first != 0));
                }
                // Nearly always all are as they should be: no lane is worth a branch of its own.
                let (mut want, mut wrong) = (all[0], 0);
                for x in all {
                    wrong |= *x ^ want;
                    want = want.wrapping_add(stride as u32);
                }
                wrong == 0
            }
            8 => {
                let all = elements::<u64>(k, scratch_ptr, s, t, lanes);
                let (mut want, mut wrong) = (all[0], 0);
                for x in all {
                    wrong |= *x ^ want;
                    want = want.wrapping_add(stride as u64);
                }
                wrong == 0
            }
            _ => {
                let all = elements::<[u64; 2]>(k, scratch_ptr, s, t, lanes);
                all.iter().all(|x| *x == all[0])
            }
        }
    })
}
