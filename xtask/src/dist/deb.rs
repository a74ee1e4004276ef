//! The Debian package: an ar archive of two tar archives. It has no scripts: the service is installed, not started.

use anyhow::{Context, Result, bail};

use super::archive;
use super::contents::Contents;
use super::files::{Files, Node};

/// Debian's name of this machine's architecture.
pub(super) fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("Debian's name of {other} is unknown"),
    }
}

/// The package's bytes.
pub(super) fn package(contents: &Contents) -> Result<Vec<u8>> {
    let data = contents.for_prefix("/usr").below("usr").below(".");
    let text = control_file(contents, data.bytes())?;
    archive(&text, data, contents.date)
}

/// A package of some files, all below `.`, with this control file.
pub(super) fn archive(text: &str, data: Files, date: u64) -> Result<Vec<u8>> {
    let mut control = Files::default();
    control.add("./control", Node::File(text.as_bytes().to_vec()));
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", control.tar_gz(date)?),
        ("data.tar.gz", data.tar_gz(date)?),
    ];
    let members = members.each_ref().map(|(name, bytes)| (*name, &bytes[..]));
    Ok(archive::ar(&members, date))
}

fn control_file(contents: &Contents, bytes: usize) -> Result<String> {
    let (major, minor) = needed_glibc(&contents.program)?;
    Ok(format!(
        "\
Package: mica
Version: {version}
Architecture: {architecture}
Maintainer: The Mica developers
Installed-Size: {size}
Depends: libc6 (>= {major}.{minor}), libgcc-s1
Section: utils
Priority: optional
Description: virtual GPUs with limits that hold
 Splits a GPU into virtual GPUs with a memory limit and a compute share, for
 unmodified CUDA programs. Brings a software GPU for machines without one.
",
        version = contents.version,
        architecture = architecture()?,
        size = bytes.div_ceil(1024),
    ))
}

/// The newest version of glibc that a symbol of the program, or of a library in it, asks for.
pub(super) fn needed_glibc(program: &[u8]) -> Result<(u32, u32)> {
    const MARK: &[u8] = b"GLIBC_";
    let places = program.windows(MARK.len()).enumerate();
    let places = places.filter_map(|(at, bytes)| (bytes == MARK).then_some(at + MARK.len()));
    let newest = places.filter_map(|at| version(&program[at..])).max();
    newest.context("the program names no version of glibc")
}

/// `MAJOR.MINOR` up to a zero byte.
fn version(bytes: &[u8]) -> Option<(u32, u32)> {
    let text = bytes.split(|byte| *byte == 0).next()?;
    let text = std::str::from_utf8(text.get(..text.len().min(16))?).ok()?;
    let mut numbers = text.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_glibc_is_found_by_number() {
        let program = b"\0GLIBC_2.9\0x\0GLIBC_2.34\0GLIBC_2.2.5\0GLIBC_PRIVATE\0GLIBC_";
        assert_eq!(needed_glibc(program).unwrap(), (2, 34));
        assert!(needed_glibc(b"nothing").is_err());
    }
}
