//! Notices programs that use another driver library than Mica's: one opened by its full path, or after
//! `LD_PRELOAD` and `LD_LIBRARY_PATH` were dropped.
//!
//! Looks from outside at what the program and those it started have mapped, often at first and ever more
//! rarely, so that short programs are seen and long ones cost nothing. In direct mode Mica's library
//! opens the real one itself; a process that has both is then the daemon's to find, by the GPU it uses.

use std::sync::OnceLock;
use std::time::Duration;

use mica_daemon::api::Mode;

/// The driver library a program was seen with that it should not have had.
static ESCAPED: OnceLock<String> = OnceLock::new();

/// The first and the longest pause between two looks.
const FIRST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_secs(30);

/// Looks at a program until it ends.
pub(crate) fn watch(pid: u32, mode: Mode) {
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
                if let Some(library) = foreign_driver(&maps, mode) {
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
        eprintln!(
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
fn foreign_driver(maps: &str, mode: Mode) -> Option<String> {
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
        if file.starts_with("libcuda.so") && found.is_none() {
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
        for mode in [Mode::Direct, Mode::Isolated] {
            assert_eq!(foreign_driver(&other, mode), None);
            assert_eq!(foreign_driver(&(other.clone() + &real), mode), path);
        }
        // Only direct mode has a use for the real one.
        assert_eq!(foreign_driver(&both, Mode::Direct), None);
        assert_eq!(foreign_driver(&both, Mode::Isolated), path);
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
