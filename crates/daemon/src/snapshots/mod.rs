//! Virtual GPUs that are saved to files and restored from them.
//!
//! The daemon carries the file between whoever asks and a worker, and never looks into it: only a worker, which is confined,
//! reads what may have been made by anybody. Between the two the virtual GPU is *parked*: it has a program and no worker, and
//! the program waits. That is kept over restarts of the daemon.
//!
//! ```text
//!   save:     worker holds still, writes ──► parked, on disk ──► worker ends
//!   restore:  a worker for the parked program reads ──► parked no more, on disk ──► the program comes back to it
//! ```
//!
//! The daemon may be killed before and after each arrow. The next one asks no memory of its own who has the session:
//! - the worker that saved it comes back to the daemon, if nobody told it to end: it goes on, and nothing is parked;
//! - a worker that had restored it for the killed daemon, which had not put that on disk, is refused and ends: the file is
//!   restored again;
//! - the program names the session that it waits for when it asks for its worker: where nobody has that session, it is parked.
//!
//! The worker may be killed as well: before it says that the file is whole it has marked its program as one that waits. A virtual
//! GPU that moves to another GPU is saved to a file of the daemon's own ([`kept`]).

mod kept;
mod migrate;

pub(crate) use kept::Kept;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mica_control::api::{ApiError, Mode, Severity};
use mica_wire::host::message::{DaemonMessage, Refusal, Role};
use mica_wire::host::socket::HostSocket;
use serde::{Deserialize, Serialize};

use crate::daemon::Daemon;
use crate::host::Rejection;
use crate::open_requests::OpenRequests;
use crate::placement::error;
use crate::registry::{Registry, Vgpu, WorkerSlot};
use crate::store::Outlives;
use crate::watched::Watched;

/// How long a worker may take to write or read a file.
const FILE_WITHIN: Duration = Duration::from_secs(1800);
/// How long a worker may take to begin, and how long its end is waited for.
const WORKER_WITHIN: Duration = Duration::from_secs(60);
/// How long a worker of an earlier daemon may take to return.
const RETURN_WITHIN: Duration = Duration::from_secs(5);
/// How often it is looked whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Files that are lent at a time.
const MOST_LENT: usize = 1024;
/// Of one client, and for one virtual GPU: a tenant must not take all of them.
const MOST_OF_CLIENT: usize = 2;
const MOST_OF_VGPU: usize = 4;

/// The reason of a refusal: a worker has ended, and may have done what it was asked for.
const WORKER_ENDED: &str = "worker_ended";

type Name = [u8; 16];

/// A program, by its process's number and start time.
pub(crate) type Program = (u32, u64);

/// A program that waits for a snapshot to be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Parked {
    /// Its process.
    pub(crate) program: Program,
    /// By what it and the file know each other.
    pub(crate) session: u64,
    /// The process of the worker that saved it: while that lives, it may not have been told to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) worker: Option<Program>,
}

/// Workers' answers that are still to come: the number of the session, or why not.
pub(crate) type SnapshotAnswers = OpenRequests<(), Result<u64, String>>;

impl SnapshotAnswers {
    /// Takes a worker's answer: an empty reason means that all went well. Whether anybody waits for it.
    pub(crate) fn told(&self, client: u64, request: u64, session: u64, why: String) -> bool {
        self.end(client, request, |()| match why.is_empty() {
            true => Ok(session),
            false => Err(why),
        })
    }
}

/// Files that tools lend for their requests.
#[derive(Debug, Default)]
pub(crate) struct LentFiles(Mutex<HashMap<Name, Lent>>);

#[derive(Debug)]
struct Lent {
    /// The client that lends it.
    client: u64,
    vgpu: String,
    file: OwnedFd,
}

impl LentFiles {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Name, Lent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a file for a request about a virtual GPU, as long as its lender is there.
    pub(crate) fn lend(
        &self,
        name: Name,
        (client, vgpu): (u64, &str),
        file: OwnedFd,
    ) -> Result<(), String> {
        let mut lent = self.lock();
        let of_client = lent.values().filter(|lent| lent.client == client).count();
        let of_vgpu = lent.values().filter(|lent| lent.vgpu == vgpu).count();
        let is_full = lent.len() >= MOST_LENT || lent.contains_key(&name);
        if is_full || of_client >= MOST_OF_CLIENT || of_vgpu >= MOST_OF_VGPU {
            return Err("too many files are lent to the daemon".into());
        }
        let vgpu = vgpu.to_owned();
        lent.insert(name, Lent { client, vgpu, file });
        Ok(())
    }

    /// A copy of a file that was lent for this virtual GPU.
    fn file(&self, name: &Name, vgpu: &str) -> Result<OwnedFd, ApiError> {
        let lent = self.lock();
        let lent = lent.get(name).filter(|lent| lent.vgpu == vgpu);
        let file = lent.and_then(|lent| lent.file.try_clone().ok());
        let what = || format!("no file was lent for {vgpu} under this name");
        file.ok_or_else(|| error("not_found", what(), None))
    }

    /// Whether its lender is still there.
    fn is_lent(&self, name: &Name) -> bool {
        self.lock().contains_key(name)
    }

    pub(crate) fn client_gone(&self, client: u64) {
        self.lock().retain(|_, lent| lent.client != client);
    }
}

/// A session that was restored and that its program has not come back to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Returning {
    pub(crate) parked: Parked,
    /// It is on disk that the session goes on: the program may come.
    pub(crate) is_kept: bool,
}

impl Vgpu {
    /// Has a program wait for a snapshot to be restored. It is watched from now on: an earlier daemon may have been killed before
    /// it put on disk that the program is there.
    pub(crate) fn set_parked(&mut self, parked: Option<Parked>) {
        self.parked = parked;
        let Some(Parked { program, .. }) = parked else {
            return;
        };
        self.returning = None;
        let is_known = |known: &Watched| (known.pid, known.start) == program;
        if !self.programs.iter().any(is_known) {
            let process = Watched::open(program.0);
            self.programs.extend(process.filter(is_known));
        }
    }

    /// The program that waits for a snapshot to be restored, if it lives.
    pub(crate) fn parked_program(&self) -> Option<Parked> {
        let parked = self.parked?;
        let is_it = |program: &&Watched| (program.pid, program.start) == parked.program;
        let program = self.programs.iter().find(is_it)?;
        program.alive().then_some(parked)
    }

    /// The program that waits, as it is kept on disk: not one whose session goes on as soon as that is on disk.
    pub(crate) fn parked_to_keep(&self) -> Option<Parked> {
        self.parked_program().filter(|_| self.returning.is_none())
    }

    /// Whether a program may have a session. One that names a `session` waits until that goes on.
    pub(crate) fn admit(
        &mut self,
        program: Option<Program>,
        session: u64,
    ) -> Result<(), Rejection> {
        let its = |returning: &Returning| Some(returning.parked.program) == program;
        let comes = self
            .returning
            .is_some_and(|returning| returning.is_kept && its(&returning));
        let waits = || {
            let text = format!(
                "{} is in a snapshot, and goes on once that is restored",
                self.name
            );
            (Refusal::Parked, text)
        };
        // The next snapshot may be asked for before a restored program has come back, and waits for that.
        if self.parked_program().is_some() || self.is_moving && !comes {
            return Err(waits());
        }
        if comes {
            self.returning = None;
            return Ok(());
        }
        let is_served = |slot: &WorkerSlot| slot.program == program && slot.client.is_some();
        if session == 0 {
            return Ok(());
        }
        let program = program.ok_or_else(|| {
            let text = "the process that waits for a snapshot cannot be looked up at the moment";
            (Refusal::Busy, text.into())
        })?;
        if self.workers.values().any(is_served) {
            return Ok(());
        }
        let refusal = waits();
        if !self.ledger.expects_living_worker() {
            // An earlier daemon was killed before it put on disk that the session is parked, or the worker that had restored
            // it has ended.
            let worker = None;
            self.set_parked(Some(Parked {
                program,
                session,
                worker,
            }));
        }
        Err(refusal)
    }

    /// Has a program wait again whose session had been restored by a worker that ended before the program came.
    pub(crate) fn park_again(&mut self, served: Option<Program>) -> bool {
        let its = |returning: &Returning| Some(returning.parked.program) == served;
        let Some(returning) = self.returning.filter(its) else {
            return false;
        };
        self.returning = None;
        self.set_parked(Some(Parked {
            worker: None,
            ..returning.parked
        }));
        true
    }

    /// Takes a worker of an earlier daemon. The one that saved the session was not told to end, and goes on.
    pub(crate) fn worker_returned(&mut self, worker: Program) {
        if self
            .parked
            .is_some_and(|parked| parked.worker.is_none_or(|known| known == worker))
        {
            self.parked = None;
        }
    }

    /// Whether a worker of an earlier daemon has restored a session that was parked all the same when that daemon ended.
    pub(crate) fn is_left_over(&self, worker: Program) -> bool {
        self.parked_program()
            .and_then(|parked| parked.worker)
            .is_some_and(|saved| saved != worker)
    }
}

fn refused(text: String, hint: &str) -> ApiError {
    error("state", text, Some(hint.into()))
}

/// The end of a change to a virtual GPU that others must not come between.
struct Busy {
    daemon: Arc<Daemon>,
    name: String,
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Ok(vgpu) = self.daemon.registry().vgpu_mut(&self.name) {
            vgpu.is_moving = false;
            vgpu.other_place = None;
        }
    }
}

/// A worker and the program that it serves.
struct Served {
    client: u64,
    socket: Arc<HostSocket>,
    program: Program,
    /// The worker's process.
    worker: Option<Program>,
}

impl Registry {
    /// The only worker of a virtual GPU that can be saved.
    fn to_save(&self, name: &str) -> Result<Served, ApiError> {
        let vgpu = self.vgpu(name)?;
        if self.mode(vgpu) != Mode::Isolated || !vgpu.is_swappable() {
            return Err(refused(
                format!(
                    "{name} is not swappable: what it has on the GPU cannot be taken from there"
                ),
                "make it with --swap",
            ));
        }
        if vgpu.parked_program().is_some() {
            let text = format!("{name} is in a snapshot already");
            let hint =
                "go on with `mica restore FILE`, or with `mica migrate` where it was to move";
            return Err(refused(text, hint));
        }
        if vgpu.suspended {
            let text = format!("{name} is suspended, and its work could not end");
            return Err(refused(text, "let it go on with `mica resume` first"));
        }
        if self.attached_bytes(name) > 0 {
            let text = format!("{name} has regions, whose memory is others' too");
            return Err(refused(
                text,
                "a snapshot holds one virtual GPU's own memory",
            ));
        }
        let members = vgpu.clients.iter();
        let members = members.filter_map(|id| Some((*id, self.clients.get(id)?)));
        let mut workers = members.filter(|(id, client)| {
            client.role == Role::Worker && !client.is_probe && !vgpu.is_spare(*id)
        });
        let served = workers.next().and_then(|(client, worker)| {
            Some(Served {
                client,
                socket: worker.socket.clone(),
                program: worker.serves?,
                worker: (worker.process.as_ref()).map(|process| (process.pid, process.start)),
            })
        });
        let served = served.ok_or_else(|| {
            let text = format!("no program uses {name}, so there is nothing to save");
            refused(text, "a snapshot is of a running program's GPU memory")
        })?;
        match workers.count() {
            0 => Ok(served),
            more => Err(refused(
                format!(
                    "{} processes use {name}, and a snapshot holds one",
                    more + 1
                ),
                "give each of them a virtual GPU of its own",
            )),
        }
    }

    /// The program that a snapshot of a virtual GPU is restored for.
    fn to_restore(&self, name: &str) -> Result<Parked, ApiError> {
        let vgpu = self.vgpu(name)?;
        let Some(parked) = vgpu.parked_program() else {
            let text = format!("no program waits in {name} for a snapshot to be restored");
            let hint = "a snapshot is restored once, for the program that it was made of, as long as that lives";
            return Err(refused(text, hint));
        };
        if vgpu.suspended {
            let text = format!("{name} is suspended");
            return Err(refused(text, "let it go on with `mica resume` first"));
        }
        let serves = |id: &u64| {
            let client = self.clients.get(id);
            client.is_some_and(|client| {
                client.role == Role::Worker && client.serves == Some(parked.program)
            })
        };
        if vgpu.ledger.expects_living_worker() || vgpu.clients.iter().any(serves) {
            let text = format!("the worker that saved {name} has not ended yet");
            return Err(error("busy", text, Some("try again".into())));
        }
        Ok(parked)
    }

    /// Whether the program of a virtual GPU waits for a file, or is on its way back; `None` where there is none of that name.
    fn needs_file(&self, name: &str) -> Option<bool> {
        let vgpu = self.vgpu(name).ok()?;
        Some(vgpu.is_moving || vgpu.returning.is_some() || vgpu.parked_program().is_some())
    }

    fn is_there(&self, client: u64) -> bool {
        self.clients.contains_key(&client)
    }
}

impl Daemon {
    /// Keeps everybody else from changing where a virtual GPU is.
    fn set_busy(self: &Arc<Self>, name: &str) -> Result<Busy, ApiError> {
        let mut registry = self.registry();
        let vgpu = registry.vgpu_mut(name)?;
        if std::mem::replace(&mut vgpu.is_moving, true) {
            let text = format!("{name} is being saved or restored already");
            return Err(error("busy", text, Some("try again".into())));
        }
        Ok(Busy {
            daemon: self.clone(),
            name: name.to_owned(),
        })
    }

    /// Saves a virtual GPU to a file that was lent. Its program waits from then on.
    pub(crate) async fn save_snapshot(
        self: &Arc<Self>,
        name: &str,
        lent: &Name,
    ) -> Result<(), ApiError> {
        let file = self.lent_files.file(lent, name)?;
        let busy = self.set_busy(name)?;
        let is_whole = || match self.lent_files.is_lent(lent) {
            true => Ok(()),
            false => Err(format!("whoever asked for the snapshot of {name} has gone")),
        };
        self.park(&busy, &file, is_whole).await?;
        self.kept.forget(name);
        Ok(())
    }

    /// Restores a virtual GPU from a file that was lent. Its program goes on.
    pub(crate) async fn restore_snapshot(
        self: &Arc<Self>,
        name: &str,
        lent: &Name,
    ) -> Result<(), ApiError> {
        let file = self.lent_files.file(lent, name)?;
        let busy = self.set_busy(name)?;
        self.until_expected_are_back(name).await;
        self.unpark(&busy, &file).await
    }

    /// Removes files of virtual GPUs that have moved.
    pub(crate) fn sweep_kept(&self) {
        if let Err(why) = self
            .kept
            .sweep(Instant::now(), |name| self.registry().needs_file(name))
        {
            tracing::warn!(%why, "files of virtual GPUs that have moved cannot be removed");
        }
    }

    /// Tells that a worker has ended before all of its session was in a file.
    fn tell_lost(&self, name: &str, served: &Served) {
        let pid = served.program.0;
        let text = format!(
            "the worker of {name} ended while it was saved: if process {pid} does not wait (`mica ls`), its GPU work is lost"
        );
        let (severity, kind) = (Severity::Warning, "worker_ended");
        self.events.add(severity, kind, Some(name), Some(pid), text);
    }

    /// Takes a worker's word that it has saved its session. Where nobody waits for it any more, the worker goes on.
    pub(crate) fn worker_saved(&self, client: u64, request: u64, session: u64, why: String) {
        let is_saved = why.is_empty();
        if self.snapshots.told(client, request, session, why) || !is_saved {
            return;
        }
        if let Some(worker) = self.registry().clients.get(&client) {
            let _ = (worker.socket).send(&DaemonMessage::EndSave { park: false }, &[]);
        }
    }

    /// Waits for workers of an earlier daemon, which may have died before it could tell its worker to end: that goes on then.
    async fn until_expected_are_back(&self, name: &str) {
        let began = Instant::now();
        let expects = || {
            let registry = self.registry();
            (registry.vgpu(name)).is_ok_and(|vgpu| vgpu.ledger.expects_living_worker())
        };
        while expects() && began.elapsed() < RETURN_WITHIN {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Has a worker save its session to a file, and end. Its program waits. `is_whole` hears that the file is whole, and may say
    /// why nothing comes of it.
    async fn park(
        self: &Arc<Self>,
        busy: &Busy,
        file: &OwnedFd,
        is_whole: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), ApiError> {
        let name = &*busy.name;
        let (served, told) = {
            let registry = self.registry();
            let served = registry.to_save(name)?;
            let (request, told) = self.snapshots.expect(served.client);
            let save = DaemonMessage::Save { request };
            let _ = served.socket.send(&save, &[file.as_fd()]);
            (served, told)
        };
        let session = match answered(told, name, "saved").await {
            Ok(session) => session,
            Err(why) => {
                if why.reason == WORKER_ENDED {
                    self.tell_lost(name, &served);
                }
                return Err(why);
            }
        };
        let word = |park| drop(served.socket.send(&DaemonMessage::EndSave { park }, &[]));
        if let Err(why) = is_whole() {
            word(false);
            return Err(error("state", why, None));
        }
        {
            // Its worker may have ended since: the program waits all the same.
            let parked = Parked {
                program: served.program,
                session,
                worker: served.worker,
            };
            self.registry().vgpu_mut(name)?.set_parked(Some(parked));
        }
        // On disk before the worker ends: the next daemon knows that the program waits.
        if let Err(why) = self.keep().await {
            if let Ok(vgpu) = self.registry().vgpu_mut(name) {
                vgpu.parked = None;
            }
            word(false);
            let text =
                format!("{name} was not saved, because the daemon cannot keep its state: {why}");
            return Err(error("state", text, Some("its program goes on".into())));
        }
        word(true);
        self.until_gone(served.client).await;
        let text = format!(
            "{name} was saved to a file; process {} waits",
            served.program.0
        );
        self.tell("vgpu_snapshotted", name, served.program, text);
        Ok(())
    }

    async fn unpark(self: &Arc<Self>, busy: &Busy, file: &OwnedFd) -> Result<(), ApiError> {
        let name = &*busy.name;
        let (parked, slot) = {
            let mut registry = self.registry();
            let parked = registry.to_restore(name)?;
            let slot = registry.fresh_id();
            let vgpu = registry.vgpu_mut(name)?;
            (vgpu.workers).insert(slot, WorkerSlot::of(Some(parked.program)));
            (parked, slot)
        };
        let program = parked.program;
        let mut restored = self.restore_in(name, slot, parked, file).await;
        if restored.is_ok() {
            restored = self.let_return(name, parked).await;
        }
        if let Err(why) = restored {
            self.give_up(name, slot).await;
            return Err(why);
        }
        let text = format!(
            "{name} was restored from a file; process {} goes on",
            program.0
        );
        self.tell("vgpu_restored", name, program, text);
        Ok(())
    }

    /// Lets a program come to the worker that has restored its session, once that is on disk: until then the session is parked
    /// for the next daemon, which ends the worker.
    async fn let_return(self: &Arc<Self>, name: &str, parked: Parked) -> Result<(), ApiError> {
        let returning = |is_kept| Some(Returning { parked, is_kept });
        self.registry().vgpu_mut(name)?.returning = returning(false);
        let kept = self.keep().await;
        let mut registry = self.registry();
        let vgpu = registry.vgpu_mut(name)?;
        // Its worker may have ended meanwhile.
        let is_there = vgpu.returning.is_some();
        match kept {
            Ok(()) if is_there => {
                vgpu.parked = None;
                vgpu.returning = returning(true);
                Ok(())
            }
            Ok(()) => {
                let text = format!("the worker that had restored {name} has ended");
                Err(error("state", text, Some("try again".into())))
            }
            Err(why) => {
                vgpu.returning = None;
                let text = format!(
                    "{name} was not restored, because the daemon cannot keep its state: {why}"
                );
                Err(error("state", text, Some("its program waits on".into())))
            }
        }
    }

    /// Has a new worker restore a session for a program.
    async fn restore_in(
        self: &Arc<Self>,
        name: &str,
        slot: u64,
        Parked {
            program, session, ..
        }: Parked,
        file: &OwnedFd,
    ) -> Result<(), ApiError> {
        let (daemon, its_name) = (self.clone(), name.to_owned());
        // The start of a process is not for the thread that answers.
        let started = tokio::task::spawn_blocking(move || daemon.serve_pending(&its_name, slot));
        if let Ok(Err((_, text))) = started.await {
            return Err(error("state", text, None));
        }
        let client = self.worker_in(name, slot).await?;
        let told = {
            let registry = self.registry();
            let gone = || error("state", format!("the worker of {name} has ended"), None);
            let socket = &registry.clients.get(&client).ok_or_else(gone)?.socket;
            let (request, told) = self.snapshots.expect(client);
            let life = Watched::open(program.0).filter(|process| process.start == program.1);
            let Some(life) = life else {
                let text = format!("the program that waited in {name} has ended");
                return Err(error("state", text, None));
            };
            let fds = [file.as_fd(), life.pidfd.as_fd()];
            let _ = socket.send(&DaemonMessage::Restore { request, session }, &fds);
            told
        };
        answered(told, name, "restored").await.map(drop)
    }

    /// The worker that was started for a slot.
    async fn worker_in(&self, name: &str, slot: u64) -> Result<u64, ApiError> {
        let began = Instant::now();
        while began.elapsed() < WORKER_WITHIN {
            let known = {
                let registry = self.registry();
                let slot = registry.vgpu(name)?.workers.get(&slot);
                let welcomed = |id: &u64| {
                    let client = registry.clients.get(id);
                    client.is_some_and(|client| client.is_welcomed)
                };
                slot.map(|slot| slot.client.filter(welcomed))
            };
            match known {
                Some(Some(client)) => return Ok(client),
                Some(None) => tokio::time::sleep(LOOK_EVERY).await,
                None => break,
            }
        }
        let text = format!("no worker of {name} could be started");
        Err(refused(text, "`mica events` says why"))
    }

    /// Ends the worker that could not restore a session, or whose program could not be let come.
    async fn give_up(&self, name: &str, slot: u64) {
        let client = {
            let mut registry = self.registry();
            let Ok(vgpu) = registry.vgpu_mut(name) else {
                return;
            };
            vgpu.workers.remove(&slot).and_then(|slot| slot.client)
        };
        let Some(client) = client else { return };
        if let Some(worker) = self.registry().clients.get(&client) {
            let _ = (worker.socket).send(&DaemonMessage::Shutdown {}, &[]);
        }
        self.until_gone(client).await;
    }

    /// Waits for the end of a worker that was told to end. It is not killed: until it has told its program that the session is
    /// parked, the program would take its death for the end of the session.
    async fn until_gone(&self, client: u64) {
        let began = Instant::now();
        while self.registry().is_there(client) && began.elapsed() < WORKER_WITHIN {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Puts the state on the disk; why that failed.
    async fn keep(self: &Arc<Self>) -> Result<(), String> {
        let daemon = self.clone();
        let kept = tokio::task::spawn_blocking(move || daemon.save(Outlives::Machine));
        kept.await
            .unwrap_or_else(|failure| Err(failure.to_string()))
    }

    fn tell(&self, kind: &str, name: &str, program: Program, text: String) {
        let pid = Some(program.0);
        self.events.add(Severity::Info, kind, Some(name), pid, text);
    }
}

/// Waits for a worker's answer.
async fn answered(
    told: tokio::sync::oneshot::Receiver<Result<u64, String>>,
    name: &str,
    what: &str,
) -> Result<u64, ApiError> {
    match tokio::time::timeout(FILE_WITHIN, told).await {
        Ok(Ok(Ok(session))) => Ok(session),
        Ok(Ok(Err(why))) => Err(error(
            "state",
            format!("{name} was not {what}: {why}"),
            None,
        )),
        Ok(Err(_)) => {
            let text = format!("{name} was not {what}: its worker has ended");
            Err(error(WORKER_ENDED, text, None))
        }
        Err(_) => {
            let seconds = FILE_WITHIN.as_secs();
            let text = format!("{name} was not {what} within {seconds} s");
            Err(error("state", text, None))
        }
    }
}
