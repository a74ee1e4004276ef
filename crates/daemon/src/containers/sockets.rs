//! The sockets that are mounted into containers.
//!
//! Each leads to one virtual GPU, or makes one for each container that connects. The socket is the right to use it: tokens
//! and users of a container mean nothing to the host, and a container can neither read nor change what lies behind.
//!
//! ```text
//!   RUNTIME_DIR/containers/OWNER/NUMBER/host.sock
//!               0711       │     └ 0755, the folder that is mounted
//!                          └ only the owner (and root) can go through
//! ```

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mica_control::Paths;
use mica_control::api::VgpuSpec;
use mica_control::files::make_directory;
use rustix::fs::XattrFlags;
use rustix::net::SocketType;
use serde::{Deserialize, Serialize};

use crate::daemon::{DaemonError, system};
use crate::running::listener;

/// Sockets that one user may have.
pub(super) const MOST_PER_USER: usize = 256;

/// A socket as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoredSocket {
    /// The name of its folder; it never changes, for the folder is mounted in containers.
    pub(crate) number: u64,
    pub(crate) owner_uid: u32,
    /// Full name of the virtual GPU, or the name of the kind that is made.
    pub(crate) name: String,
    /// What is made for each container; `None` where the virtual GPU is named.
    #[serde(default)]
    pub(crate) new: Option<VgpuSpec>,
}

/// A socket that listens.
#[derive(Debug)]
pub(crate) struct ContainerSocketEntry {
    pub(crate) stored: StoredSocket,
    pub(crate) folder: PathBuf,
    pub(crate) listener: Arc<OwnedFd>,
}

/// All of them, by number.
#[derive(Debug, Default)]
pub(crate) struct ContainerSockets {
    entries: BTreeMap<u64, ContainerSocketEntry>,
    last_number: u64,
}

impl ContainerSockets {
    pub(crate) fn get(&self, number: u64) -> Option<&ContainerSocketEntry> {
        self.entries.get(&number)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &ContainerSocketEntry> {
        self.entries.values()
    }

    /// The number of a user's socket.
    pub(crate) fn find(&self, owner_uid: u32, name: &str, makes_new: bool) -> Option<u64> {
        let is_it = |socket: &&ContainerSocketEntry| {
            let stored = &socket.stored;
            let kind = stored.new.is_some() == makes_new;
            stored.owner_uid == owner_uid && stored.name == name && kind
        };
        self.iter().find(is_it).map(|found| found.stored.number)
    }

    /// Whether a user has as many as one may have.
    pub(crate) fn is_full(&self, owner_uid: u32) -> bool {
        let own = self.iter().filter(|s| s.stored.owner_uid == owner_uid);
        own.count() >= MOST_PER_USER
    }

    /// A number that no socket has had.
    pub(crate) fn fresh_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Makes the folder and listens there.
    ///
    /// # Errors
    /// The folder or the socket cannot be made.
    pub(crate) fn open(&mut self, paths: &Paths, stored: StoredSocket) -> Result<(), DaemonError> {
        let folder = make_folder(paths, stored.owner_uid, stored.number)?;
        let listener = listener(&folder.join("host.sock"), SocketType::SEQPACKET, 0o666)?;
        self.last_number = self.last_number.max(stored.number);
        let entry = ContainerSocketEntry {
            folder,
            listener: Arc::new(listener),
            stored,
        };
        self.entries.insert(entry.stored.number, entry);
        Ok(())
    }

    /// Changes what is made for containers that connect from now on.
    pub(crate) fn change(&mut self, number: u64, new: VgpuSpec) {
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.stored.new = Some(new);
        }
    }

    /// Stops listening and removes the folder.
    pub(crate) fn close(&mut self, number: u64) {
        if let Some(entry) = self.entries.remove(&number) {
            entry.unlink();
            let _ = std::fs::remove_dir(&entry.folder);
        }
    }

    /// Removes the sockets of a daemon that ends. The folders stay: they are mounted in containers that wait for the next
    /// daemon.
    pub(crate) fn unlink_all(&self) {
        self.iter().for_each(ContainerSocketEntry::unlink);
    }

    /// What to keep.
    pub(crate) fn stored(&self) -> Vec<StoredSocket> {
        self.iter().map(|entry| entry.stored.clone()).collect()
    }
}

impl ContainerSocketEntry {
    fn unlink(&self) {
        let _ = std::fs::remove_file(self.folder.join("host.sock"));
    }
}

fn make_folder(paths: &Paths, owner_uid: u32, number: u64) -> Result<PathBuf, DaemonError> {
    let own = mica_control::uid();
    let passable = if own == 0 { 0o711 } else { 0o700 };
    make_directory(&paths.containers_dir(), passable)?;
    let owners = paths.container_dir(owner_uid);
    make_directory(&owners, 0o700)?;
    if owner_uid != own {
        let list = access_list(owner_uid);
        rustix::fs::setxattr(
            &owners,
            "system.posix_acl_access",
            &list,
            XattrFlags::empty(),
        )
        .map_err(system(
            "opening the folder of container sockets to its owner",
        ))?;
    }
    let folder: PathBuf = Path::join(&owners, number.to_string());
    make_directory(&folder, 0o755)?;
    Ok(folder)
}

/// An access control list as the kernel takes it: all rights for the folder's own user, and the right to go through for one
/// other. The other user does not own the folder, so it can put nothing of its own there.
fn access_list(uid: u32) -> Vec<u8> {
    const VERSION: u32 = 2;
    const NOBODY: u32 = u32::MAX;
    // Tag, rights and user: the owner, the named user, the group, the mask of the named ones, all others.
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 7, NOBODY),
        (0x02, 1, uid),
        (0x04, 0, NOBODY),
        (0x10, 1, NOBODY),
        (0x20, 0, NOBODY),
    ];
    let mut list = VERSION.to_le_bytes().to_vec();
    for (tag, rights, user) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(user.to_le_bytes());
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;

    fn stored(number: u64, owner_uid: u32, new: Option<VgpuSpec>) -> StoredSocket {
        StoredSocket {
            number,
            owner_uid,
            name: "a".into(),
            new,
        }
    }

    #[test]
    fn a_socket_is_found_by_owner_name_and_kind_and_its_folder_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::under(dir.path());
        paths.make_runtime_dir().unwrap();
        let own = mica_control::uid();
        let mut sockets = ContainerSockets::default();
        sockets.open(&paths, stored(7, own, None)).unwrap();
        let number = sockets.fresh_number();
        assert_eq!(number, 8, "a number is never used again");
        sockets
            .open(&paths, stored(number, own, Some(VgpuSpec::default())))
            .unwrap();
        assert_eq!(sockets.find(own, "a", false), Some(7));
        assert_eq!(sockets.find(own, "a", true), Some(8));
        assert_eq!(sockets.find(own + 1, "a", true), None);
        let folder = sockets.get(7).unwrap().folder.clone();
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
        assert_eq!(mode(&folder), 0o755);
        assert_eq!(mode(&folder.join("host.sock")), 0o666);
        assert_eq!(mode(folder.parent().unwrap()), 0o700);
        sockets.close(7);
        assert!(!folder.exists());
        sockets.unlink_all();
        assert!(sockets.get(8).unwrap().folder.exists());
    }

    #[test]
    fn only_the_owner_can_go_through_the_folder_and_nobody_can_write_there() {
        if mica_control::uid() != 0 {
            eprintln!("skipped: only root serves several users");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let paths = Paths::under(dir.path());
        paths.make_runtime_dir().unwrap();
        let mut sockets = ContainerSockets::default();
        sockets.open(&paths, stored(1, 12_345, None)).unwrap();
        let folder = sockets.get(1).unwrap().folder.clone();
        let script = |uid: u32, script: &str| {
            let mut shell = std::process::Command::new("sh");
            shell.args(["-c", script]).current_dir("/");
            shell.uid(uid).gid(uid);
            shell.stderr(std::process::Stdio::null());
            shell.status().unwrap().success()
        };
        let shown = folder.display();
        assert!(script(12_345, &format!("test -S {shown}/host.sock")));
        assert!(!script(12_346, &format!("test -e {shown}/host.sock")));
        assert!(!script(12_345, &format!("mkdir {shown}/../2")));
        assert!(!script(12_345, &format!("rm {shown}/host.sock")));
        assert!(!script(12_345, &format!("ls {shown}/..")));
    }
}
