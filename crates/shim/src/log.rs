//! A line in the file that MICA_LOG names, if it names one. The program's own outputs stay its own.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::OnceLock;

use mica_wire::host::printable::printable_lines;

use crate::cancel;

const LOG: &str = "MICA_LOG";

/// Adds one line. Failing to is no reason to disturb the program.
pub(crate) fn line(text: &str) {
    // Read once: the program may change its environment from another thread.
    static PATH: OnceLock<Option<OsString>> = OnceLock::new();
    let Some(path) = PATH.get_or_init(|| mica_limits::variable(LOG)) else {
        return;
    };
    let line = format!("mica[{}]: {}\n", std::process::id(), printable_lines(text));
    cancel::held_off(|| {
        if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(path) {
            // One write, so that lines of several processes do not mix.
            let _ = file.write_all(line.as_bytes());
        }
    });
}
