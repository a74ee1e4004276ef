//! How a program learns which virtual GPU it is in.

use std::path::PathBuf;

use crate::LinkError;

/// What `mica run` puts into a program's environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// The daemon's socket.
    pub socket: PathBuf,
    /// Capability to join the virtual GPU.
    pub token: [u8; 16],
}

impl Environment {
    /// Name of the variable with the socket's path.
    pub const SOCKET: &str = "MICA_HOST_SOCKET";
    /// Name of the variable with the token in hex.
    pub const TOKEN: &str = "MICA_TOKEN";

    /// Reads both variables; `None` if this process is in no virtual GPU.
    pub fn read() -> Option<Result<Self, LinkError>> {
        let socket = std::env::var_os(Self::SOCKET)?;
        let token = std::env::var(Self::TOKEN).unwrap_or_default();
        Some(match parse_token(&token) {
            Some(token) => Ok(Self {
                socket: socket.into(),
                token,
            }),
            None => Err(LinkError::Token),
        })
    }

    /// The token the variable holds; `None` if it is not 32 hexadecimal digits.
    pub fn parse_token(hex: &str) -> Option<[u8; 16]> {
        parse_token(hex)
    }

    /// The token as the variable holds it.
    pub fn token_hex(token: &[u8; 16]) -> String {
        token.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn parse_token(hex: &str) -> Option<[u8; 16]> {
    if hex.len() != 32 || !hex.is_ascii() {
        return None;
    }
    let mut token = [0; 16];
    for (byte, pair) in token.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(token)
}
