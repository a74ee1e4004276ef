//! Reads what programs tell of their coverage while they write it.

use std::fs::File;

use anyhow::Result;
use mica_coverage::{Record, Report};
use mica_ptx::names::readable;

use crate::follower::{Follower, Lines};

/// The longest line that makes sense.
const LONGEST_LINE: usize = 1 << 20;

/// Begins reading what is appended to a file in memory.
pub(super) fn start(file: File) -> Result<Follower<Report>> {
    let reader = (Lines::new(file, LONGEST_LINE), Told::default());
    let read = |(lines, told): &mut (Lines, Told)| lines.read(|line| told.take(line));
    Follower::start("coverage", reader, read, |(_, told)| told.report)
}

/// What the lines said.
#[derive(Default)]
struct Told {
    /// Whose records follow.
    process: u32,
    report: Report,
}

impl Told {
    fn take(&mut self, line: &[u8]) {
        // The library in the program says first whose lines they are.
        if let Ok((_, process)) = serde_json::from_slice::<(String, u32)>(line) {
            self.process = process;
            return;
        }
        match serde_json::from_slice::<Record>(line) {
            Ok(record) => {
                let name = |name: &str| without_file(&readable(name)).to_owned();
                self.report.take(self.process, record, name);
            }
            Err(_) => self.report.unreadable += 1,
        }
    }
}

/// The name of a function that only its file can use, without what nvcc puts before it: a part that differs from build to
/// build.
fn without_file(name: &str) -> &str {
    let file = name.strip_prefix("_INTERNAL_");
    file.and_then(|rest| rest.split_once("::"))
        .map_or(name, |(_, own)| own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_functions_have_the_name_that_their_file_gives_them() {
        let name = "_INTERNAL_b4689673_7_half_cu_half::twice(int)";
        assert_eq!(without_file(name), "twice(int)");
        assert_eq!(without_file("f(int)"), "f(int)");
        assert_eq!(without_file("a::_INTERNAL_::f"), "a::_INTERNAL_::f");
    }
}
