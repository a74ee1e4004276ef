//! containerd as Kubernetes uses it: pods over the Container Runtime Interface, with devices of both kinds. Limits hold, the names of pod and
//! container are listed, the end frees.
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
use super::{Options, Rows};
use crate::bounded::Scratch;
use crate::command::{root, target};
use crate::docs::text_that_needs;
use crate::packages::Environment;

const PAGE: &str = "containers.md";
const NAMED: &str = "mica.dev/vgpu=walls";
const NEW: &str = "mica.dev/new=64MiB-20";
const IMAGE: &str = "mica.local/walls:1";
/// What a pod and its container are called.
const POD: &str = "web";
const LISTED: &str = "web/web";
/// The first version that reads files of the Container Device Interface.
const OLDEST: [u32; 2] = [1, 7];
const WITHIN: Duration = Duration::from_secs(20);
/// What speaks the Container Runtime Interface.
const CLIENT: &[&str] = &["grpcio==1.85.1"];

/// Where containerd's programs are: installed, or unpacked for this check.
struct Programs {
    folders: OsString,
    ctr: PathBuf,
    python: PathBuf,
}

impl Programs {
    fn find() -> Result<Self> {
        // SAFETY: asks for a number.
        let is_root = unsafe { libc::geteuid() } == 0;
        ensure!(is_root, "containerd needs root");
        let own = target().join("tools/docker/usr/bin");
        let usual = std::env::var_os("PATH").unwrap_or_default();
        // Debian 12 has 1.6, which knows no such devices: the unpacked one comes first.
        let folders: Vec<_> = std::iter::once(own)
            .chain(std::env::split_paths(&usual))
            .collect();
        let in_folders = |program: &str| {
            let mut files = folders.iter().map(|folder| folder.join(program));
            files.find(|file| file.is_file()).with_context(|| {
                format!("{program} is missing: unpack containerd of Debian 13 into target/tools/docker (dpkg -x)")
            })
        };
        let (containerd, ctr) = (in_folders("containerd")?, in_folders("ctr")?);
        which("runc")?;
        let said = text(Command::new(containerd).arg("--version"))?;
        let number = said.split_whitespace().nth(2).unwrap_or_default();
        let mut parts = number.split('.').map(|part| part.parse().unwrap_or(0));
        let version: [u32; 2] = std::array::from_fn(|_| parts.next().unwrap_or(0));
        ensure!(
            version >= OLDEST,
            "containerd {number} is older than 1.7 and reads no CDI files"
        );
        Ok(Self {
            folders: std::env::join_paths(&folders)?,
            ctr,
            python: Environment::with("cri", CLIENT)?.python(),
        })
    }
}

/// A containerd with its plugin for Kubernetes.
struct Containerd {
    programs: Programs,
    folder: PathBuf,
    daemon: Running,
}

impl Containerd {
    fn start(programs: Programs, folder: &Path) -> Result<Self> {
        for part in ["cdi", "root"] {
            std::fs::create_dir_all(folder.join(part))?;
        }
        let at = |name: &str| folder.join(name).display().to_string();
        std::fs::write(folder.join("config.toml"), configuration(&at)?)?;
        let script = "mkdir -p /run/containerd && mount -t tmpfs run /run/containerd && exec containerd --config \"$1\"";
        let mut daemon = Command::new("unshare");
        daemon.args(["--mount", "sh", "-c", script, "sh", &at("config.toml")]);
        daemon.env("PATH", &programs.folders).stdin(Stdio::null());
        daemon.stdout(Stdio::null()).stderr(Stdio::null());
        let daemon = Running(daemon.spawn()?);
        let containerd = Self {
            programs,
            folder: folder.into(),
            daemon,
        };
        wait_for(&containerd.socket())?;
        Ok(containerd)
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("containerd.sock")
    }

    /// Makes the image of a root folder known.
    fn import(&self, root_folder: &Path) -> Result<()> {
        let archive = self.folder.join("image.tar");
        let mut make = Command::new(&self.programs.python);
        make.arg(client()).arg("image").arg(root_folder);
        text(make.arg(&archive).arg(IMAGE))?;
        let mut import = Command::new(&self.programs.ctr);
        import.arg("--address").arg(self.socket());
        import.args(["--namespace", "k8s.io", "images", "import"]);
        text(import.args(["--snapshotter", "native"]).arg(&archive)).map(drop)
    }

    /// A command of the client.
    fn ask(&self, what: &str, words: &[&str]) -> Command {
        let mut command = Command::new(&self.programs.python);
        command.arg(client()).arg(what).arg(self.socket());
        command.args(words);
        command
    }

    /// A pod with one container to its end; what it printed.
    fn probe(&self, device: &str, user: &str, most: &str) -> Result<String> {
        let words = [IMAGE, device, user, "probe", "/bin/probe", most];
        text(&mut self.ask("run", &words))
    }

    /// The words that start a command where this containerd's files are.
    fn beside(&self) -> Vec<OsString> {
        let namespace = format!("--mount=/proc/{}/ns/mnt", self.daemon.0.id());
        vec!["nsenter".into(), namespace.into()]
    }
}

/// The guide's settings, and everything in a folder of its own. Without the right to protect a process from the system's lack of memory,
/// which not every machine gives, no pod would start.
fn configuration(at: &dyn Fn(&str) -> String) -> Result<String> {
    let (root, socket, cdi) = (at("root"), at("containerd.sock"), at("cdi"));
    let settings = text_that_needs(PAGE, "toml", "containerd")?;
    Ok(format!(
        r#"version = 2
root = "{root}"
state = "/run/containerd"
[grpc]
  address = "{socket}"
{settings}
  sandbox_image = "{IMAGE}"
  cdi_spec_dirs = ["{cdi}"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
"#
    ))
}

/// The client of the Container Runtime Interface.
fn client() -> PathBuf {
    root().join("tests/walls/cri.py")
}

/// All checks.
pub(super) fn run(rows: &mut Rows, options: Options) -> Result<()> {
    let programs = match Programs::find() {
        Ok(programs) => programs,
        Err(why) => {
            rows.skip("containerd", &format!("{why:#}"));
            return Ok(());
        }
    };
    let scratch = Scratch::new("containerd")?;
    let root_folder = root_folders::glibc(&scratch.0, &[])?;
    let library = target().join(options.profile).join("libmica_shim.so");
    root_folders::add_libraries(&library, &root_folder.path)?;
    let containerd = Containerd::start(programs, &scratch.0.join("containerd"))?;
    containerd.import(&root_folder.path)?;
    let mica = Mica::beside(options, &scratch.0, containerd.beside());
    text(&mut mica.command(&["create", "walls", "-m", "256MiB", "-s", "20"]))?;
    let devices = containerd.folder.join("cdi").display().to_string();
    let words = ["cdi", "generate", "--output", &devices, "--vgpu", "walls"];
    text(mica.command(&words).args(["--new", "64MiB-20"]))?;
    rows.check("containerd: limits hold in pods", || {
        for (device, most) in [(NAMED, "256"), (NEW, "64")] {
            for user in ["0", "1000"] {
                let printed = containerd.probe(device, user, most)?;
                ensure!(printed.trim() == "ok", "{device}: {printed:?}");
            }
        }
        Ok("a named device and new ones, as root and as another user".into())
    });
    rows.check("containerd: names are listed, a kill frees", || {
        name_and_end(&containerd, &mica)
    });
    rows.check("containerd: the guide's settings", || {
        let device = device_of_the_guide()?;
        let new = device.strip_prefix("mica.dev/new=");
        let new = new.with_context(|| format!("the guide's device is {device}"))?;
        text(&mut mica.command(&["cdi", "generate", "--output", &devices, "--new", new]))?;
        let printed = containerd.probe(&device, "0", "2048")?;
        ensure!(printed.trim() == "ok", "{printed:?}");
        Ok(device)
    });
    Ok(())
}

/// The device of the container that the guide has.
fn device_of_the_guide() -> Result<String> {
    let container = text_that_needs(PAGE, "json", "containerd")?;
    let container: serde_json::Value = serde_json::from_str(&container)?;
    let device = container["CDI_devices"][0]["name"].as_str();
    Ok(device
        .context("the guide's container has no device")?
        .to_owned())
}

fn name_and_end(containerd: &Containerd, mica: &Mica) -> Result<String> {
    let script = "sleep 600 | probe 64 wait";
    let words = [IMAGE, NEW, "0", POD, "/bin/sh", "-c", script];
    let numbers = text(&mut containerd.ask("start", &words))?;
    let listed = until(mica, true);
    let began = Instant::now();
    let numbers: Vec<&str> = numbers.split_whitespace().collect();
    text(&mut containerd.ask("kill", &numbers))?;
    let listed = listed?;
    until(mica, false)?;
    let freed = began.elapsed().as_millis();
    Ok(format!("{listed}, gone after {freed} ms"))
}

/// Waits until a virtual GPU that was made for the container is there, or is gone; what it is called.
fn until(mica: &Mica, is_there: bool) -> Result<String> {
    let began = Instant::now();
    loop {
        let all = mica.json(&["ls", "--json"])?;
        let mut made = all.as_array().into_iter().flatten();
        let found = made.find(|vgpu| {
            let made_for = &vgpu["made_for"];
            made_for["engine"] == "containerd" && made_for["name"] == LISTED
        });
        if found.is_some() == is_there {
            let name = found.and_then(|vgpu| vgpu["name"].as_str());
            return Ok(format!("{LISTED} in {}", name.unwrap_or("none")));
        }
        ensure!(began.elapsed() < WITHIN, "the virtual GPUs are {all}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
