//! Process numbers as a process in a container sees them.
//!
//! The daemon knows processes by its own numbers. A tool in a PID namespace below the daemon's would find
//! strangers, or nobody, under them.

use std::path::PathBuf;

/// The numbers of `pids` as the process `asker` sees them; `None` for those it cannot see.
pub(crate) fn seen_by(asker: u32, pids: impl Iterator<Item = u32>) -> Vec<Option<u32>> {
    let theirs = namespace(asker);
    // Without a sight of the asker's namespace it is taken to be our own.
    if theirs.is_none() || theirs == namespace(std::process::id()) {
        return pids.map(Some).collect();
    }
    let translate = |pid| {
        (namespace(pid) == theirs)
            .then(|| innermost(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?))?
    };
    pids.map(translate).collect()
}

fn namespace(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// A process's number in its own namespace, the last one of those that its status names.
fn innermost(status: &str) -> Option<u32> {
    let numbers = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn the_last_number_is_the_innermost() {
        assert_eq!(innermost("Pid:\t9\nNSpid:\t900\t12\t3\nX:\t1"), Some(3));
        assert_eq!(innermost("NSpid:\t900"), Some(900));
        assert_eq!(innermost("Name:\tx"), None);
    }

    #[test]
    fn a_process_in_a_namespace_sees_its_own_numbers() {
        let mut unshare = Command::new("unshare");
        unshare.args([
            "--user",
            "--map-root-user",
            "--pid",
            "--fork",
            "--kill-child",
        ]);
        // Says that it runs, then stays until its input is closed.
        let shell = unshare.args(["sh", "-c", "echo here; read x"]);
        let Ok(mut child) = shell
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
        else {
            return;
        };
        let mut line = String::new();
        let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        let own = std::process::id();
        assert_eq!(seen_by(own, [own, 1].into_iter()), [Some(own), Some(1)]);
        // Not every machine lets a test make namespaces.
        if line.trim() == "here" {
            let children = format!("/proc/{0}/task/{0}/children", child.id());
            let inside = std::fs::read_to_string(children).unwrap();
            let inside: u32 = inside.trim().parse().unwrap();
            assert_eq!(seen_by(inside, [inside, own].into_iter()), [Some(1), None]);
            assert_eq!(seen_by(own, [inside].into_iter()), [Some(inside)]);
        }
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
