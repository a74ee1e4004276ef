//! A session in an ivshmem file: the two ends of the stream beside it, over which each side wakes the other.
//!
//! Both send single bytes: [`RING_BYTE`] says that there is something new in the ivshmem file, [`LIFE_BYTE`] that the sender
//! lives; the machine's last one is [`END_BYTE`] if its program has ended. There is nothing else to parse, and the order of
//! bytes from two senders does not matter.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Instant;

use mica_tunnel::{PING_EVERY, TunnelError};
use mica_wire::session::client::IvshmemPort;
use mica_wire::session::server::Greeting;
use mica_wire::session::{BellWord, END_BYTE, LIFE_BYTE, RING_BYTE, SessionArea};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use crate::SILENCE;

/// What a stream brought.
enum Brought {
    Nothing,
    Life,
    Ring,
    End,
}

/// What the host knows of a program whose session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramLife {
    /// It has ended, its machine says.
    Over,
    /// It may go on, and look at its memory.
    Unknown,
}

/// One end of the stream.
struct Stream<'a> {
    socket: BorrowedFd<'a>,
    heard: Instant,
    spoke: Instant,
}

impl<'a> Stream<'a> {
    fn new(socket: &'a OwnedFd) -> Self {
        Self {
            socket: socket.as_fd(),
            heard: Instant::now(),
            spoke: Instant::now(),
        }
    }

    /// Waits a while for bytes, or for one of `others` to have something to say; `None` if one has.
    fn receive(
        &mut self,
        others: &[(BorrowedFd<'_>, PollFlags)],
    ) -> Result<Option<Brought>, TunnelError> {
        let mut fds = vec![PollFd::from_borrowed_fd(self.socket, PollFlags::IN)];
        fds.extend((others.iter()).map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)));
        let pause = rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: 500_000_000,
        };
        match poll(&mut fds, Some(&pause)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(TunnelError::Lost(error.into())),
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        if fds[1..].iter().any(is_ready) {
            return Ok(None);
        }
        if self.spoke.elapsed() >= PING_EVERY {
            self.spoke = Instant::now();
            say(self.socket, LIFE_BYTE);
        }
        let brought = match is_ready(&fds[0]) {
            true => self.take()?,
            false => Brought::Nothing,
        };
        match brought {
            Brought::Nothing if self.heard.elapsed() > SILENCE => {
                Err(TunnelError::Lost(std::io::ErrorKind::TimedOut.into()))
            }
            Brought::Nothing => Ok(Some(brought)),
            _ => {
                self.heard = Instant::now();
                Ok(Some(brought))
            }
        }
    }

    fn take(&self) -> Result<Brought, TunnelError> {
        let mut bytes = [0; 4096];
        let got = match recv(self.socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(TunnelError::Closed),
            Ok((got, _)) => got,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Brought::Nothing),
            Err(error) => return Err(TunnelError::Lost(error.into())),
        };
        let bytes = &bytes[..got];
        if bytes
            .iter()
            .any(|byte| ![RING_BYTE, LIFE_BYTE, END_BYTE].contains(byte))
        {
            return Err(TunnelError::Protocol("a byte that says nothing".into()));
        }
        Ok(match bytes {
            _ if bytes.contains(&END_BYTE) => Brought::End,
            _ if bytes.contains(&RING_BYTE) => Brought::Ring,
            _ => Brought::Life,
        })
    }
}

/// Sends a byte. One that does not fit follows others that the peer has not taken yet.
fn say(stream: BorrowedFd<'_>, byte: u8) {
    let _ = send(stream, &[byte], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// The agent's end: serves a program on a socket to its end. Its session lies in `ivshmem`, of so many bytes, with windows or
/// without.
///
/// # Errors
/// Why it ended, unless the program did.
pub fn serve_program(
    program: OwnedFd,
    life: Option<&OwnedFd>,
    ivshmem: BorrowedFd<'_>,
    (bytes, has_windows): (u64, bool),
    stream: &OwnedFd,
) -> Result<(), TunnelError> {
    let failed = |source| TunnelError::System {
        what: "memfd_create",
        source,
    };
    let bell = BellWord::create().map_err(failed)?;
    let fds = [ivshmem, bell.fd(), stream.as_fd()];
    let socket = Greeting::receive(program)?.pass_on(bytes, has_windows, fds)?;
    let mut own = Stream::new(stream);
    let mut ends = vec![(socket.as_fd(), PollFlags::RDHUP)];
    ends.extend(life.map(|life| (life.as_fd(), PollFlags::IN)));
    let ended = loop {
        match own.receive(&ends) {
            Ok(None) => break Ok(()),
            Ok(Some(Brought::Ring)) => bell.wake(),
            Ok(Some(_)) => {}
            Err(error) => break Err(error),
        }
    };
    match &ended {
        Ok(()) => say(stream.as_fd(), END_BYTE),
        Err(error) => mark_ended(ivshmem, error),
    }
    // A child of the program may have the same socket open.
    let _ = shutdown(stream, Shutdown::Both);
    let _ = shutdown(&socket, Shutdown::Both);
    bell.wake();
    if let (Err(_), Some(life)) = (&ended, life) {
        // Until the program ends it may write to the ivshmem file, which must not be another program's meanwhile.
        while poll(&mut [PollFd::new(life, PollFlags::IN)], None) == Err(Errno::INTR) {}
    }
    ended
}

/// Has every later call of the program fail, also those that need no answer: where the host was killed nobody else says it.
fn mark_ended(ivshmem: BorrowedFd<'_>, why: &TunnelError) {
    let area = (ivshmem.try_clone_to_owned().ok()).and_then(|fd| SessionArea::beside_wall(fd).ok());
    if let Some(area) = area {
        area.mark_ended(&why.to_string());
    }
}

/// The host's end: serves a session whose ivshmem file the worker has, to its end; what is known of the program then.
///
/// # Errors
/// Why it ended, unless the program or the worker did.
pub fn serve_worker(port: &IvshmemPort, stream: &OwnedFd) -> Result<ProgramLife, TunnelError> {
    let over = AtomicBool::new(false);
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seen = port.progress();
            while !over.load(Acquire) {
                if port.wait(seen, PING_EVERY) {
                    seen = port.progress();
                    say(stream.as_fd(), RING_BYTE);
                }
            }
        });
        let mut own = Stream::new(stream);
        let ended = loop {
            match own.receive(&[(port.as_fd(), PollFlags::RDHUP)]) {
                Ok(None) => {
                    port.mark_ended("its worker process is gone");
                    break Ok(ProgramLife::Unknown);
                }
                Ok(Some(Brought::End)) => break Ok(ProgramLife::Over),
                Ok(Some(Brought::Ring)) => port.wake_worker(),
                Ok(Some(_)) => {}
                Err(error) => {
                    port.mark_ended(&format!("the host has ended it: {error}"));
                    break match error {
                        TunnelError::Closed => Ok(ProgramLife::Unknown),
                        error => Err(error),
                    };
                }
            }
        };
        over.store(true, Release);
        port.wake();
        ended
    });
    // What the worker wrote last, why the session has ended, is to be read: the program wakes first.
    say(stream.as_fd(), RING_BYTE);
    let _ = shutdown(stream, Shutdown::Both);
    ended
}
