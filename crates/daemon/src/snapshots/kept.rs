//! Files in which the daemon keeps what virtual GPUs have on their GPUs while they move.
//!
//! Such a file is the only copy from the moment on at which the old worker ends until the program goes on somewhere. It lies
//! beside the daemon's state, on the disk: neither the end of the command that moves a virtual GPU nor the daemon's own costs the
//! program anything. A file that is being written has another name until its worker has said that it is whole.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mica_control::files;

/// How long a file stays that no program is known to wait for: one may be about to ask for its session again.
const STAYS: Duration = Duration::from_secs(60);
const WHOLE: &str = "snap";
const BEGUN: &str = "new";

/// The files of one daemon, one for each virtual GPU.
#[derive(Debug)]
pub(crate) struct Kept {
    folder: PathBuf,
    /// When each file was needed last, or this daemon saw it first: the wall clock can jump.
    needed: Mutex<HashMap<PathBuf, Instant>>,
}

impl Kept {
    /// In the folder of the daemon's state.
    pub(crate) fn beside(state: &Path) -> Self {
        Self {
            folder: state.join("moving"),
            needed: Mutex::default(),
        }
    }

    fn path(&self, name: &str, kind: &str) -> PathBuf {
        self.folder.join(format!("{name}.{kind}"))
    }

    /// An empty file to save a virtual GPU to.
    pub(super) fn begin(&self, name: &str) -> Result<OwnedFd, String> {
        files::make_directory(&self.folder, 0o700).map_err(|error| error.to_string())?;
        let path = self.path(name, BEGUN);
        let made = files::replace(&path);
        made.map(OwnedFd::from)
            .map_err(|error| format!("{} cannot be made: {error}", path.display()))
    }

    /// The file that was begun is whole, and takes the place of an earlier one.
    pub(super) fn finish(&self, name: &str) -> Result<(), String> {
        let path = self.path(name, BEGUN);
        std::fs::rename(&path, self.path(name, WHOLE))
            .map_err(|error| format!("{} cannot be renamed: {error}", path.display()))
    }

    /// Nothing was saved to the file that was begun.
    pub(super) fn abandon(&self, name: &str) {
        let _ = std::fs::remove_file(self.path(name, BEGUN));
    }

    /// A virtual GPU's file, if there is a whole one.
    pub(super) fn open(&self, name: &str) -> Option<OwnedFd> {
        files::open(&self.path(name, WHOLE)).ok().map(OwnedFd::from)
    }

    /// What a virtual GPU has is in another file now.
    pub(super) fn forget(&self, name: &str) {
        let _ = std::fs::remove_file(self.path(name, WHOLE));
    }

    /// Has the file stay for a while though its program goes on: the worker may end before the program has come to it.
    pub(super) fn linger(&self, name: &str) {
        let mut needed = self.needed.lock().unwrap_or_else(PoisonError::into_inner);
        needed.insert(self.path(name, WHOLE), Instant::now());
    }

    /// Removes files that nobody needs. `is_needed` says whether the program of a virtual GPU waits or is on its way; `None`
    /// where there is no such virtual GPU.
    pub(crate) fn sweep(
        &self,
        now: Instant,
        is_needed: impl Fn(&str) -> Option<bool>,
    ) -> std::io::Result<()> {
        let mut needed = self.needed.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        for entry in entries {
            let path = entry?.path();
            let name = path.file_stem().and_then(|name| name.to_str());
            let since = *needed.entry(path.clone()).or_insert(now);
            let stays = match name.and_then(&is_needed) {
                Some(is_needed) => is_needed || now.saturating_duration_since(since) < STAYS,
                None => false,
            };
            if !stays {
                needed.remove(&path);
                std::fs::remove_file(path)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn make(kept: &Kept, name: &str, text: &str) {
        let mut file = File::from(kept.begin(name).unwrap());
        file.write_all(text.as_bytes()).unwrap();
    }

    fn text(kept: &Kept, name: &str) -> Option<String> {
        let file = File::from(kept.open(name)?);
        std::io::read_to_string(file).ok()
    }

    #[test]
    fn a_file_that_is_not_whole_takes_the_place_of_none() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept::beside(dir.path());
        assert!(kept.open("a").is_none());
        make(&kept, "a", "first");
        assert!(kept.open("a").is_none());
        kept.finish("a").unwrap();
        assert!(kept.finish("a").is_err());
        make(&kept, "a", "sec");
        kept.abandon("a");
        assert_eq!(text(&kept, "a").as_deref(), Some("first"));
        make(&kept, "a", "second");
        kept.finish("a").unwrap();
        assert_eq!(text(&kept, "a").as_deref(), Some("second"));
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&kept.path("a", WHOLE)), 0o600);
        assert_eq!(mode(&kept.folder), 0o700);
        kept.forget("a");
        assert!(kept.open("a").is_none());
    }

    #[test]
    fn files_stay_as_long_as_a_program_may_ask_for_them() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept::beside(dir.path());
        let now = Instant::now();
        kept.sweep(now, |_| None).unwrap();
        for name in ["waits", "went.on", "removed", "b@1000"] {
            make(&kept, name, name);
            kept.finish(name).unwrap();
        }
        let is_needed = |name: &str| match name {
            "removed" => None,
            name => Some(name == "waits"),
        };
        kept.sweep(now, is_needed).unwrap();
        assert!(kept.open("removed").is_none());
        assert_eq!(text(&kept, "went.on").as_deref(), Some("went.on"));
        let later = now + 2 * STAYS;
        kept.needed
            .lock()
            .unwrap()
            .remove(&kept.path("b@1000", WHOLE));
        make(&kept, "went.on", "");
        kept.sweep(later, is_needed).unwrap();
        assert!(kept.open("waits").is_some() && kept.open("b@1000").is_some());
        assert!(kept.open("went.on").is_none());
        assert!(kept.path("went.on", BEGUN).exists(), "it is young");
        kept.sweep(later + STAYS, is_needed).unwrap();
        assert!(kept.open("b@1000").is_none());
    }
}
