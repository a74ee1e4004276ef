//! Who carries files to other workers of the virtual GPU, and sentences to the one who runs the program.

use std::os::fd::BorrowedFd;

use mica_limits::{HostLink, OpenedFile};
use mica_wire::host::message::Severity;

/// Carries files between the workers of one virtual GPU, and to nobody else.
pub trait SharedFiles: Send + Sync {
    /// Lets the others have a file under a name that nobody can guess.
    ///
    /// # Errors
    /// Why not.
    fn share(
        &self,
        name: [u8; 16],
        file: BorrowedFd<'_>,
        bytes: u64,
        what: u64,
    ) -> Result<(), String>;
    /// A file of another worker, or of a region.
    ///
    /// # Errors
    /// Why there is none.
    fn open(&self, name: [u8; 16]) -> Result<OpenedFile, String>;
    /// Keeps a file of a region for a daemon that is started later.
    fn keep_region(&self, name: [u8; 16], file: BorrowedFd<'_>, bytes: u64);
    /// Shares a file no more.
    fn forget(&self, name: [u8; 16]);
    /// Leaves a sentence for whoever looks into the daemon's events.
    fn note_start(&self, text: &str) {
        let _ = text;
    }
    /// Tells the one who runs the program what was refused.
    fn note_refused(&self, text: &str) {
        let _ = text;
    }
}

impl SharedFiles for HostLink {
    fn share(
        &self,
        name: [u8; 16],
        file: BorrowedFd<'_>,
        bytes: u64,
        what: u64,
    ) -> Result<(), String> {
        self.share_file(name, file, bytes, what)
    }

    fn open(&self, name: [u8; 16]) -> Result<OpenedFile, String> {
        self.open_file(name)
    }

    fn keep_region(&self, name: [u8; 16], file: BorrowedFd<'_>, bytes: u64) {
        HostLink::keep_region(self, name, file, bytes);
    }

    fn forget(&self, name: [u8; 16]) {
        self.drop_file(name);
    }

    fn note_start(&self, text: &str) {
        self.note(Severity::Info, text);
    }

    fn note_refused(&self, text: &str) {
        self.note_call_refused(text);
    }
}

/// A name that nobody can guess.
///
/// # Errors
/// The system has no random bytes.
pub(crate) fn random_name() -> Result<[u8; 16], String> {
    let mut name = [0_u8; 16];
    // SAFETY: the buffer has the length passed.
    let got = unsafe { libc::getrandom(name.as_mut_ptr().cast(), name.len(), 0) };
    match got == name.len() as isize {
        true => Ok(name),
        false => Err("the system has no random bytes".into()),
    }
}
