//! A virtual GPU on another machine.
//!
//! ```text
//!   laptop                                        workstation
//!   mica run --on HOST                            mica serve --listen ADDR
//!     program ── unix socket ── near end             listener: accepts, reads 32 bytes, limits rates
//!                                  │                    └─► one process a connection: TLS, then one request
//!                                  ╞══ Run: a virtual GPU while the connection lives ══► daemon: create, remove
//!                                  ╘══ Session: one a program process ══► far end ── socket ── confined worker
//! ```
//!
//! Both sides have a key and a certificate of their own making ([`identity`]). Pairing ([`invite`]) tells each the other's
//! certificate; from then on each accepts that certificate and no other. Nothing of a peer without one is read but 32
//! bytes and the TLS handshake. What a client may have is written beside its certificate on the server; the ticket that
//! a session needs is bound to the certificate of the client that asked for the virtual GPU ([`ticket`]).
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod allowed;
pub mod client;
pub mod folder;
pub mod handover;
pub mod hello;
pub mod identity;
pub mod invite;
pub mod listener;
pub mod loopback;
pub mod message;
pub mod records;
pub mod resume;
pub mod server;
mod setup;
mod shake;
pub mod ticket;
pub mod tls;

/// The port that is used where none is named.
pub const DEFAULT_PORT: u16 = 9731;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// A file of keys or peers.
    #[error("{path}: {what}")]
    File {
        /// Which.
        path: std::path::PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The network.
    #[error("{what}")]
    Network {
        /// What was tried.
        what: String,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// The other side is not who it should be, or does not accept us.
    #[error("{0}")]
    Refused(String),
    /// The other side speaks another version or nonsense.
    #[error("{0}")]
    Protocol(String),
    /// The server has too many connections; another try may succeed.
    #[error("the server has too many connections: try again")]
    Busy,
    /// What a person typed.
    #[error("{0}")]
    Usage(String),
}

impl RemoteError {
    pub(crate) fn file(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self::File {
            path: path.to_owned(),
            what: error.to_string(),
        }
    }

    pub(crate) fn network(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Network { what, source }
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes that hexadecimal digits say; `None` if they are none.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len() / 2)
        .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok())
        .collect()
}

/// Bytes that nobody can guess.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], RemoteError> {
    let mut bytes = [0; N];
    let provider = rustls::crypto::ring::default_provider();
    let filled = provider.secure_random.fill(&mut bytes);
    filled.map_err(|_| RemoteError::Protocol("the system has no random bytes".into()))?;
    Ok(bytes)
}
