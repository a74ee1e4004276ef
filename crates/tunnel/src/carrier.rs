//! What carries a tunnel: an ordered, reliable stream of bytes.

use std::io;
use std::os::fd::AsFd;
use std::sync::Mutex;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use crate::lock;

/// An ordered, reliable stream of bytes between the two ends of a tunnel. Several threads send, one receives, at the
/// same time.
///
/// Who makes a carrier also decides how a silent peer is noticed: `receive` should fail after [`crate::SILENCE`] without
/// a byte, which the pings of the near end prevent while the peer lives.
pub trait Carrier: Send + Sync {
    /// Sends all of the bytes; what several threads send is not mixed.
    ///
    /// # Errors
    /// The stream is broken.
    fn send(&self, bytes: &[u8]) -> io::Result<()>;
    /// Sends all of the bytes and empties the buffer, which may be another one then.
    ///
    /// # Errors
    /// The stream is broken.
    fn send_whole(&self, bytes: &mut Vec<u8>) -> io::Result<()> {
        self.send(bytes)?;
        bytes.clear();
        Ok(())
    }
    /// Sends a few bytes without waiting until the peer has acknowledged others: acknowledgements themselves, and credit.
    ///
    /// # Errors
    /// The stream is broken.
    fn send_aside(&self, bytes: &[u8]) -> io::Result<()> {
        self.send(bytes)
    }
    /// Receives some bytes, waiting for the first one; 0 if the peer has closed the stream.
    ///
    /// # Errors
    /// The stream is broken, or nothing has come for too long.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize>;
    /// Ends the stream in both directions and wakes who waits in [`Carrier::receive`].
    fn close(&self);
    /// How many bytes have come in all, where the peer should be told; asked after each frame.
    fn owed(&self) -> Option<u64> {
        None
    }
    /// The peer has received this many bytes of the stream.
    fn acknowledge(&self, _received: u64) {}
}

/// A connected socket as a carrier: unix, TCP, vsock.
#[derive(Debug)]
pub struct SocketCarrier<S> {
    socket: S,
    /// Held while bytes are written.
    sending: Mutex<()>,
}

impl<S: AsFd> SocketCarrier<S> {
    /// Takes over a connected stream socket.
    pub fn new(socket: S) -> Self {
        let sending = Mutex::default();
        Self { socket, sending }
    }
}

impl<S: AsFd + Send + Sync> Carrier for SocketCarrier<S> {
    fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        let _sending = lock(&self.sending);
        while !bytes.is_empty() {
            match send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match recv(&self.socket, &mut *buffer, RecvFlags::empty()) {
                Ok((got, _)) => return Ok(got),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn close(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}
