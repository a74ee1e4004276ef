//! Virtual machines: the guest's agent and the host's relay, with a stream between them.
//!
//! The guest is a mount and a network namespace here, and the stream a unix socket, which is what the host's side of a vsock device in a
//! program (vhost-device-vsock, Firecracker) is. What a real machine adds is the device.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::mica::Mica;
use super::podman::text;
use super::{Options, Rows, root_folders};
use crate::bounded::Scratch;
use crate::command::target;
use crate::suite;

/// Longest that the end of a program may take to free what it held, on a busy machine.
const FREED_WITHIN: Duration = Duration::from_secs(20);

/// Programs that talk with a running kernel through host memory, which no stream can carry.
const SHARE_MEMORY_WITH_KERNELS: [&str; 2] = ["managed_concurrent", "zero_copy"];

/// A process that ends with its owner.
pub(super) struct Running(pub(super) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A guest made of namespaces.
struct Guest {
    /// Where the agent's socket is.
    folder: PathBuf,
    libraries: PathBuf,
    probe: PathBuf,
    _agent: Running,
    _relay: Running,
}

/// All checks.
pub(super) fn run(rows: &mut Rows, options: Options) -> Result<()> {
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        rows.skip("guest", "needs root, for mount and network namespaces");
        return Ok(());
    }
    let scratch = Scratch::new("machines")?;
    let mica = Mica::new(options, &scratch.0);
    text(&mut mica.command(&["create", "machine", "-m", "1GiB", "-s", "50"]))?;
    let guest = Guest::start(&mica, options, &scratch.0)?;
    rows.check("guest: limits hold, without a variable", || {
        let printed = text(&mut guest.command(&guest.probe, &["1024"]))?;
        ensure!(printed.trim() == "ok", "{printed:?}");
        Ok("1 GiB".into())
    });
    rows.check("guest: programs end, nothing is left", || {
        left(&mica, &guest)
    });
    rows.check("guest: the relay is killed", || {
        killed(&mica, options, &scratch.0)
    });
    suite_in(rows, &guest, options);
    Ok(())
}

impl Guest {
    fn start(mica: &Mica, options: Options, scratch: &Path) -> Result<Self> {
        let at = |name: &str| scratch.join(name);
        let stream = at("vm.vsock_9350");
        let mut relay = mica.command(&["vm", "serve", "machine", "--socket"]);
        let relay = Running(relay.arg(&stream).stderr(Stdio::null()).spawn()?);
        wait_for(&stream)?;
        let program = target().join(options.profile).join("mica-guest");
        let mut agent = Command::new(&program);
        agent.args(["serve", "--unix"]).arg(&stream);
        agent.arg("--folder").arg(at("guest")).stderr(Stdio::null());
        let agent = Running(agent.spawn().context("mica-guest cannot start")?);
        wait_for(&at("guest/host.sock"))?;
        let libraries = at("libraries");
        std::fs::create_dir_all(&libraries)?;
        for (built, name) in [
            ("libmica_shim.so", "libcuda.so.1"),
            ("libmica_nvml_shim.so", "libnvidia-ml.so.1"),
        ] {
            let built = target().join(options.profile).join(built);
            let _ = symlink(built, libraries.join(name));
        }
        root_folders::build_probe("cc", &at("probe"))?;
        Ok(Self {
            folder: at("guest"),
            libraries,
            probe: at("probe"),
            _agent: agent,
            _relay: relay,
        })
    }

    /// A program in the guest: no network, no variable, the agent's socket and the libraries.
    fn command(&self, program: &Path, words: &[&str]) -> Command {
        let script = "mkdir -p /run/mica-vgpu && mount --bind \"$1\" /run/mica-vgpu && shift && \
            exec env -i LD_LIBRARY_PATH=\"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "sh", "-c", script, "sh"]);
        command.arg(&self.folder).arg(&self.libraries);
        command.arg("timeout").arg("300").arg(program).args(words);
        command
    }
}

/// Waits for a socket.
pub(super) fn wait_for(path: &Path) -> Result<()> {
    let began = Instant::now();
    while !path.exists() {
        ensure!(
            began.elapsed() < FREED_WITHIN,
            "{} never comes",
            path.display()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Waits until no program and no memory is left in the virtual GPU.
fn until_empty(mica: &Mica) -> Result<Duration> {
    let began = Instant::now();
    loop {
        let shown = mica.json(&["show", "machine", "--json"])?;
        let programs = shown["processes"].as_array().map_or(0, Vec::len);
        if programs == 0 && shown["memory_used_bytes"] == 0 {
            return Ok(began.elapsed());
        }
        ensure!(began.elapsed() < FREED_WITHIN, "still there: {shown}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A program that waits is killed.
fn left(mica: &Mica, guest: &Guest) -> Result<String> {
    let mut command = guest.command(&guest.probe, &["1024", "wait"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = Running(command.spawn()?);
    let mut output = program.0.stdout.take().context("no output")?;
    let mut said = [0; 4];
    std::io::Read::read_exact(&mut output, &mut said)?;
    let shown = mica.json(&["show", "machine", "--json"])?;
    let programs = shown["processes"].as_array().map_or(0, Vec::len);
    ensure!(&said == b"here" && programs == 1, "{shown}");
    drop(program);
    Ok(format!("gone after {} ms", until_empty(mica)?.as_millis()))
}

/// The program gets a CUDA error, and everything comes back.
fn killed(mica: &Mica, options: Options, scratch: &Path) -> Result<String> {
    let other = scratch.join("other");
    std::fs::create_dir_all(&other)?;
    let guest = Guest::start(mica, options, &other)?;
    let mut command = guest.command(&guest.probe, &["1024", "wait"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = Running(command.spawn()?);
    let mut output = program.0.stdout.take().context("no output")?;
    let mut said = [0; 4];
    std::io::Read::read_exact(&mut output, &mut said)?;
    drop(guest);
    let freed = until_empty(mica)?;
    drop(program);
    Ok(format!("gone after {} ms", freed.as_millis()))
}

/// Runs the CUDA programs in the guest.
fn suite_in(rows: &mut Rows, guest: &Guest, options: Options) {
    let programs = match super::containers::programs(options.programs) {
        Ok(mut programs) if !programs.is_empty() => {
            programs.retain(|program| {
                let name = program.file_name().unwrap_or_default();
                !SHARE_MEMORY_WITH_KERNELS.iter().any(|other| name == *other)
            });
            programs
        }
        _ => {
            let why = "no CUDA program is built: `cargo xtask suite` builds them";
            return rows.skip("guest: CUDA programs", why);
        }
    };
    rows.check("guest: CUDA programs", || {
        let mut failed = Vec::new();
        for program in &programs {
            let output = guest.command(program, &[]).output()?;
            if let Err(error) = suite::must_be_ok(&output) {
                let name = program.file_name().unwrap_or_default().to_string_lossy();
                failed.push(format!("{name}: {error:#}"));
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
