//! Who is at the other end of a unix socket, by the kernel's word.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// The process that connected, or that listened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its number; `None` where it has none in the process namespace of the caller.
    pub pid: Option<u32>,
    /// Its effective user.
    pub uid: u32,
}

/// The peer of a connected socket, as it was when the connection was made.
///
/// # Errors
/// The descriptor is not a connected unix socket.
pub fn peer_of(socket: impl AsFd) -> Result<Peer, Errno> {
    let mut found = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `bytes` bytes of three integers, for which any
    // value is valid. rustix is not asked: its process numbers are never 0, which the kernel answers for a process of
    // another namespace.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut bytes,
        )
    };
    if failed != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(Peer {
        pid: u32::try_from(found.pid).ok().filter(|pid| *pid > 0),
        uid: found.uid,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let peer = peer_of(&one).unwrap();
        assert_eq!(peer.pid, Some(std::process::id()));
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
    }

    #[test]
    fn a_descriptor_that_is_no_socket_has_no_peer() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(peer_of(&file), Err(Errno::NOTSOCK));
    }
}
