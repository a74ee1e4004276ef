//! Pieces: the parts in which a program uploads much, known by their hash.
//!
//! A piece is what fills a staging chunk. It travels with its hash where the far end keeps pieces, and as its hash alone
//! where the far end has it:
//!
//! ```text
//!   near                                                      far
//!     ◄──────────────────────────────────────── PiecesOffer     I keep pieces
//!     PiecesAsk ──────────────────────────────►                 once much was sent, and only over a slow link
//!     ◄──────────────────────────────────────── PiecesKnown     the first 8 bytes of each hash
//!     … ·HASHED: bytes, hash ─────────────────►                 written to disk beside the session
//!     ◄──────────────────────────────────────── PiecesKnown     of what was written
//!     … ·KNOWN: hash ─────────────────────────►                 read from disk, compared with the hash
//!     ◄──────────────────────────────────────── PieceWanted     the rare one that is not there any more, or damaged
//!     PieceData ──────────────────────────────►
//!     ◄──────────────────────────────────────── Credit          so many known pieces were found: forget them
//! ```
//! The near end hashes its own copy of the bytes, which it keeps until the far end has found the piece: the program may change its
//! memory at any time. What the far end says that it knows is a hint; the whole hash decides.

use mica_wire::session::CHUNK_BYTES;

use crate::TunnelError;
use crate::frame::{HASHED, Header, KNOWN, LZ4};

/// Bytes of a piece.
pub(crate) const PIECE_BYTES: usize = CHUNK_BYTES;
/// What names a piece.
pub(crate) type Hash = [u8; 32];

/// A pieces' first eight bytes of the hash, as they are told.
pub(crate) fn prefix(hash: &Hash) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *hash;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// The hash of bytes.
pub(crate) fn hash_of(bytes: &[u8]) -> Hash {
    *blake3::hash(bytes).as_bytes()
}

/// What a frame says of its piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named<'a> {
    /// The bytes are no piece, or none that is kept.
    No,
    /// The bytes are the piece with this hash.
    Here(&'a Hash),
    /// The far end has the piece with this hash.
    Known(&'a Hash),
}

/// The data of a frame without the hash at its end, and what the frame says of its piece.
///
/// # Errors
/// There is no hash, or there is data beside a piece that is known.
pub(crate) fn named<'a>(
    header: &Header,
    data: &'a [u8],
) -> Result<(&'a [u8], Named<'a>), TunnelError> {
    let flags = header.flags & (HASHED | KNOWN);
    if flags == 0 {
        return Ok((data, Named::No));
    }
    let (data, hash) = (data.split_last_chunk())
        .ok_or_else(|| TunnelError::protocol("a piece without its hash"))?;
    match flags {
        HASHED => Ok((data, Named::Here(hash))),
        KNOWN if header.flags & LZ4 == 0 => Ok((data, Named::Known(hash))),
        _ => Err(TunnelError::protocol("a piece that is known and sent")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Kind;

    #[test]
    fn a_hash_is_where_the_flags_say() {
        let with = |flags| Header {
            flags,
            ..Header::new(Kind::Staged, 0, 0)
        };
        let mut data = b"bytes".to_vec();
        assert_eq!(named(&with(0), &data).unwrap(), (&data[..], Named::No));
        for flags in [HASHED, KNOWN] {
            assert!(named(&with(flags), &data).is_err(), "too short");
        }
        data.extend([7; 32]);
        let hash = [7; 32];
        let here = named(&with(HASHED | LZ4), &data).unwrap();
        assert_eq!(here, (&b"bytes"[..], Named::Here(&hash)));
        let known = named(&with(KNOWN), &data).unwrap();
        assert_eq!(known, (&b"bytes"[..], Named::Known(&hash)));
        assert!(named(&with(KNOWN | HASHED), &data).is_err());
        assert!(named(&with(KNOWN | LZ4), &data).is_err());
    }
}
