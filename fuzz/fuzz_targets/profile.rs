//! Lines of a profile, which a profiled program can write into itself: whatever they are, reports and traces are made.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mica_views::profile::{Recorded, json, text, write_trace};

fuzz_target!(|bytes: &[u8]| {
    let mut recorded = Recorded::default();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        recorded.take(line);
    }
    let _ = text(&recorded, 20);
    json(&recorded).expect("a report is JSON");
    let mut trace = Vec::new();
    write_trace(&recorded, &mut trace).expect("memory takes everything");
    assert!(trace.starts_with(b"{") && trace.ends_with(b"]}\n"));
});
