//! Random tokens, and what is kept of them.

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

/// Bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// 256 random bits; nothing where the system has none to give.
pub(super) fn random() -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(bytes)
}

/// A token that nobody can guess, in hex.
pub(crate) fn new_token() -> Option<String> {
    random().map(|bytes| hex(&bytes))
}

/// What the configuration keeps of a token.
///
/// Tokens are random and long, so that a plain hash is enough: there is nothing to guess.
pub(crate) fn digest_of(token: &str) -> String {
    hex(digest(&SHA256, token.as_bytes()).as_ref())
}

/// Whether two texts are equal, in a time that does not tell where they differ.
pub(super) fn same(a: &str, b: &str) -> bool {
    let pairs = a.bytes().zip(b.bytes());
    a.len() == b.len() && pairs.fold(0, |all, (a, b)| all | (a ^ b)) == 0
}
