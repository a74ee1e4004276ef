//! The program's part of `mica profile`: the file that lines of the worker are passed on to.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::OnceLock;

use crate::variable;

/// Names the file that `mica profile` reads.
pub const PROFILE: &str = "MICA_PROFILE";

static FILE: OnceLock<Option<File>> = OnceLock::new();

fn file() -> Option<&'static File> {
    let open = || {
        OpenOptions::new()
            .append(true)
            .open(variable(PROFILE)?)
            .ok()
    };
    FILE.get_or_init(open).as_ref()
}

/// Whether this program is profiled.
pub fn is_profiled() -> bool {
    file().is_some()
}

/// Passes on lines of a profile, under the number of this process: its children write into the same file.
pub fn write_profile(lines: &[u8]) {
    if let Some(mut file) = file() {
        let mut piece = format!("[\"process\",{}]\n", std::process::id()).into_bytes();
        piece.extend_from_slice(lines);
        // One piece, which the system appends as a whole.
        let _ = file.write_all(&piece);
    }
}
