//! Notices programs that use another driver library than Mica's: one opened by its full path, or after
//! `LD_PRELOAD` and `LD_LIBRARY_PATH` were dropped.
//!
//! Looks from outside at what the program and those it started have mapped, often at first and ever more
//! rarely, so that short programs are seen and long ones cost nothing. In direct mode Mica's library
//! opens the real one itself; a process that has both is then the daemon's to find, by the GPU it uses.
//!
//! A library that Mica wrote for a newer driver's names is Mica's too. The loader maps it before the one it
//! needs, so a process can be seen with it alone.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use mica_control::api::Mode;

/// The driver library a program was seen with that it should not have had.
static ESCAPED: OnceLock<String> = OnceLock::new();

/// The first and the longest pause between two looks.
const FIRST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_secs(30);

/// A library of Mica's own under the driver's name, as `/proc/…/maps` would show it.
struct Own {
    path: PathBuf,
    /// `device inode`: in a container it may lie elsewhere.
    file: Option<String>,
}

impl Own {
    fn new(path: PathBuf) -> Own {
        let file = path.metadata().ok().map(|file| {
            let (major, minor) = (libc::major(file.dev()), libc::minor(file.dev()));
            format!("{major:02x}:{minor:02x} {}", file.ino())
        });
        Own { path, file }
    }

    /// Whether a line of maps, `range rights offset device inode   path`, is of this library.
    fn is_mapped_by(&self, line: &str, path: &str) -> bool {
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        let is_file = |file: &String| {
            let words: Vec<&str> = line.split_ascii_whitespace().skip(3).take(2).collect();
            words.join(" ") == *file
        };
        Path::new(path) == self.path || self.file.as_ref().is_some_and(is_file)
    }
}

/// Looks at a program until it ends.
pub(crate) fn watch(pid: u32, mode: Mode) {
    let own = Own::new(crate::libraries::newer_library());
    let body = move || {
        let mut pause = FIRST;
        loop {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST);
            if maps(pid).is_none() {
                return;
            }
            // Mica's may be a shell's that becomes another program, so the looking goes on.
            for process in family(pid) {
                let maps = maps(process).unwrap_or_default();
                if let Some(library) = foreign_driver(&maps, mode, &own) {
                    let _ = ESCAPED.set(library);
                    return;
                }
            }
        }
    };
    let _ = std::thread::Builder::new().name("watch".into()).spawn(body);
}

/// Says on stderr that the program was seen with another driver.
pub(crate) fn say() {
    if let Some(library) = ESCAPED.get() {
        let library = mica_wire::host::printable::printable(library);
        errln!(
            "mica: the program used {library} and not Mica's libcuda.so.1, so it ran without limits \
             (is it setuid, does it drop LD_PRELOAD, or open the driver by its full path?)"
        );
    }
}

fn maps(pid: u32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()
}

/// A process and all it has started.
fn family(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(pid) = all.get(next).copied() {
        next += 1;
        let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
            continue;
        };
        for thread in threads.flatten() {
            let children = std::fs::read_to_string(thread.path().join("children"));
            let children = children.unwrap_or_default();
            all.extend(
                children
                    .split_whitespace()
                    .filter_map(|word| word.parse::<u32>().ok()),
            );
        }
    }
    all
}

/// A driver library that a process in a virtual GPU should not have mapped.
fn foreign_driver(maps: &str, mode: Mode, own: &Own) -> Option<String> {
    let mut found = None;
    for line in maps.lines() {
        let Some(at) = line.find('/') else {
            continue;
        };
        let path = &line[at..];
        let file = path.rsplit('/').next().unwrap_or_default();
        if file.starts_with("libmica_shim.so") && mode == Mode::Direct {
            return None;
        }
        let is_driver = file.starts_with("libcuda.so") && !own.is_mapped_by(line, path);
        if is_driver && found.is_none() {
            found = Some(path.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_without_mica_before_it_is_seen() {
        let line = |path: &str| format!("7f00-7f10 r-xp 00000000 08:01 17   {path}\n");
        let real = line("/usr/lib/libcuda.so.580.95.05");
        let mica = line("/opt/mica/lib/libmica_shim.so");
        let other = line("/usr/lib/libcudart.so.13") + "7f00-7f10 rw-p 00000000 00:00 0\n";
        let path = Some("/usr/lib/libcuda.so.580.95.05".to_owned());
        let both = format!("{other}{real}{mica}");
        let own = Own::new("/run/mica/lib-newer/libcuda.so.1".into());
        for mode in [Mode::Direct, Mode::Isolated] {
            assert_eq!(foreign_driver(&other, mode, &own), None);
            assert_eq!(foreign_driver(&(other.clone() + &real), mode, &own), path);
        }
        // Only direct mode has a use for the real one.
        assert_eq!(foreign_driver(&both, Mode::Direct, &own), None);
        assert_eq!(foreign_driver(&both, Mode::Isolated, &own), path);
    }

    #[test]
    fn a_library_written_for_a_newer_driver_is_not_foreign_before_the_one_it_needs_is_mapped() {
        let folder = std::env::temp_dir().join(format!("mica-escape-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let written = folder.join("libcuda.so.1");
        std::fs::write(&written, [0; 4096]).unwrap();
        let own = Own::new(written.clone());
        let line = |path: &Path| format!("7f00-7f10 r-xp 00000000 08:01 1   {}\n", path.display());
        let real = line(Path::new("/usr/lib/libcuda.so.1"));
        let replaced = format!("{} (deleted)", written.display());
        for mode in [Mode::Direct, Mode::Isolated] {
            for path in [written.as_path(), Path::new(&replaced)] {
                assert_eq!(foreign_driver(&line(path), mode, &own), None);
                // It hides no other.
                let both = line(path) + &real;
                let found = foreign_driver(&both, mode, &own);
                assert_eq!(found.as_deref(), Some("/usr/lib/libcuda.so.1"));
            }
        }
        // Where another name leads to it, as in a container, the file itself tells.
        let elsewhere = folder.join("libcuda.so.13");
        std::fs::hard_link(&written, &elsewhere).unwrap();
        let file = std::fs::File::open(&elsewhere).unwrap();
        // SAFETY: a private mapping of a file that stays as it is; nothing reads it, and it is unmapped below.
        let page = unsafe {
            use std::os::fd::AsRawFd;
            let (read, private) = (libc::PROT_READ, libc::MAP_PRIVATE);
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                read,
                private,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(page, libc::MAP_FAILED);
        let maps = maps(std::process::id()).unwrap();
        // SAFETY: mapped above, and not used since.
        unsafe { libc::munmap(page, 4096) };
        let _ = std::fs::remove_dir_all(&folder);
        let shown = |line: &&str| line.contains("libcuda.so.13");
        let line = maps.lines().find(shown).unwrap();
        assert_eq!(foreign_driver(line, Mode::Isolated, &own), None, "{line}");
        let another = Own::new("/run/mica/lib-newer/libcuda.so.1".into());
        assert!(foreign_driver(line, Mode::Isolated, &another).is_some());
    }

    #[test]
    fn children_belong_to_a_program() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let found = family(std::process::id());
        let _ = child.kill();
        let _ = child.wait();
        assert!(found.contains(&child.id()), "{found:?}");
    }
}
