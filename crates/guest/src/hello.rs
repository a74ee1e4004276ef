//! The first bytes of a stream: who asks for what, and the answer. All of it is bounded before it is read.

use std::io::{Read, Write};

use mica_tunnel::SESSION_VERSION;
use mica_wire::session::IvshmemId;

use crate::GuestError;

/// First bytes of every stream.
const MAGIC: [u8; 8] = *b"mica-vm\0";
/// Bytes of a hello.
const HELLO_BYTES: usize = 24;
/// Most bytes of an answer.
pub const MOST_ANSWER_BYTES: usize = 1 << 20;

/// The purpose [`Purpose::InIvshmem`] as it travels.
const IN_IVSHMEM: u32 = 3;

const ACCEPTED: u8 = 0;
const REFUSED: u8 = 1;

/// What a stream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The session of one program; frames follow the answer.
    Session,
    /// The session of one program in this ivshmem file; bytes that wake follow the answer.
    InIvshmem(IvshmemId),
    /// The answer describes the virtual GPU.
    Describe,
}

/// What a guest says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Version of the session protocol.
    pub version: u32,
    /// What the stream is for.
    pub purpose: Purpose,
    /// Number of the program's process in the guest, for logs.
    pub pid: u32,
}

impl Hello {
    /// The hello of this version.
    pub fn new(purpose: Purpose, pid: u32) -> Self {
        Self {
            version: SESSION_VERSION,
            purpose,
            pid,
        }
    }

    /// The bytes that travel: magic, version, purpose, process, four that are zero, and the ivshmem file's name where there is
    /// one.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = self.head().to_vec();
        if let Purpose::InIvshmem(id) = self.purpose {
            bytes.extend(id);
        }
        bytes
    }

    fn head(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        let purpose: u32 = match self.purpose {
            Purpose::Session => 1,
            Purpose::Describe => 2,
            Purpose::InIvshmem(_) => IN_IVSHMEM,
        };
        bytes[12..16].copy_from_slice(&purpose.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.pid.to_le_bytes());
        bytes
    }

    /// Receives a hello.
    ///
    /// # Errors
    /// The bytes are none, or of another version, which is said.
    pub fn receive(mut stream: impl Read) -> Result<Self, GuestError> {
        let missing = || GuestError::system("no hello came");
        let mut bytes = [0; HELLO_BYTES];
        stream.read_exact(&mut bytes).map_err(missing())?;
        let mut hello = Self::from_bytes(&bytes)?;
        if let Purpose::InIvshmem(id) = &mut hello.purpose {
            stream.read_exact(id).map_err(missing())?;
        }
        Ok(hello)
    }

    /// Reads the part of a hello that all have.
    fn from_bytes(bytes: &[u8; HELLO_BYTES]) -> Result<Self, GuestError> {
        let word = |at: usize| {
            let four = bytes[at..].first_chunk().copied().unwrap_or_default();
            u32::from_le_bytes(four)
        };
        if bytes[..8] != MAGIC {
            return Err(GuestError::Protocol(
                "this is not a hello of a guest".into(),
            ));
        }
        let version = word(8);
        if version != SESSION_VERSION {
            return Err(GuestError::Protocol(format!(
                "the guest speaks session version {version}, the host {SESSION_VERSION}: use one version of Mica for both"
            )));
        }
        let purpose = match word(12) {
            1 => Purpose::Session,
            2 => Purpose::Describe,
            IN_IVSHMEM => Purpose::InIvshmem(IvshmemId::default()),
            other => {
                let text = format!("a guest asks for {other}, which nothing is");
                return Err(GuestError::Protocol(text));
            }
        };
        if word(20) != 0 {
            let text = "the last bytes of a guest's hello are not zero";
            return Err(GuestError::Protocol(text.into()));
        }
        Ok(Self {
            version,
            purpose,
            pid: word(16),
        })
    }
}

/// Sends an answer: accepted with some text, or refused with the reason.
pub(crate) fn answer(mut stream: impl Write, text: Result<&str, &str>) -> std::io::Result<()> {
    let (word, text) = match text {
        Ok(text) => (ACCEPTED, text),
        Err(why) => (REFUSED, why),
    };
    let text = text.as_bytes();
    let text = &text[..text.len().min(MOST_ANSWER_BYTES)];
    let mut bytes = vec![word];
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text);
    stream.write_all(&bytes)
}

/// Receives an answer.
pub(crate) fn receive_answer(mut stream: impl Read) -> Result<String, GuestError> {
    let lost = || GuestError::system("the host does not answer");
    let mut head = [0; 5];
    stream.read_exact(&mut head).map_err(lost())?;
    let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if length > MOST_ANSWER_BYTES || head[0] > REFUSED {
        let text = "the host's answer is none: is `mica vm serve` at the other end?";
        return Err(GuestError::Protocol(text.into()));
    }
    let mut text = vec![0; length];
    stream.read_exact(&mut text).map_err(lost())?;
    let text = String::from_utf8_lossy(&text).into_owned();
    match head[0] {
        ACCEPTED => Ok(text),
        _ => Err(GuestError::Refused(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_survives_and_a_damaged_one_is_refused() {
        let ivshmem = Purpose::InIvshmem(*b"0123456789abcdef");
        for purpose in [Purpose::Session, Purpose::Describe, ivshmem] {
            let hello = Hello::new(purpose, 4711);
            let bytes = hello.to_bytes();
            assert_eq!(Hello::receive(&bytes[..]).unwrap(), hello);
            assert!(Hello::receive(&bytes[..bytes.len() - 1]).is_err());
            for at in (0..16).chain(20..HELLO_BYTES) {
                let mut damaged = bytes.clone();
                damaged[at] ^= 0x40;
                assert!(Hello::receive(&damaged[..]).is_err(), "byte {at}");
            }
        }
        let mut newer = Hello::new(Purpose::Session, 1).to_bytes();
        newer[8] ^= 1;
        let said = Hello::receive(&newer[..]).unwrap_err().to_string();
        assert!(said.contains("use one version of Mica for both"), "{said}");
    }

    #[test]
    fn answers_survive_and_long_ones_are_refused() {
        let mut bytes = Vec::new();
        answer(&mut bytes, Ok("all about it")).unwrap();
        assert_eq!(receive_answer(&bytes[..]).unwrap(), "all about it");
        bytes.clear();
        answer(&mut bytes, Err("no")).unwrap();
        let said = receive_answer(&bytes[..]).unwrap_err().to_string();
        assert_eq!(said, "the host refuses: no");
        assert!(receive_answer(&[0, 255, 255, 255, 255][..]).is_err());
        assert!(receive_answer(&[7, 0, 0, 0, 0][..]).is_err());
        assert!(receive_answer(&bytes[..bytes.len() - 1]).is_err());
    }
}
