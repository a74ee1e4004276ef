//! `cargo xtask dist [--test]`: what users install.
//!
//! ```text
//!   release build ─► Files (one list) ─┬─► mica-VERSION-ARCH-linux.tar.gz
//!                                      ├─► mica_VERSION_ARCH.deb
//!                                      └─► mica-VERSION-ARCH-oci.tar (+ the C library)    ─► SHA256SUMS
//!   agent + libraries ─► mica-guest-VERSION-ARCH-linux.tar.gz, mica-guest_VERSION_ARCH.deb, for virtual machines
//! ```
//! The same program and the same `SOURCE_DATE_EPOCH` make the same bytes. `--test` installs each package into an empty root
//! directory and runs a CUDA program there.

mod archive;
mod contents;
mod deb;
mod files;
mod guest;
mod image;
mod install;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{cargo, root, run as run_command, target};
use contents::Contents;
use guest::Guest;

/// The packages of one version.
pub(crate) struct Packages {
    tarball: PathBuf,
    deb: PathBuf,
    image: PathBuf,
    /// For virtual machines: archive and Debian package.
    guest: [PathBuf; 2],
}

/// Builds the packages; with `--test` tries each of them.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let test = match words {
        [] => false,
        ["--test"] => true,
        other => bail!("unknown option {}: write --test", other.join(" ")),
    };
    let build = ["build", "--release", "--locked", "--package", "mica-cli"];
    run_command("release build", &mut cargo(&build))?;
    let mica = target().join("release/mica");
    let contents = Contents::collect(&mica, date()?)?;
    let guest = Guest::collect(&mica, &contents.version, contents.date)?;
    let folder = target().join("dist");
    let packages = write(&contents, &guest, &folder)?;
    if test {
        check_same_bytes(&contents, &guest, &folder)?;
        install::test(&packages)?;
    }
    Ok(())
}

/// Writes the packages and their checksums into a folder of their own.
fn write(contents: &Contents, guest: &Guest, folder: &Path) -> Result<Packages> {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder)?;
    let (version, arch) = (&contents.version, std::env::consts::ARCH);
    let name = format!("mica-{version}-{arch}-linux");
    let packages = Packages {
        tarball: folder.join(format!("{name}.tar.gz")),
        deb: folder.join(format!("mica_{version}_{}.deb", deb::architecture()?)),
        image: folder.join(format!("mica-{version}-{arch}-oci.tar")),
        guest: guest::write(guest, folder)?,
    };
    let tarball = contents.for_prefix("/usr/local").below(&name);
    std::fs::write(&packages.tarball, tarball.tar_gz(contents.date)?)?;
    std::fs::write(&packages.deb, deb::package(contents)?)?;
    std::fs::write(&packages.image, image::archive(contents)?)?;
    let mut sums = String::new();
    let own = [&packages.tarball, &packages.deb, &packages.image];
    for path in own.into_iter().chain(&packages.guest) {
        let content = std::fs::read(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        sums += &format!("{}  {name}\n", archive::sha256(&content));
        eprintln!("    {} ({} KiB)", path.display(), content.len() >> 10);
    }
    std::fs::write(folder.join("SHA256SUMS"), sums)?;
    Ok(packages)
}

/// Writes the packages once more and compares.
fn check_same_bytes(contents: &Contents, guest: &Guest, folder: &Path) -> Result<()> {
    let again = folder.with_file_name("dist-again");
    write(contents, guest, &again)?;
    let sums = |folder: &Path| std::fs::read_to_string(folder.join("SHA256SUMS"));
    let (first, second) = (sums(folder)?, sums(&again)?);
    std::fs::remove_dir_all(&again)?;
    if first != second {
        bail!("the same contents made different packages:\n{first}{second}");
    }
    println!("pass  packages are reproducible");
    Ok(())
}

/// The time of all files: `SOURCE_DATE_EPOCH`, else that of the last commit.
fn date() -> Result<u64> {
    if let Ok(date) = std::env::var("SOURCE_DATE_EPOCH") {
        let date = date.parse();
        return date.context("SOURCE_DATE_EPOCH is not a number of seconds");
    }
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%ct"]).current_dir(root());
    let output = git.output().context("git cannot start")?;
    let date = String::from_utf8_lossy(&output.stdout).trim().parse();
    date.context("the time of the last commit is unknown: set SOURCE_DATE_EPOCH")
}
