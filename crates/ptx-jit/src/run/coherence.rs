//! Registers of a group as one value, or as one for each thread.

use crate::kernel::Kernel;
use crate::plan::Saved;
use crate::scratch;
use crate::shape::Shape;
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

pub(crate) fn read(p: *const u8, bytes: u32) -> u128 {
    // SAFETY: slots are aligned to their elements.
    unsafe {
        match bytes {
            4 => u128::from(*p.cast::<u32>()),
            8 => u128::from(*p.cast::<u64>()),
            _ => p.cast::<u128>().read_unaligned(),
        }
    }
}

pub(crate) fn write(p: *mut u8, bytes: u32, v: u128) {
    // SAFETY: as in `read`.
    unsafe {
        match bytes {
            4 => *p.cast::<u32>() = v as u32,
            8 => *p.cast::<u64>() = v as u64,
            _ => p.cast::<u128>().write_unaligned(v),
        }
    }
}

/// Gives each thread of a group its own copy of what the group saved once.
pub(crate) fn decohere(k: &Kernel, scratch_ptr: *mut u8, t: u32, lanes: u32, saved: &[Saved]) {
    for s in saved {
        let stride = match s.shape {
            Shape::Varying => continue,
            Shape::Affine(s) => s,
            Shape::Uniform | Shape::Undef => 0,
        };
        let bytes = s.slot.class.slot_bytes();
        let base = read(slot(k, scratch_ptr, s.slot.offset, s.slot.class, t), bytes);
        for l in 1..lanes {
            let v = if stride == 0 {
                base
            } else {
                u128::from((base as u64).wrapping_add((stride as u64).wrapping_mul(u64::from(l))))
            };
            write(
                slot(k, scratch_ptr, s.slot.offset, s.slot.class, t + l),
                bytes,
                v,
            );
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
        let stride = match s.shape {
            Shape::Varying => return true,
            Shape::Affine(s) => s,
            Shape::Uniform | Shape::Undef => 0,
        };
        let bytes = s.slot.class.slot_bytes();
        let at = |l: u32| {
            read(
                slot(k, scratch_ptr, s.slot.offset, s.slot.class, t + l),
                bytes,
            )
        };
        let base = at(0);
        let keep = if bytes == 4 {
            u64::from(u32::MAX)
        } else {
            u64::MAX
        };
        (1..lanes).all(|l| {
            if s.slot.class == Class::Pred {
                return (at(l) != 0) == (base != 0);
            }
            if stride == 0 {
                return at(l) == base;
            }
            let want = (base as u64).wrapping_add((stride as u64).wrapping_mul(u64::from(l)));
            at(l) as u64 & keep == want & keep
        })
    })
}
