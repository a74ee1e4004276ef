//! Workers: started when a program comes, handed their sessions, buried when they end.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use mica_limits::Environment;
use mica_wire::host::message::{Kind, Message, Refusal, Role};

use crate::api::{GpuKind, Mode, Priority, Severity};
use crate::config::Config;
use crate::daemon::Daemon;
use crate::host::session_pair;
use crate::watched::Watched;

/// Niceness of an urgent virtual GPU's worker: its threads compete for cores with those of other workers.
const URGENT_NICE: i32 = -10;
/// Niceness of the others, where the daemon has changed its own.
static USUAL_NICE: OnceLock<i32> = OnceLock::new();

/// The daemon does little and others wait for it, so it goes before the threads that compute; its workers do not
/// inherit that. For a process without other threads. Refused without privileges.
pub(crate) fn go_before_workers() {
    use rustix::process::{getpriority_process, setpriority_process};
    if let Ok(usual) = getpriority_process(None)
        && setpriority_process(None, usual.min(URGENT_NICE)).is_ok()
    {
        let _ = USUAL_NICE.set(usual);
    }
}

/// Sessions of one virtual GPU that may wait for its worker.
const MOST_PENDING: usize = 1024;

impl Daemon {
    /// Makes a session between a program and the worker of its virtual GPU, starting the worker if there
    /// is none; returns the program's end.
    pub(crate) fn open_session(
        self: &Arc<Self>,
        name: &str,
        pid: u32,
        uid: u32,
    ) -> Result<OwnedFd, (Refusal, String)> {
        let (program_end, worker_end) = session_pair()
            .map_err(|error| (Refusal::Busy, format!("no session can be made: {error}")))?;
        let mut registry = self.registry();
        let gone = || (Refusal::State, format!("{name} is gone"));
        let mode = registry.vgpus.get(name).map(|vgpu| registry.mode(vgpu));
        if mode.ok_or_else(gone)? != Mode::Isolated {
            return Err((
                Refusal::State,
                format!("{name} is a direct virtual GPU and has no worker"),
            ));
        }
        let vgpu = registry.vgpus.get_mut(name).ok_or_else(gone)?;
        if vgpu.worker.pending.len() >= MOST_PENDING {
            let text = format!("{name} has {MOST_PENDING} sessions that wait for its worker");
            return Err((Refusal::Busy, text));
        }
        match Watched::open(pid) {
            Some(program) => {
                let known = |p: &Watched| p.pid == pid && p.start == program.start;
                if !vgpu.programs.iter().any(known) {
                    vgpu.programs.push(program);
                }
            }
            None => vgpu.has_unseen = true,
        }
        vgpu.ever_joined = true;
        vgpu.worker.pending.push((worker_end, pid, uid));
        drop(registry);
        // A successor should know who is served.
        self.dirty.store(true, Relaxed);
        self.serve_pending(name)?;
        Ok(program_end)
    }

    /// Sees to it that somebody serves the sessions that wait: the worker that is there, one that is
    /// expected back from before a restart, or a new one.
    pub(crate) fn serve_pending(self: &Arc<Self>, name: &str) -> Result<(), (Refusal, String)> {
        let mut registry = self.registry();
        let config = registry.config.clone();
        let nvidia = registry.vgpus.get(name).and_then(|vgpu| {
            let facts = &registry.gpus.get(vgpu.gpu)?.facts;
            (facts.kind == GpuKind::Nvidia).then(|| facts.uuid.clone())
        });
        let Some(vgpu) = registry.vgpus.get_mut(name) else {
            return Ok(());
        };
        if let Some(client) = vgpu.worker.client {
            drop(registry);
            self.deliver_sessions(client);
        } else if vgpu.worker.started.is_none() && !vgpu.ledger.expects(Some(Role::Worker as u32)) {
            let token = Environment::token_hex(&vgpu.worker_token);
            let child = self
                .start_worker(&config, &token, &vgpu.spec, nvidia.as_deref())
                .map_err(|error| (Refusal::Busy, format!("no worker can be started: {error}")))?;
            vgpu.worker.started = Some(Instant::now());
            vgpu.worker.pid = Some(child.id());
            let id = vgpu.id;
            drop(registry);
            self.watch_worker(child, name.to_owned(), id)
                .map_err(|error| (Refusal::Busy, format!("no worker can be watched: {error}")))?;
        }
        Ok(())
    }

    fn start_worker(
        &self,
        config: &Config,
        token: &str,
        spec: &crate::api::VgpuSpec,
        nvidia: Option<&str>,
    ) -> std::io::Result<Child> {
        let flag = |allowed: bool| if allowed { "1" } else { "0" };
        let full = spec.precision_policy == crate::api::PrecisionPolicy::Full;
        let mut command = match config.daemon.worker_command.split_first() {
            Some((program, arguments)) => {
                let mut command = Command::new(program);
                command.args(arguments);
                command
            }
            None => {
                let mut own = std::env::current_exe()?;
                if !own.exists() {
                    // Its file was replaced since it was started; the program is still there.
                    own = "/proc/self/exe".into();
                }
                let mut command = Command::new(own);
                command.arg("worker");
                command
            }
        };
        if let Some(uuid) = nvidia {
            // One virtual GPU is on one card: the worker sees that card as device 0.
            command
                .env("MICA_WORKER_NVIDIA", "1")
                .env("CUDA_VISIBLE_DEVICES", uuid);
        }
        let urgent = (spec.priority == Priority::High).then_some(URGENT_NICE);
        if let Some(nice) = urgent.or(USUAL_NICE.get().copied()) {
            command.env("MICA_WORKER_NICE", nice.to_string());
        }
        command
            .env(Environment::SOCKET, self.paths.host_socket())
            .env(Environment::TOKEN, token)
            // The names are `mica_worker::WorkerConfig`'s.
            .env(
                "MICA_WORKER_MAX_STREAMS",
                spec.max_streams.unwrap_or(0).to_string(),
            )
            .env("MICA_WORKER_TENSOR_CORES", flag(spec.tensor_cores))
            .env("MICA_WORKER_TF32", flag(!full))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
    }

    /// Waits for a worker's end on a thread of its own, so that it leaves no zombie.
    fn watch_worker(
        self: &Arc<Self>,
        mut child: Child,
        name: String,
        vgpu_id: u64,
    ) -> std::io::Result<()> {
        let daemon = self.clone();
        std::thread::Builder::new()
            .name("worker-end".into())
            .stack_size(64 << 10)
            .spawn(move || {
                let pid = child.id();
                let status = child.wait();
                let mut registry = daemon.registry();
                let Ok(vgpu) = registry.vgpu_mut(&name) else {
                    return;
                };
                let said_hello = vgpu.worker.client.is_some();
                if vgpu.id != vgpu_id || vgpu.worker.pid != Some(pid) || said_hello {
                    return;
                }
                vgpu.worker.started = None;
                vgpu.worker.pid = None;
                vgpu.worker.pending.clear();
                drop(registry);
                let how = status.map_or_else(|e| e.to_string(), |status| status.to_string());
                daemon.events.add(
                    Severity::Error,
                    "worker_died",
                    Some(&name),
                    Some(pid),
                    format!("the worker of {name} ended before it served anybody: {how}"),
                );
            })?;
        Ok(())
    }

    /// Hands waiting sessions to a worker.
    pub(crate) fn deliver_sessions(&self, client: u64) {
        let (socket, sessions) = {
            let mut registry = self.registry();
            let Some(client_entry) = registry.clients.get(&client) else {
                return;
            };
            let (socket, name) = (client_entry.socket.clone(), client_entry.vgpu.clone());
            let Ok(vgpu) = registry.vgpu_mut(&name) else {
                return;
            };
            if vgpu.worker.client != Some(client) {
                return;
            }
            let first = vgpu.worker.next_session;
            let pending = std::mem::take(&mut vgpu.worker.pending);
            vgpu.worker.next_session += pending.len() as u64;
            let sessions: Vec<_> = (first..).zip(pending).collect();
            (socket, sessions)
        };
        for (number, (fd, pid, uid)) in sessions {
            let mut message = Message::new(Kind::Session);
            message.a = number + 1;
            message.b = pid.into();
            message.c = uid.into();
            let _ = socket.send(&message, &[fd.as_fd()]);
        }
    }
}
