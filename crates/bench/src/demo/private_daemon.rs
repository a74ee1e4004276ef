//! What the demo runs in: a daemon of its own in a folder of its own, gone when the demo ends.
//!
//! The user's daemon, if one runs, is neither asked nor disturbed. Everything is taken down when the
//! [`PrivateDaemon`] is dropped: at the end, on an error, on Ctrl-C. Should this process be killed, the kernel ends
//! daemon and tenants, and workers end for lack of sessions.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use mica_control::Paths;
use mica_control::api::{Created, GpuInfo, GpuKind, Mode, VgpuSpec};
use mica_control::client::ControlClient;

use super::tenant::{Answer, Ask};
use mica_command::child::{ends_with_us, own_path};
use mica_command::refusal::explain;

/// Longest that anything in the demo may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Sockets have at most 107 bytes of path.
const LONGEST_FOLDER: usize = 60;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupt(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From here on Ctrl-C and SIGTERM end the demo in order.
pub(crate) fn catch_interrupts() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, interrupt as *const () as libc::sighandler_t) };
    }
    // A reader that goes must not end this process before everything is taken down.
    // SAFETY: ignoring a signal runs no code.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// As Ctrl-C.
pub(crate) fn interrupt_now() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Whether the demo was told to end.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// A private daemon with one software GPU.
pub(crate) struct PrivateDaemon {
    folder: PathBuf,
    daemon: Child,
    pub(crate) client: ControlClient,
    pub(crate) gpu: GpuInfo,
    /// The host's real GPU, if it has one.
    pub(crate) other_gpu: Option<String>,
}

impl PrivateDaemon {
    /// Starts the daemon; its GPU has so much memory.
    pub(crate) fn set_up(memory_bytes: u64) -> Result<Self> {
        Self::set_up_with(memory_bytes, "")
    }

    /// As [`PrivateDaemon::set_up`], with more sections of the daemon's configuration.
    pub(crate) fn set_up_with(memory_bytes: u64, sections: &str) -> Result<Self> {
        let folder = make_folder()?;
        match Self::start_in(&folder, memory_bytes, sections) {
            Ok(private_daemon) => Ok(private_daemon),
            Err(error) => {
                let log = std::fs::read_to_string(folder.join("daemon.log")).unwrap_or_default();
                let _ = std::fs::remove_dir_all(&folder);
                match log.lines().last() {
                    Some(line) => Err(error.context(format!("the daemon's last words: {line}"))),
                    None => Err(error),
                }
            }
        }
    }

    fn start_in(folder: &Path, memory_bytes: u64, sections: &str) -> Result<Self> {
        let config = folder.join("mica.toml");
        std::fs::write(
            &config,
            format!(
                "[software_gpu]\noffer = \"always\"\nmemory_bytes = {memory_bytes}\n{sections}"
            ),
        )?;
        let log = std::fs::File::create(folder.join("daemon.log"))?;
        let mut command = Command::new(own_path()?);
        command
            .arg("daemon")
            .arg("--config")
            .arg(&config)
            .env("MICA_RUNTIME_DIR", folder)
            .env("MICA_WORKER_IDLE_SECONDS", "2")
            .env_remove("MICA_STATE_DIR")
            .env_remove("MICA_HOST_SOCKET")
            .env_remove("MICA_TOKEN")
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let daemon = die_with_parent(&mut command, libc::SIGTERM)
            .spawn()
            .context("no daemon can be started")?;
        let paths = Paths {
            runtime_dir: folder.to_owned(),
            state_dir: folder.join("state"),
            shared: false,
        };
        let mut private_daemon = Self {
            folder: folder.to_owned(),
            daemon,
            client: ControlClient::new(paths.control_socket()),
            gpu: GpuInfo::default(),
            other_gpu: None,
        };
        let gpus = private_daemon.answered()?;
        private_daemon.other_gpu = gpus
            .iter()
            .find(|gpu| gpu.kind == GpuKind::Nvidia)
            .map(|gpu| gpu.name.clone());
        private_daemon.gpu = gpus
            .into_iter()
            .find(|gpu| gpu.kind == GpuKind::Software)
            .context("the daemon offers no software GPU")?;
        Ok(private_daemon)
    }

    /// Waits for the daemon's first answer.
    fn answered(&mut self) -> Result<Vec<GpuInfo>> {
        let began = Instant::now();
        loop {
            match self.client.gpus() {
                Ok(gpus) => return Ok(gpus),
                Err(error) if !error.is_unreachable() => return Err(explain(error)),
                Err(_) => {}
            }
            if let Some(status) = self.daemon.try_wait()? {
                bail!("the demo's daemon ended with {status}");
            }
            if began.elapsed() > PATIENCE {
                bail!("the demo's daemon does not answer");
            }
            pause(Duration::from_millis(5))?;
        }
    }

    /// Makes a virtual GPU.
    pub(crate) fn vgpu(&self, name: &str, memory_bytes: u64, share: u32) -> Result<Created> {
        let spec = VgpuSpec {
            name: Some(name.into()),
            memory_limit_bytes: Some(memory_bytes),
            share_percent: Some(share.into()),
            gpu: Some(self.gpu.index),
            mode: Some(Mode::Isolated),
            ..VgpuSpec::default()
        };
        self.client.create(&spec).map_err(explain)
    }

    /// The folder of the daemon's sockets.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The daemon's process.
    pub(crate) fn daemon_pid(&self) -> u32 {
        self.daemon.id()
    }

    /// All processes that the daemon knows, and its own.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let vgpus = self.client.list().unwrap_or_default();
        let known = vgpus.iter().flat_map(|vgpu| &vgpu.processes);
        known
            .map(|process| process.pid)
            .chain([self.daemon.id(), std::process::id()])
            .collect()
    }

    fn take_down(&mut self) {
        let own = [self.daemon.id(), std::process::id()];
        let mut workers = self.processes();
        workers.retain(|pid| !own.contains(pid));
        for vgpu in self.client.list().unwrap_or_default() {
            let _ = self.client.remove(&vgpu.name, true);
        }
        let _ = self.client.shutdown();
        if !wait_for_end(|| matches!(self.daemon.try_wait(), Ok(Some(_)))) {
            let _ = self.daemon.kill();
            let _ = self.daemon.wait();
        }
        for worker in workers {
            // SAFETY: signal 0 asks whether the process is there.
            if !wait_for_end(|| unsafe { libc::kill(worker as i32, 0) } != 0) {
                // SAFETY: the daemon of this demo named it as a process of its virtual GPUs.
                unsafe { libc::kill(worker as i32, libc::SIGKILL) };
            }
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Drop for PrivateDaemon {
    fn drop(&mut self) {
        self.take_down();
    }
}

fn wait_for_end(mut ended: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !ended() {
        if began.elapsed() > Duration::from_secs(2) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

fn make_folder() -> Result<PathBuf> {
    let usual = std::env::temp_dir();
    let base = match usual.as_os_str().len() <= LONGEST_FOLDER && usual.is_absolute() {
        true => usual,
        false => PathBuf::from("/tmp"),
    };
    for attempt in 0..1000 {
        let folder = base.join(format!("mica-demo-{}-{attempt}", std::process::id()));
        match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("{} cannot be made", folder.display()));
            }
        }
    }
    bail!("no folder for the demo can be made in {}", base.display())
}

/// Ends with the demo, however that ends. The child has a process group of its own, so that Ctrl-C reaches only the
/// demo, which takes everything down in order.
fn die_with_parent(command: &mut Command, signal: libc::c_int) -> &mut Command {
    ends_with_us(command.process_group(0), signal)
}

/// Sleeps, unless the demo was told to end.
pub(crate) fn pause(time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    loop {
        if interrupted() {
            bail!("interrupted");
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// A tenant's process, seen from the demo.
pub(crate) struct TenantProcess {
    child: Child,
    questions: ChildStdin,
    answers: Receiver<String>,
}

impl TenantProcess {
    /// Starts it in its virtual GPU.
    pub(crate) fn start(created: &Created) -> Result<Self> {
        let mut command = Command::new(own_path()?);
        command
            .arg("demo-tenant")
            .env("MICA_HOST_SOCKET", &created.host_socket)
            .env("MICA_TOKEN", &created.token)
            .env("MICA_VGPU", &created.name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = die_with_parent(&mut command, libc::SIGKILL)
            .spawn()
            .with_context(|| format!("tenant {} cannot be started", created.name))?;
        let (Some(questions), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("tenant {} has no pipes", created.name);
        };
        let (sender, answers) = channel();
        let read = move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        };
        std::thread::Builder::new()
            .name("tenant".into())
            .spawn(read)?;
        Ok(Self {
            child,
            questions,
            answers,
        })
    }

    /// Asks without waiting for the answer.
    pub(crate) fn ask(&mut self, ask: Ask) -> Result<()> {
        let mut line = serde_json::to_string(&ask)?;
        line.push('\n');
        let sent = self.questions.write_all(line.as_bytes());
        sent.context("a tenant's process is gone")
    }

    /// The answer to the oldest question.
    pub(crate) fn answer(&mut self) -> Result<Answer> {
        self.answer_within(PATIENCE)
    }

    /// As [`TenantProcess::answer`], for questions that take long.
    pub(crate) fn answer_within(&mut self, patience: Duration) -> Result<Answer> {
        let began = Instant::now();
        loop {
            match self.answers.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => {
                    let answer: Answer = serde_json::from_str(&line)?;
                    return match answer.failed {
                        Some(why) => Err(anyhow!(why)),
                        None => Ok(answer),
                    };
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("a tenant's process ended")
                }
                Err(RecvTimeoutError::Timeout) if interrupted() => bail!("interrupted"),
                Err(RecvTimeoutError::Timeout) if began.elapsed() > patience => {
                    bail!("a tenant has not answered for {} s", patience.as_secs())
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Ends it as nobody would wish to end: SIGKILL, in the middle of its work.
    pub(crate) fn kill(mut self) -> Instant {
        let now = Instant::now();
        let _ = self.child.kill();
        now
    }
}

impl Drop for TenantProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
