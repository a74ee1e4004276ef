//! Atomic updates of 16 bytes (`atom.cas.b128`, `atom.exch.b128`).

use std::sync::{Mutex, PoisonError};

/// Updates 16 bytes as one, and gives what they were before.
///
/// # Safety
/// `address` is aligned to 16 and valid for reads and writes of 16 bytes, which all threads access in this way or by
/// plain accesses of a program that may see halves.
pub unsafe fn update_128(address: u64, f: impl Fn(u128) -> u128) -> u128 {
    let at = address as *mut u128;
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("cmpxchg16b") {
        let mut old = 0;
        loop {
            // SAFETY: the processor has the instruction; the rest is our contract.
            let seen = unsafe { exchange(at, old, f(old)) };
            if seen == old {
                return old;
            }
            old = seen;
        }
    }
    // One lock for all: a processor without such an instruction, or one that has no stable name for it.
    static LOCK: Mutex<()> = Mutex::new(());
    let _guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: our contract; all updates hold the lock.
    unsafe {
        let old = at.read_volatile();
        at.write_volatile(f(old));
        old
    }
}

/// Stores `new` if `old` is there. Gives what is there. The intrinsic of this name needs a library in unoptimized builds.
#[cfg(target_arch = "x86_64")]
unsafe fn exchange(at: *mut u128, old: u128, new: u128) -> u128 {
    let (mut low, mut high) = (old as u64, (old >> 64) as u64);
    // SAFETY: aligned and valid by the contract of `update_128`; `rbx`, which the compiler keeps for itself, is restored.
    unsafe {
        std::arch::asm!(
            "xchg rsi, rbx",
            "lock cmpxchg16b [rdi]",
            "mov rbx, rsi",
            in("rdi") at,
            inout("rsi") new as u64 => _,
            in("rcx") (new >> 64) as u64,
            inout("rax") low,
            inout("rdx") high,
            options(nostack),
        );
    }
    u128::from(high) << 64 | u128::from(low)
}

#[cfg(test)]
mod tests {
    use super::update_128;

    #[repr(align(16))]
    struct Cell(u128);

    #[test]
    fn updates_of_several_threads_lose_nothing() {
        let mut cell = Cell(u128::from(u64::MAX) - 3);
        let address = &raw mut cell.0 as u64;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        // SAFETY: aligned, alive, and accessed in this way alone.
                        unsafe { update_128(address, |old| old + 1) };
                    }
                });
            }
        });
        assert_eq!(cell.0, u128::from(u64::MAX) - 3 + 4000);
    }
}
