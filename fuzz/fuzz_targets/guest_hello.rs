//! Any bytes as the hello of a virtual machine: refused with a reason, or the hello that makes the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mica_guest::Hello;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(hello) = Hello::receive(bytes) {
        assert!(bytes.starts_with(&hello.to_bytes()));
    }
});
