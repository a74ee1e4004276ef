//! How much work a call can ask for.

use std::cell::Cell;

use super::*;
use crate::memory::Purpose;

fn memory() -> DeviceMemory {
    DeviceMemory::new(16 << 20, 1 << 30).unwrap()
}

#[test]
fn thousands_of_long_strings_that_show_nothing_are_not_read() {
    let memory = memory();
    let at = memory.alloc(1, 512 << 10, Purpose::Program).unwrap();
    let (count, string) = (16_000, at + (384 << 10));
    let put = |at: u64, bytes: &[u8]| {
        // SAFETY: inside the 512 KiB that were just allocated.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
    };
    put(at, "%.0s".repeat(count).as_bytes());
    put(string, &[b's'; (64 << 10) - 1]);
    for argument in 0..count as u64 {
        put(at + (128 << 10) + argument * 8, &string.to_le_bytes());
    }
    let began = std::time::Instant::now();
    let (text, used) = format(&memory, at, at + (128 << 10), &|| true).unwrap();
    assert_eq!((text.len(), used), (0, count as i32));
    // Reading every string takes seconds.
    assert!(began.elapsed().as_millis() < 500, "{:?}", began.elapsed());
}

#[test]
fn a_call_is_asked_before_every_conversion_and_ends_when_told() {
    let memory = memory();
    let at = memory.alloc(1, 4096, Purpose::Program).unwrap();
    let text = "%d".repeat(100);
    // SAFETY: 4096 bytes were allocated.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), at as *mut u8, text.len()) };
    let asked = Cell::new(0);
    let answer = format(&memory, at, at + 2048, &|| {
        asked.set(asked.get() + 1);
        asked.get() < 10
    });
    assert_eq!((answer, asked.get()), (None, 10));
}
