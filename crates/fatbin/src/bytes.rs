//! Little-endian fields of a byte slice, never past its end.

use crate::error::{Error, Result};

/// `len` bytes at `offset`.
pub(crate) fn slice<'a>(
    bytes: &'a [u8],
    offset: u64,
    len: u64,
    what: &'static str,
) -> Result<&'a [u8]> {
    let whole = || {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        bytes.get(start..end)
    };
    whole().ok_or(Error::Truncated {
        what,
        offset,
        needed: len,
    })
}

/// The field at `at`; 0 past the end. For use on slices whose length was checked.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u64_of(bytes, at, 2) as u16
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u64_of(bytes, at, 4) as u32
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64_of(bytes, at, 8)
}

fn u64_of(bytes: &[u8], at: usize, len: usize) -> u64 {
    let field = at
        .checked_add(len)
        .and_then(|end| bytes.get(at..end))
        .unwrap_or(&[]);
    field
        .iter()
        .rev()
        .fold(0, |value, b| value << 8 | u64::from(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_little_endian_and_bounded() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(u16_at(&bytes, 0), 0x0201);
        assert_eq!(u32_at(&bytes, 4), 0x0807_0605);
        assert_eq!(u64_at(&bytes, 1), 0);
        assert_eq!(u32_at(&bytes, usize::MAX), 0);
        assert!(slice(&bytes, 4, 4, "x").is_ok());
        assert!(slice(&bytes, 4, 5, "x").is_err());
        assert!(slice(&bytes, u64::MAX, u64::MAX, "x").is_err());
    }
}
