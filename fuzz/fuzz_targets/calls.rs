//! Bytes as choices of a random call graph, compiled and run: its frames stay in their local memory.
//!
//! Run with `MICA_JIT_RECHECK=1`, so that every address that is used without a check is checked again.
#![no_main]

#[path = "jit/device.rs"]
mod device;
#[path = "../../crates/ptx-jit/tests/frames/generate.rs"]
mod generate;

use libfuzzer_sys::fuzz_target;

thread_local! {
    static DEVICE: device::Device = device::Device::new().expect("address space");
}

fuzz_target!(|bytes: &[u8]| {
    let mut words = bytes.chunks(2);
    let text = generate::module(&mut |n| {
        let word = words.next().unwrap_or_default();
        word.iter().fold(0, |x, b| x << 8 | usize::from(*b)) % n
    });
    DEVICE.with(|device| device.take(text.as_bytes()));
});
