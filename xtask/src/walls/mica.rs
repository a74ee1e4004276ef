//! `mica` with a daemon of its own.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::Options;
use super::podman::text;
use super::user::User;
use crate::command::target;

/// `mica` with a daemon of its own, which ends with it.
pub(super) struct Mica {
    program: PathBuf,
    folder: PathBuf,
    /// The words that start a command in its place: as a user, or in a namespace.
    start: Vec<OsString>,
}

impl Mica {
    /// The build that the options name, with its daemon below a folder.
    pub(super) fn new(options: Options, folder: &Path) -> Self {
        Self {
            program: target().join(options.profile).join("mica"),
            folder: folder.join("run"),
            start: Vec::new(),
        }
    }

    /// The same, started by other words.
    pub(super) fn beside(options: Options, folder: &Path, start: Vec<OsString>) -> Self {
        let mut mica = Self::new(options, folder);
        mica.start = start;
        mica
    }

    /// The same build for a user, who cannot reach it where it was built, in a folder of the user's.
    pub(super) fn of_user(options: Options, folder: &Path, user: User) -> Result<Self> {
        let programs = folder.join("programs");
        std::fs::create_dir_all(&programs)?;
        for file in ["mica", "libmica_shim.so", "libmica_nvml_shim.so"] {
            let built = target().join(options.profile).join(file);
            std::fs::copy(&built, programs.join(file))
                .with_context(|| format!("{} cannot be copied", built.display()))?;
        }
        user.own(folder)?;
        Ok(Self {
            program: programs.join("mica"),
            folder: folder.join("run"),
            start: user.start(&folder.join("home")),
        })
    }

    /// `mica WORDS`.
    pub(super) fn command(&self, words: &[&str]) -> Command {
        let mut command = match self.start.split_first() {
            None => Command::new(&self.program),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(&self.program);
                command
            }
        };
        command.args(words).env("MICA_RUNTIME_DIR", &self.folder);
        command
            .env_remove("MICA_HOST_SOCKET")
            .env_remove("MICA_TOKEN");
        command
    }

    /// The same, whose answer is JSON.
    pub(super) fn json(&self, words: &[&str]) -> Result<Value> {
        Ok(serde_json::from_str(&text(&mut self.command(words))?)?)
    }

    /// Names of the virtual GPUs there are.
    pub(super) fn names(&self) -> Result<BTreeSet<String>> {
        let listed = self.json(&["ls", "--json"])?;
        let all = listed.as_array().into_iter().flatten();
        Ok(all
            .filter_map(|vgpu| Some(vgpu["name"].as_str()?.to_owned()))
            .collect())
    }
}

impl Drop for Mica {
    fn drop(&mut self) {
        let _ = self.command(&["daemon", "--stop"]).output();
    }
}
