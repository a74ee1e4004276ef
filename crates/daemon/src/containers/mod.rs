//! Containers: which one a process is in, what it is called, and the sockets that are mounted into them.
//!
//! ```text
//!   connection ─► process ─► control group ─► container id ─► name (of the engine's own files and processes)
//!                       └──► process namespace, where no control group tells
//! ```
//! Nothing is asked of the process itself, and none of its files or memory is read: all of that is the tenant's.

mod control_group;
mod engine_files;
mod sockets;

use std::sync::Arc;

use mica_control::api::ContainerInfo;
use mica_wire::host::namespace::outermost_below_own;
use mica_wire::host::printable::printable;

use crate::enforce::parent_of;
use crate::watched::Watched;

pub(crate) use control_group::Found;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use control_group::container_in;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use engine_files::{name_in, words_of_monitor};
pub(crate) use sockets::{ContainerSocketEntry, ContainerSockets, StoredSocket};

/// Longest name of a container that is shown.
const MOST_CHARACTERS: usize = 64;

/// A container that has connected.
#[derive(Debug)]
pub(crate) struct Container {
    /// What tells it from all others that run now.
    pub(crate) key: String,
    pub(crate) info: ContainerInfo,
    /// Its first process: it has ended when this has.
    pub(crate) first: Option<Watched>,
}

impl Container {
    /// Whether it may still run.
    pub(crate) fn alive(&self) -> bool {
        self.first.as_ref().is_some_and(Watched::alive)
    }
}

/// What tells the container of a process from others; `None` for a process that is in none.
pub(crate) fn key_of(pid: u32) -> Option<(String, Option<Found>)> {
    let found = control_group::of_process(pid);
    match &found {
        Some(found) => Some((found.group.clone(), Some(found.clone()))),
        None => Some((format!("namespace-{}", outermost_below_own(pid)?), None)),
    }
}

/// Looks a container up by a process in it. Reads the list of all processes, so it is done once for a container.
pub(crate) fn look_up(pid: u32, key: &str, found: Option<&Found>) -> Arc<Container> {
    let first = first_process(key, pid);
    let parent = first.as_ref().and_then(|first| parent_of(first.pid));
    let monitor = parent.and_then(engine_files::told_by_monitor);
    let info = match (found, monitor) {
        (Some(found), Some((id, name))) if id == found.id => info(name, id, found.engine),
        (Some(found), _) => {
            let (name, engine) = match found.engine {
                "lxc" => (found.id.clone(), found.engine),
                engine => engine_files::name_of(found)
                    // With control groups of its own naming, as kubelets make them, only the file tells the engine.
                    .map(|(name, by_file)| (name, if engine.is_empty() { by_file } else { engine }))
                    .unwrap_or_else(|| (short(&found.id), engine)),
            };
            info(name, found.id.clone(), engine)
        }
        // A container without a control group, such as one that a user without privileges has made.
        (None, Some((id, name))) => info(name, id, "podman"),
        (None, None) => info(key.into(), String::new(), ""),
    };
    Arc::new(Container {
        key: key.into(),
        info,
        first,
    })
}

fn info(name: String, id: String, engine: &str) -> ContainerInfo {
    let name: String = name.chars().take(MOST_CHARACTERS).collect();
    let name = printable(&name).into_owned();
    let engine = engine.into();
    ContainerInfo { name, id, engine }
}

/// An id as container engines print it.
fn short(id: &str) -> String {
    id.chars().take(12).collect()
}

/// The oldest process of a container. Where the container has a process namespace that is process 1 of it, with which all
/// others end.
fn first_process(key: &str, pid: u32) -> Option<Watched> {
    let processes = std::fs::read_dir("/proc").ok()?;
    let numbers = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let members = numbers.filter(|pid: &u32| key_of(*pid).is_some_and(|(other, _)| other == key));
    let oldest = members
        .filter_map(Watched::open)
        .min_by_key(|process| (process.start, process.pid));
    oldest.or_else(|| Watched::open(pid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufRead;
    use std::process::{Command, Stdio};

    /// Control groups that are removed when dropped; those who are in them end first.
    struct Groups(Vec<std::path::PathBuf>, Vec<std::process::Child>);

    impl Groups {
        /// A process in a new group; `None` where this test may make none.
        fn start(&mut self, path: &str) -> Option<u32> {
            let roots = ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup"].map(std::path::Path::new);
            let root = roots
                .iter()
                .find(|root| root.join("cgroup.procs").exists())?;
            for part in std::path::Path::new(path)
                .ancestors()
                .skip(1)
                .collect::<Vec<_>>()
                .iter()
                .rev()
            {
                let folder = root.join(part);
                if !folder.exists() {
                    std::fs::create_dir(&folder).ok()?;
                    self.0.push(folder);
                }
            }
            let folder = root.join(path);
            std::fs::create_dir(&folder).ok()?;
            self.0.push(folder.clone());
            let child = Command::new("sleep").arg("100").spawn().ok()?;
            let pid = child.id();
            self.1.push(child);
            std::fs::write(folder.join("cgroup.procs"), pid.to_string()).ok()?;
            Some(pid)
        }
    }

    impl Drop for Groups {
        fn drop(&mut self) {
            for child in &mut self.1 {
                let _ = child.kill();
                let _ = child.wait();
            }
            for folder in self.0.iter().rev() {
                let _ = std::fs::remove_dir(folder);
            }
        }
    }

    /// Who knows a container's id and has groups of its own puts an older process into one of that name.
    #[test]
    fn a_stranger_with_a_group_of_the_same_name_is_not_the_first_process() {
        let mut groups = Groups(Vec::new(), Vec::new());
        let top = format!("mica-test-{}", std::process::id());
        let id = "5e".repeat(32);
        let forged = groups.start(&format!("{top}/own/docker-{id}.scope"));
        let real = groups.start(&format!("{top}/docker/{id}"));
        let (Some(forged), Some(real)) = (forged, real) else {
            eprintln!("skipped: no control groups can be made here");
            return;
        };
        let (key, found) = key_of(real).unwrap();
        let container = look_up(real, &key, found.as_ref());
        assert_eq!(container.info.id, id);
        assert_eq!(container.first.as_ref().map(|first| first.pid), Some(real));
        assert_ne!(key_of(forged).unwrap().0, key);
    }

    #[test]
    fn a_namespace_without_an_engine_is_known_by_its_number_and_first_process() {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--pid", "--fork"]);
        unshare.args(["--kill-child", "sh", "-c", "sleep 100 & echo here; read x"]);
        let child = unshare
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = child else { return };
        let mut line = String::new();
        let mut said = std::io::BufReader::new(child.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        if line.trim() != "here" {
            eprintln!("skipped: no process namespaces can be made here");
            return;
        }
        let below = |pid: u32| -> u32 {
            let path = format!("/proc/{pid}/task/{pid}/children");
            let text = std::fs::read_to_string(path).unwrap();
            text.split_whitespace().next().unwrap().parse().unwrap()
        };
        let shell = below(child.id());
        let sleep = below(shell);
        let (key, found) = key_of(sleep).unwrap();
        assert!(key.starts_with("namespace-"), "{key}");
        let container = look_up(sleep, &key, found.as_ref());
        assert_eq!(container.first.as_ref().map(|first| first.pid), Some(shell));
        assert!(container.alive());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!container.alive());
        assert!(key_of(std::process::id()).is_none());
    }
}
