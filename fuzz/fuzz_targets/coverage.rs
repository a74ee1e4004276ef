//! Tracefiles that are added to a report, and records of coverage, which a program can write itself: whatever they are, a
//! report is made, and what is written of it can be read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mica_coverage::{Record, Report, Tracefile, json, lcov};

fuzz_target!(|bytes: &[u8]| {
    let mut report = Report::default();
    if let Ok(tracefile) = Tracefile::parse(&String::from_utf8_lossy(bytes)) {
        report.add(tracefile);
    }
    for (process, line) in (0..).zip(bytes.split(|byte| *byte == b'\n')) {
        if let Ok(record) = serde_json::from_slice::<Record>(line) {
            report.take(process % 3, record, |name| name.to_owned());
        }
    }
    let (found, reached) = report.totals();
    assert!(reached <= found);
    serde_json::to_string(&json(&report)).expect("a report is JSON");
    let written = lcov::write(&report);
    let known = report.files.keys().all(|path| !path.trim_end().is_empty());
    assert!(!known || Tracefile::parse(&written).is_ok(), "{written}");
});
