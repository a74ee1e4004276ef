//! What the registry, the GPU's thread and the monitor share about tenants and their processes.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

use mica_limits::SharedPage;
use mica_scheduler::Priority;
use mica_scheduler::slices::Profile;
use mica_wire::host::message::Role;

use crate::metrics::LeaseWaits;

/// A process whose submissions and slices a GPU's thread governs.
#[derive(Debug)]
pub(crate) struct Governed {
    pub(crate) id: u64,
    pub(crate) role: Role,
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) page: Arc<SharedPage>,
    pub(crate) doorbell: OwnedFd,
    /// A [`Mechanism`] by number.
    pub(crate) mechanism: AtomicU8,
    /// Time it was charged for under leases.
    pub(crate) charged_ns: AtomicU64,
    /// Leases it was granted.
    pub(crate) leases: AtomicU64,
    /// Leases that were taken away because its work ran on.
    pub(crate) overruns: AtomicU64,
    /// Whether it gets no leases for a while because of its overruns.
    pub(crate) undrained: AtomicBool,
    /// Whether its cap is held by suspending and resuming its channels meanwhile.
    pub(crate) held_by_stops: AtomicBool,
}

impl Governed {
    /// A process that has just joined.
    pub(crate) fn new(
        id: u64,
        role: Role,
        tenant: Arc<Tenant>,
        page: Arc<SharedPage>,
        doorbell: OwnedFd,
    ) -> Self {
        Self {
            id,
            role,
            tenant,
            page,
            doorbell,
            mechanism: AtomicU8::new(0),
            charged_ns: AtomicU64::new(0),
            leases: AtomicU64::new(0),
            overruns: AtomicU64::new(0),
            undrained: AtomicBool::new(false),
            held_by_stops: AtomicBool::new(false),
        }
    }
}

/// What a GPU's thread reports about a virtual GPU.
#[derive(Debug, Default)]
pub(crate) struct Tenant {
    pub(crate) id: u64,
    /// Time charged to all its processes, dead ones included.
    pub(crate) charged_ns: AtomicU64,
    /// Whether leases are in force on its GPU.
    pub(crate) leases: AtomicBool,
    /// How long its processes waited for theirs.
    pub(crate) waits: LeaseWaits,
}

/// What divides a process's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mechanism {
    /// Nothing to divide yet.
    Alone = 0,
    /// Hardware slices, read back.
    Slices = 1,
    /// Leases through the gate.
    Leases = 2,
    /// Neither can be had.
    None = 3,
    /// Both.
    Both = 4,
}

impl Mechanism {
    pub(crate) fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Slices,
            2 => Self::Leases,
            3 => Self::None,
            4 => Self::Both,
            _ => Self::Alone,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Slices => "hardware slices",
            Self::Leases => "leases",
            Self::None => "none",
            Self::Both => "hardware slices and leases",
        }
    }
}

/// What a tenant is entitled to, for the GPU's thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Entitlement {
    pub(crate) weight: f64,
    pub(crate) cap: bool,
    pub(crate) priority: Priority,
    pub(crate) profile: Profile,
    /// Nothing new is submitted.
    pub(crate) suspended: bool,
    /// What is submitted stops too.
    pub(crate) stopped: bool,
}
