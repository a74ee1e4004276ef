//! Names of virtual GPUs: each user has names of their own.
//!
//! A name that another user has given must be as free as any other, or whoever tries names learns which of them exist. The
//! names that root and the daemon's own user give stand as they are; another user's name gets the user's number, `a@1000`. That
//! user may leave the number out.

use super::Registry;

/// The name under which a user's virtual GPU stands in the registry.
pub(super) fn full_name(name: &str, uid: u32) -> String {
    if uid == 0 || uid == mica_control::uid() {
        return name.to_owned();
    }
    format!("{name}@{uid}")
}

/// The full names that a user may mean by a name, of virtual GPUs that may have been removed: the user's own, or one whose
/// full name this is.
pub(crate) fn may_mean(uid: u32, name: &str) -> [String; 2] {
    [full_name(name, uid), name.to_owned()]
}

impl Registry {
    /// The name in the registry of what a user calls by a name.
    pub(crate) fn meant_by(&self, uid: u32, name: &str) -> String {
        let own = full_name(name, uid);
        match self.vgpus.contains_key(&own) {
            true => own,
            false => name.to_owned(),
        }
    }

    /// Whether the virtual GPU of this full name is a user's, or was: nobody else can have a name with the user's number.
    pub(crate) fn owned_now_or_before(&self, uid: u32, name: &str) -> bool {
        let is_owner = |vgpu: &super::Vgpu| vgpu.owner_uid == uid;
        name.ends_with(&format!("@{uid}")) || self.vgpus.get(name).is_some_and(is_owner)
    }

    /// Whether a user has a virtual GPU of this name.
    pub(super) fn has(&self, uid: u32, name: &str) -> bool {
        let own = self.vgpus.get(&self.meant_by(uid, name));
        own.is_some_and(|vgpu| vgpu.owner_uid == uid)
    }
}
