//! What the driver prints by itself: the output of kernels (`printf`) and failed assertions.
//!
//! The driver writes both to the standard output and the standard error of its own process, while somebody waits
//! for the GPU. A process that serves another one catches them in two files without names, and hands them on after
//! each wait.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Takes what was printed: 0 for standard output, 1 for standard error, and the bytes.
pub type PrintedSink = Box<dyn Fn(u8, &[u8]) + Send>;

/// Bytes handed on at once.
const PIECE: usize = 64 << 10;
/// The buffer of standard output. Its pages are there when something is printed.
const BUFFER: usize = 1 << 20;
/// Two waits that end within this time printed less than a buffer: that would be 5 GB of text a second.
const SHORT: Duration = Duration::from_micros(200);

unsafe extern "C" {
    /// The C library's standard output.
    static stdout: *mut libc::FILE;
    /// Bytes in the buffer of a stream that is written to.
    fn __fpending(stream: *mut libc::FILE) -> libc::size_t;
}

/// The caught standard output and standard error of this process.
pub struct Printed {
    files: [File; 2],
    reader: Mutex<Reader>,
}

#[derive(Default)]
struct Reader {
    sink: Option<PrintedSink>,
    /// How much of each file was handed on.
    at: [u64; 2],
    /// When the files were looked at.
    looked: Option<Instant>,
}

impl std::fmt::Debug for Printed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Printed").finish_non_exhaustive()
    }
}

impl Printed {
    /// Catches everything that this process writes to its standard output and standard error from now on.
    ///
    /// # Errors
    /// The system refuses a file, or to put it in place of the two.
    pub fn catch() -> io::Result<Self> {
        let files = [file(c"mica-stdout")?, file(c"mica-stderr")?];
        for (file, descriptor) in files.iter().zip([libc::STDOUT_FILENO, libc::STDERR_FILENO]) {
            // SAFETY: both are open descriptors.
            if unsafe { libc::dup2(file.as_raw_fd(), descriptor) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        let buffer = Box::leak(vec![0_u8; BUFFER].into_boxed_slice());
        // SAFETY: the buffer has the length passed and is this stream's for as long as the process lives. Refused, the
        // stream keeps a smaller one, and long output is handed on a moment late.
        unsafe { libc::setvbuf(stdout, buffer.as_mut_ptr().cast(), libc::_IOFBF, BUFFER) };
        Ok(Self {
            files,
            reader: Mutex::default(),
        })
    }

    /// Whom to hand the output to.
    pub fn set_sink(&self, sink: PrintedSink) {
        self.lock().sink = Some(sink);
    }

    /// Hands on what a wait printed that has just ended. The system is asked only where it may know something: the
    /// driver prints through the C library's standard output, which tells without a system call what is in its buffer.
    /// A wait that printed more than the buffer holds takes longer than `SHORT`, and a failed assertion fails the wait.
    pub fn hand_on_after(&self, failed: bool) {
        // SAFETY: standard output is open for as long as the process lives.
        let is_buffered = unsafe { __fpending(stdout) } > 0;
        let recently = |looked: Instant| looked.elapsed() < SHORT;
        if failed || is_buffered || !self.lock().looked.is_some_and(recently) {
            self.hand_on();
        }
    }

    /// Hands on what was printed since the last time.
    pub fn hand_on(&self) {
        // SAFETY: flushes all streams of the C library, which the driver uses.
        unsafe { libc::fflush(std::ptr::null_mut()) };
        // Held to the end, so that two threads hand on one after the other.
        let mut reader = self.lock();
        let Reader { sink, at, looked } = &mut *reader;
        *looked = Some(Instant::now());
        for (kind, file) in self.files.iter().enumerate() {
            let end = file.metadata().map_or(0, |data| data.len());
            let begun = at[kind];
            if end <= begun {
                continue;
            }
            let mut piece = vec![0; PIECE];
            while let Ok(read @ 1..) = file.read_at(&mut piece, at[kind]) {
                if let Some(sink) = sink {
                    sink(kind as u8, &piece[..read]);
                }
                at[kind] += read as u64;
            }
            forget(file, begun..at[kind]);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Reader> {
        self.reader
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Gives the pages of bytes back that nobody reads again. The file keeps its length: one that is cut could lose
/// what is written at the same moment.
fn forget(file: &File, bytes: std::ops::Range<u64>) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let len = (bytes.end - bytes.start) as libc::off_t;
    // SAFETY: an open descriptor and three numbers; without success the pages stay until the process ends.
    unsafe { libc::fallocate(file.as_raw_fd(), mode, bytes.start as libc::off_t, len) };
}

/// A file without a name whose writes go to its end.
fn file(name: &std::ffi::CStr) -> io::Result<File> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and nobody else's.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    // SAFETY: sets a flag of an open descriptor.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_APPEND) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::Arc;

    #[test]
    fn what_is_written_to_the_files_is_handed_on_once_and_in_order() {
        // Not `catch`: the test's own output is needed.
        let printed = Printed {
            files: [file(c"out").unwrap(), file(c"err").unwrap()],
            reader: Mutex::default(),
        };
        let got = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&got);
        printed.set_sink(Box::new(move |kind, bytes| {
            kept.lock().unwrap().push((kind, bytes.len()));
        }));
        (&printed.files[0])
            .write_all(&vec![b'x'; PIECE + 5])
            .unwrap();
        (&printed.files[1]).write_all(b"assertion").unwrap();
        printed.hand_on();
        (&printed.files[0]).write_all(b"more").unwrap();
        printed.hand_on();
        printed.hand_on();
        assert_eq!(*got.lock().unwrap(), [(0, PIECE), (0, 5), (1, 9), (0, 4)]);
    }
}
