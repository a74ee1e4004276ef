//! The card as the policy sees it.

use std::sync::atomic::Ordering::Relaxed;

use mica_control::api::Priority;
use mica_memory::residency::{Place, Tenant};

use crate::registry::{Registry, Vgpu};

impl Registry {
    /// Looks at what the swappable virtual GPUs of a GPU have done since the last look.
    pub(super) fn note_activity(&mut self, gpu: usize, now_ns: u64) {
        let seen: Vec<(String, u64, bool, bool)> = self
            .swappable_on(gpu)
            .map(|vgpu| {
                let (activity, busy) = self.activity(vgpu);
                (vgpu.name.clone(), activity, busy, self.wants_memory(vgpu))
            })
            .collect();
        for (name, activity, busy, wants) in seen {
            let Some(vgpu) = self.vgpus.get_mut(&name) else {
                continue;
            };
            let turns = &mut vgpu.turns;
            let worked = activity != turns.activity || busy;
            turns.activity = activity;
            match worked && !vgpu.suspended {
                true => turns.idle_since_ns = None,
                false => drop(turns.idle_since_ns.get_or_insert(now_ns)),
            }
            match wants {
                true => drop(turns.waits_since_ns.get_or_insert(now_ns)),
                false => turns.waits_since_ns = None,
            }
        }
    }

    /// A number that changes while a virtual GPU works, and whether it has work now.
    fn activity(&self, vgpu: &Vgpu) -> (u64, bool) {
        let mut sum = 0_u64;
        let mut busy = false;
        for client in self.workers_of(vgpu) {
            let page = &client.governed.page;
            let counters = &page.counters;
            // Any value may stand in a page.
            for word in [
                &counters.launches,
                &counters.gpu_time_ns,
                &page.traffic.to_device_bytes,
                &page.traffic.from_device_bytes,
            ] {
                sum = sum.wrapping_add(word.load(Relaxed));
            }
            busy |= counters.waiting.load(Relaxed) > 0;
        }
        (sum, busy)
    }

    /// Bytes that a virtual GPU has asked for and waits for.
    pub(super) fn growth_bytes(&self, vgpu: &Vgpu) -> u64 {
        let its = self
            .waiters
            .iter()
            .filter(|w| w.for_room && w.vgpu == vgpu.name);
        its.map(|waiter| waiter.bytes).sum()
    }

    fn wants_memory(&self, vgpu: &Vgpu) -> bool {
        let wants_back = |place| matches!(place, Place::Away | Place::Returning);
        let mut workers = self.workers_of(vgpu);
        let wanted = workers.any(|client| client.moved.wanted && wants_back(client.moved.place));
        let is_called = vgpu.turns.recalled && self.out_bytes(vgpu) > 0;
        wanted || is_called || self.growth_bytes(vgpu) > 0
    }

    /// The swappable virtual GPUs of a GPU.
    pub(super) fn picture(&self, gpu: usize, now_ns: u64) -> Vec<Tenant> {
        self.swappable_on(gpu)
            .map(|vgpu| self.tenant(vgpu, now_ns))
            .collect()
    }

    /// Bytes of a virtual GPU on the card that can leave, as far as is known.
    pub(super) fn movable_bytes(&self, vgpu: &Vgpu) -> u64 {
        let stays = |moved: &super::Moved| moved.remainder_bytes.max(moved.pinned_bytes);
        let stays: u64 = self
            .workers_of(vgpu)
            .map(|client| stays(&client.moved))
            .sum();
        let stays = stays + vgpu.ledger.unattributed_bytes();
        self.resident_bytes(vgpu).saturating_sub(stays)
    }

    fn tenant(&self, vgpu: &Vgpu, now_ns: u64) -> Tenant {
        let turns = &vgpu.turns;
        let place = self.place_of(vgpu);
        let unpromised = |moved: &super::Moved| moved.out_bytes - moved.promised_bytes();
        let out_bytes = self
            .workers_of(vgpu)
            .map(|client| unpromised(&client.moved))
            .sum();
        let movable_bytes = match place {
            Place::Resident | Place::Leaving => self.movable_bytes(vgpu),
            Place::Away | Place::Returning => 0,
        };
        Tenant {
            id: vgpu.id,
            priority: match vgpu.spec.priority {
                Priority::Low => 0,
                Priority::Normal => 1,
                Priority::High => 2,
            },
            place,
            movable_bytes,
            out_bytes,
            growth_bytes: self.growth_bytes(vgpu),
            waits_since_ns: turns.waits_since_ns,
            idle_since_ns: turns.idle_since_ns,
            turn_began_ns: turns.turn_began_ns,
            held_away: vgpu.suspended,
            pinned: turns.is_pinned(now_ns),
        }
    }
}
