//! Landlock: the paths of the new root directory once more, for kernels and places where there is none.

use std::io;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    RestrictionStatus, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus,
    Scope,
};

use crate::{Jail, Profile};

/// The rights these rules are about. Newer ones, which newer kernels know, may concern sockets that a worker uses.
const KNOWN: ABI = ABI::V6;

/// Restricts this thread and those it starts.
pub(crate) fn restrict(jail: &Jail) -> io::Result<()> {
    let status = build(jail).map_err(io::Error::other)?;
    match status.ruleset {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
        RulesetStatus::NotEnforced => Err(io::Error::other("this kernel has no Landlock")),
    }
}

fn build(jail: &Jail) -> Result<RestrictionStatus, landlock::RulesetError> {
    let read: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::ReadDir;
    let write = read
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::RemoveFile
        | AccessFs::MakeReg
        | AccessFs::Refer;
    // The driver of a card sorts what it has compiled into folders; a server keeps modules of each client apart.
    let write = match jail.profile {
        Profile::Software => write,
        Profile::Nvidia | Profile::Connection => write | AccessFs::MakeDir | AccessFs::RemoveDir,
    };
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()?;
    let proc = [std::path::PathBuf::from("/proc")];
    // The driver of a card names its threads there.
    let proc_rights = match jail.profile {
        Profile::Software | Profile::Connection => read,
        Profile::Nvidia => read | AccessFs::WriteFile | AccessFs::Truncate,
    };
    for (paths, rights) in [
        (&jail.read_only[..], read),
        (&proc[..], proc_rights),
        (&jail.libraries[..], read | AccessFs::Execute),
        (&jail.read_write[..], write),
        (&jail.devices[..], device),
    ] {
        for path in paths {
            rules = allow(rules, path, rights)?;
        }
    }
    rules.restrict_self()
}

/// A path that is not there needs no rule.
fn allow(
    rules: RulesetCreated,
    path: &std::path::Path,
    rights: BitFlags<AccessFs>,
) -> Result<RulesetCreated, landlock::RulesetError> {
    match PathFd::new(path) {
        Ok(file) => rules.add_rule(PathBeneath::new(file, rights)),
        Err(_) => Ok(rules),
    }
}
