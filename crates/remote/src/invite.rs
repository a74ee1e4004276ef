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
                address: with_port(address)?,
                fingerprint,
                secret,
            }),
            _ => Err(wrong()),
        }
    }
}

/// An address with a port: the default one if it has none.
///
/// # Errors
/// It is neither `HOST`, `HOST:PORT`, an IPv6 address nor one in brackets with or without a port.
pub fn with_port(address: &str) -> Result<String, RemoteError> {
    let wrong = |why: &str| RemoteError::Usage(format!("{address:?} is not an address: {why}"));
    let port = |text: &str| match text.parse::<u16>() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(wrong("its port is not a number from 1 to 65535")),
    };
    let with = |host: String, port: u16| Ok(format!("{host}:{port}"));
    if address.is_empty() || address.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(wrong("it is empty or has spaces"));
    }
    let is_v6 = |text: &str| text.parse::<std::net::Ipv6Addr>().is_ok();
    if is_v6(address) {
        return with(format!("[{address}]"), DEFAULT_PORT);
    }
    if let Some(rest) = address.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').unwrap_or(("", ""));
        return match rest.strip_prefix(':') {
            _ if !is_v6(host) => Err(wrong("there is no IPv6 address in the brackets")),
            Some(number) => with(format!("[{host}]"), port(number)?),
            None if rest.is_empty() => with(format!("[{host}]"), DEFAULT_PORT),
            None => Err(wrong("something other than a port follows the brackets")),
        };
    }
    match address.split_once(':') {
        None => with(address.to_owned(), DEFAULT_PORT),
        Some(("", _)) => Err(wrong("it has no host")),
        Some((host, number)) => with(host.to_owned(), port(number)?),
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
            assert_eq!(with_port(given).unwrap(), whole);
            assert_eq!(with_port(whole).unwrap(), whole);
        }
        for wrong in [
            "", "box:", ":80", "box:x", "box:0", "a b", "b91:x73o", "[::1", "[::1]80", "[box]:80",
            "a:b:c",
        ] {
            let error = with_port(wrong).unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong:?}")), "{error}");
        }
    }
}
