//! New connections of old sessions: from the listener to the process that serves the session.
//!
//! ```text
//!   client ── hello with the session's number ──► listener ── the socket ──► process of the session: TLS, certificate, then the rest
//! ```
//! The number only says which process is meant, and anybody who has seen a hello can say it. Who the client is, is decided by TLS and
//! the certificate in the process that gets the socket, as for the first connection.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg,
    socketpair,
};

/// Which session a new connection belongs to.
pub type SessionId = [u8; 16];

/// The sessions of a listener's processes.
#[derive(Debug, Default)]
pub struct Sessions(Mutex<HashMap<SessionId, Arc<OwnedFd>>>);

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<OwnedFd>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A socket for a process that serves a connection: the process finds its session's number there, and gets the session's new
    /// connections. The number is known before the process is, so no client comes back too early, and is forgotten when the process has
    /// ended.
    ///
    /// # Errors
    /// The system has no descriptors or random bytes left.
    pub fn attach(self: &Arc<Self>) -> io::Result<OwnedFd> {
        let id: SessionId = crate::random().map_err(io::Error::other)?;
        let flags = SocketFlags::CLOEXEC;
        let (own, process) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        send(&own, &id, SendFlags::NOSIGNAL)?;
        let (sessions, own) = (Arc::clone(self), Arc::new(own));
        sessions.lock().insert(id, Arc::clone(&own));
        let watch = move || {
            // The process says nothing: this returns when it has ended or takes no more connections.
            while let Err(Errno::INTR) = recv(&*own, &mut [0; 1], RecvFlags::empty()) {}
            sessions.lock().remove(&id);
        };
        let watched = std::thread::Builder::new()
            .name("sessions".into())
            .spawn(watch);
        if let Err(error) = watched {
            self.lock().remove(&id);
            return Err(error);
        }
        Ok(process)
    }

    /// Hands a connection to its session's process; gives it back if there is none.
    ///
    /// # Errors
    /// The connection, which belongs to no session.
    pub fn hand_over(&self, id: &SessionId, stream: TcpStream) -> Result<(), TcpStream> {
        let process = self.lock().get(id).cloned();
        let Some(process) = process else {
            return Err(stream);
        };
        let fds = [stream.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        // A process that takes none of its new connections gets none from then on.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(&*process, &[IoSlice::new(b"c")], &mut control, flags) {
            Ok(_) => Ok(()),
            Err(_) => Err(stream),
        }
    }
}

/// The process's end.
#[derive(Debug)]
pub struct Arrivals {
    socket: OwnedFd,
    session: SessionId,
}

impl Arrivals {
    /// Takes over what [`Sessions::attach`] made.
    ///
    /// # Errors
    /// It is something else.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let mut session = [0; 16];
        match recv(&socket, &mut session, RecvFlags::DONTWAIT)? {
            (16, _) => Ok(Self { socket, session }),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The number of the session that this process serves.
    pub fn session(&self) -> &SessionId {
        &self.session
    }

    /// Takes no further connections: a thread that waits in [`Arrivals::next`] returns.
    pub fn close(&self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// The next connection; `None` once the listener is gone.
    pub fn next(&self) -> Option<TcpStream> {
        loop {
            let mut byte = [0];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut into = [IoSliceMut::new(&mut byte)];
            let got = recvmsg(
                &self.socket,
                &mut into,
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            );
            match got {
                Err(Errno::INTR) => continue,
                Ok(got) if got.bytes > 0 => {}
                _ => return None,
            }
            let found = control.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
                _ => None,
            });
            if let Some(fd) = found {
                return Some(TcpStream::from(fd));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn a_connection_reaches_the_process_of_its_session_and_no_other() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        let sessions = Arc::new(Sessions::default());
        let arrivals = Arrivals::new(sessions.attach().unwrap()).unwrap();
        let mut wrong = *arrivals.session();
        wrong[3] ^= 1;
        let far = sessions.hand_over(&wrong, far).unwrap_err();
        sessions.hand_over(arrivals.session(), far).unwrap();
        let mut there = arrivals.next().unwrap();
        near.write_all(b"hi").unwrap();
        let mut got = [0; 2];
        there.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hi");
        drop(arrivals);
        while !sessions.lock().is_empty() {
            std::thread::yield_now();
        }
    }
}
