//! A thread that reads a file again and again while programs append to it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate};

/// Time between two looks at the file.
const PAUSE: Duration = Duration::from_millis(50);

/// Bytes that are read at once.
const PIECE: usize = 256 << 10;

/// Memory that programs append to, and the path under which they open it. Nothing of it stays behind however this
/// process ends.
pub(crate) fn file_in_memory(name: &str) -> Result<(File, PathBuf)> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)
        .with_context(|| format!("memory for {name}"))?;
    let (own, number) = (std::process::id(), file.as_raw_fd());
    let path = PathBuf::from(format!("/proc/{own}/fd/{number}"));
    Ok((File::from(file), path))
}

/// The lines that programs append to a file in memory. The memory of lines that were read goes back to the system.
pub(crate) struct Lines {
    file: File,
    at: u64,
    /// The beginning of a line whose end was not written yet.
    rest: Vec<u8>,
    longest: usize,
}

impl Lines {
    /// `longest` is the longest line that makes sense: any program can write into the file, and no more is kept of a line
    /// without an end.
    pub(crate) fn new(file: File, longest: usize) -> Self {
        Self {
            file,
            at: 0,
            rest: Vec::new(),
            longest,
        }
    }

    /// Hands on each new line, and the pieces of a line that is too long.
    pub(crate) fn read(&mut self, mut take: impl FnMut(&[u8])) {
        let mut buffer = vec![0; PIECE];
        while let Ok(n @ 1..) = self.file.read_at(&mut buffer, self.at) {
            self.at += n as u64;
            self.rest.extend_from_slice(&buffer[..n]);
            let mut read = 0;
            for line in self.rest.split_inclusive(|byte| *byte == b'\n') {
                if line.ends_with(b"\n") || line.len() > self.longest {
                    take(line);
                    read += line.len();
                }
            }
            self.rest.drain(..read);
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Whole pages only; where it is refused, memory is given back at the end.
            let _ = fallocate(&self.file, flags, 0, self.at & !4095);
        }
    }
}

/// The thread, and what tells it that nothing more will be written.
pub(crate) struct Follower<T> {
    thread: JoinHandle<T>,
    over: Arc<AtomicBool>,
}

impl<T: Default + Send + 'static> Follower<T> {
    /// Begins reading: `read` reads what is new, `result` is what all of it came to.
    pub(crate) fn start<R: Send + 'static>(
        name: &str,
        mut reader: R,
        read: impl Fn(&mut R) + Send + 'static,
        result: impl FnOnce(R) -> T + Send + 'static,
    ) -> Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let last = Arc::clone(&over);
        let run = move || {
            loop {
                // Asked first, so that what was written before the end is read.
                let is_over = last.load(Ordering::Acquire);
                read(&mut reader);
                if is_over {
                    return result(reader);
                }
                std::thread::sleep(PAUSE);
            }
        };
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(run)
            .with_context(|| format!("the thread {name:?} cannot be started"))?;
        Ok(Self { thread, over })
    }

    /// Reads the rest.
    pub(crate) fn finish(self) -> T {
        self.over.store(true, Ordering::Release);
        self.thread.join().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn lines_come_once_and_whole_and_one_without_an_end_is_not_kept() {
        let mut file = tempfile::tempfile().unwrap();
        let mut lines = Lines::new(file.try_clone().unwrap(), 8);
        let mut new = |written: &str| {
            file.write_all(written.as_bytes()).unwrap();
            let mut seen = Vec::new();
            lines.read(|line| seen.push(String::from_utf8(line.to_vec()).unwrap()));
            seen
        };
        assert_eq!(new("one\ntwo\nth"), ["one\n", "two\n"]);
        assert!(new("r").is_empty());
        assert_eq!(new("ee\n"), ["three\n"]);
        assert_eq!(new("without an end"), ["without an end"]);
        assert_eq!(new(" here\nnext\n"), [" here\n", "next\n"]);
    }
}
