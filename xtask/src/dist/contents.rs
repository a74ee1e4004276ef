//! What every package contains: the program, and what the program prints about itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::archive::gzip;
use super::files::{Files, Node};
use crate::command::{root, target};
use crate::licences;

/// Completions and where each shell looks for them.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/mica"),
    ("zsh", "share/zsh/site-functions/_mica"),
    ("fish", "share/fish/vendor_completions.d/mica.fish"),
];

/// The files of a package, relative to a prefix such as `/usr`.
pub(super) struct Contents {
    files: Files,
    unit: String,
    pub(super) version: String,
    /// Seconds since 1970, of every file.
    pub(super) date: u64,
    /// The stripped program.
    pub(super) program: Vec<u8>,
}

impl Contents {
    /// Collects everything for a program that was built.
    pub(super) fn collect(mica: &Path, date: u64) -> Result<Self> {
        let program = stripped(mica)?;
        let mut files = Files::default();
        files.add("bin/mica", Node::Program(program.clone()));
        for (shell, path) in COMPLETIONS {
            files.add(path, Node::File(said_by(mica, &["completions", shell])?));
        }
        for (name, page) in man_pages(mica)? {
            files.add(
                &format!("share/man/man1/{name}.gz"),
                Node::File(gzip(&page)?),
            );
        }
        let mut doc = |name: &str, content| {
            files.add(&format!("share/doc/mica/{name}"), Node::File(content));
        };
        doc("examples/mica.toml", said_by(mica, &["config"])?);
        doc("licences.txt", licences::texts()?.into_bytes());
        // Debian's name for the licence.
        doc("copyright", read("LICENSE")?);
        for name in ["README.md", "CHANGELOG.md"] {
            doc(name, read(name)?);
        }
        for name in ["prometheus/mica-alerts.yml", "grafana/mica.json"] {
            doc(
                &format!("examples/{name}"),
                read(&format!("packaging/{name}"))?,
            );
        }
        let version = String::from_utf8(said_by(mica, &["--version"])?)?;
        let version = version.trim().strip_prefix("mica ");
        Ok(Self {
            version: version.context("mica --version is unknown")?.to_owned(),
            unit: String::from_utf8(read("packaging/mica.service")?)?,
            files,
            date,
            program,
        })
    }

    /// The files for a prefix, at which the unit file looks for the program.
    pub(super) fn for_prefix(&self, prefix: &str) -> Files {
        let unit = self.unit.replace("/usr/bin/", &format!("{prefix}/bin/"));
        let mut files = self.files.clone();
        let path = "lib/systemd/system/mica.service";
        files.add(path, Node::File(unit.into_bytes()));
        files
    }
}

pub(super) fn read(name: &str) -> Result<Vec<u8>> {
    std::fs::read(root().join(name)).with_context(|| name.to_owned())
}

/// What `mica` prints.
pub(super) fn said_by(mica: &Path, words: &[&str]) -> Result<Vec<u8>> {
    let output = Command::new(mica).args(words).output();
    let output = output.with_context(|| format!("{} cannot start", mica.display()))?;
    if !output.status.success() || output.stdout.is_empty() {
        bail!("mica {}: {output:?}", words.join(" "));
    }
    Ok(output.stdout)
}

/// Name and text of each man page.
fn man_pages(mica: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let folder = target().join("dist-man");
    let _ = std::fs::remove_dir_all(&folder);
    let status = Command::new(mica).arg("man").arg(&folder).status()?;
    if !status.success() {
        bail!("mica man failed ({status})");
    }
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(&folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        pages.push((name, std::fs::read(entry.path())?));
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(pages)
}

/// The program without symbols.
pub(super) fn stripped(mica: &Path) -> Result<Vec<u8>> {
    let copy: PathBuf = target().join("dist-mica");
    let mut strip = Command::new("strip");
    let status = strip.arg("-o").arg(&copy).arg(mica).status();
    let status = status.context("strip cannot start: install binutils")?;
    if !status.success() {
        bail!("strip failed ({status})");
    }
    let program = std::fs::read(&copy)?;
    std::fs::remove_file(&copy)?;
    Ok(program)
}
