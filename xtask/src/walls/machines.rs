//! Virtual machines: the guest's agent and the host's relay, with a stream between them.
//!
//! The guest is a mount and a network namespace here, and the stream a unix socket, which is what the host's side of a vsock device in a
//! program (vhost-device-vsock, Firecracker) is. What a real machine adds is the device.

use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
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

/// How long a machine stands still that loses nothing by it: the host waits for 10 s.
const MOMENT: Duration = Duration::from_secs(6);

/// Most calls that a program may post every 20 ms before the closed stream is seen, on a busy machine.
const MOST_POSTED: u32 = 100;

/// A process that ends with its owner.
pub(super) struct Running(pub(super) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The virtual GPU that a guest has. The files of its shared memory have its name, and are the host's: other machines there keep theirs.
pub(super) fn vgpu() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| format!("walls-{}", std::process::id()))
}

/// How a guest reaches its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Everything travels over the stream.
    Stream,
    /// Sessions lie in ivshmem files, files that stand for the memory of shared-memory devices.
    Ivshmem,
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stream => "guest, stream alone",
            Self::Ivshmem => "guest, shared memory",
        }
    }
}

/// A guest made of namespaces, and the relay on its host.
pub(super) struct Guest {
    /// Where the agent's socket is.
    folder: PathBuf,
    libraries: PathBuf,
    probe: PathBuf,
    pub(super) agent: Running,
    pub(super) relay: Running,
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
    text(&mut mica.command(&["create", vgpu(), "-m", "1GiB", "-s", "50"]))?;
    for way in [Way::Stream, Way::Ivshmem] {
        check(rows, &mica, options, &scratch.0, way)?;
    }
    text(&mut mica.command(&["vm", "detach", vgpu()]))?;
    Ok(())
}

/// All checks of one way.
fn check(rows: &mut Rows, mica: &Mica, options: Options, scratch: &Path, way: Way) -> Result<()> {
    let name = way.name();
    let folder = |part: &str| -> Result<PathBuf> {
        let folder = scratch.join(format!("{way:?}-{part}"));
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    };
    let guest = Guest::start(mica, options, &folder("guest")?, way)?;
    rows.check(&format!("{name}: limits hold, without a variable"), || {
        let printed = text(&mut guest.command(&guest.probe, &["1024"]))?;
        ensure!(printed.trim() == "ok", "{printed:?}");
        Ok("1 GiB".into())
    });
    rows.check(&format!("{name}: a program is killed"), || {
        left(mica, &guest)
    });
    suite_in(rows, &guest, options, way);
    drop(guest);
    rows.check(&format!("{name}: the relay is killed"), || {
        let mut guest = Guest::start(mica, options, &folder("relay")?, way)?;
        let (mut program, _output) = guest.polling()?;
        guest.relay.0.kill()?;
        gone(mica, &mut program)
    });
    rows.check(&format!("{name}: the machine crashes and boots"), || {
        let mut guest = Guest::start(mica, options, &folder("crash")?, way)?;
        let (program, _output) = guest.polling()?;
        // A crash takes all of the machine: a program whose agent alone is gone still reaches its worker.
        signal_group(&program, libc::SIGKILL);
        guest.agent.0.kill()?;
        guest.agent.0.wait()?;
        drop(program);
        let freed = until_empty(mica)?;
        guest.boot(options, way)?;
        let printed = text(&mut guest.command(&guest.probe, &["1024"]))?;
        ensure!(printed.trim() == "ok", "{printed:?}");
        Ok(format!("gone after {} ms, and back", freed.as_millis()))
    });
    rows.check(&format!("{name}: the machine pauses for a moment"), || {
        let guest = Guest::start(mica, options, &folder("moment")?, way)?;
        paused_for_a_moment(mica, &guest)
    });
    rows.check(&format!("{name}: the machine pauses"), || {
        let guest = Guest::start(mica, options, &folder("pause")?, way)?;
        let said = paused(mica, &guest, "poll")?;
        ensure!(said.1 == "error 46\n", "the program said {:?}", said.1);
        Ok(format!(
            "gone after {:.1} s, error 46",
            said.0.as_secs_f64()
        ))
    });
    rows.check(&format!("{name}: it pauses amid posted calls"), || {
        let guest = Guest::start(mica, options, &folder("posted")?, way)?;
        let (_, said) = paused(mica, &guest, "ask-nothing")?;
        posted_calls(&said, way)
    });
    Ok(())
}

impl Guest {
    pub(super) fn start(mica: &Mica, options: Options, scratch: &Path, way: Way) -> Result<Self> {
        let at = |name: &str| scratch.join(name);
        let stream = at("vm.vsock_9350");
        let mut relay = mica.command(&["vm", "serve", vgpu(), "--socket"]);
        let relay = Running(relay.arg(&stream).stderr(Stdio::null()).spawn()?);
        wait_for(&stream)?;
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
            agent: agent(scratch, options, way)?,
            folder: at("guest"),
            libraries,
            probe: at("probe"),
            relay,
        })
    }

    /// Starts another agent, as after a crash of the machine.
    fn boot(&mut self, options: Options, way: Way) -> Result<()> {
        let scratch = self.folder.parent().unwrap_or(&self.folder);
        let _ = std::fs::remove_file(self.folder.join("host.sock"));
        self.agent = agent(scratch, options, way)?;
        Ok(())
    }

    /// A program in the guest: no network, no variable, the agent's socket and the libraries.
    pub(super) fn command(&self, program: &Path, words: &[&str]) -> Command {
        // A folder of the namespace's own: one that stays on the host would have every program there taken for one of a guest.
        let script = "mount -t tmpfs run /run && mkdir /run/mica-vgpu && \
            mount --bind \"$1\" /run/mica-vgpu && shift && \
            exec env -i LD_LIBRARY_PATH=\"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "sh", "-c", script, "sh"]);
        command.arg(&self.folder).arg(&self.libraries);
        command.arg("timeout").arg("300").arg(program).args(words);
        command
    }

    /// A program that copies until that fails, and its output.
    fn polling(&self) -> Result<(Running, ChildStdout)> {
        self.until_gone("poll")
    }

    fn until_gone(&self, how: &str) -> Result<(Running, ChildStdout)> {
        let mut command = self.command(&self.probe, &["1024", how]);
        let mut program = Running(command.stdout(Stdio::piped()).spawn()?);
        let mut output = program.0.stdout.take().context("no output")?;
        let mut said = [0; 5];
        output.read_exact(&mut said)?;
        ensure!(&said == b"here\n", "{said:?}");
        Ok((program, output))
    }
}

/// The agent in the guest.
fn agent(scratch: &Path, options: Options, way: Way) -> Result<Running> {
    let mut agent = Command::new(target().join(options.profile).join("mica-guest"));
    agent
        .args(["serve", "--unix"])
        .arg(scratch.join("vm.vsock_9350"));
    agent
        .arg("--folder")
        .arg(scratch.join("guest"))
        .stderr(Stdio::null());
    match way {
        Way::Stream => agent.arg("--no-ivshmem"),
        Way::Ivshmem => agent.args((0..4).flat_map(|number| {
            [
                "--ivshmem".to_owned(),
                format!("/dev/shm/mica-{}-{number}", vgpu()),
            ]
        })),
    };
    let agent = Running(agent.spawn().context("mica-guest cannot start")?);
    wait_for(&scratch.join("guest/host.sock"))?;
    Ok(agent)
}

/// A program learns of the end by a CUDA error, and everything comes back.
fn gone(mica: &Mica, program: &mut Running) -> Result<String> {
    let freed = until_empty(mica)?;
    let began = Instant::now();
    while program.0.try_wait()?.is_none() {
        ensure!(began.elapsed() < FREED_WITHIN, "the program hangs");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(format!("gone after {} ms", freed.as_millis()))
}

/// A machine that stands still for longer than the host waits: its memory is freed, and its program learns of that when it goes on.
fn paused(mica: &Mica, guest: &Guest, how: &str) -> Result<(Duration, String)> {
    let (mut program, mut output) = guest.until_gone(how)?;
    signal_guest(guest, &program, libc::SIGSTOP);
    let freed = until_empty(mica);
    signal_guest(guest, &program, libc::SIGCONT);
    let freed = freed?;
    gone(mica, &mut program)?;
    let mut said = String::new();
    output.read_to_string(&mut said)?;
    Ok((freed, said))
}

/// A machine that stands still for less time than the host waits: its program goes on.
fn paused_for_a_moment(mica: &Mica, guest: &Guest) -> Result<String> {
    let (mut program, _output) = guest.polling()?;
    signal_guest(guest, &program, libc::SIGSTOP);
    std::thread::sleep(MOMENT);
    signal_guest(guest, &program, libc::SIGCONT);
    // It copies all the time, and ends at the first error.
    std::thread::sleep(MOMENT / 2);
    ensure!(program.0.try_wait()?.is_none(), "the program has ended");
    let shown = mica.json(&["show", vgpu(), "--json"])?;
    let programs = shown["processes"].as_array().map_or(0, Vec::len);
    ensure!(programs == 1, "{shown}");
    signal_group(&program, libc::SIGKILL);
    until_empty(mica)?;
    Ok(format!("goes on after {} s", MOMENT.as_secs()))
}

/// What a program says that was paused amid calls that need no answer: the error comes and stays. In shared memory it is there
/// before the program goes on; a stream must be seen to be closed first.
fn posted_calls(said: &str, way: Way) -> Result<String> {
    let numbers = said
        .strip_prefix("error 46 after ")
        .and_then(|rest| rest.strip_suffix(" calls\nerror 46\n"));
    let calls: u32 = numbers
        .with_context(|| format!("the program said {said:?}"))?
        .parse()?;
    let most = match way {
        Way::Ivshmem => 0,
        Way::Stream => MOST_POSTED,
    };
    ensure!(
        calls <= most,
        "{calls} calls succeeded after the pause, not {most}"
    );
    Ok(format!("error 46 after {calls} calls"))
}

/// Sends a signal to the agent and to a program.
fn signal_guest(guest: &Guest, program: &Running, number: i32) {
    signal_group(program, number);
    // SAFETY: a process that this one has started.
    unsafe { libc::kill(guest.agent.0.id() as i32, number) };
}

/// Sends a signal to a program: `timeout` leads a group of its own, in which the program is.
fn signal_group(program: &Running, number: i32) {
    // SAFETY: processes that this one has started.
    unsafe { libc::kill(-(program.0.id() as i32), number) };
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
pub(super) fn until_empty(mica: &Mica) -> Result<Duration> {
    let began = Instant::now();
    loop {
        let shown = mica.json(&["show", vgpu(), "--json"])?;
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
    // The program of the check before may still be listed.
    until_empty(mica)?;
    let mut command = guest.command(&guest.probe, &["1024", "wait"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = Running(command.spawn()?);
    let mut output = program.0.stdout.take().context("no output")?;
    let mut said = [0; 4];
    output.read_exact(&mut said)?;
    let shown = mica.json(&["show", vgpu(), "--json"])?;
    let programs = shown["processes"].as_array().map_or(0, Vec::len);
    ensure!(&said == b"here" && programs == 1, "{shown}");
    drop(program);
    Ok(format!("gone after {} ms", until_empty(mica)?.as_millis()))
}

/// Runs the CUDA programs in the guest.
fn suite_in(rows: &mut Rows, guest: &Guest, options: Options, way: Way) {
    let name = format!("{}: CUDA programs", way.name());
    let programs = match super::containers::programs(options.programs) {
        Ok(programs) if !programs.is_empty() => programs,
        _ => {
            let why = "no CUDA program is built: `cargo xtask suite` builds them";
            return rows.skip(&name, why);
        }
    };
    rows.check(&name, || {
        let mut failed = Vec::new();
        for program in &programs {
            let output = guest.command(program, &[]).output()?;
            let name = program.file_name().unwrap_or_default().to_string_lossy();
            let is_well = suite::must_be_ok(&output)
                .and_then(|_| suite::must_know_of_memory(&name, &output, way == Way::Ivshmem));
            if let Err(error) = is_well {
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
