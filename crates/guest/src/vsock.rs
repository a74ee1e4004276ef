//! Stream sockets between a virtual machine and its host.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::str::FromStr;

/// A machine and a port on it. The host is machine 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VsockAddress {
    /// Number of the machine.
    pub cid: u32,
    /// Port.
    pub port: u32,
}

impl FromStr for VsockAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a machine and a port: write 2:9350");
        let (cid, port) = text.split_once(':').ok_or_else(wrong)?;
        match (cid.parse(), port.parse()) {
            (Ok(cid), Ok(port)) => Ok(Self { cid, port }),
            _ => Err(wrong()),
        }
    }
}

impl VsockAddress {
    fn raw(self) -> libc::sockaddr_vm {
        // SAFETY: a structure of integers, which may be zero.
        let mut raw: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
        raw.svm_family = libc::AF_VSOCK as libc::sa_family_t;
        raw.svm_cid = self.cid;
        raw.svm_port = self.port;
        raw
    }

    /// Connects to it.
    ///
    /// # Errors
    /// Nobody listens there, or this machine has no such sockets.
    pub fn connect(self) -> io::Result<OwnedFd> {
        let socket = socket()?;
        let address = self.raw();
        let bytes = size_of_val(&address) as libc::socklen_t;
        // SAFETY: an open socket, and an address that lives through the call.
        let done = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), bytes) };
        check(done)?;
        Ok(socket)
    }
}

/// Listens at a port of this machine.
#[derive(Debug)]
pub struct VsockListener(OwnedFd);

impl VsockListener {
    /// Listens.
    ///
    /// # Errors
    /// The port is taken, or this machine has no such sockets.
    pub fn bind(port: u32) -> io::Result<Self> {
        let socket = socket()?;
        let cid = libc::VMADDR_CID_ANY;
        let address = VsockAddress { cid, port }.raw();
        let bytes = size_of_val(&address) as libc::socklen_t;
        // SAFETY: an open socket, and an address that lives through the call.
        check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) })?;
        // SAFETY: an open socket.
        check(unsafe { libc::listen(socket.as_raw_fd(), 64) })?;
        Ok(Self(socket))
    }

    /// Waits for a connection; with the number of the machine that it comes from.
    ///
    /// # Errors
    /// The system refuses.
    pub fn accept(&self) -> io::Result<(OwnedFd, u32)> {
        let mut address = VsockAddress { cid: 0, port: 0 }.raw();
        let mut bytes = size_of_val(&address) as libc::socklen_t;
        // SAFETY: an open socket; the kernel writes at most `bytes` bytes of integers.
        let fd = unsafe {
            libc::accept4(
                self.0.as_raw_fd(),
                (&raw mut address).cast(),
                &raw mut bytes,
                libc::SOCK_CLOEXEC,
            )
        };
        check(fd)?;
        // SAFETY: the kernel has just made the descriptor for this process.
        Ok((unsafe { OwnedFd::from_raw_fd(fd) }, address.svm_cid))
    }
}

fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: a plain request.
    let fd = unsafe { libc::socket(libc::AF_VSOCK, kind, 0) };
    check(fd)?;
    // SAFETY: the kernel has just made the descriptor for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn check(answer: libc::c_int) -> io::Result<()> {
    match answer {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_a_machine_and_a_port() {
        let address = VsockAddress { cid: 2, port: 9350 };
        assert_eq!("2:9350".parse(), Ok(address));
        for wrong in ["", "2", "2:", ":1", "a:1", "2:-1", "2:1:1"] {
            assert!(wrong.parse::<VsockAddress>().is_err(), "{wrong}");
        }
    }
}
