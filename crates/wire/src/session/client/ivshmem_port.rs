//! The host's end of a session that a virtual machine's program has in an ivshmem file.
//!
//! [`IvshmemPort`] gives the ivshmem file to a worker and then only wakes: the worker when the machine asks for it, and the
//! machine when the worker shows progress, and says that the session has ended. It reads nothing that the machine writes but
//! words to sleep on and whether the end is said already.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::thread::futex;
use rustix::time::Timespec;

use super::ring::{HANDSHAKE, UNAVAILABLE};
use crate::host::socket::{HostSocket, SocketError};
use crate::session::{Handshake, SESSION_VERSION, SessionArea, SessionError};

/// A session in an ivshmem file, from the side of the program's machine.
#[derive(Debug)]
pub struct IvshmemPort {
    area: SessionArea,
    socket: HostSocket,
    has_windows: bool,
}

impl IvshmemPort {
    /// Shakes hands over the socket, and has the session lie in `ivshmem`.
    ///
    /// # Errors
    /// If the worker refuses, speaks another version or is gone.
    pub fn connect(socket: OwnedFd, ivshmem: OwnedFd) -> Result<Self, SessionError> {
        let unanswered = |error: SocketError| SessionError::Unanswered(error.to_string());
        set_socket_timeout(&socket, Timeout::Recv, Some(HANDSHAKE))
            .map_err(SessionError::system("setsockopt"))?;
        let socket = HostSocket::from_fd(socket);
        let version = u64::from(SESSION_VERSION);
        let hello = Handshake::Hello { version };
        (socket.send(&hello, &[ivshmem.as_fd()])).map_err(unanswered)?;
        let (answer, _) = socket.receive().map_err(unanswered)?;
        match answer.read() {
            Ok(Handshake::Ivshmem {
                version: theirs,
                has_windows,
                ..
            }) if theirs == version => Ok(Self {
                area: SessionArea::in_ivshmem(ivshmem).map_err(SessionError::system("mmap"))?,
                socket,
                has_windows,
            }),
            Ok(Handshake::Refused { text, .. }) => Err(SessionError::Refused {
                code: UNAVAILABLE,
                message: text.into(),
            }),
            _ => Err(SessionError::Ended(
                "the worker does not take a session in an ivshmem file: use one version of Mica"
                    .into(),
            )),
        }
    }

    /// Whether the ivshmem file has windows on device memory.
    pub fn has_windows(&self) -> bool {
        self.has_windows
    }

    /// Wakes whoever of the worker sleeps until the program does something.
    pub fn wake_worker(&self) {
        let program = &self.area.control().program;
        self.area.wake_peer(&program.doorbell, 1);
        (self.area).wake_peer(&program.notices_done, i32::MAX as u32);
    }

    /// Has every later call of the program fail, also that of a machine that stands still now. The worker, if it lives,
    /// has said why before.
    pub fn mark_ended(&self, reason: &str) {
        self.area.mark_ended(reason);
    }

    /// Number to pass to [`IvshmemPort::wait`].
    pub fn progress(&self) -> u32 {
        self.area.control().worker.progress.load(SeqCst)
    }

    /// Sleeps until the worker has shown progress since [`IvshmemPort::progress`] said `seen`, at most `most`; says whether
    /// it has.
    pub fn wait(&self, seen: u32, most: Duration) -> bool {
        let most = Timespec {
            tv_sec: most.as_secs() as i64,
            tv_nsec: most.subsec_nanos().into(),
        };
        let _ = self
            .area
            .wait(&self.area.control().worker.progress, seen, &most);
        self.progress() != seen
    }

    /// Wakes who sleeps in [`IvshmemPort::wait`].
    pub fn wake(&self) {
        let word = &self.area.control().worker.progress;
        word.fetch_add(1, SeqCst);
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }
}

impl AsFd for IvshmemPort {
    /// The socket to the worker; closed when the session has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
