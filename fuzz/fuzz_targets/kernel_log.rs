//! Any bytes as a record of the kernel's log: a fault of a GPU or nothing, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| mica_daemon::fuzzing::kernel_log_record(bytes));
