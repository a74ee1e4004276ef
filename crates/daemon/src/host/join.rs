//! Hello: who a peer is, and whether it may have what it asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

use mica_control::api::{GpuKind, Severity};
use mica_limits::SharedPage;
use mica_wire::host::message::{Introduction, PROTOCOL_VERSION, Refusal, Role};
use mica_wire::host::page::Account;
use mica_wire::host::socket::HostSocket;

use super::PeerSocket;
use crate::cgroups::GroupLimits;
use crate::confinement::worker_user;
use crate::daemon::Daemon;
use crate::enforce::{unenforceable, without_mechanism};
use crate::gpu_thread::Change;
use crate::journal::Entry;
use crate::registry::{Client, WorkerSlot};
use crate::tenant::Governed;
use crate::view::{process_name, role_name};
use crate::watched::Watched;

/// A hello that was accepted.
pub(super) enum Joined {
    Client {
        id: u64,
        governed: Arc<Governed>,
        /// The client's end of its doorbell.
        bell: OwnedFd,
        resumed: bool,
    },
    Program {
        /// Full name of the virtual GPU.
        vgpu: String,
        session: OwnedFd,
    },
}

pub(super) fn join(
    daemon: &Arc<Daemon>,
    introduction: &Introduction,
    fds: Vec<OwnedFd>,
    pid: u32,
    uid: u32,
    door: PeerSocket,
    socket: &Arc<HostSocket>,
) -> Result<Joined, (Refusal, String)> {
    check_version(introduction.version)?;
    let role = introduction.role;
    // Before the lock: this reads files.
    let container = match role {
        Role::Worker => None,
        Role::Direct | Role::Program | Role::Monitor => daemon.container_of(pid),
    };
    let name = match door {
        PeerSocket::Container(socket) => {
            super::containers::enter(daemon, socket, role, container.as_ref())?
        }
        PeerSocket::Programs | PeerSocket::Workers => {
            admit_by_token(daemon, introduction, uid, door)?
        }
    };
    let mut registry = daemon.registry();
    if let (false, Ok(vgpu)) = (role == Role::Worker, registry.vgpu_mut(&name)) {
        vgpu.note_container(pid, role, container.as_ref());
    }
    let vgpu = registry
        .vgpus
        .get(&name)
        .ok_or((Refusal::State, format!("{name} is gone")))?;
    let Some(gpu) = registry.gpus.get(vgpu.gpu).filter(|gpu| gpu.lost.is_none()) else {
        let why = registry.reasons(vgpu).join("; ");
        return Err((Refusal::State, format!("{name} is lost: {why}")));
    };
    // Those that are there already may end their work; so may their workers, which return after a restart.
    if let (Some(why), Role::Program | Role::Direct) = (gpu.closed(), role)
        && fds.is_empty()
    {
        let text = format!("GPU {} takes no new programs: {why}", vgpu.gpu);
        return Err((Refusal::State, text));
    }
    let (thread, gpu) = (gpu.thread.clone(), vgpu.gpu);
    super::roles::check(&registry, vgpu, role, pid)?;
    if role == Role::Program {
        drop(registry);
        let session = daemon.open_session(&name, pid, uid)?;
        return Ok(Joined::Program {
            vgpu: name,
            session,
        });
    }
    let slot = vgpu.slot_of_worker(pid);
    let served = slot.and_then(|slot| vgpu.workers.get(&slot)?.program);
    let is_spare = slot.is_some_and(|slot| vgpu.workers.get(&slot).is_some_and(|s| s.is_spare));
    if role == Role::Worker && slot.is_none() && fds.is_empty() {
        let text = format!("process {pid} was not started as a worker of {name}");
        return Err((Refusal::State, text));
    }
    let allow_degraded = vgpu.spec.allow_degraded;
    let on_card = registry.kind(vgpu) == GpuKind::Nvidia;
    if role == Role::Direct && !allow_degraded {
        let reasons = unenforceable(&vgpu.spec, registry.kind(vgpu));
        if !reasons.is_empty() {
            return Err((Refusal::Enforcement, reasons.join("; ")));
        }
    }
    let tenant = vgpu.tenant.clone();
    let available_bytes = vgpu.ledger.available_bytes();
    let internal = |what: &str, error: rustix::io::Errno| {
        (Refusal::Busy, format!("{what} cannot be made: {error}"))
    };
    let (page, resumed) = match fds.into_iter().next() {
        Some(fd) => (
            SharedPage::adopt(fd).map_err(|_| {
                (
                    Refusal::Protocol,
                    "the page offered is none of ours".to_owned(),
                )
            })?,
            true,
        ),
        None => (
            SharedPage::create().map_err(|error| internal("a page", error))?,
            false,
        ),
    };
    if role != Role::Monitor
        && !allow_degraded
        && let Some(why) = without_mechanism(&page)
    {
        return Err((
            Refusal::Enforcement,
            format!("its share cannot be enforced: {why}"),
        ));
    }
    let process = Watched::open(pid);
    let start = process.as_ref().map_or(0, |p| p.start);
    let mut entry = Entry {
        client: introduction.client_id,
        pid,
        role: role as u32,
        start,
        token: [0; 16],
        granted_bytes: 0,
        uid: Some(uid),
        account: Account::Device,
    };
    let serves = match registry.vgpu_mut(&name) {
        Ok(vgpu) if role == Role::Worker => served.or(vgpu.served_before.remove(&(pid, start))),
        _ => None,
    };
    let is_probe = registry
        .vgpu(&name)
        .is_ok_and(|vgpu| vgpu.is_probe(serves.unwrap_or((pid, start))));
    let (expected, host_expected, falsely) = match registry.vgpu_mut(&name) {
        Ok(vgpu) if resumed => {
            let falsely = vgpu.ledger.belongs_to_another(&entry);
            let host = vgpu.host_ledger.returned(&entry);
            (vgpu.ledger.returned(&entry), host, falsely)
        }
        _ => (None, None, None),
    };
    // One that returns keeps its number, by which the next daemon would know it again.
    let id = match expected {
        Some(_) => introduction.client_id,
        None => registry.fresh_id(),
    };
    let (doorbell, bell) = super::doorbell().map_err(|error| internal("a doorbell", error))?;
    let governed = Arc::new(Governed {
        id,
        role,
        tenant,
        page: Arc::new(page),
        doorbell,
        mechanism: AtomicU8::new(0),
        charged_ns: AtomicU64::new(0),
        leases: AtomicU64::new(0),
        overruns: AtomicU64::new(0),
        undrained: AtomicBool::new(false),
        held_by_stops: AtomicBool::new(false),
    });
    // The claim is the client's own word: the earlier daemon's journal bounds it, else what is left, for
    // many who claim the same may not have more than the limit together.
    let granted = match (resumed, expected) {
        (true, Some(most_bytes)) => introduction.claimed_bytes.min(most_bytes),
        (true, None) => introduction.claimed_bytes.min(available_bytes),
        (false, _) => 0,
    };
    let counters = &governed.page.counters;
    let client = Client {
        vgpu: name.clone(),
        gpu,
        role,
        pid,
        name: process_name(pid),
        process,
        serves,
        is_probe,
        socket: socket.clone(),
        sm_percent: 0.0,
        without_mechanism: false,
        told_unsliced: false,
        undrained: false,
        confinement: None,
        moved: crate::swap::Moved::new(resumed),
        opened_regions: BTreeMap::new(),
        told_profile: crate::profiles::ToldProfile::default(),
        unknown_names: BTreeSet::new(),
        refused_requests: BTreeSet::new(),
        driver_seconds: 0.0,
        last_launches: counters.launches.load(Relaxed),
        last_gate_wait_ns: counters.gate_wait_ns.load(Relaxed),
        last_gpu_time_ns: match role {
            Role::Worker => counters.gpu_time_ns.load(Relaxed),
            _ => 0,
        },
        governed: governed.clone(),
    };
    registry.clients.insert(id, client);
    let region_bytes = registry.attached_bytes(&name);
    let Some(vgpu) = registry.vgpus.get_mut(&name) else {
        return Err((Refusal::State, format!("{name} is gone")));
    };
    vgpu.clients.insert(id);
    vgpu.ever_joined = true;
    if role != Role::Monitor {
        (entry.client, entry.token, entry.granted_bytes) = (id, vgpu.token, granted);
        vgpu.ledger.open(entry, governed.page.clone());
        thread.send(Change::Client(governed.clone()));
    }
    if role == Role::Worker {
        daemon.dirty.store(true, Relaxed);
        let ledger = &mut vgpu.host_ledger;
        let most_bytes = host_expected.unwrap_or(ledger.available_bytes());
        let claimed = governed.page.granted_of(Account::Host).load(Acquire);
        entry.granted_bytes = match resumed {
            true => claimed.min(most_bytes),
            false => 0,
        };
        ledger.open(entry, governed.page.clone());
        // One from before a restart comes without a slot.
        let slot = slot.unwrap_or(id);
        let worker = (vgpu.workers.entry(slot)).or_insert_with(|| WorkerSlot::of(None));
        worker.client = Some(id);
    }
    let limits = GroupLimits::of(vgpu, on_card, region_bytes);
    drop(registry);
    if resumed && role == Role::Worker {
        // The service manager may have switched the limits off meanwhile.
        daemon.cgroups.limit(&name, &limits);
    }
    if let Some(other) = falsely {
        daemon.events.add(
            Severity::Warning,
            "false_claim",
            Some(&name),
            Some(pid),
            format!(
                "process {pid} of user {uid} claimed what process {other} was granted; it was granted what was left"
            ),
        );
    }
    // Nobody asked for a worker that was started ahead, and no program has joined yet.
    if is_probe || is_spare {
        return Ok(Joined::Client {
            id,
            governed,
            bell,
            resumed,
        });
    }
    daemon.events.add(
        Severity::Info,
        if resumed {
            "process_returned"
        } else {
            "process_joined"
        },
        Some(&name),
        Some(serves.map_or(pid, |(program, _)| program)),
        joined_words(role, pid, serves, &name, resumed),
    );
    Ok(Joined::Client {
        id,
        governed,
        bell,
        resumed,
    })
}

/// The virtual GPU that a process may join with its token and as its user.
fn admit_by_token(
    daemon: &Daemon,
    introduction: &Introduction,
    uid: u32,
    door: PeerSocket,
) -> Result<String, (Refusal, String)> {
    let role = introduction.role;
    let registry = daemon.registry();
    let (vgpu, is_worker_token) = match registry.by_token(&introduction.token) {
        Some(found) => found,
        None => return Err((Refusal::Token, "no virtual GPU has this token".into())),
    };
    if is_worker_token != (role == Role::Worker) || (door == PeerSocket::Workers) != is_worker_token
    {
        return Err((
            Refusal::Permission,
            format!("this token is not for a {}", role_name(role)),
        ));
    }
    let (own, owner) = (mica_control::uid(), vgpu.owner_uid);
    let allowed = match role {
        Role::Worker => uid == own || Some(uid) == worker_user(&registry.config.workers, owner),
        Role::Direct | Role::Program | Role::Monitor => uid == 0 || uid == owner,
    };
    if !allowed {
        return Err((
            Refusal::Permission,
            format!("user {uid} may not use the virtual GPU of this token"),
        ));
    }
    Ok(vgpu.name.clone())
}

/// Refuses a program that speaks another version.
pub(super) fn check_version(theirs: u64) -> Result<(), (Refusal, String)> {
    match theirs {
        PROTOCOL_VERSION => Ok(()),
        theirs => Err((
            Refusal::Version,
            format!(
                "this daemon speaks protocol {PROTOCOL_VERSION}, the program {theirs}: use one version of Mica for both"
            ),
        )),
    }
}

pub(crate) fn joined_words(
    role: Role,
    pid: u32,
    serves: Option<(u32, u64)>,
    name: &str,
    resumed: bool,
) -> String {
    let did = match resumed {
        false => "joined",
        true => "is back in",
    };
    match (role, serves) {
        (Role::Worker, Some((program, _))) => {
            let command = process_name(program);
            format!("process {program} ({command}) {did} {name}, served by worker {pid}")
        }
        (Role::Worker, None) => format!("worker {pid} {did} {name}"),
        (Role::Direct | Role::Program | Role::Monitor, _) => {
            format!("process {pid} ({}) {did} {name}", process_name(pid))
        }
    }
}
