//! The user a worker becomes, and the privileges it gives up.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::JailError;
use crate::layer::{Layer, Report};

/// Maps one user and one group of a new user namespace to themselves: inside they are called as outside.
pub(crate) fn map_to_itself(uid: u32, gid: u32) -> Result<(), JailError> {
    let write = |file: &str, text: String| {
        std::fs::write(format!("/proc/self/{file}"), text)
            .map_err(|e| JailError::new(&format!("{file} of the user namespace"), e))
    };
    // Groups could otherwise be dropped to get past files that deny them something.
    write("setgroups", "deny".into())?;
    write("uid_map", format!("{uid} {uid} 1"))?;
    write("gid_map", format!("{gid} {gid} 1"))
}

/// Becomes the user, without groups, capabilities and ways to get either.
pub(crate) fn drop_privileges(user: Option<u32>, own_user_namespace: bool, report: &mut Report) {
    // First, for it needs a capability. Where it is refused there is none to lose: a process without capabilities
    // gets none by executing a file once no_new_privs is set.
    let _ = empty_bounding_set();
    match user {
        Some(id) => {
            report.note(Layer::User, become_user(id));
        }
        None if own_user_namespace => report.applied(Layer::User),
        None => report.failed_unless_known(
            Layer::User,
            "user namespaces are not permitted here, and the daemon is not root",
        ),
    }
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    let cleared = rustix::thread::clear_ambient_capability_set()
        .and_then(|()| rustix::thread::set_capabilities(None, none))
        .map_err(io::Error::from);
    report.note(Layer::Capabilities, cleared);
    let sealed = rustix::thread::set_no_new_privs(true).map_err(io::Error::from);
    report.note(Layer::NoNewPrivileges, sealed);
    // The change of user made /proc/self the property of root; the worker reads its own page map there.
    let readable = rustix::process::DumpableBehavior::Dumpable;
    let _ = rustix::process::set_dumpable_behavior(readable);
}

fn empty_bounding_set() -> io::Result<()> {
    for capability in CapabilitySet::all().iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // Newer than this kernel.
            Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn become_user(id: u32) -> io::Result<()> {
    let check = |code: libc::c_int| match code {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: an empty list needs no memory.
    check(unsafe { libc::setgroups(0, std::ptr::null()) })?;
    // SAFETY: plain numbers.
    check(unsafe { libc::setresgid(id, id, id) })?;
    // SAFETY: plain numbers.
    check(unsafe { libc::setresuid(id, id, id) })
}
