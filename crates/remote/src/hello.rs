//! The only bytes that are read of a peer before TLS: 32 from the client, 32 from the server, all in clear, no secret.
//!
//! ```text
//!   0 "mica-net"   8 u16 version   10 u8 what the client wants, or whether the server goes on   11 zeros   16 number of a session
//! ```

use std::io::{Read, Write};

use crate::RemoteError;
use crate::handover::SessionId;

/// Bytes of a hello.
pub const HELLO_BYTES: usize = 32;
/// The version of the protocol behind TLS, the session protocol's in its upper half: both must agree.
pub const VERSION: u16 = 3 << 8 | mica_session_version();

const MAGIC: &[u8; 8] = b"mica-net";
const NO_SESSION: SessionId = [0; 16];

const fn mica_session_version() -> u16 {
    mica_tunnel::SESSION_VERSION as u16
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To become known.
    Pair,
    /// To use a GPU.
    Use,
    /// To go on with a session whose connection broke.
    Resume(SessionId),
}

impl Purpose {
    fn number(self) -> u8 {
        match self {
            Self::Pair => 1,
            Self::Use => 2,
            Self::Resume(_) => 3,
        }
    }
}

/// What the server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Verdict {
    /// Go on with TLS.
    GoOn = 1,
    /// Versions differ; the hello has the server's.
    Version = 2,
    /// Too many connections at the moment.
    Busy = 3,
    /// The session has ended, or never was.
    Gone = 4,
}

fn bytes(version: u16, byte: u8) -> [u8; HELLO_BYTES] {
    let mut hello = [0; HELLO_BYTES];
    hello[..8].copy_from_slice(MAGIC);
    hello[8..10].copy_from_slice(&version.to_le_bytes());
    hello[10] = byte;
    hello
}

/// A client's hello.
pub fn client_hello(purpose: Purpose) -> [u8; HELLO_BYTES] {
    let mut hello = bytes(VERSION, purpose.number());
    if let Purpose::Resume(session) = purpose {
        hello[16..].copy_from_slice(&session);
    }
    hello
}

/// A server's hello.
pub fn server_hello(verdict: Verdict) -> [u8; HELLO_BYTES] {
    bytes(VERSION, verdict as u8)
}

fn parse(hello: &[u8; HELLO_BYTES]) -> Option<(u16, u8, SessionId)> {
    let is_hello = hello[..8] == MAGIC[..] && hello[11..16].iter().all(|byte| *byte == 0);
    let session = *hello.last_chunk()?;
    let version = u16::from_le_bytes([hello[8], hello[9]]);
    is_hello.then_some((version, hello[10], session))
}

/// What a client's hello asks for.
///
/// # Errors
/// The verdict to answer; `None` for bytes that are not a hello and get no answer.
pub fn read_client(hello: &[u8; HELLO_BYTES]) -> Result<Purpose, Option<Verdict>> {
    match parse(hello) {
        None => Err(None),
        Some((VERSION, 1, NO_SESSION)) => Ok(Purpose::Pair),
        Some((VERSION, 2, NO_SESSION)) => Ok(Purpose::Use),
        Some((VERSION, 3, session)) => Ok(Purpose::Resume(session)),
        Some((VERSION, ..)) => Err(None),
        Some(_) => Err(Some(Verdict::Version)),
    }
}

/// Says hello as a client and reads the answer.
///
/// # Errors
/// The server is not one, speaks another version or is busy.
pub fn shake(stream: &mut (impl Read + Write), purpose: Purpose) -> Result<(), RemoteError> {
    let lost = || RemoteError::network("no Mica server answers there");
    stream.write_all(&client_hello(purpose)).map_err(lost())?;
    let mut answer = [0; HELLO_BYTES];
    stream.read_exact(&mut answer).map_err(lost())?;
    match parse(&answer) {
        Some((_, byte, _)) if byte == Verdict::GoOn as u8 => Ok(()),
        Some((_, byte, _)) if byte == Verdict::Busy as u8 => Err(RemoteError::Busy),
        Some((_, byte, _)) if byte == Verdict::Gone as u8 => Err(RemoteError::Refused(
            "the server has ended the session".into(),
        )),
        Some((theirs, byte, _)) if byte == Verdict::Version as u8 => {
            Err(RemoteError::Protocol(format!(
                "the server speaks network protocol {}.{}, this mica {}.{}: use one version of Mica on both machines",
                theirs >> 8,
                theirs & 0xff,
                VERSION >> 8,
                VERSION & 0xff
            )))
        }
        _ => Err(RemoteError::Protocol(
            "what answers there is not a Mica server".into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_hellos_of_this_version_are_served() {
        let hello = client_hello(Purpose::Use);
        assert_eq!(read_client(&hello), Ok(Purpose::Use));
        for purpose in [Purpose::Pair, Purpose::Resume([9; 16])] {
            assert_eq!(read_client(&client_hello(purpose)), Ok(purpose));
        }
        for at in 0..HELLO_BYTES {
            let mut wrong = hello;
            wrong[at] ^= 0x80;
            let expected = match at {
                8 | 9 => Err(Some(Verdict::Version)),
                _ => Err(None),
            };
            assert_eq!(read_client(&wrong), expected, "byte {at}");
        }
    }
}
