//! Reads what programs tell of their coverage while they write it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::Result;
use mica_coverage::{Record, Report};
use mica_ptx::names::readable;
use rustix::fs::{FallocateFlags, fallocate};

use crate::follower::Follower;

/// The longest line that makes sense; what has no end until then is thrown away.
const LONGEST_LINE: usize = 1 << 20;

/// Begins reading what is appended to a file in memory; the thread gives back the memory of what it has read.
pub(super) fn start(file: File) -> Result<Follower<Report>> {
    let reader = Reader {
        file,
        at: 0,
        rest: Vec::new(),
        process: 0,
        report: Report::default(),
    };
    Follower::start("coverage", reader, Reader::read, |reader| reader.report)
}

struct Reader {
    file: File,
    at: u64,
    /// The beginning of a line whose end was not written yet.
    rest: Vec<u8>,
    /// Whose records follow.
    process: u32,
    report: Report,
}

impl Reader {
    fn read(&mut self) {
        let mut buffer = vec![0; 256 << 10];
        while let Ok(n @ 1..) = self.file.read_at(&mut buffer, self.at) {
            self.at += n as u64;
            self.rest.extend_from_slice(&buffer[..n]);
            let rest = std::mem::take(&mut self.rest);
            let mut read = 0;
            for line in rest.split_inclusive(|byte| *byte == b'\n') {
                if line.ends_with(b"\n") {
                    self.take(line);
                    read += line.len();
                }
            }
            self.rest = rest[read..].to_vec();
            if self.rest.len() > LONGEST_LINE {
                self.rest.clear();
                self.report.unreadable += 1;
            }
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Whole pages only; where it is refused, memory is given back at the end.
            let _ = fallocate(&self.file, flags, 0, self.at & !4095);
        }
    }

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
