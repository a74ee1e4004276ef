//! Any bytes as a file of the history: its sound records are read, the rest is left out, and it goes on.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    mica_daemon::fuzzing::history(bytes);
});
