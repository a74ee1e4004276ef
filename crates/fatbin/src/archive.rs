//! `ar` archives: members and their names.

use crate::bytes::slice;
use crate::error::{Error, Result};

pub(crate) const MAGIC: &[u8] = b"!<arch>\n";
const HEADER: usize = 60;

/// A member of an archive.
pub(crate) struct Member<'a> {
    pub(crate) data: &'a [u8],
}

/// Every member with contents (not the symbol and name tables).
pub(crate) fn members(bytes: &[u8]) -> Result<Vec<Member<'_>>> {
    let mut list = Vec::new();
    let mut at = MAGIC.len() as u64;
    while at < bytes.len() as u64 {
        let header = slice(bytes, at, HEADER as u64, "an archive member's header")?;
        let text = std::str::from_utf8(&header[48..58]).unwrap_or("").trim();
        let size: u64 = text.parse().map_err(|_| Error::BadField {
            what: "the size of an archive member",
            value: at,
        })?;
        let data = slice(bytes, at + HEADER as u64, size, "an archive member")?;
        let name = String::from_utf8_lossy(&header[..16]);
        let name = name.trim_end();
        if name != "/" && name != "//" && name != "/SYM64/" {
            list.push(Member { data });
        }
        // Members start at even offsets.
        at = at
            .saturating_add(HEADER as u64)
            .saturating_add(size.next_multiple_of(2));
    }
    Ok(list)
}

/// The length of an archive whose members' sizes are given in order, as far as they are whole.
pub(crate) fn header_size(header: &[u8]) -> Option<u64> {
    if header.len() < HEADER || &header[58..60] != b"`\n" {
        return None;
    }
    std::str::from_utf8(&header[48..58])
        .ok()?
        .trim()
        .parse()
        .ok()
}

pub(crate) const HEADER_LEN: u64 = HEADER as u64;
