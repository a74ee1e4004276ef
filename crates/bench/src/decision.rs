//! What a decision costs, for `mica bench`.

use std::time::Instant;

use mica_scheduler::Priority;
use mica_scheduler::policy::{Claim, PolicyKind};

/// Mean nanoseconds of one decision (pick, hand over, charge, ready again) with so many tenants that all
/// want the GPU.
pub(crate) fn decision_ns(policy: PolicyKind, tenants: u64, decisions: u32) -> f64 {
    let lease_ns = 5_000_000;
    let mut policy = policy.build(lease_ns);
    for tenant in 0..tenants {
        let claim = Claim {
            weight: 1.0 + (tenant % 100) as f64,
            priority: Priority::Normal,
        };
        policy.set(tenant, claim);
        policy.ready(tenant, 0);
    }
    let mut now_ns = 0;
    let begun = Instant::now();
    for _ in 0..decisions {
        let Some(tenant) = policy.pick(now_ns) else {
            break;
        };
        policy.unready(tenant);
        now_ns += lease_ns;
        policy.charge(tenant, lease_ns, now_ns);
        policy.ready(tenant, now_ns);
    }
    begun.elapsed().as_nanos() as f64 / f64::from(decisions.max(1))
}
