//! A folder that belongs to the user a worker becomes, made without the right to give files away (`CAP_CHOWN`).

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};

/// Makes a folder of a user's own, for nobody else to read; one that is there already must be that user's. The calling thread
/// acts as the user for a moment. All may make folders beside it, so the folder above should be out of their reach.
///
/// # Errors
/// It cannot be made, or something else has its name.
pub fn make_folder_of(user: u32, folder: &Path) -> io::Result<()> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else {
        return Err(invalid());
    };
    let mut parents = std::fs::DirBuilder::new();
    parents.recursive(true).mode(0o700).create(parent)?;
    // The user must be able to add to it, not to list it nor to remove what others have there.
    let open_to_all = PermissionsExt::from_mode(0o1733);
    if parent.metadata()?.mode() & 0o7777 != 0o1733 {
        std::fs::set_permissions(parent, open_to_all)?;
    }
    // The user may not pass through the folders above.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let place = rustix::fs::openat(CWD, parent, flags, Mode::empty())?;
    match acting_as(user, || rustix::fs::mkdirat(&place, name, Mode::RWXU))? {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let found = std::fs::symlink_metadata(folder)?;
    match found.is_dir() && found.uid() == user {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "it belongs to user {}, not to user {user}",
            found.uid()
        ))),
    }
}

/// Does something with the rights of another user and group. Only this thread changes its user.
fn acting_as<T>(user: u32, act: impl FnOnce() -> T) -> io::Result<T> {
    const KEEP: libc::uid_t = libc::uid_t::MAX;
    let become_effective = |call: libc::c_long, id: u32| {
        // SAFETY: plain numbers; the real and the saved one stay, so that the way back is open.
        match unsafe { libc::syscall(call, KEEP, id, KEEP) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let own = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    // The group first, for the user may not change it.
    become_effective(libc::SYS_setresgid, user)?;
    let done = become_effective(libc::SYS_setresuid, user).map(|()| act());
    become_effective(libc::SYS_setresuid, own.0)?;
    become_effective(libc::SYS_setresgid, own.1)?;
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOMEBODY: u32 = 54321;

    #[test]
    fn a_folder_is_the_users_own_and_a_strangers_is_refused() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can act as another user");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("kernels/user-1");
        make_folder_of(SOMEBODY, &folder).unwrap();
        make_folder_of(SOMEBODY, &folder).unwrap();
        let found = folder.metadata().unwrap();
        assert_eq!((found.uid(), found.gid()), (SOMEBODY, SOMEBODY));
        assert_eq!(found.mode() & 0o7777, 0o700);
        assert!(rustix::process::geteuid().is_root());
        let refused = make_folder_of(SOMEBODY + 1, &folder).unwrap_err();
        assert!(refused.to_string().contains("54321"), "{refused}");
        // A link that leads elsewhere is not taken for it.
        let link = dir.path().join("kernels/user-2");
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        assert!(make_folder_of(SOMEBODY, &link).is_err());
    }
}
