//! Any bytes as messages of programs and workers to a real daemon: never a panic, never more granted
//! than the limit, and nothing left when they have gone.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mica_daemon::fuzzing::Target;

thread_local! {
    static TARGET: Target = Target::new().expect("a folder for the daemon's state");
}

fuzz_target!(|bytes: &[u8]| TARGET.with(|target| target.host(bytes)));
