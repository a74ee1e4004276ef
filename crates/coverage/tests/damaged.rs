//! Damaged tracefiles and records, as `fuzz/fuzz_targets/coverage.rs` makes them, a bounded number of times.

use mica_coverage::{Record, Report, Tracefile, json, lcov};

const TRACEFILE: &str = include_str!("../../../fuzz/corpus/coverage/half.lcov");
const RECORDS: &str = include_str!("../../../fuzz/corpus/coverage/records");

/// Numbers that look random and are the same every time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % below.max(1)
    }
}

fn damaged(text: &str, numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..=numbers.next(6) {
        let at = numbers.next(bytes.len());
        match numbers.next(4) {
            0 => bytes[at] = numbers.next(256) as u8,
            1 => bytes.truncate(at + 1),
            2 => drop(bytes.drain(at..(at + numbers.next(40)).min(bytes.len()))),
            _ => {
                let end = (at + numbers.next(60)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                let to = numbers.next(bytes.len());
                bytes.splice(to..to, piece);
            }
        }
        if bytes.is_empty() {
            bytes.push(b'\n');
        }
    }
    bytes
}

#[test]
fn whatever_is_read_a_report_is_made_that_can_be_read_again() {
    let mut numbers = Numbers(7);
    for round in 0..5000 {
        let text = match round % 2 {
            0 => TRACEFILE,
            _ => RECORDS,
        };
        let bytes = damaged(text, &mut numbers);
        let mut report = Report::default();
        if let Ok(tracefile) = Tracefile::parse(&String::from_utf8_lossy(&bytes)) {
            report.add(tracefile);
        }
        for (process, line) in (0..).zip(bytes.split(|byte| *byte == b'\n')) {
            if let Ok(record) = serde_json::from_slice::<Record>(line) {
                report.take(process % 3, record, |name| name.to_owned());
            }
        }
        let (found, reached) = report.totals();
        assert!(reached <= found);
        assert!(json(&report).is_object());
        let written = lcov::write(&report);
        let named = report.files.keys().all(|path| !path.trim_end().is_empty());
        if named {
            let read = Tracefile::parse(&written);
            assert!(read.is_ok(), "round {round}: {read:?} of {written}");
        }
    }
}
