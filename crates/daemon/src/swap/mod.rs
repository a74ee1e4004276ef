//! Swappable virtual GPUs: who is on the card, and what is told to workers.
//!
//! Limits of swappable virtual GPUs may add up to more than the card. What is granted to them counts as *resident* unless
//! their workers have reported it as out; together with the limits of all others it never exceeds the card. The plan is
//! made by `mica_memory::residency` from a picture of the card; here the picture is made and the plan carried out.
//!
//! ```text
//!   card ─┬─ limits of virtual GPUs that are not swappable
//!         ├─ swappable: granted − out + promised for a return
//!         ├─ a small reserve for requests that cannot wait
//!         └─ room
//! ```

mod orders;
mod picture;
mod reports;

use mica_control::api::GpuKind;
use mica_memory::residency::{Place, Rules};
use mica_wire::host::message::Role;

use crate::ledger::Full;
use crate::placement::size;
use crate::registry::{Client, Registry, Vgpu};

pub(crate) use reports::FIRST_BYTES_PER_SECOND;

/// Most of a card that is kept for requests that cannot wait: variables of modules, local memory.
const RESERVE_BYTES: u64 = 64 << 20;

/// Where a worker's memory is, as it told and as it was told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    /// Whether the worker's own word is known: one that has served under an earlier daemon is told nothing before.
    pub(crate) known: bool,
    /// Number of the last order that it was sent.
    pub(crate) order: u64,
    pub(crate) place: Place,
    pub(crate) out_bytes: u64,
    /// Bytes that it may not bring back yet.
    pub(crate) floor_bytes: u64,
    pub(crate) pinned_bytes: u64,
    /// What was granted and stayed on the card when its memory was away last.
    pub(crate) remainder_bytes: u64,
    pub(crate) moved_bytes: u64,
    pub(crate) wanted: bool,
}

impl Moved {
    /// Of a worker that has just come; `resumed`: it has served under an earlier daemon.
    pub(crate) fn new(resumed: bool) -> Self {
        Self {
            known: !resumed,
            order: 0,
            place: Place::Resident,
            out_bytes: 0,
            // Nothing was promised: a worker that an earlier daemon let return says itself how far it may.
            floor_bytes: u64::MAX,
            pinned_bytes: 0,
            remainder_bytes: 0,
            moved_bytes: 0,
            wanted: false,
        }
    }

    /// Bytes that are out and have room on the card promised to them.
    pub(crate) fn promised_bytes(&self) -> u64 {
        match self.place {
            Place::Returning => self.out_bytes.saturating_sub(self.floor_bytes),
            Place::Resident | Place::Leaving | Place::Away => 0,
        }
    }
}

/// The turns of a swappable virtual GPU on the card.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turns {
    pub(crate) turn_began_ns: u64,
    pub(crate) idle_since_ns: Option<u64>,
    pub(crate) waits_since_ns: Option<u64>,
    /// What its processes had done when that was looked at last.
    activity: u64,
    /// Since when it has not been resident as a whole.
    pub(crate) away_since_ns: Option<u64>,
    pub(crate) away_ns: u64,
    pub(crate) exchanges: u64,
    /// Moved by workers that have ended.
    pub(crate) dead_moved_bytes: u64,
    /// It cannot leave before this time.
    pinned_until_ns: u64,
    /// It is to return although no call waits for it.
    pub(crate) recalled: bool,
    /// It is suspended and keeps nothing on the card, whatever comes to it.
    pub(crate) put_away: bool,
    /// When it was told last how slow the move is that is under way.
    slow_told_ns: Option<u64>,
    /// When the move that is under way began; `None` where an earlier daemon ordered it.
    move_began_ns: Option<u64>,
    /// Bytes that the return under way began with.
    returning_bytes: u64,
}

impl Turns {
    /// Whether its work could not be stopped a short time ago.
    fn is_pinned(&self, now_ns: u64) -> bool {
        self.pinned_until_ns > now_ns
    }
}

/// Why memory on the card cannot be granted.
#[derive(Debug)]
pub(crate) enum Shortage {
    /// The virtual GPU's own limit.
    Limit(Full),
    /// The card is full for now.
    Room(String),
}

impl std::fmt::Display for Shortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Limit(full) => full.fmt(f),
            Self::Room(why) => f.write_str(why),
        }
    }
}

impl Vgpu {
    pub(crate) fn is_swappable(&self) -> bool {
        self.spec.swap == Some(true)
    }

    /// Whether it waits for its return, or for more memory. One that is suspended stays where it is.
    fn waits_for_card(&self) -> bool {
        self.turns.waits_since_ns.is_some() && !self.suspended
    }
}

impl Registry {
    pub(crate) fn rules(&self) -> Rules {
        let swap = &self.config.swap;
        Rules {
            turn_multiple: swap.turn_multiple,
            least_turn_ns: swap.least_turn_ms.saturating_mul(1_000_000),
            idle_ns: swap.idle_ms.saturating_mul(1_000_000),
            bytes_per_second: self.swap_bytes_per_second,
            ..Rules::default()
        }
    }

    /// The workers of a virtual GPU.
    pub(crate) fn workers_of<'a>(&'a self, vgpu: &'a Vgpu) -> impl Iterator<Item = &'a Client> {
        let clients = vgpu.clients.iter().filter_map(|id| self.clients.get(id));
        clients.filter(|client| client.role == Role::Worker)
    }

    /// Where the memory of a virtual GPU is, all its workers taken together.
    pub(crate) fn place_of(&self, vgpu: &Vgpu) -> Place {
        let mut place = Place::Resident;
        for client in self.workers_of(vgpu) {
            place = match (place, client.moved.place) {
                (Place::Leaving, _) | (_, Place::Leaving) => Place::Leaving,
                (Place::Returning, _) | (_, Place::Returning) => Place::Returning,
                (Place::Away, _) | (_, Place::Away) => Place::Away,
                (Place::Resident, Place::Resident) => Place::Resident,
            };
        }
        place
    }

    /// Bytes of a virtual GPU that are out.
    pub(crate) fn out_bytes(&self, vgpu: &Vgpu) -> u64 {
        self.workers_of(vgpu)
            .map(|client| client.moved.out_bytes)
            .sum()
    }

    /// Bytes of the card that a swappable virtual GPU has, or has been promised.
    pub(crate) fn resident_bytes(&self, vgpu: &Vgpu) -> u64 {
        let promised: u64 = self
            .workers_of(vgpu)
            .map(|client| client.moved.promised_bytes())
            .sum();
        let held = vgpu.ledger.granted_bytes() + vgpu.ledger.unattributed_bytes();
        held.saturating_sub(self.out_bytes(vgpu))
            .saturating_add(promised)
    }

    /// Bytes of a GPU that swappable virtual GPUs may have together with all others.
    pub(crate) fn swap_capacity_bytes(&self, gpu: usize) -> u64 {
        let Some(device) = self.gpus.get(gpu) else {
            return 0;
        };
        let kept = match device.facts.kind {
            GpuKind::Nvidia => self.config.sharing.reserve_bytes,
            GpuKind::Software => 0,
        };
        let total = device.facts.memory_total_bytes.saturating_sub(kept);
        total - reserve_bytes(total)
    }

    /// Bytes of a GPU that belong to regions, and to virtual GPUs which never leave.
    pub(crate) fn fixed_bytes(&self, gpu: usize) -> u64 {
        let overcommit = self.config.sharing.overcommit_memory;
        let fixed = self
            .vgpus
            .values()
            .filter(|v| v.gpu == gpu && !v.is_swappable());
        let bytes = |vgpu: &Vgpu| match overcommit {
            // Limits are no reservations then.
            true => vgpu.ledger.granted_bytes(),
            false => vgpu.ledger.limit_bytes(),
        };
        fixed.map(bytes).sum::<u64>() + self.region_bytes(gpu)
    }

    fn swappable_on(&self, gpu: usize) -> impl Iterator<Item = &Vgpu> {
        self.vgpus
            .values()
            .filter(move |v| v.gpu == gpu && v.is_swappable())
    }

    /// Bytes of a GPU that belong to nobody.
    pub(crate) fn room_bytes(&self, gpu: usize) -> u64 {
        let resident: u64 = self
            .swappable_on(gpu)
            .map(|vgpu| self.resident_bytes(vgpu))
            .sum();
        let taken = resident.saturating_add(self.fixed_bytes(gpu));
        self.swap_capacity_bytes(gpu).saturating_sub(taken)
    }

    /// Takes unused credit back from the swappable virtual GPUs of a GPU.
    fn recall_unused(&mut self, gpu: usize) {
        let here = self
            .vgpus
            .values_mut()
            .filter(|v| v.gpu == gpu && v.is_swappable());
        for vgpu in here {
            vgpu.ledger.recall(u64::MAX, None);
        }
    }

    /// Grants memory on the card to a worker of a swappable virtual GPU. A request that cannot wait may use the reserve.
    pub(crate) fn grant_resident(
        &mut self,
        client: u64,
        name: &str,
        bytes: u64,
        now: bool,
    ) -> Result<u64, Shortage> {
        let gone = || Shortage::Room("the virtual GPU was removed".into());
        let vgpu = self.vgpus.get_mut(name).ok_or_else(gone)?;
        let gpu = vgpu.gpu;
        vgpu.ledger.check(client, bytes).map_err(Shortage::Limit)?;
        let place = self.vgpus.get(name).map(|vgpu| self.place_of(vgpu));
        let mut room = self.room_bytes(gpu);
        if room < bytes {
            self.recall_unused(gpu);
            room = self.room_bytes(gpu);
        }
        if now {
            let total = self.swap_capacity_bytes(gpu);
            room = room.saturating_add(reserve_bytes(total));
        }
        if room < bytes || (place != Some(Place::Resident) && !now) {
            let capacity = size(self.swap_capacity_bytes(gpu));
            let why = format!(
                "{} more do not fit on GPU {gpu} now: {} of {capacity} are free, others are on it",
                size(bytes),
                size(room),
            );
            return Err(Shortage::Room(why));
        }
        let vgpu = self.vgpus.get_mut(name).ok_or_else(gone)?;
        vgpu.ledger
            .grant_within(client, bytes, room)
            .map_err(Shortage::Limit)
    }

    /// Whether a virtual GPU waits for the card, so that whoever asks for more lines up.
    pub(crate) fn somebody_waits(&self, gpu: usize) -> bool {
        self.swappable_on(gpu).any(Vgpu::waits_for_card)
    }

    /// Whether memory moves, or somebody waits for it to.
    pub(crate) fn is_swapping(&self) -> bool {
        let moves = |vgpu: &&Vgpu| {
            let is_on_its_way = matches!(self.place_of(vgpu), Place::Leaving | Place::Returning);
            is_on_its_way || vgpu.waits_for_card()
        };
        self.vgpus
            .values()
            .filter(|v| v.is_swappable())
            .any(|vgpu| moves(&vgpu))
    }
}

fn reserve_bytes(total_bytes: u64) -> u64 {
    RESERVE_BYTES.min(total_bytes / 32)
}
