//! One piece of code in a container.

use std::borrow::Cow;

use crate::bytes::{slice, u16_at, u32_at, u64_at};
use crate::decompress;
use crate::error::{Error, Result};

/// What a piece of code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// Text for a virtual architecture.
    Ptx,
    /// Machine code for a real one, in ELF.
    Cubin,
    /// Intermediate code for link-time optimization.
    LtoIr,
    /// Something else.
    Other(u16),
}

/// How a piece is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Compression {
    None,
    Lz4,
    Zstd,
}

/// One piece of code: what it is, what it is for, and its bytes, perhaps compressed.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// What it is.
    pub kind: EntryKind,
    /// The architecture, such as 80; 0 when not known.
    pub sm: u32,
    /// `a` when it is for exactly that architecture, `f` for its family.
    pub suffix: Option<char>,
    /// The version of the format: of PTX the ISA's, such as `(8, 7)`.
    pub version: (u16, u16),
    /// The flags as they stand in the header.
    pub flags: u64,
    /// How it is compressed.
    pub compression: Compression,
    /// The source file's name, when the container has it.
    pub name: Option<String>,
    /// Bytes as stored.
    data: &'a [u8],
    /// Bytes once decompressed; 0 when not compressed.
    uncompressed_size: u64,
    /// Where in the decompressed bytes this piece lies, when it shares them with others.
    part: Option<(u64, u64)>,
}

const FLAG_LZ4: u64 = 0x2000;
const FLAG_ZSTD: u64 = 0x8000;
const FLAG_ARCH_SPECIFIC: u64 = 0x10_0000;
const FLAG_FAMILY_SPECIFIC: u64 = 0x20_0000;
const FLAG_DEBUG: u64 = 0x2;

/// The fixed part of an entry's header.
const FIXED: u64 = 64;
/// Several entries compressed together.
const KIND_GROUP: u16 = 0x100;
/// More entries than any group has.
const MAX_GROUP: u32 = 4096;

fn kind_of(raw: u16) -> EntryKind {
    match raw {
        1 => EntryKind::Ptx,
        2 => EntryKind::Cubin,
        8 => EntryKind::LtoIr,
        other => EntryKind::Other(other),
    }
}

impl<'a> Entry<'a> {
    /// Reads the entry at `offset` of a fatbin, adds what it holds, and gives the next offset.
    pub(crate) fn read(bytes: &'a [u8], offset: u64, into: &mut Vec<Entry<'a>>) -> Result<u64> {
        let fixed = slice(bytes, offset, FIXED, "a fatbin entry's header")?;
        let header_size = u64::from(u32_at(fixed, 4));
        if header_size < FIXED {
            return Err(Error::BadField {
                what: "a fatbin entry's header size",
                value: header_size,
            });
        }
        let header = slice(bytes, offset, header_size, "a fatbin entry's header")?;
        let padded = u64::from(u32_at(fixed, 8));
        let data = slice(bytes, offset + header_size, padded, "a fatbin entry")?;
        let next = offset + header_size + padded;
        let compressed = u64::from(u32_at(fixed, 16));
        let flags = u64_at(fixed, 40);
        let compression = if flags & FLAG_ZSTD != 0 {
            Compression::Zstd
        } else if flags & FLAG_LZ4 != 0 {
            Compression::Lz4
        } else {
            Compression::None
        };
        let stored = match compression {
            Compression::None => data,
            _ => slice(data, 0, compressed, "a compressed fatbin entry")?,
        };
        let uncompressed_size = u64_at(fixed, 56);
        if u16_at(fixed, 0) == KIND_GROUP {
            group(header, stored, compression, uncompressed_size, into)?;
            return Ok(next);
        }
        into.push(Entry {
            data: stored,
            compression,
            uncompressed_size,
            name: name_of(header),
            part: None,
            ..Entry::of(fixed)
        });
        Ok(next)
    }

    /// What a header's fixed part says about the code.
    fn of(fixed: &[u8]) -> Entry<'a> {
        let flags = u64_at(fixed, 40);
        let suffix = if flags & FLAG_ARCH_SPECIFIC != 0 {
            Some('a')
        } else if flags & FLAG_FAMILY_SPECIFIC != 0 {
            Some('f')
        } else {
            None
        };
        Entry {
            kind: kind_of(u16_at(fixed, 0)),
            sm: u32_at(fixed, 28),
            suffix,
            version: (u16_at(fixed, 26), u16_at(fixed, 24)),
            flags,
            compression: Compression::None,
            name: None,
            data: &[],
            uncompressed_size: 0,
            part: None,
        }
    }

    /// An entry that is the whole of some bytes.
    pub(crate) fn whole(kind: EntryKind, sm: u32, suffix: Option<char>, data: &'a [u8]) -> Self {
        Entry {
            kind,
            sm,
            suffix,
            data,
            ..Entry::of(&[])
        }
    }

    /// The code itself, decompressed if need be. PTX ends before its first NUL.
    ///
    /// # Errors
    ///
    /// When it would be larger than `limit` bytes, or does not decompress.
    pub fn payload(&self, limit: u64) -> Result<Cow<'a, [u8]>> {
        let size = self.uncompressed_size;
        let mut bytes = match self.compression {
            Compression::None => Cow::Borrowed(self.data),
            Compression::Lz4 => Cow::Owned(decompress::lz4(self.data, size, limit)?),
            Compression::Zstd => Cow::Owned(decompress::zstd(self.data, size, limit)?),
        };
        if let Some((offset, len)) = self.part {
            slice(&bytes, offset, len, "a part of a group")?;
            let range = offset as usize..(offset + len) as usize;
            bytes = match bytes {
                Cow::Borrowed(b) => Cow::Borrowed(&b[range]),
                Cow::Owned(b) => Cow::Owned(b[range].to_vec()),
            };
        }
        if self.kind == EntryKind::Ptx {
            let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
            bytes = match bytes {
                Cow::Borrowed(b) => Cow::Borrowed(&b[..end]),
                Cow::Owned(mut b) => {
                    b.truncate(end);
                    Cow::Owned(b)
                }
            };
        }
        Ok(bytes)
    }

    /// Most bytes that [`Entry::payload`] deals with, as far as the container says: the decompressed bytes, and a
    /// part of them that is copied out.
    pub fn payload_bytes(&self) -> u64 {
        let whole = match self.compression {
            Compression::None => self.data.len() as u64,
            Compression::Lz4 | Compression::Zstd => self.uncompressed_size,
        };
        whole.saturating_add(self.part.map_or(0, |(_, len)| len))
    }

    /// Bytes as stored in the container.
    pub fn stored_len(&self) -> usize {
        self.data.len()
    }

    /// Whether it was compiled for debugging.
    pub fn is_debug(&self) -> bool {
        self.flags & FLAG_DEBUG != 0
    }

    /// `compute_80` for PTX and intermediate code, `sm_90a` for machine code.
    pub fn arch(&self) -> String {
        let prefix = if self.kind == EntryKind::Cubin {
            "sm"
        } else {
            "compute"
        };
        match (self.sm, self.suffix) {
            (0, _) => format!("{prefix}_?"),
            (sm, Some(suffix)) => format!("{prefix}_{sm}{suffix}"),
            (sm, None) => format!("{prefix}_{sm}"),
        }
    }
}

/// The source file's name, which lies in the variable part of the header.
fn name_of(header: &[u8]) -> Option<String> {
    let at = u64::from(u32_at(header, 32));
    let len = u64::from(u32_at(header, 36));
    if len == 0 || at < FIXED {
        return None;
    }
    let name = slice(header, at, len, "a name").ok()?;
    Some(String::from_utf8_lossy(name).into_owned())
}

/// A group: `u32 count, u32 bytes`, then headers whose sizes place them in the common bytes.
fn group<'a>(
    header: &[u8],
    data: &'a [u8],
    compression: Compression,
    uncompressed_size: u64,
    into: &mut Vec<Entry<'a>>,
) -> Result<()> {
    let at = u64::from(u32_at(header, 20));
    let head = slice(header, at, 8, "a fatbin group")?;
    let count = u32_at(head, 0);
    if count > MAX_GROUP {
        let (value, limit) = (count.into(), MAX_GROUP.into());
        return Err(Error::Limit {
            what: "entries of a fatbin group",
            value,
            limit,
        });
    }
    for i in 0..u64::from(count) {
        let fixed = slice(header, at + 8 + i * FIXED, FIXED, "a fatbin group's entry")?;
        let part = (u64::from(u32_at(fixed, 4)), u64::from(u32_at(fixed, 8)));
        into.push(Entry {
            data,
            compression,
            uncompressed_size,
            part: Some(part),
            ..Entry::of(fixed)
        });
    }
    Ok(())
}
