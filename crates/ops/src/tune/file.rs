//! The file of choices: one line each, `CHECKSUM KEY<tab>LABEL`, only ever appended to.
//!
//! A line is written by one call with the file locked, so processes do not mix theirs. A line whose
//! checksum is wrong is left out: what it said is measured again. The last line for a key holds.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

/// A file past this size is begun anew: it is not one of choices any more.
const MOST_BYTES: u64 = 4 << 20;

/// FNV-1a.
fn checksum(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Reads at most [`MOST_BYTES`]; bytes that are no text become marks that no checksum fits.
fn read(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// What a text of lines says about a key.
pub(crate) fn find_in(text: &str, key: &str) -> Option<String> {
    let mut found = None;
    for line in text.lines() {
        let Some((sum, rest)) = line.split_once(' ') else {
            continue;
        };
        if u64::from_str_radix(sum, 16) != Ok(checksum(rest)) {
            continue;
        }
        if let Some((of, label)) = rest.split_once('\t')
            && of == key
        {
            found = Some(label.to_owned());
        }
    }
    found
}

pub(super) fn find(path: &Path, key: &str) -> Option<String> {
    find_in(&read(path)?, key)
}

pub(super) fn add(path: &Path, key: &str, label: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    // Released when the file is closed, also by a process that is killed.
    file.lock()?;
    if file.metadata()?.len() > MOST_BYTES {
        file.set_len(0)?;
    }
    let rest = format!("{key}\t{label}");
    // A line that another process could not finish ends here.
    file.write_all(format!("\n{:016x} {rest}\n", checksum(&rest)).as_bytes())
}
