//! Which virtual GPUs are on the card.
//!
//! Whole tenants change places; nothing is ever paged on demand. A tenant leaves only for another one that waits, and
//! only when it is idle, less urgent, or its turn is over. A turn is at least [`Rules::turn_multiple`] times what the
//! exchange costs, so moving takes a few percent at most. A tenant that is alone never moves.
//!
//! ```text
//!   resident ── Leave ──► leaving ──► away ── Return ──► returning ──► resident
//!                            └ each chunk that is out ─► room ─► a chunk of the next tenant may come in
//! ```
//!
//! [`plan`] is a pure function: a picture of the card goes in, orders come out. Whoever carries them out makes the next
//! picture from what the tenants report, so a tenant that dies, or a daemon that is replaced, needs no special case.

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

/// Where a tenant's memory is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Place {
    /// On the card.
    #[default]
    Resident,
    /// On its way out.
    Leaving,
    /// In host memory.
    Away,
    /// On its way in.
    Returning,
}

/// A tenant as the policy sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tenant {
    /// Its number.
    pub id: u64,
    /// How urgent it is: larger goes first.
    pub priority: u8,
    /// Where its memory is.
    pub place: Place,
    /// Bytes on the card that can leave.
    pub movable_bytes: u64,
    /// Bytes in host memory that have no room on the card promised to them.
    pub out_bytes: u64,
    /// Bytes more that it asks for and waits for.
    pub growth_bytes: u64,
    /// Since when it waits: for its return, or for more memory.
    pub waits_since_ns: Option<u64>,
    /// Since when it has had nothing to do.
    pub idle_since_ns: Option<u64>,
    /// When its turn began: when it was last resident as a whole.
    pub turn_began_ns: u64,
    /// It stays away until somebody says otherwise.
    pub held_away: bool,
    /// Why it cannot leave is known to others: it stays.
    pub pinned: bool,
}

/// What a tenant is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Its memory leaves.
    Leave(u64),
    /// So many bytes of its memory may come back.
    Return {
        /// Its number.
        id: u64,
        /// Bytes.
        bytes: u64,
    },
    /// It may have the memory that it asks for.
    Grow(u64),
}

/// What turns are made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// A turn is at least so many times the exchange.
    pub turn_multiple: u64,
    /// And at least so long.
    pub least_turn_ns: u64,
    /// From so long without work on, a tenant counts as idle.
    pub idle_ns: u64,
    /// Bytes that move in one direction in a second, as measured.
    pub bytes_per_second: u64,
    /// A less urgent tenant waits for so many turns of a more urgent one that is busy.
    pub urgent_turns: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            turn_multiple: 28,
            least_turn_ns: 1_000_000_000,
            idle_ns: 200_000_000,
            bytes_per_second: 10 << 30,
            urgent_turns: 10,
        }
    }
}

impl Rules {
    /// How long it takes until one tenant is out and another one in: both directions run at once.
    pub fn exchange_ns(&self, out_bytes: u64, in_bytes: u64) -> u64 {
        let bytes = u128::from(out_bytes.max(in_bytes));
        let ns = bytes * 1_000_000_000 / u128::from(self.bytes_per_second.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// How long a tenant keeps its place although another one waits.
    pub fn turn_ns(&self, exchange_ns: u64) -> u64 {
        exchange_ns
            .saturating_mul(self.turn_multiple)
            .max(self.least_turn_ns)
    }

    fn is_idle(&self, tenant: &Tenant, now_ns: u64) -> bool {
        let long = |since: u64| now_ns.saturating_sub(since) >= self.idle_ns;
        // One that waits for more memory does nothing until it has it.
        let waits = tenant.growth_bytes > 0 && tenant.waits_since_ns.is_some_and(long);
        tenant.idle_since_ns.is_some_and(long) || waits
    }

    /// Whether a tenant gives its place to another one that waits.
    fn gives_way(&self, tenant: &Tenant, to: &Tenant, now_ns: u64) -> bool {
        if tenant.pinned || tenant.place != Place::Resident || tenant.movable_bytes == 0 {
            return false;
        }
        if self.is_idle(tenant, now_ns) {
            return true;
        }
        let age_ns = now_ns.saturating_sub(tenant.turn_began_ns);
        let exchange_ns = self.exchange_ns(tenant.movable_bytes, to.needed_bytes());
        let turn_ns = self.turn_ns(exchange_ns);
        match tenant.priority.cmp(&to.priority) {
            // To move a tenant back and forth at every request of another one would stop both.
            std::cmp::Ordering::Less => age_ns >= exchange_ns,
            std::cmp::Ordering::Equal => age_ns >= turn_ns,
            std::cmp::Ordering::Greater => age_ns >= turn_ns.saturating_mul(self.urgent_turns),
        }
    }
}

impl Tenant {
    /// Bytes of the card that it must get before it can go on.
    pub fn needed_bytes(&self) -> u64 {
        self.out_bytes.saturating_add(self.growth_bytes)
    }

    fn claims(&self) -> bool {
        if self.held_away {
            return false;
        }
        match self.place {
            Place::Returning => self.needed_bytes() > 0,
            Place::Resident | Place::Away => self.waits_since_ns.is_some(),
            Place::Leaving => false,
        }
    }
}

/// Who claims room. Who is on its way in goes on; then the most urgent; then whoever waits longest.
fn claims_in_order(tenants: &[Tenant]) -> Vec<&Tenant> {
    let mut claims: Vec<&Tenant> = tenants.iter().filter(|tenant| tenant.claims()).collect();
    claims.sort_by_key(|tenant| {
        (
            tenant.place != Place::Returning,
            u8::MAX - tenant.priority,
            tenant.waits_since_ns,
            tenant.id,
        )
    });
    claims
}

/// What to do now: `room_bytes` of the card belong to nobody.
pub fn plan(rules: &Rules, now_ns: u64, mut room_bytes: u64, tenants: &[Tenant]) -> Vec<Order> {
    let mut orders = Vec::new();
    let mut claims = claims_in_order(tenants);
    continue_turns(rules, now_ns, &mut room_bytes, &mut claims, &mut orders);
    // What is on its way out will be room soon.
    let leaving = tenants
        .iter()
        .filter(|tenant| tenant.place == Place::Leaving);
    let mut coming_bytes: u64 = leaving.map(|tenant| tenant.movable_bytes).sum();
    let mut asked_to_leave: Vec<u64> = Vec::new();
    for claim in claims {
        let needed_bytes = claim.needed_bytes();
        if needed_bytes <= room_bytes {
            room_bytes -= needed_bytes;
            orders.extend(granted(claim));
            continue;
        }
        // One that has its turn and asks for more than there is gets nothing in parts.
        let short_bytes = needed_bytes - room_bytes;
        if short_bytes > coming_bytes {
            let missing_bytes = short_bytes - coming_bytes;
            let not_asked = tenants
                .iter()
                .filter(|one| !asked_to_leave.contains(&one.id));
            let Some(leavers) = leavers(rules, now_ns, claim, missing_bytes, not_asked) else {
                // Nobody may leave for it yet. What there is stays for it, or many small requests of others would keep
                // it waiting for ever.
                break;
            };
            for leaver in leavers {
                coming_bytes += leaver.movable_bytes;
                asked_to_leave.push(leaver.id);
                orders.push(Order::Leave(leaver.id));
            }
        }
        coming_bytes -= short_bytes.min(coming_bytes);
        // It comes in while others go out.
        let now_bytes = room_bytes.min(claim.out_bytes);
        if now_bytes > 0 && claim.place != Place::Resident {
            orders.push(Order::Return {
                id: claim.id,
                bytes: now_bytes,
            });
        }
        room_bytes = 0;
    }
    // Nobody who was told to leave gets something in the same breath.
    orders.retain(|order| match order {
        Order::Grow(id) | Order::Return { id, .. } => !asked_to_leave.contains(id),
        Order::Leave(_) => true,
    });
    orders
}

/// The orders for a claim that there is room for.
fn granted(claim: &Tenant) -> impl Iterator<Item = Order> {
    let id = claim.id;
    let back = (claim.place != Place::Resident).then_some(Order::Return {
        id,
        bytes: claim.out_bytes,
    });
    let grow = (claim.growth_bytes > 0).then_some(Order::Grow(id));
    back.into_iter().chain(grow)
}

/// Lets tenants whose turn is not over have what fits, whoever waits for one of them to leave.
fn continue_turns(
    rules: &Rules,
    now_ns: u64,
    room_bytes: &mut u64,
    claims: &mut Vec<&Tenant>,
    orders: &mut Vec<Order>,
) {
    let waiting: Vec<&Tenant> = claims.clone();
    claims.retain(|tenant| {
        let in_turn = Tenant {
            growth_bytes: 0,
            ..**tenant
        };
        let has_turn =
            |other: &&Tenant| other.id == tenant.id || !rules.gives_way(&in_turn, other, now_ns);
        let grows = tenant.place == Place::Resident && tenant.growth_bytes <= *room_bytes;
        if !grows || !waiting.iter().all(has_turn) {
            return true;
        }
        *room_bytes -= tenant.growth_bytes;
        orders.extend(granted(tenant));
        false
    });
}

/// The tenants that leave so that `missing_bytes` become free; `None` if those that may leave are not enough.
fn leavers<'a>(
    rules: &Rules,
    now_ns: u64,
    claim: &Tenant,
    missing_bytes: u64,
    tenants: impl Iterator<Item = &'a Tenant>,
) -> Option<Vec<&'a Tenant>> {
    let may = |tenant: &&Tenant| tenant.id != claim.id && rules.gives_way(tenant, claim, now_ns);
    let mut leavers: Vec<&Tenant> = tenants.filter(may).collect();
    // Idle longest first, then the least urgent, then the one whose turn is the longest.
    leavers.sort_by_key(|tenant| {
        let idle_since_ns = match rules.is_idle(tenant, now_ns) {
            true => tenant
                .idle_since_ns
                .or(tenant.waits_since_ns)
                .unwrap_or(now_ns),
            false => u64::MAX,
        };
        (
            idle_since_ns,
            tenant.priority,
            tenant.turn_began_ns,
            tenant.id,
        )
    });
    let mut freed_bytes = 0_u64;
    let mut chosen = Vec::new();
    for tenant in leavers {
        if freed_bytes >= missing_bytes {
            break;
        }
        freed_bytes = freed_bytes.saturating_add(tenant.movable_bytes);
        chosen.push(tenant);
    }
    (freed_bytes >= missing_bytes).then_some(chosen)
}
