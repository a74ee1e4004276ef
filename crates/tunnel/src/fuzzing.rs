//! What the fuzz target `net` calls with any bytes: not for other use.

use crate::frame::{HEADER_BYTES, Header};
use crate::near::fuzzing::told;
use crate::piece_store::fuzzing::index;
use crate::pieces::{Named, named};

/// Reads a frame as one that may name a piece, a list of pieces, and an index from a disk.
///
/// # Panics
/// Where what was read does not hold together.
pub fn pieces(bytes: &[u8]) {
    told(bytes);
    index(bytes);
    let Some((header, data)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return;
    };
    let Ok(header) = Header::parse(header) else {
        return;
    };
    if let Ok((rest, piece)) = named(&header, data) {
        let hash = match piece {
            Named::No => 0,
            Named::Here(_) | Named::Known(_) => 32,
        };
        assert_eq!(rest.len() + hash, data.len());
    }
}
