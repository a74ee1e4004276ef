//! A user of this host who may make containers without root.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::podman::text;

/// The user, by the numbers of user and group.
#[derive(Clone, Copy)]
pub(super) struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// The first user who has further user ids for containers.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn with_ids() -> Result<Self> {
        let ids = std::fs::read_to_string("/etc/subuid").unwrap_or_default();
        let names = ids.lines().filter_map(|line| line.split(':').next());
        let users = std::fs::read_to_string("/etc/passwd")?;
        let mut found = names.filter_map(|name| {
            let of = |line: &&str| line.split(':').next() == Some(name);
            let line = users.lines().find(of)?;
            let mut numbers = line.split(':').skip(2);
            let uid = numbers.next()?.parse().ok()?;
            let gid = numbers.next()?.parse().ok()?;
            (uid != 0).then_some(Self { uid, gid })
        });
        found
            .next()
            .context("no user of this host has ids for containers: useradd makes one with a range in /etc/subuid")
    }

    /// The words that start a command as this user, whose home is a folder.
    pub(super) fn start(self, home: &Path) -> Vec<OsString> {
        let variable = |name: &str| {
            let mut word = OsString::from(name);
            word.push(home);
            word
        };
        vec![
            "setpriv".into(),
            format!("--reuid={}", self.uid).into(),
            format!("--regid={}", self.gid).into(),
            "--clear-groups".into(),
            "env".into(),
            variable("HOME="),
            // Where the process lies that keeps the user's namespace of containers.
            variable("XDG_RUNTIME_DIR="),
        ]
    }

    /// Gives the user a folder with all that is in it.
    pub(super) fn own(self, folder: &Path) -> Result<()> {
        let owner = format!("{}:{}", self.uid, self.gid);
        text(Command::new("chown").args(["-R", "-h", &owner]).arg(folder)).map(drop)
    }
}
