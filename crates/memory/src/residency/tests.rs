use super::*;

const GIB: u64 = 1 << 30;
const SECOND: u64 = 1_000_000_000;

fn resident(id: u64, gib: u64) -> Tenant {
    Tenant {
        id,
        priority: 1,
        movable_bytes: gib * GIB,
        ..Tenant::default()
    }
}

fn away(id: u64, gib: u64, waits_since_ns: u64) -> Tenant {
    Tenant {
        place: Place::Away,
        movable_bytes: 0,
        out_bytes: gib * GIB,
        waits_since_ns: Some(waits_since_ns),
        ..resident(id, 0)
    }
}

fn planned(now_ns: u64, room_gib: u64, tenants: &[Tenant]) -> Vec<Order> {
    plan(&Rules::default(), now_ns, room_gib * GIB, tenants)
}

fn back(id: u64, gib: u64) -> Order {
    let bytes = gib * GIB;
    Order::Return { id, bytes }
}

#[test]
fn a_tenant_that_is_alone_never_moves() {
    let mut alone = resident(1, 8);
    assert_eq!(planned(3600 * SECOND, 0, &[alone]), []);
    alone.idle_since_ns = Some(0);
    assert_eq!(planned(3600 * SECOND, 0, &[alone]), []);
    // Nor for one that is away and wants nothing.
    let mut other = away(2, 8, 0);
    other.waits_since_ns = None;
    assert_eq!(planned(3600 * SECOND, 0, &[alone, other]), []);
}

#[test]
fn a_turn_is_28_exchanges_long() {
    // 8 GiB at 10 GiB/s: 0.8 s, so a turn of 22.4 s.
    let (tenants, turn_ns) = ([resident(1, 8), away(2, 8, 0)], 224 * SECOND / 10);
    assert_eq!(planned(turn_ns - 1, 0, &tenants), []);
    assert_eq!(planned(turn_ns, 0, &tenants), [Order::Leave(1)]);
}

#[test]
fn the_one_that_is_idle_longest_leaves_and_no_more_than_needed() {
    let mut tenants = [
        resident(1, 4),
        resident(2, 4),
        resident(3, 4),
        away(4, 6, SECOND),
    ];
    tenants[1].idle_since_ns = Some(SECOND / 2);
    tenants[2].idle_since_ns = Some(SECOND / 4);
    assert_eq!(planned(SECOND, 2, &tenants), [Order::Leave(3), back(4, 2)]);
    assert_eq!(
        planned(SECOND, 0, &tenants),
        [Order::Leave(3), Order::Leave(2)]
    );
    // The busy one is in its turn: nobody leaves in vain.
    tenants[3].out_bytes = 12 * GIB;
    assert_eq!(planned(SECOND, 0, &tenants), []);
}

#[test]
fn the_next_one_comes_in_while_the_last_one_goes_out() {
    let mut tenants = [resident(1, 8), away(2, 8, 0)];
    tenants[0].place = Place::Leaving;
    tenants[0].movable_bytes = 6 * GIB;
    assert_eq!(planned(17 * SECOND, 2, &tenants), [back(2, 2)]);
    tenants[1].place = Place::Returning;
    tenants[1].out_bytes = 6 * GIB;
    assert_eq!(planned(17 * SECOND, 0, &tenants), []);
    assert_eq!(planned(17 * SECOND, 1, &tenants), [back(2, 1)]);
}

#[test]
fn the_more_urgent_goes_first_and_needs_no_turn_to_end() {
    let mut tenants = [resident(1, 8), away(2, 8, 5), away(3, 8, 7)];
    tenants[2].priority = 2;
    // The exchange alone takes 0.8 s.
    assert_eq!(planned(SECOND / 2, 0, &tenants), []);
    assert_eq!(planned(SECOND, 0, &tenants), [Order::Leave(1)]);
    assert_eq!(planned(SECOND, 8, &tenants)[0], back(3, 8));
    // A less urgent one waits for ten turns of a busy one, and for none of an idle one.
    tenants[0].priority = 2;
    let tenants = &mut tenants[..2];
    assert_eq!(planned(223 * SECOND, 0, tenants), []);
    assert_eq!(planned(224 * SECOND, 0, tenants), [Order::Leave(1)]);
    tenants[0].idle_since_ns = Some(0);
    assert_eq!(planned(SECOND, 0, tenants), [Order::Leave(1)]);
}

#[test]
fn a_request_for_more_is_granted_from_room_or_by_another_ones_leave() {
    let mut grows = resident(1, 2);
    (grows.growth_bytes, grows.waits_since_ns) = (3 * GIB, Some(9));
    assert_eq!(planned(10, 3, &[grows]), [Order::Grow(1)]);
    assert_eq!(planned(10, 2, &[grows]), []);
    let mut idle = resident(2, 4);
    idle.idle_since_ns = Some(0);
    assert_eq!(planned(SECOND, 2, &[grows, idle]), [Order::Leave(2)]);
}

#[test]
fn two_that_both_wait_for_more_do_not_wait_for_each_other() {
    let mut tenants = [resident(1, 4), resident(2, 4)];
    for (tenant, since) in tenants.iter_mut().zip([7, 5]) {
        (tenant.growth_bytes, tenant.waits_since_ns) = (2 * GIB, Some(since));
    }
    assert_eq!(planned(10, 0, &tenants), [], "one of them may go on soon");
    assert_eq!(planned(SECOND, 0, &tenants), [Order::Leave(1)]);
}

#[test]
fn one_in_its_turn_may_use_room_that_another_one_waits_for() {
    let mut tenants = [resident(1, 6), away(2, 8, 0)];
    (tenants[0].growth_bytes, tenants[0].waits_since_ns) = (GIB, Some(9));
    assert_eq!(planned(10, 2, &tenants), [Order::Grow(1)]);
    // Its turn is over: it leaves instead.
    assert_eq!(
        planned(30 * SECOND, 2, &tenants),
        [Order::Leave(1), back(2, 2)]
    );
}

#[test]
fn what_is_pinned_or_held_away_stays_where_it_is() {
    let mut tenants = [resident(1, 8), away(2, 8, 0)];
    tenants[0].pinned = true;
    assert_eq!(planned(3600 * SECOND, 0, &tenants), []);
    tenants[0].pinned = false;
    tenants[1].held_away = true;
    assert_eq!(planned(3600 * SECOND, 8, &tenants), []);
}

#[test]
fn a_tenant_returns_with_the_memory_it_asked_for_or_not_at_all() {
    let mut tenant = away(1, 2, 0);
    tenant.growth_bytes = GIB;
    assert_eq!(planned(10, 2, &[tenant]), []);
    assert_eq!(planned(10, 3, &[tenant]), [back(1, 2), Order::Grow(1)]);
}
