//! `cargo xtask dist --test`: each package installed into an empty root directory, where it runs a CUDA program.
//!
//! A root directory holds a program of `tests/programs` with the C and C++ libraries that the program needs, and then what
//! the package brings. Processes in it see no other files, and none of this machine's processes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::archive::{filter, sha256};
use super::image::with_all_of_glibc;
use super::{Packages, deb};
use crate::bounded::Scratch;
use crate::command::{root, target};
use crate::suite;

/// The program that is run, and its path in a root directory.
const PROGRAM: &str = "vector_add";
/// Makes the root directory a mount point, as that of a container is, mounts what every container has, and runs the words there.
const INSIDE: &str = r#"root=$1; shift
mount --make-rprivate / && mount --bind "$root" "$root" && mount --rbind /dev "$root/dev" && mount -t proc proc "$root/proc" || exit 125
chroot "$root" "$@""#;

/// A user namespace has no other users that a worker could become.
const ROOTLESS: &str = "[workers]\nwithout = [\"user\"]\n";

/// Installs each package and runs the program there.
pub(super) fn test(packages: &Packages) -> Result<()> {
    let program = suite::build_program(&root().join(format!("tests/programs/{PROGRAM}.cu")))?;
    let scratch = Scratch::new("dist")?;
    let in_root = |name: &str| Root::new(scratch.0.join(name), &program);
    let tarball = in_root("tarball")?;
    tarball.unpack(&packages.tarball)?;
    tarball.check("tarball", "/usr/local")?;
    let debian = in_root("deb")?;
    debian.install(&packages.deb)?;
    debian.check("deb", "/usr")?;
    debian.remove()?;
    let image = in_root("image")?;
    let entry = image.unpack_image(&packages.image)?;
    if entry != "/usr/bin/mica" {
        bail!("the image starts {entry}");
    }
    image.check("image", "/usr")?;
    let [archive, package] = &packages.guest;
    let host = Host::start(&scratch.0.join("host"))?;
    let machine = in_root("guest-tarball")?;
    let mut tar = privileged("tar");
    succeed(tar.arg("-xzf").arg(archive).arg("-C").arg(&machine.0))?;
    machine.check_guest("guest's tarball", &host)?;
    let machine = in_root("guest-deb")?;
    machine.install(package)?;
    machine.check_guest("guest's deb", &host)
}

/// A daemon with a virtual GPU for machines.
struct Host(PathBuf);

impl Host {
    fn start(folder: &Path) -> Result<Self> {
        let host = Self(folder.to_owned());
        succeed(&mut host.mica(&[
            "create", "machine", "--memory", "256MiB", "--gpu", "software", "--mode", "isolated",
        ]))?;
        Ok(host)
    }

    fn mica(&self, words: &[&str]) -> Command {
        let mut command = Command::new(target().join("release/mica"));
        command.args(words).env("MICA_RUNTIME_DIR", &self.0);
        command
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.mica(&["daemon", "--stop"]).output();
    }
}

/// A root directory.
struct Root(PathBuf);

impl Root {
    /// A root directory with nothing but a program, its libraries and all of glibc.
    fn new(folder: PathBuf, program: &Path) -> Result<Self> {
        for name in ["dev", "proc", "tmp", "run", "usr/local", "opt"] {
            std::fs::create_dir_all(folder.join(name))?;
        }
        for library in with_all_of_glibc(program)? {
            let inside = folder.join(library.strip_prefix("/")?);
            std::fs::create_dir_all(inside.parent().unwrap_or(&folder))?;
            std::fs::copy(&library, inside)?;
        }
        std::fs::copy(program, folder.join("opt").join(PROGRAM))?;
        if !is_root() {
            std::fs::create_dir_all(folder.join("etc/mica"))?;
            std::fs::write(folder.join("etc/mica/mica.toml"), ROOTLESS)?;
        }
        Ok(Self(folder))
    }

    /// As README says.
    fn unpack(&self, tarball: &Path) -> Result<()> {
        let mut tar = privileged("tar");
        tar.arg("-xzf").arg(tarball).arg("--strip-components=1");
        succeed(tar.arg("-C").arg(self.0.join("usr/local")))
    }

    fn dpkg(&self) -> Command {
        let mut dpkg = privileged("dpkg");
        // dpkg looks for ldconfig and others before it does anything.
        dpkg.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        dpkg.arg(format!("--root={}", self.0.display()));
        // The usual log is this machine's.
        dpkg.arg(format!("--log={}", self.0.join("dpkg.log").display()));
        dpkg
    }

    /// Installs a Debian package; its dependencies are the C library, which is marked as installed.
    fn install(&self, package: &Path) -> Result<()> {
        succeed(Command::new("dpkg-deb").arg("--info").arg(package))?;
        let state = self.0.join("var/lib/dpkg");
        for name in ["info", "updates", "triggers"] {
            std::fs::create_dir_all(state.join(name))?;
        }
        let mut status = String::new();
        for (name, file) in [("libc6", "libc.so.6"), ("libgcc-s1", "libgcc_s.so.1")] {
            status += &format!(
                "Package: {name}\nStatus: install ok installed\nArchitecture: {}\nMaintainer: none\n\
                 Version: {}\nDescription: {file}\n\n",
                deb::architecture()?,
                glibc_version()?,
            );
        }
        std::fs::write(state.join("status"), status)?;
        succeed(self.dpkg().arg("--install").arg(package))
    }

    /// Removes the Debian package; nothing of it may stay.
    fn remove(&self) -> Result<()> {
        succeed(self.dpkg().args(["--purge", "mica"]))?;
        for path in [
            "usr/bin/mica",
            "usr/share/doc/mica",
            "usr/share/man",
            "usr/lib/systemd",
        ] {
            if self.0.join(path).exists() {
                bail!("{path} is left behind by dpkg --purge");
            }
        }
        println!("pass  deb: removed without a trace");
        Ok(())
    }

    /// Unpacks an OCI image as a container engine does; the program that it starts.
    fn unpack_image(&self, image: &Path) -> Result<String> {
        let layout = self.0.with_extension("layout");
        std::fs::create_dir_all(&layout)?;
        succeed(
            Command::new("tar")
                .arg("-xf")
                .arg(image)
                .arg("-C")
                .arg(&layout),
        )?;
        let index: Value = serde_json::from_slice(&std::fs::read(layout.join("index.json"))?)?;
        let manifest: Value = serde_json::from_slice(&blob(&layout, &index["manifests"][0])?)?;
        let config: Value = serde_json::from_slice(&blob(&layout, &manifest["config"])?)?;
        let layers = manifest["layers"].as_array();
        for (at, layer) in layers.into_iter().flatten().enumerate() {
            let plain = filter(Command::new("gzip").arg("-dc"), &blob(&layout, layer)?)?;
            if config["rootfs"]["diff_ids"][at] != format!("sha256:{}", sha256(&plain)) {
                bail!("layer {at} is not the one that the configuration names");
            }
            let mut tar = privileged("tar");
            filter(tar.args(["-xf", "-", "-C"]).arg(&self.0), &plain)?;
        }
        let entry = config["config"]["Entrypoint"][0].as_str();
        entry.map(str::to_owned).context("the image starts nothing")
    }

    /// Runs a program of the root directory with an empty environment.
    fn run(&self, words: &[&str]) -> Result<Output> {
        self.command(words).output().context("unshare cannot start")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut unshare = privileged("unshare");
        unshare.args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "timeout",
            "120",
        ]);
        unshare.args(["sh", "-c", INSIDE, "sh"]).arg(&self.0);
        unshare.args(words).env_clear();
        unshare.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        unshare
    }

    /// What a machine's package promises: with nothing else in the root directory a CUDA program uses the host's virtual GPU. The
    /// stream to the host is a socket in the file system, as the host's side of a vsock device in a program is.
    fn check_guest(&self, package: &str, host: &Host) -> Result<()> {
        let said = self.run(&["/usr/bin/mica-guest", "--version"])?;
        let version = String::from_utf8_lossy(&said.stdout);
        if !version.starts_with("mica-guest ") {
            bail!("{package}: mica-guest --version says {said:?}");
        }
        let mut relay = host.mica(&["vm", "serve", "machine", "--ivshmem", "0", "--socket"]);
        let stream = self.0.join("run/stream");
        let _relay = Running::start(relay.arg(&stream).stderr(Stdio::null()))?;
        wait_for(&stream)?;
        let agent = ["/usr/bin/mica-guest", "serve", "--unix", "/run/stream"];
        let _agent = Running::start(&mut self.command(&agent))?;
        wait_for(&self.0.join("run/mica-vgpu/host.sock"))?;
        let output = self.run(&[&format!("/opt/{PROGRAM}")])?;
        suite::must_be_ok(&output).with_context(|| package.to_owned())?;
        let shown = self.run(&["/usr/bin/mica-guest", "show", "--unix", "/run/stream"])?;
        let shown: Value = serde_json::from_slice(&shown.stdout)?;
        if shown["name"] != "machine" {
            bail!("{package}: mica-guest show says {shown}");
        }
        println!("pass  {package}: a CUDA program uses the host's virtual GPU");
        Ok(())
    }

    /// What the package promises, tried out.
    fn check(&self, package: &str, prefix: &str) -> Result<()> {
        let mica = format!("{prefix}/bin/mica");
        let program = format!("/opt/{PROGRAM}");
        let virtual_gpu = ["run", "--memory", "256MiB", "--gpu", "software", "--"];
        let output = self.run(&[&[&mica[..]], &virtual_gpu[..], &[&program]].concat())?;
        suite::must_be_ok(&output).with_context(|| package.to_owned())?;
        println!("pass  {package}: runs a CUDA program");
        let doctor = self.run(&[&mica, "doctor"])?;
        let text = String::from_utf8_lossy(&doctor.stdout);
        if !text.contains("unpacked from mica itself") {
            bail!("{package}: mica doctor says {doctor:?}");
        }
        let share = self.0.join(format!(".{prefix}/share"));
        for path in [
            "man/man1/mica-run.1.gz",
            "bash-completion/completions/mica",
            "zsh/site-functions/_mica",
            "fish/vendor_completions.d/mica.fish",
            "doc/mica/licences.txt",
            "doc/mica/copyright",
        ] {
            if !share.join(path).is_file() {
                bail!("{package}: {path} is missing");
            }
        }
        let example = format!("{prefix}/share/doc/mica/examples/mica.toml");
        let checked = self.run(&[&mica, "config", "--check", &example])?;
        if !checked.status.success() {
            bail!("{package}: the example configuration is wrong: {checked:?}");
        }
        let unit = self
            .0
            .join(format!(".{prefix}/lib/systemd/system/mica.service"));
        let unit = std::fs::read_to_string(unit)?;
        if !unit.contains(&format!("ExecStart={mica} daemon")) {
            bail!("{package}: the unit file starts another program");
        }
        println!("pass  {package}: man pages, completions, unit, example, licences");
        Ok(())
    }
}

/// A process that ends with its owner.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Result<Self> {
        let child = command.stdin(Stdio::null()).spawn();
        let child = child.with_context(|| format!("{:?} cannot start", command.get_program()))?;
        Ok(Self(child))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for a socket.
fn wait_for(path: &Path) -> Result<()> {
    for _ in 0..4000 {
        if path.exists() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    bail!("{} never comes", path.display())
}

/// A program that may mount and change owners: as root, or in a user namespace of its own.
fn privileged(program: &str) -> Command {
    if is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", program]);
    command
}

fn is_root() -> bool {
    // SAFETY: only asks.
    unsafe { libc::geteuid() == 0 }
}

/// Runs a command; fails with what it said.
fn succeed(command: &mut Command) -> Result<()> {
    let output = command.output();
    let output = output.with_context(|| format!("{:?} cannot start", command.get_program()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{command:?} failed ({}): {}",
            output.status,
            suite::tail(&said)
        );
    }
    Ok(())
}

/// The blob that a descriptor names, if it has the size and the hash that it should.
fn blob(layout: &Path, descriptor: &Value) -> Result<Vec<u8>> {
    let digest = descriptor["digest"].as_str().unwrap_or_default();
    let hash = digest
        .strip_prefix("sha256:")
        .context("a blob has no hash")?;
    let content = std::fs::read(layout.join("blobs/sha256").join(hash))?;
    if sha256(&content) != hash || descriptor["size"] != content.len() {
        bail!("blob {hash} is damaged");
    }
    Ok(content)
}

/// The version of the C library that the root directory was given.
fn glibc_version() -> Result<String> {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let text = String::from_utf8(output.context("getconf cannot start")?.stdout)?;
    let version = text.split_whitespace().nth(1);
    Ok(version.context("this machine has no glibc")?.to_owned())
}
