//! Any bytes as what tells of containers: names of control groups, command lines of monitors, files of engines.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| mica_daemon::fuzzing::containers(bytes));
