//! Reads the lines of a profile while programs write them.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::Result;
use mica_views::profile::Recorded;
use rustix::fs::{FallocateFlags, fallocate};

use crate::follower::Follower;

/// The longest line that makes sense; what has no end until then is thrown away.
const LONGEST_LINE: usize = 64 << 10;

/// Begins reading what is appended to a file in memory; the thread gives back the memory of what it has read.
pub(super) fn start(file: File) -> Result<Follower<Recorded>> {
    let reader = Reader {
        file,
        at: 0,
        rest: Vec::new(),
        recorded: Recorded::default(),
    };
    Follower::start("profile", reader, Reader::read, |reader| reader.recorded)
}

struct Reader {
    file: File,
    at: u64,
    /// The beginning of a line whose end was not written yet.
    rest: Vec<u8>,
    recorded: Recorded,
}

impl Reader {
    fn read(&mut self) {
        let mut buffer = vec![0; 256 << 10];
        while let Ok(n @ 1..) = self.file.read_at(&mut buffer, self.at) {
            self.at += n as u64;
            self.rest.extend_from_slice(&buffer[..n]);
            let mut lines = self.rest.split_inclusive(|byte| *byte == b'\n');
            let mut read = 0;
            for line in lines.by_ref().filter(|line| line.ends_with(b"\n")) {
                self.recorded.take(line);
                read += line.len();
            }
            self.rest.drain(..read);
            if self.rest.len() > LONGEST_LINE {
                self.recorded.take(&std::mem::take(&mut self.rest));
            }
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Whole pages only; where it is refused, memory is given back at the end.
            let _ = fallocate(&self.file, flags, 0, self.at & !4095);
        }
    }
}
