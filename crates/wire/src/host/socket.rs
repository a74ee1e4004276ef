//! Sending and receiving [`Frame`]s with descriptors over a `SOCK_SEQPACKET` socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg,
    sendmsg, socket_with,
};

use super::frame::{FRAME_BYTES, Frame, Packet};

/// Most descriptors one message carries.
pub const MAX_DESCRIPTORS: usize = 4;

/// What can go wrong on the socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A system call failed.
    #[error("{operation} failed")]
    System {
        /// What was tried.
        operation: &'static str,
        /// The system's reason.
        #[source]
        source: Errno,
    },
    /// The peer is gone.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer sent something that is no message.
    #[error("received {0} bytes where a message has {FRAME_BYTES}")]
    Malformed(usize),
}

impl SocketError {
    /// Whether the same call may succeed later.
    pub fn would_block(&self) -> bool {
        matches!(
            self,
            Self::System {
                source: Errno::AGAIN | Errno::INTR,
                ..
            }
        )
    }
}

/// A connection that carries messages.
#[derive(Debug)]
pub struct HostSocket(OwnedFd);

impl HostSocket {
    /// Takes over a connected descriptor.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Connects to the daemon's socket.
    pub fn connect(path: &Path) -> Result<Self, SocketError> {
        let system = |operation| move |source| SocketError::System { operation, source };
        let fd = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(system("socket"))?;
        let address = SocketAddrUnix::new(path).map_err(system("socket address"))?;
        connect(&fd, &address).map_err(system("connect"))?;
        Ok(Self(fd))
    }

    /// Sends a message that nobody asked for, with descriptors.
    pub fn send(&self, message: &impl Packet, fds: &[BorrowedFd<'_>]) -> Result<(), SocketError> {
        self.send_frame(&message.frame(0), fds)
    }

    /// Sends one frame, with descriptors.
    pub fn send_frame(&self, frame: &Frame, fds: &[BorrowedFd<'_>]) -> Result<(), SocketError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let bytes = [IoSlice::new(frame.as_bytes())];
        loop {
            match sendmsg(&self.0, &bytes, &mut control, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(SocketError::Closed),
                Err(source) => {
                    return Err(SocketError::System {
                        operation: "send",
                        source,
                    });
                }
            }
        }
    }

    /// Receives one frame and the descriptors that came with it.
    pub fn receive(&self) -> Result<(Frame, Vec<OwnedFd>), SocketError> {
        let mut buffer = [0_u8; FRAME_BYTES + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut bytes = [IoSliceMut::new(&mut buffer)];
            match recvmsg(&self.0, &mut bytes, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => break received.bytes,
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Err(SocketError::Closed),
                Err(source) => {
                    return Err(SocketError::System {
                        operation: "receive",
                        source,
                    });
                }
            }
        };
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        match (received, buffer.first_chunk()) {
            (0, _) => Err(SocketError::Closed),
            (FRAME_BYTES, Some(bytes)) => Ok((Frame::from_bytes(*bytes), fds)),
            (other, _) => Err(SocketError::Malformed(other)),
        }
    }
}

impl AsFd for HostSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
