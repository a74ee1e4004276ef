//! Any bytes as the hello of a virtual machine: refused with a reason, or the hello that makes the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mica_guest::Hello;

fuzz_target!(|bytes: [u8; 24]| {
    if let Ok(hello) = Hello::from_bytes(&bytes) {
        assert_eq!(hello.to_bytes(), bytes);
    }
});
