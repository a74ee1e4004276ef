//! The packages for virtual machines: the agent and the driver's libraries, without daemon and compiler.
//!
//! The agent is linked statically where the compiler can do that, so the archive also works in an initramfs that has nothing but
//! busybox: unpack it over the root directory and start `mica-guest serve`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::contents::{read, said_by, stripped};
use super::deb;
use super::files::{Files, Node};
use crate::command::{cargo, run as run_command, target};
use crate::licences;

/// The target of a program that needs no library.
const STATIC: &str = "x86_64-unknown-linux-musl";
/// The libraries for each C library, as `mica libraries` names them, and where its loader looks.
const PLACES: [(&str, &str); 2] = [("gnu", "usr/lib/x86_64-linux-gnu"), ("musl", "usr/lib")];
/// The names that programs ask for.
const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];

/// What a machine is given.
pub(super) struct Guest {
    agent: Vec<u8>,
    /// Path below the root directory, and contents.
    libraries: Vec<(String, Vec<u8>)>,
    version: String,
    date: u64,
}

impl Guest {
    /// Builds the agent, and takes the libraries from the program that carries them.
    pub(super) fn collect(mica: &Path, version: &str, date: u64) -> Result<Self> {
        let folder = target().join("dist-libraries");
        let _ = std::fs::remove_dir_all(&folder);
        said_by(mica, &["libraries", &folder.to_string_lossy()])?;
        let mut libraries = Vec::new();
        for (libc, place) in PLACES {
            for name in LIBRARIES {
                match std::fs::read(folder.join(libc).join(name)) {
                    Ok(content) => libraries.push((format!("{place}/{name}"), content)),
                    Err(_) if libc == "musl" => eprintln!("    no {name} for musl in this build"),
                    Err(error) => bail!("{libc}/{name}: {error}"),
                }
            }
        }
        std::fs::remove_dir_all(&folder)?;
        Ok(Self {
            agent: stripped(&agent()?)?,
            libraries,
            version: version.to_owned(),
            date,
        })
    }

    /// Agent and libraries, for any machine.
    fn files(&self) -> Files {
        let mut files = Files::default();
        files.add("usr/bin/mica-guest", Node::Program(self.agent.clone()));
        for (path, content) in &self.libraries {
            files.add(path, Node::File(content.clone()));
        }
        files
    }

    /// The archive, to be unpacked over a root directory.
    pub(super) fn tarball(&self) -> Result<Vec<u8>> {
        let mut files = self.files();
        self.add_documents(&mut files)?;
        files.tar_gz(self.date)
    }

    /// The Debian package. It has no scripts: the service is installed, not started.
    pub(super) fn deb(&self) -> Result<Vec<u8>> {
        let mut files = self.files();
        self.add_documents(&mut files)?;
        let unit = Node::File(read("packaging/mica-guest.service")?);
        files.add("usr/lib/systemd/system/mica-guest.service", unit);
        let of_glibc = (self.libraries.iter()).filter(|(path, _)| path.starts_with(PLACES[0].1));
        let needed = of_glibc.map(|(_, content)| deb::needed_glibc(content));
        let needed = needed.collect::<Result<Vec<_>>>()?.into_iter().max();
        let (major, minor) = needed.context("there are no libraries for glibc")?;
        let control = format!(
            "\
Package: mica-guest
Version: {version}
Architecture: {architecture}
Maintainer: The Mica developers
Installed-Size: {size}
Depends: libc6 (>= {major}.{minor}), libgcc-s1
Conflicts: libcuda1, libnvidia-ml1
Section: utils
Priority: optional
Description: a virtual GPU of the host, in a virtual machine
 CUDA programs in the machine use a virtual GPU of the host, over vsock and
 shared memory. The machine needs no card and no driver.
",
            version = self.version,
            architecture = deb::architecture()?,
            size = files.bytes().div_ceil(1024),
        );
        deb::archive(&control, files.below("."), self.date)
    }

    fn add_documents(&self, files: &mut Files) -> Result<()> {
        for (name, content) in [
            ("copyright", read("LICENSE")?),
            ("licences.txt", licences::texts()?.into_bytes()),
            (
                "virtual-machines.md",
                read("docs/guide/src/virtual-machines.md")?,
            ),
        ] {
            files.add(
                &format!("usr/share/doc/mica-guest/{name}"),
                Node::File(content),
            );
        }
        Ok(())
    }

    /// Names of the files: archive and Debian package.
    pub(super) fn names(&self) -> Result<[String; 2]> {
        let (version, arch) = (&self.version, std::env::consts::ARCH);
        Ok([
            format!("mica-guest-{version}-{arch}-linux.tar.gz"),
            format!("mica-guest_{version}_{}.deb", deb::architecture()?),
        ])
    }
}

/// Builds the agent: statically where there is a standard library for that.
fn agent() -> Result<PathBuf> {
    let mut build = cargo(&["build", "--release", "--locked", "--package", "mica-guest"]);
    let libraries = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", STATIC])
        .output();
    let libraries = libraries.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let is_static = libraries.is_ok_and(|folder| Path::new(folder.trim()).is_dir());
    if is_static {
        build.args(["--target", STATIC]);
    }
    run_command("guest's agent", &mut build)?;
    Ok(match is_static {
        true => target().join(STATIC).join("release/mica-guest"),
        false => target().join("release/mica-guest"),
    })
}

/// Writes both packages into a folder; their paths.
pub(super) fn write(guest: &Guest, folder: &Path) -> Result<[PathBuf; 2]> {
    let paths = guest.names()?.map(|name| folder.join(name));
    std::fs::write(&paths[0], guest.tarball()?)?;
    std::fs::write(&paths[1], guest.deb()?)?;
    Ok(paths)
}
