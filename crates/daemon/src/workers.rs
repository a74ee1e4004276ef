//! Workers: one for each program, started when the program comes or just before, handed its sessions, buried when they
//! end.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, mpsc};

use mica_control::api::{GpuKind, Mode, Priority, Severity, VgpuSpec};
use mica_limits::{Environment, worker_variables};
use mica_wire::host::message::{DaemonMessage, Refusal};

use crate::cgroups::GroupLimits;
use crate::config::Config;
use crate::confinement;
use crate::daemon::Daemon;
use crate::enforce::parent_of;
use crate::host::{Rejection, session_pair};
use crate::registry::{Vgpu, WorkerSlot};
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

/// Workers, and so programs, of one virtual GPU at a time.
const MOST_WORKERS: usize = 256;
/// Sessions of one program that may wait for its worker.
const MOST_PENDING: usize = 16;

/// How far a worker may be from the process that the daemon started: `worker_command` may be a chain of wrappers.
const MOST_WRAPPERS: usize = 8;

/// A session that waits for its worker to say hello.
#[derive(Debug)]
pub(crate) struct PendingSession {
    /// The worker's end of the session.
    socket: OwnedFd,
    pid: u32,
    uid: u32,
    /// The program's pidfd, which a worker in a process namespace of its own cannot open.
    life: Option<OwnedFd>,
}

/// What a worker must know of its virtual GPU.
struct WorkerOrder {
    token: String,
    spec: VgpuSpec,
    /// The card's UUID; `None` for the software GPU.
    nvidia: Option<String>,
    owner_uid: u32,
    /// The worker's cgroup, where it has one.
    cgroup: Option<PathBuf>,
}

impl Daemon {
    /// Makes a session between a program and a worker of its own, starting the worker if there is none for this
    /// program; returns the program's end. `session` is the number of the one that the program waits for, if that is in a
    /// snapshot, else 0.
    pub(crate) fn open_session(
        self: &Arc<Self>,
        name: &str,
        pid: u32,
        uid: u32,
        session: u64,
    ) -> Result<OwnedFd, Rejection> {
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
        let fresh = registry.fresh_id();
        let vgpu = registry.vgpus.get_mut(name).ok_or_else(gone)?;
        let program = Watched::open(pid);
        let known = program.as_ref().map(|p| (p.pid, p.start));
        vgpu.admit(known, session)?;
        let slot = slot_of_program(vgpu, known, fresh)?;
        let life = program.as_ref().and_then(|p| p.pidfd.try_clone().ok());
        let worker = (vgpu.workers.entry(slot)).or_insert_with(|| WorkerSlot::of(known));
        let ahead = std::mem::take(&mut worker.is_spare)
            .then_some(worker.client)
            .flatten();
        worker.program = worker.program.or(known);
        let pending = &mut worker.pending;
        if pending.len() >= MOST_PENDING {
            let text = format!("process {pid} has {MOST_PENDING} sessions that wait for a worker");
            return Err((Refusal::Busy, text));
        }
        pending.push(PendingSession {
            socket: worker_end,
            pid,
            uid,
            life,
        });
        match program {
            Some(program) if vgpu.programs.iter().any(|p| p.is(&program)) => {}
            Some(program) => vgpu.programs.push(program),
            None => vgpu.has_unseen = true,
        }
        vgpu.ever_joined = true;
        let joined = ahead.and_then(|client| registry.give_program(client, known));
        drop(registry);
        if let Some(text) = joined {
            let (kind, pid) = ("process_joined", Some(pid));
            self.events.add(Severity::Info, kind, Some(name), pid, text);
        }
        // A successor should know who is served.
        self.dirty.store(true, Relaxed);
        self.serve_pending(name, slot)?;
        Ok(program_end)
    }

    /// Starts a worker ahead of the program that the creator of a virtual GPU is about to start: the worker confines
    /// itself and loads the driver while the program is being loaded. One that no program takes ends by itself.
    pub(crate) fn start_spare(self: &Arc<Self>, name: &str) {
        let mut registry = self.registry();
        let slot = registry.fresh_id();
        let mode = registry.vgpus.get(name).map(|vgpu| registry.mode(vgpu));
        let Some(vgpu) = registry.vgpus.get_mut(name) else {
            return;
        };
        if mode != Some(Mode::Isolated) || !vgpu.workers.is_empty() {
            return;
        }
        vgpu.workers.insert(slot, WorkerSlot::spare());
        drop(registry);
        if let Err((_, text)) = self.serve_pending(name, slot) {
            // The program asks for a worker itself, and is told why there is none.
            tracing::debug!(name, text, "no worker was started ahead");
        }
    }

    /// Sees to it that the sessions that wait in a slot are served: by its worker, or by a new one.
    pub(crate) fn serve_pending(self: &Arc<Self>, name: &str, slot: u64) -> Result<(), Rejection> {
        let mut registry = self.registry();
        let config = registry.config.clone();
        let nvidia = registry.vgpus.get(name).and_then(|vgpu| {
            let facts = &registry.gpus.get(vgpu.gpu)?.facts;
            (facts.kind == GpuKind::Nvidia).then(|| facts.uuid.clone())
        });
        let region_bytes = registry.attached_bytes(name);
        let Some(vgpu) = registry.vgpus.get_mut(name) else {
            return Ok(());
        };
        let Some(worker) = vgpu.workers.get(&slot) else {
            return Ok(());
        };
        if let Some(client) = worker.client {
            drop(registry);
            self.deliver_sessions(client);
            return Ok(());
        }
        if worker.pid.is_some() {
            return Ok(());
        }
        let limits = GroupLimits::of(vgpu, nvidia.is_some(), region_bytes);
        let mut order = WorkerOrder {
            token: Environment::token_hex(&vgpu.worker_token),
            spec: vgpu.spec.clone(),
            nvidia,
            owner_uid: vgpu.owner_uid,
            cgroup: None,
        };
        // The thread first: a worker that nobody watches would stay as a zombie.
        let started = self.watch_worker(name, vgpu.id, slot).and_then(|watcher| {
            order.cgroup = self.cgroups.make(name, slot, &limits);
            let child = self.start_worker(&config, &order)?;
            let pid = child.id();
            let _ = watcher.send(child);
            Ok(pid)
        });
        match started {
            Ok(pid) => {
                if let Some(worker) = vgpu.workers.get_mut(&slot) {
                    worker.pid = Some(pid);
                }
                Ok(())
            }
            Err(error) => {
                vgpu.workers.remove(&slot);
                Err((Refusal::Busy, format!("no worker can be started: {error}")))
            }
        }
    }

    fn start_worker(&self, config: &Config, order: &WorkerOrder) -> std::io::Result<Child> {
        let flag = |allowed: bool| if allowed { "1" } else { "0" };
        let spec = &order.spec;
        let full = spec.precision_policy == mica_control::api::PrecisionPolicy::Full;
        let mut command = worker_command(config)?;
        // The daemon's own environment may hold what no tenant should read.
        command.env_clear().envs(
            std::env::vars_os()
                .filter(|(name, _)| name.to_str().is_some_and(confinement::is_for_workers)),
        );
        if let Some(uuid) = &order.nvidia {
            // One virtual GPU is on one card: the worker sees that card as device 0.
            command
                .env(worker_variables::NVIDIA, "1")
                .env("CUDA_VISIBLE_DEVICES", uuid);
        }
        let urgent = (spec.priority == Priority::High).then_some(URGENT_NICE);
        if let Some(nice) = urgent.or(USUAL_NICE.get().copied()) {
            command.env(worker_variables::NICE, nice.to_string());
        }
        command.envs(confinement::variables(
            &config.workers,
            order.owner_uid,
            order.cgroup.as_deref(),
        ));
        command
            .env(Environment::SOCKET, self.paths.worker_socket())
            .env(Environment::TOKEN, &order.token)
            .env(
                worker_variables::MAX_STREAMS,
                spec.max_streams.unwrap_or(0).to_string(),
            )
            .env(worker_variables::TENSOR_CORES, flag(spec.tensor_cores))
            .env(worker_variables::TF32, flag(!full))
            .env(
                worker_variables::CHECK,
                spec.check.as_deref().unwrap_or_default(),
            )
            .env(worker_variables::COVERAGE, flag(spec.coverage))
            .envs(spec.seed.map(|n| (worker_variables::SEED, n.to_string())))
            .envs(spec.cores.map(|n| (worker_variables::CORES, n.to_string())))
            .envs((spec.capability.as_ref()).map(|c| (worker_variables::CAPABILITY, c)))
            .env(worker_variables::SWAP, flag(spec.swap == Some(true)))
            .env(worker_variables::GUARD, flag(spec.guard))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
    }

    /// Starts a thread that waits for the end of the worker that it is sent, so that it leaves no zombie.
    fn watch_worker(
        self: &Arc<Self>,
        name: &str,
        vgpu_id: u64,
        slot: u64,
    ) -> std::io::Result<mpsc::Sender<Child>> {
        let (daemon, name) = (self.clone(), name.to_owned());
        let (sender, started) = mpsc::channel::<Child>();
        std::thread::Builder::new()
            .name("worker-end".into())
            .stack_size(128 << 10)
            .spawn(move || {
                let Ok(mut child) = started.recv() else {
                    return daemon.cgroups.remove(&name, slot);
                };
                let pid = child.id();
                let last_words = child.stderr.take().map(|words| log_words(pid, words));
                let status = child.wait();
                daemon.cgroups.remove(&name, slot);
                let mut registry = daemon.registry();
                let Ok(vgpu) = registry.vgpu_mut(&name) else {
                    return;
                };
                let served = vgpu.workers.get(&slot).is_none_or(|s| s.client.is_some());
                if vgpu.id != vgpu_id || served {
                    return;
                }
                // Dropping the descriptors of its sessions tells the program.
                vgpu.workers.remove(&slot);
                drop(registry);
                let mut how = status.map_or_else(|e| e.to_string(), |status| status.to_string());
                if let Some(words) = last_words.filter(|words| !words.is_empty()) {
                    how += &format!(": {words}");
                }
                daemon.events.add(
                    Severity::Error,
                    "worker_died",
                    Some(&name),
                    Some(pid),
                    format!("a worker of {name} ended before it served its program: {how}"),
                );
            })?;
        Ok(sender)
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
            let profile = vgpu.profiled.order();
            let mut workers = vgpu.workers.values_mut();
            let Some(slot) = workers.find(|slot| slot.client == Some(client)) else {
                return;
            };
            let first = slot.next_session;
            let pending = std::mem::take(&mut slot.pending);
            slot.next_session += pending.len() as u64;
            let sessions: Vec<_> = (first..).zip(pending).collect();
            (socket, (profile, sessions))
        };
        let (profile, sessions) = sessions;
        if let Some(order) = profile {
            // Before the session, so that its first kernel is seen.
            let _ = socket.send(&order, &[]);
        }
        for (number, session) in sessions {
            let message = DaemonMessage::Session {
                session: number + 1,
                pid: session.pid,
                uid: session.uid,
            };
            let fds = std::iter::once(session.socket.as_fd());
            let fds: Vec<_> = fds.chain(session.life.as_ref().map(AsFd::as_fd)).collect();
            let _ = socket.send(&message, &fds);
        }
    }
}

impl Vgpu {
    /// Whether a part of a GPU is kept for it.
    pub(crate) fn has_place_on(&self, gpu: usize) -> bool {
        self.gpu == gpu || self.other_place == Some(gpu)
    }

    /// Whether a client is a worker that was started ahead and waits for a program.
    pub(crate) fn is_spare(&self, client: u64) -> bool {
        let is_it = |slot: &WorkerSlot| slot.is_spare && slot.client == Some(client);
        self.workers.values().any(is_it)
    }

    /// The slot of a worker that was started for a program and says hello now: the process itself, the child that it
    /// became inside a process namespace, or what a wrapper started.
    pub(crate) fn slot_of_worker(&self, pid: u32) -> Option<u64> {
        let ancestors = std::iter::successors(Some(pid), |pid| parent_of(*pid));
        let ancestors: Vec<u32> = ancestors.take(MOST_WRAPPERS).collect();
        let waits = |slot: &WorkerSlot| {
            slot.client.is_none() && slot.pid.is_some_and(|pid| ancestors.contains(&pid))
        };
        let found = self.workers.iter().find(|(_, slot)| waits(slot));
        found.map(|(number, _)| *number)
    }
}

/// The slot of the worker that serves this program already, or a new one.
fn slot_of_program(vgpu: &Vgpu, program: Option<(u32, u64)>, fresh: u64) -> Result<u64, Rejection> {
    let serves = |slot: &WorkerSlot| program.is_some() && slot.program == program;
    if let Some((number, _)) = vgpu.workers.iter().find(|(_, slot)| serves(slot)) {
        return Ok(*number);
    }
    if let Some((number, _)) = vgpu.workers.iter().find(|(_, slot)| slot.is_spare) {
        return Ok(*number);
    }
    if vgpu.workers.len() >= MOST_WORKERS {
        let text = format!("{} programs use {} already", vgpu.workers.len(), vgpu.name);
        return Err((Refusal::Busy, text));
    }
    Ok(fresh)
}

/// Puts what a worker writes to its standard error into the daemon's log, until the worker ends; returns the last line.
/// A worker may be its tenant's by then, so lines are short, few and escaped.
fn log_words(pid: u32, words: ChildStderr) -> String {
    const MOST_LINES: usize = 200;
    const LINE_BYTES: u64 = 1024;
    let mut words = BufReader::new(words);
    let mut last = String::new();
    for number in 0_usize.. {
        let mut line = Vec::new();
        match (&mut words).take(LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(1..) => {}
            Ok(0) | Err(_) => break,
        }
        let text = String::from_utf8_lossy(&line);
        let text: String = text.trim_end().escape_debug().collect();
        if number < MOST_LINES {
            tracing::warn!("worker {pid}: {text}");
        }
        last = text;
    }
    last
}

fn worker_command(config: &Config) -> std::io::Result<Command> {
    if let Some((program, arguments)) = config.daemon.worker_command.split_first() {
        let mut command = Command::new(program);
        command.args(arguments);
        return Ok(command);
    }
    let mut own = std::env::current_exe()?;
    if !own.exists() {
        // Its file was replaced since it was started; the program is still there.
        own = "/proc/self/exe".into();
    }
    let mut command = Command::new(own);
    command.arg("worker");
    Ok(command)
}
