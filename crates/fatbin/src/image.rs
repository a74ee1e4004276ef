//! What is inside an image, and which piece suits a device.

use crate::archive;
use crate::bytes::{slice, u16_at, u32_at, u64_at};
use crate::elf;
use crate::entry::{Entry, EntryKind};
use crate::error::{Error, Result};

/// How an image is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// A fatbin.
    Fatbin,
    /// A cubin: ELF of the CUDA machine.
    Cubin,
    /// An ELF object or program of the host that carries fatbins.
    HostElf,
    /// An `ar` archive of any of these.
    Archive,
    /// PTX text.
    Ptx,
}

/// The pieces of code in an image.
///
/// ```
/// let ptx = b".version 8.0\n.target sm_80\n.address_size 64\n\0";
/// let image = mica_fatbin::Image::parse(ptx).unwrap();
/// let entry = image.select_ptx(80).unwrap();
/// assert_eq!(entry.arch(), "compute_80");
/// assert!(image.select_ptx(75).is_none());
/// ```
#[derive(Clone, Debug)]
pub struct Image<'a> {
    /// How it is packed.
    pub format: Format,
    /// What is in it, in order.
    pub entries: Vec<Entry<'a>>,
}

pub(crate) const WRAPPER_MAGIC: u32 = 0x4662_43b1;
pub(crate) const FATBIN_MAGIC: u32 = 0xba55_ed50;
pub(crate) const FATBIN_HEADER: u64 = 16;
/// More entries than any image has.
const MAX_ENTRIES: usize = 1 << 16;

impl<'a> Image<'a> {
    /// Recognizes an image and lists what is inside. Nothing is decompressed yet.
    ///
    /// # Errors
    ///
    /// When the bytes are no known format, or end too early. A fatbin wrapper is refused: it is
    /// not an image but points at one; see [`crate::locate`].
    pub fn parse(bytes: &'a [u8]) -> Result<Image<'a>> {
        if u32_at(bytes, 0) == WRAPPER_MAGIC {
            return Err(Error::Wrapper);
        }
        let mut entries = Vec::new();
        let format = if bytes.starts_with(archive::MAGIC) {
            for member in archive::members(bytes)? {
                // Members that hold no GPU code are not worth an error.
                let before = entries.len();
                if one(member.data, &mut entries).is_err() {
                    entries.truncate(before);
                }
            }
            Format::Archive
        } else {
            one(bytes, &mut entries)?
        };
        Ok(Image { format, entries })
    }

    /// The best PTX for a device of compute capability `cc` (80 for 8.0): the highest
    /// architecture not above it. Code for exactly one architecture (`sm_90a`) runs only there,
    /// family code (`sm_100f`) within its generation. Of equals the portable one wins, then the
    /// newer PTX.
    pub fn select_ptx(&self, cc: u32) -> Option<&Entry<'a>> {
        let runs = |e: &&Entry<'a>| {
            e.kind == EntryKind::Ptx
                && match e.suffix {
                    None => e.sm <= cc,
                    Some('f') => e.sm <= cc && e.sm / 10 == cc / 10,
                    Some(_) => e.sm == cc,
                }
        };
        self.entries
            .iter()
            .filter(runs)
            .max_by_key(|e| (e.sm, e.suffix.is_none(), e.version))
    }

    /// The best PTX for a device of compute capability `cc`, and where all is for later ones the oldest of it: a device
    /// that compiles PTX itself runs that too, unless it uses an instruction that the device lacks.
    pub fn select_ptx_or_newer(&self, cc: u32) -> Option<&Entry<'a>> {
        let ptx = || self.entries.iter().filter(|e| e.kind == EntryKind::Ptx);
        let newer = || ptx().min_by_key(|e| (e.sm, e.suffix.is_some(), e.version));
        self.select_ptx(cc).or_else(newer)
    }

    /// The machine code for a device of compute capability `cc`, if any: the highest of the same
    /// generation not above it.
    pub fn select_cubin(&self, cc: u32) -> Option<&Entry<'a>> {
        let runs = |e: &&Entry<'a>| {
            e.kind == EntryKind::Cubin
                && match e.suffix {
                    Some('a') => e.sm == cc,
                    _ => e.sm <= cc && e.sm / 10 == cc / 10,
                }
        };
        self.entries
            .iter()
            .filter(runs)
            .max_by_key(|e| (e.sm, e.suffix.is_some()))
    }

    /// One sentence on what is inside, for refusing an image.
    pub fn describe(&self) -> String {
        let kind = match self.format {
            Format::Fatbin => "a fatbin",
            Format::Cubin => "a cubin",
            Format::HostElf => "an ELF file",
            Format::Archive => "an archive",
            Format::Ptx => "PTX",
        };
        if self.entries.is_empty() {
            return format!("{kind} without GPU code");
        }
        let mut parts: Vec<String> = Vec::new();
        for (kind, what) in [
            (EntryKind::Ptx, "PTX"),
            (EntryKind::Cubin, "machine code"),
            (EntryKind::LtoIr, "link-time intermediate code"),
        ] {
            let mut archs: Vec<String> = self
                .entries
                .iter()
                .filter(|e| e.kind == kind)
                .map(Entry::arch)
                .collect();
            archs.dedup();
            let more = archs.len().saturating_sub(12);
            archs.truncate(12);
            if !archs.is_empty() {
                let rest = if more > 0 {
                    format!(" and {more} more")
                } else {
                    String::new()
                };
                parts.push(format!("{what} for {}{rest}", archs.join(", ")));
            }
        }
        let others = self
            .entries
            .iter()
            .filter(|e| matches!(e.kind, EntryKind::Other(_)))
            .count();
        if others > 0 {
            parts.push(format!("{others} unknown pieces"));
        }
        if !self.entries.iter().any(|e| e.kind == EntryKind::Ptx) {
            parts.push("no PTX".into());
        }
        format!("{kind} with {}", parts.join("; "))
    }
}

/// Adds the entries of anything but an archive.
fn one<'a>(bytes: &'a [u8], entries: &mut Vec<Entry<'a>>) -> Result<Format> {
    if u32_at(bytes, 0) == FATBIN_MAGIC {
        fatbin(bytes, entries)?;
        return Ok(Format::Fatbin);
    }
    if bytes.starts_with(elf::MAGIC) {
        return object(bytes, entries);
    }
    if let Some((sm, suffix)) = ptx_target(bytes) {
        entries.push(Entry::whole(EntryKind::Ptx, sm, suffix, bytes));
        return Ok(Format::Ptx);
    }
    let start = bytes.iter().take(8).copied().collect();
    Err(Error::UnknownFormat {
        len: bytes.len(),
        start,
    })
}

/// A fatbin's entries; gives its length.
fn fatbin<'a>(bytes: &'a [u8], entries: &mut Vec<Entry<'a>>) -> Result<u64> {
    let header = slice(bytes, 0, FATBIN_HEADER, "a fatbin header")?;
    let version = u16_at(header, 4);
    if version != 1 {
        return Err(Error::BadField {
            what: "a fatbin's version",
            value: version.into(),
        });
    }
    let header_size = u64::from(u16_at(header, 6));
    if header_size < FATBIN_HEADER {
        return Err(Error::BadField {
            what: "a fatbin's header size",
            value: header_size,
        });
    }
    let files = slice(bytes, header_size, u64_at(header, 8), "a fatbin's entries")?;
    let mut at = 0;
    while at < files.len() as u64 {
        at = Entry::read(files, at, entries)?;
        if entries.len() > MAX_ENTRIES {
            let (value, limit) = (entries.len() as u64, MAX_ENTRIES as u64);
            return Err(Error::Limit {
                what: "entries of an image",
                value,
                limit,
            });
        }
    }
    Ok(header_size + files.len() as u64)
}

/// A cubin, or the fatbins in an object of the host.
fn object<'a>(bytes: &'a [u8], entries: &mut Vec<Entry<'a>>) -> Result<Format> {
    let header = elf::Header::parse(bytes)?;
    if header.is_cuda() {
        entries.push(Entry::whole(EntryKind::Cubin, header.sm(), None, bytes));
        return Ok(Format::Cubin);
    }
    for section in elf::sections(bytes)? {
        if section.name != ".nv_fatbin" && section.name != "__nv_relfatbin" {
            continue;
        }
        let mut rest = section.data;
        while u32_at(rest, 0) == FATBIN_MAGIC {
            let len = fatbin(rest, entries)?;
            // Fatbins of several objects follow each other, padded to 8 bytes.
            let next = usize::try_from(len.next_multiple_of(8)).unwrap_or(usize::MAX);
            rest = rest.get(next..).unwrap_or(&[]);
        }
    }
    Ok(Format::HostElf)
}

/// Looks for `.version` first and `.target` near it; `None` when the bytes are not PTX.
fn ptx_target(bytes: &[u8]) -> Option<(u32, Option<char>)> {
    let head = &bytes[..bytes.len().min(64 << 10)];
    let end = head.iter().position(|b| *b == 0).unwrap_or(head.len());
    let text = String::from_utf8_lossy(&head[..end]);
    let mut version = false;
    for line in text.lines() {
        let line = line.trim_start();
        if line.starts_with(".version") {
            version = true;
        } else if let Some(rest) = line.strip_prefix(".target").filter(|_| version) {
            let name = rest.trim_start().strip_prefix("sm_").unwrap_or("");
            let digits: String = name.chars().take_while(char::is_ascii_digit).collect();
            let suffix = name[digits.len()..]
                .chars()
                .next()
                .filter(|c| matches!(c, 'a' | 'f'));
            return Some((digits.parse().unwrap_or(0), suffix));
        }
    }
    version.then_some((0, None))
}
