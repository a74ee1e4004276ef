//! Any bytes as requests to the web page of a real daemon: answered or refused, never a panic, and nobody is signed in.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mica_daemon::fuzzing::Target;

thread_local! {
    static TARGET: Target = Target::new().expect("a folder for the daemon's state");
}

fuzz_target!(|bytes: &[u8]| TARGET.with(|target| target.web(bytes)));
