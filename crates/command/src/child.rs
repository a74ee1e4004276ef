//! Child processes that a command starts.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

/// The path of the running executable.
///
/// # Errors
/// The kernel does not tell it.
pub fn own_path() -> Result<PathBuf> {
    std::env::current_exe().context("this program's own path is unknown")
}

/// The kernel sends the child this signal when this process ends, however it ends. To be started by a thread that stays:
/// its end counts as the process's.
pub fn ends_with_us(command: &mut Command, signal: libc::c_int) -> &mut Command {
    let parent = std::process::id();
    // SAFETY: only async-signal-safe calls between fork and exec.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, signal);
            if libc::getppid() as u32 != parent {
                return Err(ErrorKind::Interrupted.into());
            }
            Ok(())
        })
    }
}
