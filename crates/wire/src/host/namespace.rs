//! Which container a process is in, by its process namespace.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// Levels of namespaces that the kernel permits.
const MOST_LEVELS: usize = 32;
/// `NS_GET_PARENT` of `linux/nsfs.h`: a descriptor of the namespace in which this one was made.
const NS_GET_PARENT: libc::c_ulong = 0xb702;

/// The process namespace of a process that lies directly below this process's own, as its number in the file system.
/// `None` for a process of the same namespace, and for one that cannot be looked at.
///
/// A process can make namespaces inside its own and move there. The outermost one stays the same, so that nobody passes
/// for another container by moving.
pub fn outermost_below_own(pid: u32) -> Option<u64> {
    let own = number(&File::open("/proc/self/ns/pid").ok()?)?;
    let mut namespace = File::open(format!("/proc/{pid}/ns/pid")).ok()?;
    let mut found = number(&namespace).filter(|number| *number != own)?;
    for _ in 0..MOST_LEVELS {
        namespace = parent(&namespace)?;
        match number(&namespace)? {
            above if above == own => return Some(found),
            above => found = above,
        }
    }
    None
}

fn number(namespace: &File) -> Option<u64> {
    namespace.metadata().ok().map(|data| data.ino())
}

fn parent(namespace: &File) -> Option<File> {
    // SAFETY: the descriptor is open, and the request takes no argument.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT as _) };
    if fd < 0 {
        return None;
    }
    // SAFETY: the kernel has just made the descriptor for this process, and nobody else knows it.
    Some(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufRead;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_of_the_same_namespace_is_in_none_below() {
        assert_eq!(outermost_below_own(std::process::id()), None);
        assert_eq!(outermost_below_own(u32::MAX), None);
    }

    #[test]
    fn a_namespace_inside_another_counts_as_the_outer_one() {
        let unshare = "unshare --user --map-root-user --pid --fork --kill-child";
        let inner = format!("{unshare} sh -c 'echo here; read x'");
        let child = Command::new("sh")
            .args(["-c", &format!("exec {unshare} sh -c \"{inner}; true\"")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = child else { return };
        let mut line = String::new();
        let mut said = std::io::BufReader::new(child.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        if line.trim() == "here" {
            let below = |pid: u32| -> Option<u32> {
                let path = format!("/proc/{pid}/task/{pid}/children");
                let text = std::fs::read_to_string(path).unwrap();
                text.split_whitespace().next()?.parse().ok()
            };
            let line: Vec<u32> = std::iter::successors(Some(child.id()), |p| below(*p)).collect();
            let found: Vec<_> = line.iter().map(|pid| outermost_below_own(*pid)).collect();
            let outer = found[1].expect("the first shell is in a namespace of its own");
            assert!(
                found[1..].iter().all(|one| *one == Some(outer)),
                "{found:?}"
            );
            let last = line.last().unwrap();
            let inner = std::fs::metadata(format!("/proc/{last}/ns/pid")).unwrap();
            assert_ne!(inner.ino(), outer, "{line:?}");
        } else {
            eprintln!("skipped: no process namespaces can be made here");
        }
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
