//! Prints what a scheduling decision costs with a thousand tenants.

use mica_bench::decision::decision_ns;
use mica_scheduler::policy::PolicyKind;

fn main() {
    for policy in [
        PolicyKind::WeightedFair,
        PolicyKind::RoundRobin,
        PolicyKind::StrictPriority,
        PolicyKind::EarliestDeadline,
    ] {
        println!("{policy:?}: {:.0} ns", decision_ns(policy, 1000, 1_000_000));
    }
}
