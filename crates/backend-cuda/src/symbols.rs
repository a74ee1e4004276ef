//! What a library file exports, read from the file: nothing is loaded and no code of it runs.

use std::path::{Path, PathBuf};

use mica_cuda_abi::{find_symbol, sounds_limited};

use crate::library::{SHIM_MARKERS, candidates};

/// Names a shared library defines for others; `None` if the file is no 64-bit ELF library.
pub fn exported_names(path: &Path) -> Option<Vec<String>> {
    names(&std::fs::read(path).ok()?)
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
    let given = std::env::var_os("MICA_LIBCUDA").filter(|value| !value.is_empty());
    let files = match given {
        Some(path) => vec![PathBuf::from(path)],
        None => candidates("libcuda.so.1"),
    };
    files.into_iter().find_map(|path| {
        let names = exported_names(&path)?;
        (!has_marker(&names)).then(|| (path, unknown(names)))
    })
}

fn unknown(names: Vec<String>) -> Vec<String> {
    let passes = |name: &String| sounds_limited(name) && find_symbol(name).is_none();
    let mut names: Vec<String> = names.into_iter().filter(passes).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn names(file: &[u8]) -> Option<Vec<String>> {
    const DYNAMIC_SYMBOLS: u64 = 11;
    const SYMBOL_BYTES: usize = 24;
    if file.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let part = file.get(at..at.checked_add(bytes)?)?;
        Some(part.iter().rev().fold(0, |sum, b| sum << 8 | u64::from(*b)))
    };
    let (sections, each) = (number(40, 8)? as usize, number(58, 2)? as usize);
    let header = |index: u64| sections.checked_add(each.checked_mul(index as usize)?);
    let contents = |at: usize| -> Option<&[u8]> {
        let start = number(at.checked_add(24)?, 8)? as usize;
        file.get(start..start.checked_add(number(at + 32, 8)? as usize)?)
    };
    let mut found = Vec::new();
    for index in 0..number(60, 2)? {
        let at = header(index)?;
        if number(at.checked_add(4)?, 4)? != DYNAMIC_SYMBOLS {
            continue;
        }
        let texts = contents(header(number(at.checked_add(40)?, 4)?)?)?;
        for symbol in contents(at)?.chunks_exact(SYMBOL_BYTES) {
            let section = u16::from_le_bytes([symbol[6], symbol[7]]);
            let binding = symbol[4] >> 4;
            // Defined here, global or weak.
            if section == 0 || !(1..=2).contains(&binding) {
                continue;
            }
            let start = u32::from_le_bytes([symbol[0], symbol[1], symbol[2], symbol[3]]) as usize;
            let text = texts.get(start..)?;
            let end = text.iter().position(|b| *b == 0)?;
            found.push(String::from_utf8_lossy(&text[..end]).into_owned());
        }
    }
    Some(found)
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
        assert_eq!(unknown(all.map(str::to_owned).to_vec()), ["cuLaunchSwarm"]);
    }

    #[test]
    fn damaged_files_are_refused_without_harm() {
        let whole = std::fs::read(libc()).expect("readable");
        for cut in [0, 5, 6, 40, 63, 64, 1000, whole.len() / 2] {
            names(&whole[..cut]);
        }
        let mut noise = whole[..64].to_vec();
        noise[6..].fill(0xFF);
        assert_eq!(names(&noise), None);
    }
}
