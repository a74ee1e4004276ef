//! The seam between calls and what carries them.
//!
//! The shared-memory ring ([`super::client::RingTransport`], [`super::server::RingServer`]) is the
//! first carrier. A stream of bytes can be another: it frames the same records, and answers `None`
//! where shared memory is asked for, so that data travels inside records.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::calls::StreamOrder;
use super::client::IvshmemHeap;
use super::ring::{RecordHeader, Violation};
use super::{SessionArea, SessionError};

/// An answer: a `CUresult` by number, and the encoded answer or, for an error, its text.
pub type Answer = (u32, Vec<u8>);

/// The program's side.
pub trait ClientTransport: Send + Sync {
    /// Sends a call that has no answer. Waits only for room, and, if it adds to the work of `stream`, for
    /// the end of copies that the program does itself.
    fn post(
        &self,
        call: u16,
        stream: Option<u64>,
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), SessionError>;
    /// Sends a call and waits for its answer.
    fn call(
        &self,
        call: u16,
        stream: Option<u64>,
        body: &[u8],
        tail: &[u8],
    ) -> Result<Answer, SessionError>;
    /// Whether errors of posted calls wait to be taken. Costs one load.
    fn late_pending(&self) -> bool;
    /// Whether kernels' output waits to be taken. Costs one load.
    fn output_pending(&self) -> bool;
    /// The next host callback that is due; `None` when the time is up.
    fn next_notice(&self, timeout: Duration) -> Result<Option<u64>, SessionError>;
    /// Shared memory with staging chunks, where there is any.
    fn area(&self) -> Option<&SessionArea>;
    /// Passes a descriptor for the call that names `tag`.
    fn send_descriptor(&self, tag: u64, fd: BorrowedFd<'_>) -> Result<(), SessionError>;
    /// The file with windows on device memory, where there is one.
    fn window_file(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Host memory in the ivshmem file that the session lies in, where it does.
    fn heap(&self) -> Option<&Arc<IvshmemHeap>> {
        None
    }
    /// Whether the device has a copy of host memory instead of the memory itself: both sides are made equal at launches and
    /// waits, and neither sees what the other writes in between.
    fn copies_host_memory(&self) -> bool {
        false
    }
    /// Whether the files of so many pieces of host memory, and of one more, can be brought to another worker.
    fn can_offer(&self) -> bool {
        false
    }
    /// Keeps the file of a context's host memory at a device address for another worker.
    fn offer_file(&self, _context: u64, _address: u64, _fd: OwnedFd) {}
    /// Which of the files kept for a device address so far is the last; 0 if there is none.
    fn file_number(&self, _address: u64) -> u64 {
        0
    }
    /// Forgets the file of this number of host memory that the device uses no more.
    fn forget_file(&self, _address: u64, _number: u64) {}
    /// Forgets the files of a context that has ended.
    fn forget_files_of(&self, _context: u64) {}
    /// How often another worker went on with the session. A call that was made while the number changed may have come without
    /// the descriptor that was sent for it.
    fn returns(&self) -> u64 {
        0
    }
    /// Keeps work for a stream, and for those that wait for it, out until [`ClientTransport::end_turn`].
    /// Waits for other turns. For carriers with windows.
    fn begin_turn(&self, _stream: u64) -> Result<(), SessionError> {
        Ok(())
    }
    /// Ends what [`ClientTransport::begin_turn`] began.
    fn end_turn(&self, _stream: u64) {}
    /// Tells how a stream is ordered against others.
    fn note_order(&self, _stream: u64, _order: Option<StreamOrder>) {}
    /// Whether the work of everything sent so far is done, as far as is known without asking. Fails if
    /// the worker is gone.
    fn is_quiet(&self) -> Result<bool, SessionError> {
        Ok(false)
    }
    /// After a copy that the program has done itself: fails if the memory may have been emptied meanwhile.
    fn check_copied(&self) -> Result<(), SessionError> {
        Ok(())
    }
    /// Says that answers come from a GPU's driver: worth a longer look before a sleep.
    fn expect_gpu_work(&self) {}
    /// Waits on a chunk until it is in another state than `state`.
    fn wait_chunk(&self, chunk: usize, state: u32) -> Result<u32, SessionError>;
}

/// The worker's side, as the thread that reads calls sees it.
pub trait ServerTransport: Send {
    /// The next call, copied out; `None` if there is none now.
    ///
    /// # Errors
    /// A [`Violation`] that ends the session.
    fn next(&mut self, body: &mut Vec<u8>) -> Result<Option<RecordHeader>, Violation>;
}
