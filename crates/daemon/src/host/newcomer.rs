//! A client that was let in: it gets its page, its number and its place in the tables.
//!
//! Owns the step from an accepted hello to an entry in the registry and the ledgers. Who may join is
//! decided before, in `join`.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use mica_control::api::Severity;
use mica_limits::SharedPage;
use mica_wire::host::message::{Refusal, Role};
use mica_wire::host::page::Account;

use super::Rejection;
use super::join::{Hello, Joined, Place, gone, joined_words};
use crate::cgroups::GroupLimits;
use crate::daemon::Daemon;
use crate::enforce::without_mechanism;
use crate::gpu_thread::Change;
use crate::journal::Entry;
use crate::registry::{Client, Registry, Vgpu, WorkerSlot};
use crate::tenant::Governed;
use crate::view::process_name;
use crate::watched::Watched;

/// A client that may join and is not in the tables yet.
pub(super) struct Newcomer<'a> {
    hello: &'a Hello<'a>,
    place: Place,
    process: Option<Watched>,
    /// The program that this worker serves: process number and start time.
    serves: Option<(u32, u64)>,
    /// It tests the limits for the doctor, or is the worker of a process that does.
    is_probe: bool,
    earlier: EarlierGrants,
    /// What the journal will say about it; its grants are filled in when the accounts are opened.
    entry: Entry,
    governed: Arc<Governed>,
    /// The client's end of its doorbell.
    bell: OwnedFd,
}

/// What the journal of an earlier daemon says about a process that returns.
#[derive(Default)]
struct EarlierGrants {
    device_bytes: Option<u64>,
    host_bytes: Option<u64>,
    /// The process whose grant it claims falsely.
    belongs_to: Option<u32>,
}

impl EarlierGrants {
    fn of(vgpu: &mut Vgpu, entry: &Entry) -> Self {
        Self {
            belongs_to: vgpu.ledger.belongs_to_another(entry),
            host_bytes: vgpu.host_ledger.returned(entry),
            device_bytes: vgpu.ledger.returned(entry),
        }
    }
}

/// A client that is in the tables, and what is left to do without their lock.
pub(super) struct Entered<'a> {
    newcomer: Newcomer<'a>,
    limits: GroupLimits,
}

impl<'a> Newcomer<'a> {
    pub(super) fn new(
        hello: &'a Hello<'a>,
        place: Place,
        kept_page: Option<OwnedFd>,
        registry: &mut Registry,
    ) -> Result<Self, Rejection> {
        let page = page_of(kept_page)?;
        if hello.role() != Role::Monitor
            && !place.allow_degraded
            && let Some(why) = without_mechanism(&page)
        {
            let text = format!("its share cannot be enforced: {why}");
            return Err((Refusal::Enforcement, text));
        }
        let process = Watched::open(hello.pid);
        let start = process.as_ref().map_or(0, |p| p.start);
        let mut entry = Entry {
            client: hello.introduction.client_id,
            pid: hello.pid,
            role: hello.role() as u32,
            start,
            token: [0; 16],
            granted_bytes: 0,
            uid: Some(hello.uid),
            account: Account::Device,
        };
        let vgpu = (registry.vgpus.get_mut(&place.name)).ok_or_else(|| gone(&place.name))?;
        let is_worker = hello.role() == Role::Worker;
        let before = is_worker.then(|| vgpu.served_before.remove(&(hello.pid, start)));
        let serves = before.and_then(|before| place.program.or(before));
        let is_probe = vgpu.is_probe(serves.unwrap_or((hello.pid, start)));
        let earlier = match hello.resumes {
            true => EarlierGrants::of(vgpu, &entry),
            false => EarlierGrants::default(),
        };
        // A client that returns keeps its number, by which the next daemon would know it again.
        if earlier.device_bytes.is_none() {
            entry.client = registry.fresh_id();
        }
        let (doorbell, bell) = super::doorbell().map_err(|error| cannot("a doorbell", error))?;
        let governed = Arc::new(Governed::new(
            entry.client,
            hello.role(),
            place.tenant.clone(),
            Arc::new(page),
            doorbell,
        ));
        Ok(Self {
            hello,
            place,
            process,
            serves,
            is_probe,
            earlier,
            entry,
            governed,
            bell,
        })
    }

    /// Puts the client into the tables.
    pub(super) fn enter(
        mut self,
        daemon: &Daemon,
        registry: &mut Registry,
    ) -> Result<Entered<'a>, Rejection> {
        let hello = self.hello;
        let (id, role) = (self.entry.client, hello.role());
        let client = self.client();
        registry.clients.insert(id, client);
        let region_bytes = registry.attached_bytes(&self.place.name);
        let vgpu =
            (registry.vgpus.get_mut(&self.place.name)).ok_or_else(|| gone(&self.place.name))?;
        vgpu.clients.insert(id);
        vgpu.ever_joined = true;
        if role != Role::Monitor {
            self.entry.token = vgpu.token;
            self.entry.granted_bytes = self.device_grant();
            vgpu.ledger.open(self.entry, self.governed.page.clone());
            (self.place.thread).send(Change::Client(self.governed.clone()));
        }
        if role == Role::Worker {
            daemon.dirty.store(true, Relaxed);
            self.entry.granted_bytes = self.host_grant(vgpu.host_ledger.available_bytes());
            (vgpu.host_ledger).open(self.entry, self.governed.page.clone());
            // A worker from before a restart has no slot.
            let slot = self.place.slot.unwrap_or(id);
            let worker = (vgpu.workers.entry(slot)).or_insert_with(|| WorkerSlot::of(self.serves));
            worker.client = Some(id);
            if hello.resumes {
                vgpu.worker_returned((hello.pid, self.entry.start));
            }
        }
        let limits = GroupLimits::of(vgpu, self.place.on_card, region_bytes);
        Ok(Entered {
            newcomer: self,
            limits,
        })
    }

    /// Its row in the table of clients.
    fn client(&mut self) -> Client {
        let (hello, role) = (self.hello, self.hello.role());
        let counters = &self.governed.page.counters;
        Client {
            vgpu: self.place.name.clone(),
            gpu: self.place.gpu,
            role,
            pid: hello.pid,
            name: process_name(hello.pid),
            process: self.process.take(),
            serves: self.serves,
            is_probe: self.is_probe,
            socket: hello.socket.clone(),
            sm_percent: 0.0,
            without_mechanism: false,
            told_unsliced: false,
            undrained: false,
            confinement: None,
            moved: crate::swap::Moved::new(hello.resumes),
            opened_regions: BTreeMap::new(),
            told_profile: crate::profiles::ToldProfile::default(),
            unknown_names: BTreeSet::new(),
            refused_requests: BTreeSet::new(),
            driver_seconds: 0.0,
            last_launches: counters.launches.load(Relaxed),
            last_gate_wait_ns: counters.gate_wait_ns.load(Relaxed),
            last_gpu_time_ns: match role {
                Role::Worker => counters.gpu_time_ns.load(Relaxed),
                Role::Direct | Role::Program | Role::Monitor => 0,
            },
            is_welcomed: false,
            governed: self.governed.clone(),
        }
    }

    /// Device memory that it is granted from the start.
    fn device_grant(&self) -> u64 {
        if !self.hello.resumes {
            return 0;
        }
        // The claim is the client's own word. The earlier daemon's journal bounds it, or else what is left:
        // several clients that claim the same bytes must not have more than the limit together.
        let bound = self.earlier.device_bytes;
        let most_bytes = bound.unwrap_or(self.place.available_bytes);
        self.hello.introduction.claimed_bytes.min(most_bytes)
    }

    /// Host memory that a worker is granted from the start.
    fn host_grant(&self, available_bytes: u64) -> u64 {
        if !self.hello.resumes {
            return 0;
        }
        let most_bytes = self.earlier.host_bytes.unwrap_or(available_bytes);
        let claimed = self.governed.page.granted_of(Account::Host).load(Acquire);
        claimed.min(most_bytes)
    }
}

impl Entered<'_> {
    /// Sets the limits of its control group and puts its arrival into the event log.
    pub(super) fn announce(&self, daemon: &Daemon) {
        let Newcomer {
            hello,
            place,
            serves,
            ..
        } = &self.newcomer;
        let (pid, role, resumed) = (hello.pid, hello.role(), hello.resumes);
        let name = &place.name;
        if resumed && role == Role::Worker {
            // The service manager may have switched the limits off meanwhile.
            daemon.cgroups.limit(name, &self.limits);
        }
        if let Some(other) = self.newcomer.earlier.belongs_to {
            let text = format!(
                "process {pid} of user {} claimed what process {other} was granted; it was granted what was left",
                hello.uid
            );
            let (severity, kind) = (Severity::Warning, "false_claim");
            (daemon.events).add(severity, kind, Some(name), Some(pid), text);
        }
        // Nobody asked for a worker that was started ahead, and no program has joined yet.
        if self.newcomer.is_probe || place.is_spare {
            return;
        }
        let kind = match resumed {
            true => "process_returned",
            false => "process_joined",
        };
        let program = serves.map_or(pid, |(program, _)| program);
        let text = joined_words(role, pid, *serves, name, resumed);
        (daemon.events).add(Severity::Info, kind, Some(name), Some(program), text);
    }

    pub(super) fn joined(self) -> Joined {
        Joined::Client {
            id: self.newcomer.entry.client,
            resumed: self.newcomer.hello.resumes,
            governed: self.newcomer.governed,
            bell: self.newcomer.bell,
        }
    }
}

/// The page that the process kept over a restart of the daemon, or a new one.
fn page_of(kept: Option<OwnedFd>) -> Result<SharedPage, Rejection> {
    let Some(kept) = kept else {
        return SharedPage::create().map_err(|error| cannot("a page", error));
    };
    let foreign = "the descriptor that came with Hello is not a page that a Mica daemon made";
    SharedPage::adopt(kept).map_err(|_| (Refusal::Protocol, foreign.to_owned()))
}

fn cannot(what: &str, error: rustix::io::Errno) -> Rejection {
    (Refusal::Busy, format!("{what} cannot be made: {error}"))
}
