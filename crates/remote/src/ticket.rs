//! Tickets: the right to a session in a virtual GPU, bound to the client that asked for it.

use crate::identity::Fingerprint;
use crate::{hex, unhex};

/// The key of one server: made when it starts, so that its tickets end with it.
pub type ServeKey = [u8; 32];

/// A key that nobody can guess.
///
/// # Errors
/// The system has no random bytes.
pub fn fresh_key() -> Result<ServeKey, crate::RemoteError> {
    crate::random()
}

fn seal(key: &ServeKey, client: &Fingerprint, token: &[u8; 16]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(client);
    hasher.update(token);
    hasher.finalize()
}

/// A ticket for a virtual GPU's token.
pub fn issue(key: &ServeKey, client: &Fingerprint, token: &[u8; 16]) -> String {
    hex(token) + &hex(seal(key, client, token).as_bytes())
}

/// The token of a ticket, if it is this client's and this server's.
pub fn check(key: &ServeKey, client: &Fingerprint, ticket: &str) -> Option<[u8; 16]> {
    let bytes: [u8; 48] = unhex(ticket)?.try_into().ok()?;
    let token: [u8; 16] = bytes[..16].try_into().ok()?;
    let sealed: [u8; 32] = bytes[16..].try_into().ok()?;
    // Hashes compare in constant time.
    (seal(key, client, &token) == blake3::Hash::from_bytes(sealed)).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_of_one_client_and_one_server() {
        let (key, client, token) = ([1; 32], [2; 32], [3; 16]);
        let ticket = issue(&key, &client, &token);
        assert_eq!(check(&key, &client, &ticket), Some(token));
        assert_eq!(check(&[9; 32], &client, &ticket), None);
        assert_eq!(check(&key, &[9; 32], &ticket), None);
        for at in 0..ticket.len() {
            let mut wrong = ticket.clone().into_bytes();
            wrong[at] = if wrong[at] == b'0' { b'1' } else { b'0' };
            let wrong = String::from_utf8(wrong).unwrap();
            assert_eq!(check(&key, &client, &wrong), None, "digit {at}");
        }
        assert_eq!(check(&key, &client, &ticket[2..]), None);
    }
}
