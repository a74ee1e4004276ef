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
/// The version of the protocol behind TLS, and the session protocol's in its lower half: both must agree.
pub const VERSION: u16 = 3 << 8 | mica_session_version();

const MAGIC: &[u8; 8] = b"mica-net";
const NO_SESSION: SessionId = [0; 16];

const fn mica_session_version() -> u16 {
    const { assert!(mica_tunnel::SESSION_VERSION < 256) };
    mica_tunnel::SESSION_VERSION as u16
}

/// What either side says when the other one has another version.
fn differ(server: u16, client: u16) -> String {
    let [server, client] = [server, client].map(|v| format!("{}.{}", v >> 8, v & 0xff));
    format!(
        "the server speaks network protocol {server}, the client {client}: use one version of Mica on both machines"
    )
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

/// Why a client's hello is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// These bytes are no hello, and get no answer.
    Nonsense,
    /// Versions differ, which is answered ([`Verdict::Version`]); a sentence for the log.
    Version(String),
}

/// What a client's hello asks for.
///
/// # Errors
/// Nothing that is served.
pub fn read_client(hello: &[u8; HELLO_BYTES]) -> Result<Purpose, Refused> {
    match parse(hello) {
        None => Err(Refused::Nonsense),
        Some((VERSION, 1, NO_SESSION)) => Ok(Purpose::Pair),
        Some((VERSION, 2, NO_SESSION)) => Ok(Purpose::Use),
        Some((VERSION, 3, session)) => Ok(Purpose::Resume(session)),
        Some((VERSION, ..)) => Err(Refused::Nonsense),
        Some((theirs, ..)) => Err(Refused::Version(differ(VERSION, theirs))),
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
            Err(RemoteError::Protocol(differ(theirs, VERSION)))
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
            let refused = read_client(&wrong).unwrap_err();
            let is_version = matches!(refused, Refused::Version(_));
            assert_eq!(is_version, matches!(at, 8 | 9), "byte {at}");
        }
    }

    /// What a client is answered, and nothing of what it sends.
    struct Answers(std::io::Cursor<Vec<u8>>);

    impl Read for Answers {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Write for Answers {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn told(answer: &[u8]) -> String {
        let mut answers = Answers(std::io::Cursor::new(answer.to_vec()));
        match shake(&mut answers, Purpose::Use) {
            Ok(()) => "go on".into(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn sides_of_different_versions_say_so_on_both_machines() {
        // An older client and this server: what the server logs.
        let mut older = client_hello(Purpose::Use);
        older[8..10].copy_from_slice(&(2_u16 << 8 | 7).to_le_bytes());
        let Err(Refused::Version(said)) = read_client(&older) else {
            panic!("it was served");
        };
        let own = format!("{}.{}", VERSION >> 8, VERSION & 0xff);
        let expected = format!("the server speaks network protocol {own}, the client 2.7: ");
        assert!(said.starts_with(&expected), "{said}");
        // This client and a newer server.
        let newer = bytes(4 << 8 | 1, Verdict::Version as u8);
        let said = told(&newer);
        let expected = format!("the server speaks network protocol 4.1, the client {own}: ");
        assert!(said.contains(&expected), "{said}");
        assert!(said.ends_with("use one version of Mica on both machines"));
    }

    #[test]
    fn a_client_says_what_a_server_answered() {
        assert_eq!(told(&server_hello(Verdict::GoOn)), "go on");
        assert_eq!(
            told(&server_hello(Verdict::Busy)),
            RemoteError::Busy.to_string()
        );
        assert!(told(&server_hello(Verdict::Gone)).contains("has ended the session"));
        assert!(told(&server_hello(Verdict::GoOn)[..31]).contains("no Mica server answers"));
        assert!(told(&[b'x'; 40]).contains("not a Mica server"));
        assert!(told(&bytes(VERSION, 9)).contains("not a Mica server"));
    }
}
