//! The report about a program by the command that started it.

use serde::{Deserialize, Serialize};

/// The start or the end of a program in a virtual GPU, told by `mica run` and `mica exec`.
///
/// Only the parent of a process learns its exit code, so the daemon cannot find it out by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ProgramReport {
    /// Token of the virtual GPU that the program was started in: another one may have its name by now.
    pub token: String,
    /// Process number.
    pub pid: u32,
    /// Command line.
    pub command: String,
    /// How it ended; absent when it has started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<ProgramEnd>,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ProgramEnd {
    /// It exited with this code.
    ExitCode(i32),
    /// This signal ended it.
    Signal(i32),
}

/// Name of a signal, such as `SIGSEGV`.
pub fn signal_name(signal: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
        "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
        "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    let index = usize::try_from(signal).ok().and_then(|n| n.checked_sub(1));
    match index.and_then(|index| NAMES.get(index)) {
        Some(name) => format!("SIG{name}"),
        None => format!("signal {signal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_the_names_of_this_system() {
        use rustix::process::Signal;
        for (signal, name) in [
            (Signal::HUP, "SIGHUP"),
            (Signal::SEGV, "SIGSEGV"),
            (Signal::TERM, "SIGTERM"),
            (Signal::SYS, "SIGSYS"),
        ] {
            assert_eq!(signal_name(signal.as_raw()), name);
        }
        assert_eq!(signal_name(64), "signal 64");
        assert_eq!(signal_name(0), "signal 0");
    }
}
