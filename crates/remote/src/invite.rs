//! The string that pairs two machines: where the server is, what its certificate is, and a secret that works once.
//!
//! `mica1-HOST:PORT-FINGERPRINT-SECRET`, the last two in hexadecimal digits.

use crate::identity::Fingerprint;
use crate::{DEFAULT_PORT, RemoteError, hex, unhex};

/// Bytes of the secret.
pub const SECRET_BYTES: usize = 16;

/// A secret that nobody can guess.
///
/// # Errors
/// The system has no random bytes.
pub fn secret() -> Result<[u8; SECRET_BYTES], RemoteError> {
    crate::random()
}

/// A pairing string, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invite {
    /// Host and port.
    pub address: String,
    /// The server's certificate's.
    pub fingerprint: Fingerprint,
    /// What works once.
    pub secret: [u8; SECRET_BYTES],
}

impl Invite {
    /// The string.
    pub fn to_text(&self) -> String {
        let (fingerprint, secret) = (hex(&self.fingerprint), hex(&self.secret));
        format!("mica1-{}-{fingerprint}-{secret}", self.address)
    }

    /// Takes a string apart.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Self, RemoteError> {
        let wrong = || {
            let text = "this is not a pairing string: copy all of what `mica remote invite` printed, from mica1- on";
            RemoteError::Usage(text.into())
        };
        let rest = text.trim().strip_prefix("mica1-").ok_or_else(wrong)?;
        let (rest, secret) = rest.rsplit_once('-').ok_or_else(wrong)?;
        let (address, fingerprint) = rest.rsplit_once('-').ok_or_else(wrong)?;
        let fingerprint = unhex(fingerprint).and_then(|bytes| bytes.try_into().ok());
        let secret = unhex(secret).and_then(|bytes| bytes.try_into().ok());
        match (fingerprint, secret) {
            (Some(fingerprint), Some(secret)) if !address.is_empty() => Ok(Self {
                address: with_port(address),
                fingerprint,
                secret,
            }),
            _ => Err(wrong()),
        }
    }
}

/// An address with a port: the default one if it has none.
pub fn with_port(address: &str) -> String {
    let is_bare_v6 = address.matches(':').count() > 1 && !address.starts_with('[');
    match address.rsplit_once(':') {
        Some((_, port)) if !is_bare_v6 && port.parse::<u16>().is_ok() => address.to_owned(),
        _ if is_bare_v6 => format!("[{address}]:{DEFAULT_PORT}"),
        _ => format!("{address}:{DEFAULT_PORT}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_survive_and_others_are_refused() {
        let invite = Invite {
            address: "gpu-box.lan:4000".into(),
            fingerprint: [7; 32],
            secret: [9; SECRET_BYTES],
        };
        let text = invite.to_text();
        assert_eq!(Invite::parse(&format!("  {text}\n")).unwrap(), invite);
        for wrong in [
            "",
            "mica1-",
            &text[6..],
            &text[..text.len() - 2],
            "mica1-a-b-c",
        ] {
            assert!(Invite::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn addresses_without_a_port_get_one() {
        for (given, whole) in [
            ("box", "box:9731"),
            ("box:80", "box:80"),
            ("::1", "[::1]:9731"),
            ("[::1]:80", "[::1]:80"),
            ("[::1]", "[::1]:9731"),
        ] {
            assert_eq!(with_port(given), whole);
        }
    }
}
