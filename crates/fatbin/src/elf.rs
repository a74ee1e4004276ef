//! Just enough of 64-bit little-endian ELF: the header and the sections.

use crate::bytes::{slice, u16_at, u32_at, u64_at};
use crate::error::{Error, Result};

pub(crate) const MAGIC: &[u8] = b"\x7fELF";
/// `EM_CUDA`.
const MACHINE_CUDA: u16 = 190;
const HEADER: u64 = 64;
const SECTION: u64 = 64;
/// A section that takes no room in the file.
const NOBITS: u32 = 8;

/// An ELF file's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    abi_version: u8,
    machine: u16,
    flags: u32,
    program_offset: u64,
    program_size: u16,
    program_count: u16,
    section_offset: u64,
    section_size: u16,
    section_count: u16,
    names_index: u16,
}

/// A section's name and contents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section<'a> {
    pub(crate) name: &'a str,
    pub(crate) data: &'a [u8],
}

impl Header {
    pub(crate) const LEN: usize = HEADER as usize;

    /// Reads the first 64 bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Header> {
        let h = slice(bytes, 0, HEADER, "an ELF header")?;
        if &h[..4] != MAGIC {
            return Err(Error::BadField {
                what: "ELF magic",
                value: u32_at(h, 0).into(),
            });
        }
        // Class 2 is 64 bits, data 1 is little-endian.
        if h[4] != 2 || h[5] != 1 {
            return Err(Error::BadField {
                what: "ELF class",
                value: u16_at(h, 4).into(),
            });
        }
        let header = Header {
            abi_version: h[8],
            machine: u16_at(h, 18),
            flags: u32_at(h, 48),
            program_offset: u64_at(h, 32),
            program_size: u16_at(h, 54),
            program_count: u16_at(h, 56),
            section_offset: u64_at(h, 40),
            section_size: u16_at(h, 58),
            section_count: u16_at(h, 60),
            names_index: u16_at(h, 62),
        };
        if header.section_count > 0 && u64::from(header.section_size) < SECTION {
            let value = header.section_size.into();
            return Err(Error::BadField {
                what: "ELF section header size",
                value,
            });
        }
        Ok(header)
    }

    pub(crate) fn is_cuda(&self) -> bool {
        self.machine == MACHINE_CUDA
    }

    /// The architecture a cubin is for. It moved by a byte with ABI version 8 (CUDA 13).
    pub(crate) fn sm(&self) -> u32 {
        if self.abi_version >= 8 {
            self.flags >> 8 & 0xff
        } else {
            self.flags & 0xff
        }
    }

    /// Where the table of section headers lies, and its size.
    pub(crate) fn section_table(&self) -> (u64, u64) {
        (
            self.section_offset,
            u64::from(self.section_count) * u64::from(self.section_size),
        )
    }

    /// The length of the file: as far as any header, table or section in `table` reaches.
    pub(crate) fn file_len(&self, table: &[u8]) -> u64 {
        let programs = u64::from(self.program_count) * u64::from(self.program_size);
        let (sections_at, sections) = self.section_table();
        let mut end = HEADER;
        if programs > 0 {
            end = end.max(self.program_offset.saturating_add(programs));
        }
        if sections > 0 {
            end = end.max(sections_at.saturating_add(sections));
        }
        for header in table.chunks_exact(usize::from(self.section_size).max(1)) {
            let kind = u32_at(header, 4);
            if kind != NOBITS && kind != 0 {
                end = end.max(u64_at(header, 24).saturating_add(u64_at(header, 32)));
            }
        }
        end
    }
}

/// Every section of a file. Sections without room in the file are empty.
pub(crate) fn sections(bytes: &[u8]) -> Result<Vec<Section<'_>>> {
    let header = Header::parse(bytes)?;
    let (at, len) = header.section_table();
    let table = slice(bytes, at, len, "the ELF section headers")?;
    let mut raw = Vec::new();
    for h in table.chunks_exact(usize::from(header.section_size).max(1)) {
        let kind = u32_at(h, 4);
        let data = if kind == NOBITS || kind == 0 {
            &[][..]
        } else {
            slice(bytes, u64_at(h, 24), u64_at(h, 32), "an ELF section")?
        };
        raw.push((u32_at(h, 0), data));
    }
    let names = raw
        .get(usize::from(header.names_index))
        .map_or(&[][..], |(_, data)| *data);
    let sections = raw.iter().map(|(name, data)| Section {
        name: string_at(names, *name),
        data,
    });
    Ok(sections.collect())
}

/// Names and sizes of the sections without room in the file.
pub(crate) fn nobits(bytes: &[u8]) -> Result<Vec<(&str, u64)>> {
    let header = Header::parse(bytes)?;
    let (at, len) = header.section_table();
    let table = slice(bytes, at, len, "the ELF section headers")?;
    let headers = || table.chunks_exact(usize::from(header.section_size).max(1));
    let names = match headers().nth(usize::from(header.names_index)) {
        Some(h) if u32_at(h, 4) != NOBITS => {
            slice(bytes, u64_at(h, 24), u64_at(h, 32), "the ELF section names")?
        }
        _ => &[],
    };
    let empty = headers().filter(|h| u32_at(h, 4) == NOBITS);
    Ok(empty
        .map(|h| (string_at(names, u32_at(h, 0)), u64_at(h, 32)))
        .collect())
}

/// The NUL-terminated string at `at`; empty when there is none or it is not text.
pub(crate) fn string_at(table: &[u8], at: u32) -> &str {
    let rest = table.get(at as usize..).unwrap_or(&[]);
    let end = rest.iter().position(|b| *b == 0).unwrap_or(rest.len());
    std::str::from_utf8(&rest[..end]).unwrap_or("")
}
