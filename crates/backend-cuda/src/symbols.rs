//! What a library file exports, read from the file: nothing is loaded and no code of it runs.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use mica_cuda_abi::{find_symbol, sounds_limited};

use crate::library::{SHIM_MARKERS, candidates};

/// Names a shared library defines for others; `None` if the file is no 64-bit ELF library. Only the
/// file's tables are read: a driver has some hundred megabytes beside them.
pub fn exported_names(path: &Path) -> Option<Vec<String>> {
    let file = std::fs::File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    names(&|at, bytes| {
        // Checked before room is made for it: the numbers are the file's own.
        let end = at.checked_add(bytes).filter(|end| *end <= length)?;
        let mut part = vec![0; usize::try_from(end - at).ok()?];
        file.read_exact_at(&mut part, at).ok()?;
        Some(part)
    })
}

/// Whether a library file is one of Mica's stand-ins.
pub fn is_shim(path: &Path) -> bool {
    exported_names(path).is_some_and(|names| has_marker(&names))
}

fn has_marker(names: &[String]) -> bool {
    names.iter().any(|n| SHIM_MARKERS.contains(&n.as_str()))
}

/// The real driver's file and the entry points it exports that Mica does not know and that sound as if
/// they took memory or submitted work; `None` if there is no driver.
pub fn unknown_entry_points() -> Option<(PathBuf, Vec<String>)> {
    let (path, names) = driver_exports()?;
    Some((path, beyond_mica(names, sounds_limited)))
}

/// All entry points the real driver exports that Mica does not know; `None` if there is no driver.
pub fn newer_entry_points() -> Option<(PathBuf, Vec<String>)> {
    let (path, names) = driver_exports()?;
    Some((path, beyond_mica(names, |name| name.starts_with("cu"))))
}

/// The real driver's file and all names it exports.
fn driver_exports() -> Option<(PathBuf, Vec<String>)> {
    let given = std::env::var_os("MICA_LIBCUDA").filter(|value| !value.is_empty());
    let files = match given {
        Some(path) => vec![PathBuf::from(path)],
        None => candidates("libcuda.so.1"),
    };
    files.into_iter().find_map(|path| {
        let names = exported_names(&path)?;
        (!has_marker(&names)).then_some((path, names))
    })
}

fn beyond_mica(names: Vec<String>, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let beyond = |name: &String| wanted(name) && find_symbol(name).is_none();
    let mut names: Vec<String> = names.into_iter().filter(beyond).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The names in a file of which `read` gives any part, by offset and length.
fn names(read: &dyn Fn(u64, u64) -> Option<Vec<u8>>) -> Option<Vec<String>> {
    const DYNAMIC_SYMBOLS: u64 = 11;
    const HEADER_BYTES: u64 = 64;
    const SYMBOL_BYTES: usize = 24;
    let start = read(0, HEADER_BYTES)?;
    if start.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (sections, each) = (number(&start, 40, 8)?, number(&start, 58, 2)?);
    let header = |index: u64| read(sections.checked_add(each * index)?, HEADER_BYTES);
    let contents = |header: &[u8]| read(number(header, 24, 8)?, number(header, 32, 8)?);
    let mut found = Vec::new();
    for index in 0..number(&start, 60, 2)? {
        let section = header(index)?;
        if number(&section, 4, 4)? != DYNAMIC_SYMBOLS {
            continue;
        }
        let texts = contents(&header(number(&section, 40, 4)?)?)?;
        for symbol in contents(&section)?.chunks_exact(SYMBOL_BYTES) {
            let section = u16::from_le_bytes([symbol[6], symbol[7]]);
            let binding = symbol[4] >> 4;
            // Defined here, global or weak.
            if section == 0 || !(1..=2).contains(&binding) {
                continue;
            }
            let text = texts.get(number(symbol, 0, 4)? as usize..)?;
            let end = text.iter().position(|b| *b == 0)?;
            found.push(String::from_utf8_lossy(&text[..end]).into_owned());
        }
    }
    Some(found)
}

/// A little-endian number of so many bytes.
fn number(from: &[u8], at: usize, bytes: usize) -> Option<u64> {
    let part = from.get(at..at + bytes)?;
    Some(part.iter().rev().fold(0, |sum, b| sum << 8 | u64::from(*b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn libc() -> PathBuf {
        let found = candidates("libc.so.6").into_iter().next();
        found.expect("glibc systems have one")
    }

    #[test]
    fn the_c_library_exports_what_it_is_known_for() {
        let names = exported_names(&libc()).expect("an ELF library");
        assert!(names.iter().any(|n| n == "malloc"));
        assert!(!has_marker(&names));
        assert!(!is_shim(Path::new("/etc/passwd")));
    }

    #[test]
    fn only_names_that_matter_and_are_not_known_are_listed() {
        let all = [
            "cuMemAlloc_v2",
            "cuLaunchSwarm",
            "cuDeviceGetMood",
            "malloc",
        ];
        let all = all.map(str::to_owned).to_vec();
        assert_eq!(beyond_mica(all.clone(), sounds_limited), ["cuLaunchSwarm"]);
        let any = |name: &str| name.starts_with("cu");
        assert_eq!(beyond_mica(all, any), ["cuDeviceGetMood", "cuLaunchSwarm"]);
    }

    #[test]
    fn damaged_files_are_refused_without_harm() {
        let whole = std::fs::read(libc()).expect("readable");
        let names = |bytes: &[u8]| {
            names(&|at, length| {
                let (at, length) = (at as usize, length as usize);
                Some(bytes.get(at..at.checked_add(length)?)?.to_vec())
            })
        };
        for cut in [0, 5, 6, 40, 63, 64, 1000, whole.len() / 2] {
            names(&whole[..cut]);
        }
        let mut noise = whole[..64].to_vec();
        noise[6..].fill(0xFF);
        assert_eq!(names(&noise), None);
    }
}
