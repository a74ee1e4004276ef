//! Docker with a daemon, images and devices of its own: limits hold, the name of `docker ps` is listed, the end frees.
//!
//! Its files lie where they usually do, which is how Mica learns names, but in a mount namespace: nothing of the host's is touched.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::machines::{Running, wait_for};
use super::mica::Mica;
use super::podman::text;
use super::root_folders::{self, which};
use super::{Options, Rows, guide};
use crate::bounded::Scratch;
use crate::command::target;

const NAMED: &str = "mica.dev/vgpu=walls";
const NEW: &str = "mica.dev/new=64MiB-20";
const IMAGE: &str = "mica-walls";
/// The first version that reads files of the Container Device Interface.
const OLDEST: u32 = 25;
const WITHIN: Duration = Duration::from_secs(20);

/// Where Docker's programs are: installed, or unpacked for this check.
struct Programs {
    folders: OsString,
    docker: PathBuf,
}

impl Programs {
    fn find() -> Result<Self> {
        // SAFETY: asks for a number.
        let is_root = unsafe { libc::geteuid() } == 0;
        ensure!(is_root, "Docker's daemon needs root");
        let tools = target().join("tools/docker/usr");
        let own = [tools.join("bin"), tools.join("sbin")];
        let usual = std::env::var_os("PATH").unwrap_or_default();
        let folders: Vec<_> = std::env::split_paths(&usual).chain(own).collect();
        let in_folders = |program: &str| {
            let mut files = folders.iter().map(|folder| folder.join(program));
            files.find(|file| file.is_file()).with_context(|| {
                format!(
                    "{program} is missing: unpack docker.io, docker-cli and containerd of Debian 13 into target/tools/docker (dpkg -x)"
                )
            })
        };
        let (docker, dockerd) = (in_folders("docker")?, in_folders("dockerd")?);
        in_folders("containerd")?;
        which("runc")?;
        let said = text(Command::new(dockerd).arg("--version"))?;
        let number = said.split_whitespace().nth(2).unwrap_or_default();
        let version: u32 = number.split('.').next().unwrap_or_default().parse()?;
        ensure!(
            version >= OLDEST,
            "Docker {version} is older than {OLDEST} and reads no CDI files"
        );
        let folders = std::env::join_paths(folders)?;
        Ok(Self { folders, docker })
    }
}

/// A Docker daemon and its client.
struct Docker {
    programs: Programs,
    folder: PathBuf,
    daemon: Running,
}

impl Docker {
    /// Makes an image of a folder, by way of an archive.
    fn import(&self, root: &Path, archive: &Path) -> Result<()> {
        let mut tar = Command::new("tar");
        tar.arg("cf").arg(archive).arg("-C");
        text(tar.args([root, Path::new(".")]))?;
        let archive = archive.display().to_string();
        text(&mut self.command(&["import", &archive, IMAGE])).map(drop)
    }

    fn start(programs: Programs, folder: &Path) -> Result<Self> {
        for part in ["cdi", "lib", "run"] {
            std::fs::create_dir_all(folder.join(part))?;
        }
        let at = |name: &str| folder.join(name).display().to_string();
        let configuration = serde_json::json!({
            "features": { "cdi": true }, "cdi-spec-dirs": [at("cdi")], "storage-driver": "vfs",
            "bridge": "none", "iptables": false, "ip6tables": false, "exec-root": at("run"),
            "hosts": [format!("unix://{}", at("docker.sock"))], "pidfile": at("docker.pid"),
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "default-ulimits": { "nofile": { "Name": "nofile", "Soft": 1024, "Hard": 4096 } },
        });
        std::fs::write(folder.join("daemon.json"), configuration.to_string())?;
        let script = "mkdir -p /var/lib/docker && mount --bind \"$1\" /var/lib/docker && exec dockerd --config-file \"$2\"";
        let mut daemon = Command::new("unshare");
        daemon.args(["--mount", "sh", "-c", script, "sh"]);
        daemon.args([at("lib"), at("daemon.json")]);
        daemon.env("PATH", &programs.folders).stdin(Stdio::null());
        daemon.stdout(Stdio::null()).stderr(Stdio::null());
        let daemon = Running(daemon.spawn()?);
        let docker = Self {
            programs,
            folder: folder.into(),
            daemon,
        };
        wait_for(&docker.folder.join("docker.sock"))?;
        let began = Instant::now();
        while let Err(error) = text(&mut docker.command(&["version"])) {
            ensure!(
                began.elapsed() < WITHIN,
                "dockerd does not answer: {error:#}"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(docker)
    }

    /// `docker WORDS`.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.programs.docker);
        let socket = self.folder.join("docker.sock");
        command.args(["--host", &format!("unix://{}", socket.display())]);
        command.args(words).stdin(Stdio::null());
        command
    }

    /// `docker run` of the probe.
    fn probe(&self, device: &str, options: &[&str], words: &[&str]) -> Result<String> {
        let mut command = self.command(&["run", "--rm", "--network", "none", "--device", device]);
        command.args(options).arg(IMAGE).args(words);
        text(&mut command)
    }

    /// The words that start a command where this Docker's files are.
    fn beside(&self) -> Vec<OsString> {
        let namespace = format!("--mount=/proc/{}/ns/mnt", self.daemon.0.id());
        vec!["nsenter".into(), namespace.into()]
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        // It ends its containers and containerd when it is asked to end.
        // SAFETY: a process that this one has started.
        unsafe { libc::kill(self.daemon.0.id() as i32, libc::SIGTERM) };
        let began = Instant::now();
        while matches!(self.daemon.0.try_wait(), Ok(None)) && began.elapsed() < WITHIN {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// All checks.
pub(super) fn run(rows: &mut Rows, options: Options) -> Result<()> {
    let programs = match Programs::find() {
        Ok(programs) => programs,
        Err(why) => {
            rows.skip("Docker", &format!("{why:#}"));
            return Ok(());
        }
    };
    let scratch = Scratch::new("docker")?;
    let root = root_folders::glibc(&scratch.0, &[])?;
    let library = target().join(options.profile).join("libmica_shim.so");
    root_folders::add_libraries(&library, &root.path)?;
    let docker = match Docker::start(programs, &scratch.0.join("docker")) {
        Ok(docker) => docker,
        Err(why) => {
            rows.skip("Docker", &format!("dockerd cannot run here: {why:#}"));
            return Ok(());
        }
    };
    let mica = Mica::beside(options, &scratch.0, docker.beside());
    text(&mut mica.command(&["create", "walls", "-m", "256MiB", "-s", "20"]))?;
    let devices = docker.folder.join("cdi").display().to_string();
    let words = ["cdi", "generate", "--output", &devices, "--vgpu", "walls"];
    text(mica.command(&words).args(["--new", "64MiB-20"]))?;
    docker.import(&root.path, &scratch.0.join("image.tar"))?;
    rows.check("Docker: limits hold", || {
        for (device, most) in [(NAMED, "256"), (NEW, "64")] {
            for options in [[].as_slice(), &["--user", "1000:1000"]] {
                let printed = docker.probe(device, options, &["/bin/probe", most])?;
                ensure!(printed.trim() == "ok", "{device}: {printed:?}");
            }
        }
        Ok("a named one and new ones".into())
    });
    rows.check("Docker: its name is listed, a kill frees", || {
        let script = "sleep 600 | probe 64 wait";
        docker.probe(
            NEW,
            &["--detach", "--name", "web"],
            &["/bin/sh", "-c", script],
        )?;
        until(&mica, true)?;
        let shown = mica.json(&["show", "web", "--json"])?;
        ensure!(shown["made_for"]["engine"] == "docker", "{shown}");
        let began = Instant::now();
        text(&mut docker.command(&["kill", "web"]))?;
        until(&mica, false)?;
        Ok(format!(
            "web, gone after {} ms",
            began.elapsed().as_millis()
        ))
    });
    rows.check("Docker: the guide's commands", || {
        guide::run("docker", &mica, &devices, &[IMAGE], |words| {
            docker.command(words)
        })
    });
    Ok(())
}

/// Waits until the virtual GPU of the container is there, or is gone.
fn until(mica: &Mica, is_there: bool) -> Result<()> {
    let began = Instant::now();
    loop {
        let names = mica.names()?;
        if names.contains("web") == is_there {
            return Ok(());
        }
        ensure!(began.elapsed() < WITHIN, "the virtual GPUs are {names:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
