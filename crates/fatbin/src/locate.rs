//! How long an image in a program's memory is.
//!
//! CUDA hands over pointers without lengths: `cuModuleLoadData` takes a wrapper, a fatbin, a cubin,
//! an archive or PTX. Each says how long it is in its headers; PTX ends at a NUL.

use crate::archive;
use crate::bytes::{u16_at, u32_at, u64_at};
use crate::elf;
use crate::error::{Error, Result};
use crate::image::{FATBIN_HEADER, FATBIN_MAGIC, WRAPPER_MAGIC};

/// The memory that images lie in.
pub trait Memory {
    /// Copies bytes from `address` on into `into`, and says how many: fewer than asked for when it
    /// stops early, 0 when the first byte cannot be read.
    ///
    /// A reader of raw pointers must stop at the end of the page `address` is in: the search for
    /// the end of a text reads whole pages, and the next one may not exist.
    fn read(&self, address: u64, into: &mut [u8]) -> usize;
}

impl<F: Fn(u64, &mut [u8]) -> usize> Memory for F {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        self(address, into)
    }
}

/// Where an image lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its address.
    pub address: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// The longest image that is taken.
pub const MAX_IMAGE_BYTES: u64 = 4 << 30;
/// The most fatbins a wrapper may list.
const MAX_PRELINKED: u64 = 4096;
const WRAPPER: usize = 24;

/// Where the image at `address` lies and how long it is. A wrapper is followed: the fatbin it
/// points at comes first, then those it lists as linked with it.
///
/// # Errors
///
/// When memory cannot be read, or has no known format.
pub fn locate(memory: &dyn Memory, address: u64) -> Result<Vec<Region>> {
    let mut start = [0; WRAPPER];
    exact(memory, address, &mut start[..4], "an image")?;
    if u32_at(&start, 0) != WRAPPER_MAGIC {
        return Ok(vec![Region {
            address,
            len: image_len(memory, address)?,
        }]);
    }
    exact(memory, address, &mut start, "a fatbin wrapper")?;
    let version = u32_at(&start, 4);
    if !matches!(version, 1 | 2) {
        return Err(Error::BadField {
            what: "a fatbin wrapper's version",
            value: version.into(),
        });
    }
    let data = u64_at(&start, 8);
    let mut regions = vec![Region {
        address: data,
        len: image_len(memory, data)?,
    }];
    let list = u64_at(&start, 16);
    if version == 2 && list != 0 {
        for i in 0..=MAX_PRELINKED {
            let mut pointer = [0; 8];
            let at = list.wrapping_add(i * 8);
            exact(memory, at, &mut pointer, "a wrapper's list of fatbins")?;
            let address = u64_at(&pointer, 0);
            if address == 0 {
                break;
            }
            if i == MAX_PRELINKED {
                let limit = MAX_PRELINKED;
                return Err(Error::Limit {
                    what: "fatbins of a wrapper",
                    value: i,
                    limit,
                });
            }
            regions.push(Region {
                address,
                len: image_len(memory, address)?,
            });
        }
    }
    Ok(regions)
}

fn image_len(memory: &dyn Memory, address: u64) -> Result<u64> {
    let mut magic = [0; 8];
    let got = some(memory, address, &mut magic);
    let magic = &magic[..got];
    let len = if u32_at(magic, 0) == FATBIN_MAGIC {
        fatbin_len(memory, address)?
    } else if magic.starts_with(elf::MAGIC) {
        elf_len(memory, address)?
    } else if magic == archive::MAGIC {
        archive_len(memory, address)?
    } else {
        text_len(memory, address, magic)?
    };
    if len > MAX_IMAGE_BYTES {
        return Err(Error::Limit {
            what: "bytes of an image",
            value: len,
            limit: MAX_IMAGE_BYTES,
        });
    }
    Ok(len)
}

/// Reads as much as there is.
fn some(memory: &dyn Memory, address: u64, into: &mut [u8]) -> usize {
    let mut done = 0;
    while done < into.len() {
        let Some(at) = address.checked_add(done as u64) else {
            break;
        };
        let n = memory.read(at, &mut into[done..]).min(into.len() - done);
        if n == 0 {
            break;
        }
        done += n;
    }
    done
}

fn exact(memory: &dyn Memory, address: u64, into: &mut [u8], what: &'static str) -> Result<()> {
    if some(memory, address, into) == into.len() {
        return Ok(());
    }
    Err(Error::Unreadable {
        what,
        address,
        len: into.len() as u64,
    })
}

fn fatbin_len(memory: &dyn Memory, address: u64) -> Result<u64> {
    let mut header = [0; FATBIN_HEADER as usize];
    exact(memory, address, &mut header, "a fatbin header")?;
    let header_size = u64::from(u16_at(&header, 6)).max(FATBIN_HEADER);
    Ok(header_size.saturating_add(u64_at(&header, 8)))
}

fn elf_len(memory: &dyn Memory, address: u64) -> Result<u64> {
    let mut bytes = [0; elf::Header::LEN];
    exact(memory, address, &mut bytes, "an ELF header")?;
    let header = elf::Header::parse(&bytes)?;
    let (at, len) = header.section_table();
    // At most 65535 headers of at most 65535 bytes; only plausible ones are read.
    if len > 64 << 20 {
        let limit = 64 << 20;
        return Err(Error::Limit {
            what: "bytes of ELF section headers",
            value: len,
            limit,
        });
    }
    let mut table = vec![0; len as usize];
    let place = address.wrapping_add(at);
    exact(memory, place, &mut table, "the ELF section headers")?;
    Ok(header.file_len(&table))
}

fn archive_len(memory: &dyn Memory, address: u64) -> Result<u64> {
    let mut len = archive::MAGIC.len() as u64;
    // An archive does not say where it ends: it ends where no member's header follows.
    while len <= MAX_IMAGE_BYTES {
        let mut header = [0; archive::HEADER_LEN as usize];
        let got = some(memory, address.wrapping_add(len), &mut header);
        let Some(size) = archive::header_size(&header[..got]) else {
            break;
        };
        len = len
            .saturating_add(archive::HEADER_LEN)
            .saturating_add(size.checked_next_multiple_of(2).unwrap_or(u64::MAX));
    }
    Ok(len)
}

/// Text up to and with its NUL.
fn text_len(memory: &dyn Memory, address: u64, start: &[u8]) -> Result<u64> {
    let looks_like_text = |b: &u8| b.is_ascii_graphic() || b.is_ascii_whitespace() || *b >= 0x80;
    let visible = start.iter().take_while(|b| **b != 0).collect::<Vec<_>>();
    if visible.is_empty() || !visible.iter().all(|b| looks_like_text(b)) {
        return Err(Error::UnknownFormat {
            len: start.len(),
            start: start.to_vec(),
        });
    }
    let mut len = 0u64;
    let mut chunk = [0; 4096];
    while len <= MAX_IMAGE_BYTES {
        let Some(at) = address.checked_add(len) else {
            break;
        };
        let got = memory.read(at, &mut chunk).min(chunk.len());
        if got == 0 {
            break;
        }
        if let Some(end) = chunk[..got].iter().position(|b| *b == 0) {
            return Ok(len + end as u64 + 1);
        }
        len += got as u64;
    }
    Err(Error::Unreadable {
        what: "PTX without an end",
        address,
        len,
    })
}
