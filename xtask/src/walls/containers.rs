//! Containers: programs of any C library run, names appear, the end frees, limits hold, no device file is there.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::mica::Mica;
use super::podman::{self, Podman, text};
use super::root_folders::{self, RootFolder};
use super::user::User;
use super::{Options, Rows, guide};
use crate::bounded::Scratch;
use crate::command::target;
use crate::suite;

const NAMED: &str = "mica.dev/vgpu=walls";
const NEW: &str = "mica.dev/new=64MiB-20";
/// Limit of what [`NEW`] makes.
const NEW_MIB: &str = "64";
/// Longest that the end of a container may take to free its virtual GPU, on a busy machine.
const FREED_WITHIN: Duration = Duration::from_secs(20);

/// All checks.
pub(super) fn run(rows: &mut Rows, options: Options) -> Result<()> {
    if let Some(why) = podman::impossible() {
        rows.skip("containers", &why);
        return Ok(());
    }
    let scratch = Scratch::new("walls")?;
    let mica = Mica::new(options, &scratch.0);
    let podman = Podman::new(&scratch.0.join("podman"), None)?;
    let programs = programs(options.programs)?;
    let glibc = root_folders::glibc(&scratch.0, &programs)?;
    text(&mut mica.command(&["create", "walls", "-m", "1GiB", "-s", "20"]))?;
    let devices = podman.devices().display().to_string();
    let words = ["cdi", "generate", "--output", &devices, "--vgpu", "walls"];
    let written = text(mica.command(&words).args(["--new", "64MiB-20", "--json"]))?;
    let written: Value = serde_json::from_str(&written)?;
    let first = podman.output(&glibc, NEW, &[], "true");
    if let Err(error) = &first {
        rows.skip(
            "containers",
            &format!("podman cannot run a container here: {error:#}"),
        );
        return Ok(());
    }
    rows.check("no device file, a socket", || {
        no_device_file(&podman, &glibc)
    });
    rows.check("glibc: limits hold, whatever the environment", || {
        limits_hold(&podman, &glibc)
    });
    musl(rows, &podman, &scratch.0, &written)?;
    rows.check("user namespace, another user inside", || {
        let options = ["--uidmap", "0:200000:65536", "--user", "1000:1000"];
        podman.output(&glibc, NEW, &options, &format!("id -u; probe {NEW_MIB}"))?;
        Ok("the daemon sees user 201000".into())
    });
    rootless(rows, options, &scratch.0);
    rows.check("its name is listed, its end frees", || {
        name_and_end(&mica, &podman, &glibc, "web-1", false)
    });
    rows.check("a killed container frees", || {
        name_and_end(&mica, &podman, &glibc, "web-2", true)
    });
    rows.check("two containers in one virtual GPU", || {
        shared(&mica, &podman, &glibc)
    });
    rows.check("a daemon is replaced under a container", || {
        replaced(&mica, &podman, &glibc)
    });
    rows.check("the guide's commands", || {
        let root = glibc.path.display().to_string();
        guide::run("podman", &mica, &devices, &["--rootfs", &root], |words| {
            podman.command(words)
        })
    });
    suite(rows, &podman, &glibc, &programs);
    Ok(())
}

/// The CUDA programs that are built already, those with the compiler's own runtime.
pub(super) fn programs(filter: &str) -> Result<Vec<PathBuf>> {
    let folder = target().join("programs");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // `vector_add.cudart-11.8-shared` needs a library of CUDA besides.
        if !name.contains('.') && name.contains(filter) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn no_device_file(podman: &Podman, root: &RootFolder) -> Result<String> {
    let listed = podman.output(root, NEW, &[], "ls -1 /dev /run/mica-vgpu")?;
    let device = listed.lines().find(|line| line.contains("nvidia"));
    ensure!(device.is_none(), "there is {device:?}");
    ensure!(listed.lines().any(|line| line == "host.sock"), "{listed:?}");
    Ok("nothing of a GPU in /dev".into())
}

/// The limit holds with no environment, with a wrong one, and with the token of another virtual GPU.
fn limits_hold(podman: &Podman, root: &RootFolder) -> Result<String> {
    let script = format!(
        "probe {NEW_MIB} && env -i /bin/probe {NEW_MIB} && MICA_MODE=direct MICA_TOKEN= /bin/probe {NEW_MIB} >/tmp/direct; \
         cat /tmp/direct; MICA_TOKEN=00112233445566778899aabbccddeeff MICA_MODE=isolated \
         MICA_HOST_SOCKET=/run/mica-vgpu/host.sock probe {NEW_MIB}"
    );
    let printed = podman.output(root, NEW, &[], &script)?;
    let oks = printed.lines().filter(|line| *line == "ok").count();
    // Direct mode finds no driver: no device is the only other answer.
    let direct = printed
        .lines()
        .any(|line| line == "cuInit answered 100, not 0");
    ensure!(oks == 3 && direct, "{printed:?}");
    Ok("64 MiB, four ways".into())
}

fn musl(rows: &mut Rows, podman: &Podman, folder: &Path, written: &Value) -> Result<()> {
    let name = "musl: limits hold";
    if written["musl"] != true {
        rows.skip(name, "this build of mica has no libraries for musl");
        return Ok(());
    }
    let Some(root) = root_folders::musl(folder)? else {
        rows.skip(name, "needs the packages musl-tools and busybox-static");
        return Ok(());
    };
    rows.check(name, || {
        let script = format!("probe {NEW_MIB} && env -i /bin/probe {NEW_MIB}");
        let printed = podman.output(&root, NEW, &[], &script)?;
        ensure!(printed.lines().eq(["ok", "ok"]), "{printed:?}");
        Ok(format!("{} without libgcc", root.name))
    });
    Ok(())
}

/// A container with a program that waits.
struct Waiting {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Waiting {
    /// Starts it; returns when its program uses the GPU.
    fn start(podman: &Podman, root: &RootFolder, device: &str, name: &str) -> Result<Self> {
        let most = if device == NEW { NEW_MIB } else { "1024" };
        let script = format!("probe {most} wait");
        let mut command = podman.run(root, device, &["--interactive", "--name", name], &script);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("no output")?;
        let mut waiting = Self {
            child,
            output: BufReader::new(output),
        };
        let line = waiting.line()?;
        ensure!(line == "here", "{name} said {line:?}");
        Ok(waiting)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    /// Lets its program end.
    fn end(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let line = self.line()?;
        ensure!(
            self.child.wait()?.success() && line == "ok",
            "it said {line:?}"
        );
        Ok(())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(mut input) = self.child.stdin.take() {
            let _ = input.flush();
        }
        let _ = self.child.wait();
    }
}

fn name_and_end(
    mica: &Mica,
    podman: &Podman,
    root: &RootFolder,
    name: &str,
    killed: bool,
) -> Result<String> {
    let waiting = Waiting::start(podman, root, NEW, name)?;
    let listed = text(&mut mica.command(&["ls"]))?;
    let is_listed = listed
        .lines()
        .any(|line| line.starts_with(name) && line.ends_with(name));
    ensure!(is_listed, "{name} is not in\n{listed}");
    let shown = mica.json(&["show", name, "--json"])?;
    let words = ["inspect", "--format", "{{.Id}}", name];
    let id = text(&mut podman.command(&words))?;
    ensure!(shown["made_for"]["id"] == id.trim(), "{shown} is not {id}");
    ensure!(shown["made_for"]["engine"] == "podman", "{shown}");
    ensure!(shown["processes"][0]["container"] == name, "{shown}");
    let began = Instant::now();
    if killed {
        text(&mut podman.command(&["kill", name]))?;
    } else {
        waiting.end()?;
    }
    while mica.names()?.contains(name) {
        ensure!(began.elapsed() < FREED_WITHIN, "{name} is still there");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(format!(
        "{name}, gone after {} ms",
        began.elapsed().as_millis()
    ))
}

/// Podman without root: another user's daemon, device and containers.
fn rootless(rows: &mut Rows, options: Options, scratch: &Path) {
    let name = "rootless: limits hold, its name, its end frees";
    let user = match User::with_ids() {
        Ok(user) => user,
        Err(why) => return rows.skip(name, &format!("{why:#}")),
    };
    rows.check(name, || {
        let folder = scratch.join("rootless");
        let podman = Podman::new(&folder.join("podman"), Some(user))?;
        let root = root_folders::glibc(&folder, &[])?;
        let library = target().join(options.profile).join("libmica_shim.so");
        root_folders::add_libraries(&library, &root.path)?;
        let mica = Mica::of_user(options, &folder, user)?;
        text(&mut mica.command(&["create", "walls", "-m", "64MiB", "-s", "20"]))?;
        let devices = podman.devices().display().to_string();
        let words = ["cdi", "generate", "--output", &devices, "--vgpu", "walls"];
        text(mica.command(&words).args(["--new", "64MiB-20"]))?;
        let script = format!("probe {NEW_MIB} && env -i /bin/probe {NEW_MIB}");
        for (device, options) in [(NEW, [].as_slice()), (NAMED, &["--user", "1000:1000"])] {
            let printed = podman.output(&root, device, options, &script)?;
            ensure!(printed.lines().eq(["ok", "ok"]), "{device}: {printed:?}");
        }
        name_and_end(&mica, &podman, &root, "mine", false)
    });
}

fn shared(mica: &Mica, podman: &Podman, root: &RootFolder) -> Result<String> {
    let one = Waiting::start(podman, root, NAMED, "one")?;
    let two = Waiting::start(podman, root, NAMED, "two")?;
    let shown = mica.json(&["show", "walls", "--json"])?;
    let processes = shown["processes"].as_array().context("no processes")?;
    let containers: BTreeSet<_> = processes.iter().map(|p| p["container"].as_str()).collect();
    let expected = BTreeSet::from([Some("one"), Some("two")]);
    ensure!(containers == expected, "{containers:?}");
    one.end()?;
    two.end()?;
    ensure!(mica.names()?.contains("walls"), "walls is gone");
    Ok("one, two".into())
}

/// The folder of the socket stays the same, so a container reaches the next daemon.
fn replaced(mica: &Mica, podman: &Podman, root: &RootFolder) -> Result<String> {
    let waiting = Waiting::start(podman, root, NEW, "stays")?;
    text(&mut mica.command(&["daemon", "--stop"]))?;
    // Any command starts the next one.
    ensure!(mica.names()?.contains("stays"), "stays is gone");
    let words = ["exec", "stays", "/bin/probe", NEW_MIB];
    let printed = text(&mut podman.command(&words))?;
    ensure!(printed.trim() == "ok", "{printed:?}");
    let names = mica.names()?;
    ensure!(names.len() == 2, "{names:?}");
    waiting.end()?;
    Ok("the same virtual GPU".into())
}

/// Runs the CUDA programs in one container.
fn suite(rows: &mut Rows, podman: &Podman, root: &RootFolder, programs: &[PathBuf]) {
    if programs.is_empty() {
        let why = "no CUDA program is built: `cargo xtask suite` builds them";
        return rows.skip("CUDA programs", why);
    }
    rows.check("CUDA programs", || {
        let script =
            "for p in /programs/*; do echo \"== $p\"; timeout 300 $p 2>&1; echo \"=> $?\"; done";
        let printed = podman.output(root, NAMED, &[], script)?;
        let mut failed = Vec::new();
        for (program, said) in printed
            .split("== ")
            .skip(1)
            .filter_map(|p| p.split_once('\n'))
        {
            let mut last = said.trim_end().rsplit('\n');
            let code = last.next();
            let is_ok = code == Some("=> 0") && said.lines().any(|line| line == "ok");
            if !is_ok {
                failed.push(format!("{program}: {}", suite::tail(said)));
            }
        }
        if !failed.is_empty() {
            bail!(
                "{} of {} failed:\n{}",
                failed.len(),
                programs.len(),
                failed.join("\n")
            );
        }
        Ok(format!("{} programs", programs.len()))
    });
}
