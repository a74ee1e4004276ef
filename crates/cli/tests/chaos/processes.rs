//! The processes of one world, as the system sees them.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A living process that belongs to a folder: its environment names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// The word after `mica`: `daemon`, `worker`, `run`, `exec` or `load`.
    pub(crate) word: String,
}

/// Every living process whose environment names the folder, but for this one. A worker that waits for its child, which
/// lives in a process namespace of its own, counts as one with it.
pub(crate) fn of(folder: &Path) -> Vec<Process> {
    let own = std::process::id();
    let entries = std::fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut found: Vec<Process> = pids
        .filter(|pid| *pid != own)
        .filter_map(|pid| {
            // One that has ended and was not waited for yet has no environment any more.
            let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
            let name = folder.as_os_str().as_bytes();
            environment.windows(name.len()).find(|part| *part == name)?;
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let mut words = line.split(|byte| *byte == 0);
            let word = words.nth(1).unwrap_or_default();
            Some(Process {
                pid,
                word: String::from_utf8_lossy(word).into_owned(),
            })
        })
        .collect();
    found.sort_by(|a, b| a.word.cmp(&b.word));
    let all = found.clone();
    let is_worker = |pid: u32| all.iter().any(|p| p.pid == pid && p.word == "worker");
    found.retain(|process| process.word != "worker" || !parent(process.pid).is_some_and(is_worker));
    found
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let words = stat.rsplit(')').next()?;
    words.split_whitespace().nth(1)?.parse().ok()
}

/// Ends a process as nothing can refuse.
pub(crate) fn kill(pid: u32) {
    let pid = libc::pid_t::try_from(pid).unwrap();
    // SAFETY: sends a signal to a process this test started.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0, "kill {pid}");
}

/// Files in the folder of shared memory.
pub(crate) fn segments() -> Vec<String> {
    let entries = std::fs::read_dir("/dev/shm").into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.contains("mica")).collect();
    names.sort();
    names
}
