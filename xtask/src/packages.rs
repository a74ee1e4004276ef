//! Python packages, pinned, each set in a virtual environment of its own under `target/tools`.
//!
//! NVIDIA's packages come under NVIDIA's own licence and are installed, never shipped.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{run, target};

/// Names the packages an environment holds, so that a changed pin is installed anew.
const MARKER: &str = "mica-packages.txt";

/// An environment with these packages, from the cache or installed now.
pub(crate) struct Environment {
    folder: PathBuf,
}

impl Environment {
    /// The environment `name` with exactly these pins and what they depend on.
    pub(crate) fn with(name: &str, packages: &[&str]) -> Result<Self> {
        let folder = target().join("tools").join(name);
        let marker = folder.join(MARKER);
        let wanted = packages.join("\n");
        if std::fs::read_to_string(&marker).is_ok_and(|held| held == wanted) {
            return Ok(Self { folder });
        }
        eprintln!(
            "installing {} from PyPI into {}",
            packages.join(", "),
            folder.display()
        );
        let _ = std::fs::remove_dir_all(&folder);
        let venv = ["-m", "venv"];
        run(
            "python3 -m venv",
            Command::new("python3").args(venv).arg(&folder),
        )?;
        install(&folder, packages)?;
        std::fs::write(&marker, wanted)?;
        Ok(Self { folder })
    }

    /// Its Python.
    pub(crate) fn python(&self) -> PathBuf {
        self.folder.join("bin/python")
    }

    /// The folder its packages lie in.
    pub(crate) fn site(&self) -> Result<PathBuf> {
        let lib = self.folder.join("lib");
        std::fs::read_dir(&lib)
            .with_context(|| format!("{} cannot be read", lib.display()))?
            .flatten()
            .map(|entry| entry.path().join("site-packages"))
            .find(|path| path.is_dir())
            .with_context(|| format!("{} holds no packages", lib.display()))
    }
}

fn install(folder: &Path, packages: &[&str]) -> Result<()> {
    let mut command = Command::new(folder.join("bin/pip"));
    command
        .args(["install", "--quiet", "--disable-pip-version-check"])
        .args(packages);
    // A registry that stumbles once is no reason to fail.
    for attempt in 1.. {
        match run("pip install", &mut command) {
            Ok(()) => break,
            Err(error) if attempt == 3 => bail!(error),
            Err(_) => std::thread::sleep(std::time::Duration::from_secs(5)),
        }
    }
    Ok(())
}
