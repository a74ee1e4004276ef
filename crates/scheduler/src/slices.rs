//! From shares to the lengths of hardware time slices.
//!
//! The GPU serves each process's channel group in turn, for the length of its slice, so lengths in the
//! ratio of the shares *are* the shares (measured within half a point), but for what each slice loses at
//! its begin. Longer slices lose less to switching, shorter ones wait less: the profile chooses.

use crate::Priority;

/// Shortest slice among equals.
pub const SHORTEST_SLICE_US: u64 = 200;
/// Shortest slice of several processes beside an urgent tenant: they also switch among themselves.
pub const YIELDING_SLICE_US: u64 = 100;
/// Slice of the only process beside an urgent tenant. A 50 µs kernel's p99 beside a hog was 368 µs with 100 µs, 315 with 50 and
/// 287 with 20, and the hog kept 99.6 % with 20 of what it had with 100.
pub const LONE_YIELDING_SLICE_US: u64 = 20;

/// What a process does not get of each of its slices, for its state has to be brought back first. Of 90/10 with small
/// kernels the GPU made 90.7 : 9.3 with slices of 3.6 and 0.4 ms, and 90.1 : 9.9 with slices of 18 and 2 ms, as if 34 µs were
/// lost; with PyTorch's GEMMs 80 µs. Between the two, so that neither is far off.
const SWITCH_US: u64 = 50;

/// How the hardware's time is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Profile {
    /// Long slices, 20 ms for each competing process: least time lost to switching.
    Throughput,
    /// 10 ms.
    #[default]
    Balanced,
    /// Short slices, 2 ms: least waiting.
    Latency,
}

impl Profile {
    fn per_process_us(self) -> f64 {
        match self {
            Self::Throughput => 20_000.0,
            Self::Balanced => 10_000.0,
            Self::Latency => 2_000.0,
        }
    }

    /// Longest time until each of the competing processes has had its slice. A process whose slice is longer than what it has
    /// queued must get a processor within the slice, and loses the rest of it otherwise. Shares of 24 processes with 3 ms queued
    /// on 16 processors were off by up to 0.90 points with slices of 10 ms, and by 0.05 with the driver's 2 ms.
    fn longest_frame_us(self) -> f64 {
        match self {
            Self::Throughput => f64::INFINITY,
            Self::Balanced | Self::Latency => 72_000.0,
        }
    }
}

/// A virtual GPU and its processes on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    /// Share, in any unit common to all tenants; must be positive.
    pub weight: f64,
    /// Urgency. A high tenant with work makes the others' slices short.
    pub priority: Priority,
    /// For each process, whether it has work now.
    pub active: Vec<bool>,
}

impl Tenant {
    fn active_count(&self) -> usize {
        self.active.iter().filter(|active| **active).count()
    }
}

/// Slice lengths in microseconds, for each tenant's processes in order.
///
/// A tenant has one share however many processes it has: its slice is divided among those with work.
/// A process without work is given its tenant's whole slice, so that the first to wake is right at
/// once.
pub fn plan(profile: Profile, tenants: &[Tenant]) -> Vec<Vec<u64>> {
    let competing: usize = tenants.iter().map(Tenant::active_count).sum();
    let frame =
        (profile.per_process_us() * competing.max(2) as f64).min(profile.longest_frame_us());
    let some_active = competing > 0;
    let high_active = tenants
        .iter()
        .any(|t| t.priority == Priority::High && t.active_count() > 0);
    let normal_active = tenants
        .iter()
        .any(|t| t.priority >= Priority::Normal && t.active_count() > 0);
    // A low tenant beside others counts a tenth: it still progresses, and never matters.
    let weight = |t: &Tenant| match t.priority {
        Priority::Low if normal_active => t.weight.max(f64::MIN_POSITIVE) / 10.0,
        _ => t.weight.max(f64::MIN_POSITIVE),
    };
    let total: f64 = tenants
        .iter()
        .filter(|t| !some_active || t.active_count() > 0)
        .map(weight)
        .sum();
    let whole: Vec<f64> = tenants
        .iter()
        .map(|t| (frame * weight(t) / total.max(f64::MIN_POSITIVE)).min(frame))
        .collect();
    let divided = |index: usize| whole[index] / tenants[index].active_count().max(1) as f64;
    let yields = |t: &Tenant| high_active && t.priority != Priority::High;
    // The shortest slice of a competing tenant decides the scale, so that ratios stay exact.
    let shortest = |wanted: &dyn Fn(&Tenant) -> bool| {
        tenants
            .iter()
            .enumerate()
            .filter(|(_, t)| wanted(t) && (!some_active || t.active_count() > 0))
            .map(|(index, _)| divided(index))
            .fold(f64::INFINITY, f64::min)
    };
    let standing = Scale::standing(shortest(&|t| !yields(t)));
    let yielders = tenants.iter().filter(|t| yields(t));
    let least_us = match yielders.map(Tenant::active_count).sum() {
        0 | 1 => LONE_YIELDING_SLICE_US,
        _ => YIELDING_SLICE_US,
    };
    let yielding = Scale::yielding(shortest(&yields), least_us);
    let slices = |(index, tenant): (usize, &Tenant)| {
        let scale = match yields(tenant) {
            true => &yielding,
            false => &standing,
        };
        let active = tenant.active.iter();
        active
            .map(|active| match *active {
                true => scale.slice_us(divided(index)),
                false => scale.slice_us(whole[index]),
            })
            .collect()
    };
    tenants.iter().enumerate().map(slices).collect()
}

/// How parts of the frame become slices.
struct Scale {
    factor: f64,
    least_us: u64,
    /// Added to each slice, for the switch that it begins with.
    switch_us: u64,
}

impl Scale {
    /// For tenants that yield to nobody: grown until the shortest slice is long enough.
    fn standing(shortest_us: f64) -> Self {
        Self {
            factor: (SHORTEST_SLICE_US as f64 / shortest_us).max(1.0),
            least_us: SHORTEST_SLICE_US,
            switch_us: SWITCH_US,
        }
    }

    /// For tenants beside an active high one: shrunk until the shortest slice is as short as may be.
    fn yielding(shortest_us: f64, least_us: u64) -> Self {
        let factor = least_us as f64 / shortest_us;
        Self {
            factor: match factor.is_finite() && factor > 0.0 {
                true => factor,
                false => 0.0,
            },
            least_us,
            switch_us: 0,
        }
    }

    fn slice_us(&self, part_us: f64) -> u64 {
        let slice_us = (part_us * self.factor).round().max(self.least_us as f64);
        slice_us as u64 + self.switch_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(weight: f64, active: &[bool]) -> Tenant {
        Tenant {
            weight,
            priority: Priority::Normal,
            active: active.to_vec(),
        }
    }

    #[test]
    fn two_tenants_divide_the_frame_by_share() {
        let plan = plan(
            Profile::Balanced,
            &[tenant(70.0, &[true]), tenant(30.0, &[true])],
        );
        assert_eq!(plan, [[14_000 + SWITCH_US], [6_000 + SWITCH_US]]);
    }

    #[test]
    fn many_tenants_have_shorter_slices_unless_throughput_is_wanted() {
        let equals = vec![tenant(4.0, &[true]); 24];
        let slices = |profile| plan(profile, &equals)[23][0];
        assert_eq!(slices(Profile::Balanced), 3_000 + SWITCH_US);
        assert_eq!(slices(Profile::Throughput), 20_000 + SWITCH_US);
        assert_eq!(slices(Profile::Latency), 2_000 + SWITCH_US);
        let seven = &equals[..7];
        assert_eq!(plan(Profile::Balanced, seven)[0][0], 10_000 + SWITCH_US);
    }

    #[test]
    fn a_tenant_with_three_processes_still_has_one_share() {
        let plan = plan(
            Profile::Balanced,
            &[tenant(50.0, &[true, true, true]), tenant(50.0, &[true])],
        );
        // What each of them loses is not the tenant's.
        let got: u64 = plan[0].iter().map(|slice| slice - SWITCH_US).sum();
        assert_eq!(got.abs_diff(20_000), 1);
        assert_eq!(plan[1], [20_000 + SWITCH_US]);
    }

    #[test]
    fn idle_processes_do_not_divide_the_slice_and_wake_with_all_of_it() {
        let plan = plan(
            Profile::Balanced,
            &[tenant(60.0, &[true, false]), tenant(40.0, &[true])],
        );
        let (large, small) = (12_000 + SWITCH_US, 8_000 + SWITCH_US);
        assert_eq!(plan, [vec![large, large], vec![small]]);
    }

    #[test]
    fn tiny_shares_are_lengthened_with_their_ratio_kept() {
        let plan = plan(
            Profile::Latency,
            &[tenant(99.0, &[true]), tenant(1.0, &[true])],
        );
        assert_eq!(plan, [[19_800 + SWITCH_US], [200 + SWITCH_US]]);
    }

    #[test]
    fn a_high_tenant_with_work_shortens_the_others_and_only_then() {
        let mut tenants = [tenant(50.0, &[true]), tenant(50.0, &[true])];
        tenants[0].priority = Priority::High;
        let busy = plan(Profile::Balanced, &tenants);
        assert_eq!(busy[1], [LONE_YIELDING_SLICE_US]);
        assert_eq!(busy[0], [10_000 + SWITCH_US]);
        tenants[0].active = vec![false];
        let idle = plan(Profile::Balanced, &tenants);
        assert_eq!(idle[1], [20_000 + SWITCH_US]);
    }

    #[test]
    fn others_keep_their_ratio_under_a_high_tenant() {
        let mut tenants = [
            tenant(20.0, &[true]),
            tenant(60.0, &[true]),
            tenant(20.0, &[true]),
        ];
        tenants[0].priority = Priority::High;
        assert_eq!(plan(Profile::Balanced, &tenants)[1..], [[300], [100]]);
    }

    #[test]
    fn nobody_active_plans_for_everybody() {
        let plan = plan(
            Profile::Balanced,
            &[tenant(50.0, &[false]), tenant(50.0, &[false])],
        );
        assert_eq!(plan, [[10_000 + SWITCH_US]; 2]);
    }

    #[test]
    fn no_tenants_is_no_plan() {
        assert!(plan(Profile::Balanced, &[]).is_empty());
    }

    #[test]
    fn every_slice_is_at_least_the_shortest_and_finite() {
        let mut seed = 7_u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed >> 33
        };
        for _ in 0..2000 {
            let tenants: Vec<Tenant> = (0..next() % 8)
                .map(|_| Tenant {
                    weight: (1 + next() % 100) as f64,
                    priority: [Priority::Low, Priority::Normal, Priority::High]
                        [(next() % 3) as usize],
                    active: (0..next() % 4).map(|_| next() % 2 == 0).collect(),
                })
                .collect();
            for slice in plan(Profile::Latency, &tenants).into_iter().flatten() {
                assert!(
                    (LONE_YIELDING_SLICE_US..10_000_000).contains(&slice),
                    "{tenants:?}"
                );
            }
        }
    }
}
