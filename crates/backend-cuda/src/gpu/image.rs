//! Looks at a module's image before the driver does.
//!
//! The driver takes an image by address alone and believes the lengths written in it, so those are
//! checked against the bytes there are. It also lists no variables of a module; names that may be
//! variables are gathered here, and the driver is asked which are.

use std::borrow::Cow;

use mica_cuda_abi::CuResult;
use mica_gpu::{GpuError, Result};
use mica_ptx::DeclarationKind;
use mica_ptx::ast::Space;

const FATBIN_MAGIC: u32 = 0xBA55_ED50;
const ELF_MAGIC: &[u8] = b"\x7FELF";
const SECTION_SYMBOLS: u32 = 2;
const SECTION_NO_BITS: u32 = 8;

/// The bytes to hand to the driver: checked, and ended with zeros as PTX must be.
pub(super) fn checked(image: &[u8]) -> Result<Vec<u8>> {
    let refused = |why: &str| Err(GpuError::new(CuResult::InvalidImage, why));
    if image.starts_with(ELF_MAGIC) {
        if !elf_is_whole(image) {
            return refused("the cubin names parts past its end");
        }
    } else if word(image, 0) == Some(FATBIN_MAGIC) {
        let header = half(image, 6).map(u64::from);
        let whole = header
            .zip(long(image, 8))
            .and_then(|(header, payload)| header.checked_add(payload));
        if whole.is_none_or(|bytes| bytes > image.len() as u64) {
            return refused("the fatbin is longer than the bytes given");
        }
    } else if !find(text_of(image), b".version") {
        return refused("the image is neither PTX, cubin nor fatbin");
    }
    let mut bytes = image.to_vec();
    bytes.extend([0; 16]);
    Ok(bytes)
}

/// Names that may be variables of the module, on a device of this compute capability (90 for 9.0), and whether the
/// image says that they are in managed memory.
pub(super) fn possible_globals(image: &[u8], capability: u32) -> Vec<(String, bool)> {
    let code = code_of(image, capability);
    let mut names = match code.starts_with(ELF_MAGIC) {
        true => elf_objects(&code),
        false => ptx_globals(text_of(&code)),
    };
    names.sort();
    names.dedup();
    names
}

/// Names of functions that an image uses and does not have, on a device of this compute capability: the driver's own.
pub(super) fn missing_functions(image: &[u8], capability: u32) -> Vec<String> {
    let code = code_of(image, capability);
    match code.starts_with(ELF_MAGIC) {
        true => elf_missing(&code),
        false => ptx_missing(text_of(&code)),
    }
}

fn text_of(image: &[u8]) -> &[u8] {
    let end = image.iter().position(|b| *b == 0).unwrap_or(image.len());
    &image[..end]
}

fn find(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

/// The cubin or PTX that a device of this capability runs; nothing where a fatbin has none for it.
fn code_of(image: &[u8], capability: u32) -> Cow<'_, [u8]> {
    if image.starts_with(ELF_MAGIC) || word(image, 0) != Some(FATBIN_MAGIC) {
        return Cow::Borrowed(image);
    }
    let Ok(image) = mica_fatbin::Image::parse(image) else {
        return Cow::Owned(Vec::new());
    };
    let chosen = image.select_cubin(capability);
    let chosen = chosen.or_else(|| image.select_ptx(capability));
    let payload = chosen.and_then(|entry| entry.payload(mica_fatbin::DEFAULT_PAYLOAD_LIMIT).ok());
    Cow::Owned(payload.map_or_else(Vec::new, |payload| payload.to_vec()))
}

/// Names of functions that PTX text declares and does not define.
fn ptx_missing(text: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(text);
    let declarations = text.split(".extern").skip(1);
    let declarations = declarations.filter_map(|rest| rest.split(';').next());
    let words = |declared: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_$%.".contains(c);
        let words = declared.split(|c| !is_part(c)).map(str::to_owned);
        words.collect::<Vec<String>>()
    };
    let functions = declarations.filter(|declared| declared.trim_start().starts_with(".func"));
    functions
        .flat_map(words)
        .filter(|word| !word.is_empty())
        .collect()
}

/// Names that PTX text defines in global or constant space.
fn ptx_globals(text: &[u8]) -> Vec<(String, bool)> {
    let outline = mica_ptx::outline(text).unwrap_or_default();
    let visible = |space| matches!(space, Space::Global | Space::Const);
    (outline.variables())
        .filter(|(_, space, _)| visible(*space))
        .map(|(declared, _, _)| {
            let managed = matches!(
                declared.kind,
                DeclarationKind::Variable { managed: true, .. }
            );
            (declared.name.clone(), managed)
        })
        .collect()
}

/// Whether every section and segment lies in the bytes there are.
fn elf_is_whole(image: &[u8]) -> bool {
    let length = image.len() as u64;
    let fits = |start: Option<u64>, bytes: Option<u64>| {
        let end = start
            .zip(bytes)
            .and_then(|(start, bytes)| start.checked_add(bytes));
        end.is_some_and(|end| end <= length)
    };
    let is_64_bit = image.get(4) == Some(&2);
    let sections = entries(image, 40, 58, 60);
    let segments = entries(image, 32, 54, 56);
    let (Some(sections), Some(segments)) = (sections, segments) else {
        return false;
    };
    is_64_bit
        && sections.iter().all(|&at| {
            word(image, at + 4) == Some(SECTION_NO_BITS)
                || fits(long(image, at + 24), long(image, at + 32))
        })
        && segments
            .iter()
            .all(|&at| fits(long(image, at + 8), long(image, at + 32)))
}

/// Where the entries of a header table lie, given where the ELF header keeps its place, entry size
/// and count; `None` if the table leaves the image.
fn entries(image: &[u8], place: usize, size: usize, count: usize) -> Option<Vec<usize>> {
    let start = usize::try_from(long(image, place)?).ok()?;
    let (size, count) = (half(image, size)? as usize, half(image, count)? as usize);
    let end = start.checked_add(size.checked_mul(count)?)?;
    if end > image.len() || (count > 0 && size < 56) {
        return None;
    }
    Some((0..count).map(|index| start + index * size).collect())
}

/// Names of the data objects in a cubin's symbol table.
fn elf_objects(image: &[u8]) -> Vec<(String, bool)> {
    const OBJECT: u8 = 1;
    /// In a symbol's `st_other`: the variable is in managed memory.
    const MANAGED: u8 = 4;
    let objects = elf_symbols(image).into_iter();
    let objects = objects.filter(|(symbol, _)| symbol[4] & 0xF == OBJECT);
    objects
        .map(|(symbol, name)| (name, symbol[5] & MANAGED != 0))
        .collect()
}

/// Names of the symbols of a cubin that are defined in no section of it.
fn elf_missing(image: &[u8]) -> Vec<String> {
    let symbols = elf_symbols(image).into_iter();
    let missing = symbols.filter(|(symbol, name)| symbol[6..8] == [0, 0] && !name.is_empty());
    missing.map(|(_, name)| name).collect()
}

/// The symbols of a cubin: entries of its table, and names.
fn elf_symbols(image: &[u8]) -> Vec<(&[u8], String)> {
    let mut found = Vec::new();
    let sections = entries(image, 40, 58, 60).unwrap_or_default();
    let span = |at: usize| {
        let start = usize::try_from(long(image, at + 24)?).ok()?;
        let bytes = usize::try_from(long(image, at + 32)?).ok()?;
        image.get(start..start.checked_add(bytes)?)
    };
    for &section in &sections {
        if word(image, section + 4) != Some(SECTION_SYMBOLS) {
            continue;
        }
        let strings = word(image, section + 40).and_then(|link| sections.get(link as usize));
        let (Some(table), Some(strings)) = (span(section), strings.and_then(|&at| span(at))) else {
            continue;
        };
        for symbol in table.chunks_exact(24) {
            let name = word(symbol, 0).and_then(|at| strings.get(at as usize..));
            if let Some(name) = name {
                let name = String::from_utf8_lossy(text_of(name)).into_owned();
                found.push((symbol, name));
            }
        }
    }
    found
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_le_bytes(bytes.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &[u8] = b".version 8.0\n.target sm_90\n.address_size 64\n\
        .visible .global .align 4 .b8 table[16] = {1, 2};\n\
        .const .align 8 .u64 scale;\n.global .u32 a, b;\n\
        .global .attribute(.managed) .align 4 .u32 shared;\n\
        .entry k() { ld.global.u32 %r1, [%rd1]; ld.const.u32 %r2, [scale]; ret; }";

    #[test]
    fn variables_of_ptx_are_named() {
        let names = possible_globals(PTX, 90);
        let expected = ["a", "b", "scale", "shared", "table"];
        let expected = expected.map(|name| (name.to_owned(), name == "shared"));
        assert_eq!(names, expected);
    }

    #[test]
    fn variables_of_compiled_images_are_named() {
        // Made by `nvcc -arch=sm_90` with `-fatbin` (compressed) and `-cubin` from globals.cu.
        let fatbin = include_bytes!("../../tests/data/globals.fatbin");
        let cubin = include_bytes!("../../tests/data/globals.cubin");
        for image in [&fatbin[..], &cubin[..]] {
            assert!(checked(image).is_ok());
            let names = possible_globals(image, 90);
            for name in ["counter", "scale"] {
                assert!(names.contains(&(name.to_owned(), false)), "{names:?}");
            }
        }
        // Made the same way from managed.cu.
        let cubin = include_bytes!("../../tests/data/managed.cubin");
        let names = possible_globals(cubin, 90);
        for (name, is_managed) in [("total", true), ("plain", false), ("table", true)] {
            assert!(names.contains(&(name.to_owned(), is_managed)), "{names:?}");
        }
        assert!(possible_globals(fatbin, 75).is_empty());
    }

    #[test]
    fn functions_that_ptx_does_not_define_are_named() {
        let text = b".version 8.0\n.extern .func (.param .b64 r) malloc\n(\n.param .b64 p\n)\n;\n.extern .global .u32 g;\n\
            .func own() { ret; }\n.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);";
        let names = missing_functions(text, 90);
        assert!(
            names.iter().any(|name| name == "malloc") && names.iter().any(|name| name == "vprintf")
        );
        assert!(
            !names.iter().any(|name| name == "own" || name == "g"),
            "{names:?}"
        );
        assert!(missing_functions(PTX, 90).is_empty());
    }

    #[test]
    fn ptx_is_ended_with_a_zero() {
        let bytes = checked(PTX).expect("it is PTX");
        assert_eq!(&bytes[..PTX.len()], PTX);
        assert_eq!(bytes[PTX.len()], 0);
    }

    #[test]
    fn images_that_lie_about_their_length_are_refused() {
        let mut fatbin = Vec::new();
        fatbin.extend(FATBIN_MAGIC.to_le_bytes());
        fatbin.extend([1, 0, 16, 0]);
        fatbin.extend(100_u64.to_le_bytes());
        assert!(checked(&fatbin).is_err());
        fatbin.extend([0; 100]);
        assert!(checked(&fatbin).is_ok());
        assert!(checked(b"\x7FELF\x02").is_err());
        assert!(checked(b"hello").is_err());
        // The wrapper that programs embed holds an address, which nobody may follow.
        let mut wrapper = 0x4662_43B1_u32.to_le_bytes().to_vec();
        wrapper.extend([0x41; 20]);
        assert!(checked(&wrapper).is_err());
    }

    #[test]
    fn a_real_elf_file_is_read_without_complaint_and_cut_without_panic() {
        let file = std::env::current_exe()
            .and_then(std::fs::read)
            .expect("our own program");
        assert!(elf_is_whole(&file));
        assert!(!elf_objects(&file).is_empty());
        for cut in [0, 5, 40, 63, 64, 1000, file.len() / 2] {
            assert!(!elf_is_whole(&file[..cut]));
            elf_objects(&file[..cut]);
        }
    }
}
