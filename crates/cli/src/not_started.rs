//! Why a program could not be started, and the exit code that says so, as in a shell.

use std::ffi::OsStr;
use std::io::{Error, ErrorKind};
use std::path::PathBuf;

use mica_wire::host::printable::printable;

/// Mica's own failure.
pub(crate) const OWN_FAILURE: i32 = 125;
/// The program is there and cannot be run.
const NOT_EXECUTABLE: i32 = 126;
/// The program is not there.
const NOT_FOUND: i32 = 127;

/// A program that could not be started.
#[derive(Debug)]
pub(crate) struct NotStarted {
    /// What `mica` exits with.
    pub(crate) code: i32,
    sentence: String,
}

impl NotStarted {
    /// Why starting this program failed.
    pub(crate) fn new(program: &OsStr, error: Error) -> Self {
        let shown = program.display().to_string();
        let shown = printable(&shown);
        let (code, sentence) = match (error.kind(), error.raw_os_error()) {
            // The file is there, so what is missing is what its first line or its header asks for.
            (ErrorKind::NotFound, _) if find(program).is_some() => (
                NOT_EXECUTABLE,
                format!("{shown} cannot be run: its interpreter or loader is missing"),
            ),
            (ErrorKind::NotFound, _) => (NOT_FOUND, format!("{shown}: no such program")),
            (ErrorKind::PermissionDenied, _) => (
                NOT_EXECUTABLE,
                format!(
                    "{shown} cannot be run: it is not an executable file, or its folder allows no programs"
                ),
            ),
            // Neither is the program's fault: the process could not be made, or was told to end.
            (ErrorKind::Interrupted, _) | (_, Some(libc::EAGAIN | libc::ENOMEM)) => {
                (OWN_FAILURE, format!("{shown} cannot be started: {error}"))
            }
            _ => (NOT_EXECUTABLE, format!("{shown} cannot be run: {error}")),
        };
        Self { code, sentence }
    }
}

impl std::fmt::Display for NotStarted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for NotStarted {}

/// The file that a name stands for, looked for as the system does.
pub(crate) fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(|path| path.exists());
    }
    let path = std::env::var_os("PATH")?;
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(program));
    places.find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_a_shell() {
        let code = |program: &str, errno| {
            NotStarted::new(OsStr::new(program), Error::from_raw_os_error(errno)).code
        };
        assert_eq!(code("no-such-program-here", libc::ENOENT), 127);
        assert_eq!(code("/no/such/program", libc::ENOENT), 127);
        assert_eq!(code("/etc/passwd", libc::EACCES), 126);
        assert_eq!(code("/etc/passwd", libc::ENOENT), 126);
        assert_eq!(code("/etc/passwd", libc::ENOEXEC), 126);
        assert_eq!(code("sh", libc::EAGAIN), 125);
    }
}
