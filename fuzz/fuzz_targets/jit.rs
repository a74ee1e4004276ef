//! Any bytes as PTX, compiled and run: a module is refused or its kernels end, as a fault if need be.
//!
//! A crash of the compiler, a panic, or generated code that leaves the arena (which lies between
//! inaccessible pages) ends the run. Loops are cut after a number of pauses, as the device would.
#![no_main]

#[path = "jit/device.rs"]
mod device;
#[path = "jit/mutate.rs"]
mod mutate;

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

thread_local! {
    static DEVICE: device::Device = device::Device::new().expect("address space");
}

fuzz_target!(|bytes: &[u8]| {
    DEVICE.with(|device| device.take(bytes));
});

fuzz_mutator!(
    |bytes: &mut [u8], size: usize, max_size: usize, seed: u32| {
        let changed = std::str::from_utf8(&bytes[..size])
            .ok()
            .and_then(|text| mutate::text(text, seed))
            .filter(|new| new.len() <= max_size);
        match changed {
            Some(new) => {
                bytes[..new.len()].copy_from_slice(new.as_bytes());
                new.len()
            }
            None => fuzzer_mutate(bytes, size, max_size),
        }
    }
);
