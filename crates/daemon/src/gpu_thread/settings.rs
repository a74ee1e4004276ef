//! The configuration and the registry's entitlements in the words of the arbiter.

use mica_scheduler::arbiter::{self, LeaseUse, Settings};
use mica_scheduler::policy::PolicyKind;

use crate::config::{Leases, Policy, SharingSection};
use crate::tenant::Entitlement;

pub(super) fn arbiter_entitlement(entitlement: &Entitlement) -> arbiter::Entitlement {
    arbiter::Entitlement {
        weight: entitlement.weight,
        priority: entitlement.priority,
        cap: entitlement.cap,
        suspended: entitlement.suspended,
    }
}

pub(super) fn settings(sharing: &SharingSection, has_slices: bool) -> Settings {
    Settings {
        leases: match (has_slices, sharing.leases) {
            // Without slices leases are all there is.
            (false, _) | (true, Leases::Always) => LeaseUse::Always,
            (true, Leases::Auto) => LeaseUse::WhereTheyHelp,
            (true, Leases::Never) => LeaseUse::CapsOnly,
        },
        policy: match sharing.policy {
            Policy::WeightedFair => PolicyKind::WeightedFair,
            Policy::RoundRobin => PolicyKind::RoundRobin,
            Policy::StrictPriority => PolicyKind::StrictPriority,
            Policy::EarliestDeadline => PolicyKind::EarliestDeadline,
        },
        lease_ns: sharing.lease_us * 1000,
        drain_limit_ns: sharing.drain_limit_us * 1000,
        bursty_per_second: f64::from(sharing.bursty_drains_per_second),
        // Programs and workers give a lease back as soon as they have nothing to run.
        idle_ns: None,
        // The software GPU's blocks hold still within microseconds.
        ends_at_once: !has_slices,
        ..Settings::default()
    }
}
