//! What workers report of their memory, and what is told of it.

use mica_control::api::{ResidencyInfo, ResidencyState, Severity};
use mica_memory::residency::Place;
use mica_wire::host::message::{MemoryPlace, Residency, Role};

use crate::enforce::Notice;
use crate::placement::size;
use crate::registry::{Registry, Vgpu};

/// A worker whose work could not be stopped is not asked to leave again for this time.
const PINNED_NS: u64 = 10_000_000_000;
/// A move that takes longer than this is told of, again and again.
const SLOW_NS: u64 = 2_000_000_000;
/// Speed of the link before anything has moved.
pub(crate) const FIRST_BYTES_PER_SECOND: u64 = 4 << 30;

/// What no link is slower than, and none faster.
const SLOWEST_BYTES_PER_SECOND: u64 = 256 << 20;
const FASTEST_BYTES_PER_SECOND: u64 = 1 << 40;

fn place_of(place: MemoryPlace) -> Place {
    match place {
        MemoryPlace::Resident => Place::Resident,
        MemoryPlace::Leaving => Place::Leaving,
        MemoryPlace::Away => Place::Away,
        MemoryPlace::Returning => Place::Returning,
    }
}

pub(crate) fn state_of(place: Place) -> ResidencyState {
    match place {
        Place::Resident => ResidencyState::Resident,
        Place::Leaving => ResidencyState::Leaving,
        Place::Away => ResidencyState::Away,
        Place::Returning => ResidencyState::Returning,
    }
}

impl Registry {
    /// Notes what a worker reports; what is to be told of it.
    pub(crate) fn worker_moved(
        &mut self,
        id: u64,
        told: &Residency,
        now_ns: u64,
    ) -> Option<Notice> {
        let client = self
            .clients
            .get_mut(&id)
            .filter(|c| c.role == Role::Worker)?;
        let name = client.vgpu.clone();
        let granted = self.vgpus.get(&name)?.ledger.granted_to(id);
        let before = self.place_of(self.vgpus.get(&name)?);
        let client = self.clients.get_mut(&id)?;
        let moved = &mut client.moved;
        moved.known = true;
        // A worker's own word: it cannot have more out than it was granted.
        moved.out_bytes = told.out_bytes.min(granted);
        moved.moved_bytes = told.moved_bytes.max(moved.moved_bytes);
        // One that was sent meanwhile is not carried out yet.
        if told.order >= moved.order {
            let refused = moved.place == Place::Leaving && told.place == MemoryPlace::Resident;
            moved.order = told.order;
            moved.place = place_of(told.place);
            moved.floor_bytes = told.floor_bytes.min(moved.floor_bytes);
            moved.pinned_bytes = told.pinned_bytes.min(granted);
            moved.wanted = told.wanted;
            if moved.place == Place::Away {
                moved.remainder_bytes = granted.saturating_sub(moved.out_bytes);
            }
            let vgpu = self.vgpus.get_mut(&name)?;
            if refused {
                vgpu.turns.pinned_until_ns = now_ns.saturating_add(PINNED_NS);
            }
        }
        let out_bytes = self.clients.get(&id)?.moved.out_bytes;
        self.vgpus.get_mut(&name)?.ledger.set_out(id, out_bytes);
        let after = self.place_of(self.vgpus.get(&name)?);
        match before == after {
            true => None,
            false => self.place_changed(&name, before, after, now_ns),
        }
    }

    fn place_changed(
        &mut self,
        name: &str,
        before: Place,
        place: Place,
        now_ns: u64,
    ) -> Option<Notice> {
        let vgpu = self.vgpus.get(name)?;
        let (out_bytes, gpu) = (self.out_bytes(vgpu), vgpu.gpu);
        let pid = self.workers_of(vgpu).next().map_or(0, |client| client.pid);
        let stays = self.resident_bytes(vgpu);
        let vgpu = self.vgpus.get_mut(name)?;
        let turns = &mut vgpu.turns;
        let began_ns = turns.move_began_ns.take();
        turns.slow_told_ns = None;
        let took_ns = began_ns.map_or(0, |began_ns| now_ns.saturating_sub(began_ns));
        let time = match began_ns {
            Some(_) => format!(" in {:.3} s", took_ns as f64 / 1e9),
            None => String::new(),
        };
        let info = Severity::Info;
        match place {
            Place::Leaving | Place::Returning => {
                turns.away_since_ns.get_or_insert(now_ns);
                turns.move_began_ns = began_ns;
                None
            }
            Place::Away => {
                turns.away_since_ns.get_or_insert(now_ns);
                let text = format!(
                    "{name} left GPU {gpu}: {} moved to host memory{time}, {} stay",
                    size(out_bytes),
                    size(stays)
                );
                self.note_speed(out_bytes, took_ns);
                Some((info, "swapped_out", name.into(), pid, text))
            }
            Place::Resident => {
                let away_ns = turns
                    .away_since_ns
                    .take()
                    .map_or(0, |since| now_ns - since.min(now_ns));
                turns.away_ns += away_ns;
                // A worker that says without an order that it was away, and is back, would begin one turn after the other.
                if before == Place::Returning {
                    turns.turn_began_ns = now_ns;
                }
                turns.idle_since_ns = None;
                turns.recalled = false;
                let bytes = std::mem::take(&mut turns.returning_bytes);
                let away_seconds = away_ns as f64 / 1e9;
                let text = format!(
                    "{name} is back on GPU {gpu} after {away_seconds:.1} s: {} moved{time}",
                    size(bytes)
                );
                Some((info, "swapped_in", name.into(), pid, text))
            }
        }
    }

    /// Tells how far moves are that take long.
    pub(super) fn note_slow_moves(&mut self, gpu: usize, now_ns: u64, news: &mut Vec<Notice>) {
        let slow = |vgpu: &&Vgpu| {
            let told_ns = vgpu.turns.slow_told_ns.or(vgpu.turns.move_began_ns);
            told_ns.is_some_and(|at| now_ns.saturating_sub(at) >= SLOW_NS)
                // A return may wait for another tenant's turn to end: only a way out is slow by itself.
                && self.place_of(vgpu) == Place::Leaving
        };
        let names: Vec<String> = (self.swappable_on(gpu).filter(slow))
            .map(|vgpu| vgpu.name.clone())
            .collect();
        for name in names {
            let Some(vgpu) = self.vgpus.get(&name) else {
                continue;
            };
            let began_ns = vgpu.turns.move_began_ns.unwrap_or(now_ns);
            let seconds = now_ns.saturating_sub(began_ns) as f64 / 1e9;
            let text = format!(
                "{name} is {} for {seconds:.1} s: {} to move, {} in host memory",
                state_of(self.place_of(vgpu)),
                size(self.to_move_bytes(vgpu)),
                size(self.out_bytes(vgpu)),
            );
            news.push((Severity::Warning, "swap_slow", name.clone(), 0, text));
            if let Some(vgpu) = self.vgpus.get_mut(&name) {
                vgpu.turns.slow_told_ns = Some(now_ns);
            }
        }
    }

    /// Bytes that a move which is under way has still to move.
    pub(super) fn to_move_bytes(&self, vgpu: &Vgpu) -> u64 {
        match self.place_of(vgpu) {
            Place::Leaving => self.movable_bytes(vgpu),
            Place::Returning => self.out_bytes(vgpu),
            Place::Resident | Place::Away => 0,
        }
    }

    /// Keeps the measured speed of the link, slowly changing.
    fn note_speed(&mut self, bytes: u64, took_ns: u64) {
        // Little says nothing: stopping the work takes longer.
        if bytes < 64 << 20 || took_ns == 0 {
            return;
        }
        let measured = u128::from(bytes) * 1_000_000_000 / u128::from(took_ns);
        let measured = u64::try_from(measured).unwrap_or(u64::MAX);
        // A worker's own word, and turns of all tenants get longer with it.
        let measured = measured.clamp(SLOWEST_BYTES_PER_SECOND, FASTEST_BYTES_PER_SECOND);
        self.swap_bytes_per_second = self.swap_bytes_per_second / 4 * 3 + measured / 4;
    }

    /// What the API shows of a swappable virtual GPU; nothing of others.
    pub(crate) fn residency(&self, vgpu: &Vgpu) -> Option<ResidencyInfo> {
        if !vgpu.is_swappable() {
            return None;
        }
        let turns = &vgpu.turns;
        let now_ns = mica_limits::monotonic_ns();
        let since = |began: Option<u64>| began.map_or(0, |began| now_ns.saturating_sub(began));
        let moved = |sum: u64, client: &crate::registry::Client| {
            sum.saturating_add(client.moved.moved_bytes)
        };
        let pinned: u64 = self
            .workers_of(vgpu)
            .map(|client| client.moved.pinned_bytes)
            .sum();
        Some(ResidencyInfo {
            state: state_of(self.place_of(vgpu)),
            resident_bytes: self.resident_bytes(vgpu),
            away_bytes: self.out_bytes(vgpu),
            pinned_bytes: pinned,
            to_move_bytes: self.to_move_bytes(vgpu),
            moved_bytes_total: self.workers_of(vgpu).fold(turns.dead_moved_bytes, moved),
            exchanges_total: turns.exchanges,
            away_seconds: (turns.away_ns + since(turns.away_since_ns)) as f64 / 1e9,
            waits_seconds: since(turns.waits_since_ns) as f64 / 1e9,
        })
    }
}
