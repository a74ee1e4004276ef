//! Carries a plan out: orders to workers, answers to those who asked for memory.

use std::sync::Arc;

use mica_control::api::{ApiError, Severity};
use mica_memory::residency::{Order, Place, plan};
use mica_wire::host::frame::{Frame, Packet};
use mica_wire::host::message::{DaemonMessage, Role};
use mica_wire::host::socket::HostSocket;

use super::Shortage;
use crate::enforce::Notice;
use crate::placement::{error, size};
use crate::registry::{Client, Registry, Vgpu};

/// The number of the next order to a worker. It is a time, so that it is larger than any number of an earlier daemon: what a
/// worker says of an earlier order is then not taken for the answer to this one.
fn next_order(last: u64, now_ns: u64) -> u64 {
    now_ns.max(last.saturating_add(1))
}

/// What is to be sent, and what is to be told.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    pub(crate) messages: Vec<(Arc<HostSocket>, Frame)>,
    pub(crate) news: Vec<Notice>,
}

impl Steps {
    fn tell(&mut self, socket: &Arc<HostSocket>, message: &DaemonMessage, id: u32) {
        self.messages.push((socket.clone(), message.frame(id)));
    }
}

impl Registry {
    /// Looks at every GPU with swappable virtual GPUs, and decides what is to be done.
    pub(crate) fn plan_swaps(&mut self, now_ns: u64) -> Steps {
        let mut steps = Steps::default();
        for gpu in 0..self.gpus.len() {
            if self.swappable_on(gpu).next().is_none() {
                continue;
            }
            self.note_activity(gpu, now_ns);
            self.put_away(gpu, now_ns, &mut steps);
            self.note_slow_moves(gpu, now_ns, &mut steps.news);
            if !self.is_swapping() {
                continue;
            }
            if self.somebody_waits(gpu) {
                self.recall_unused(gpu);
            }
            let picture = self.picture(gpu, now_ns);
            let rules = self.rules();
            for order in plan(&rules, now_ns, self.room_bytes(gpu), &picture) {
                self.carry_out(order, now_ns, &mut steps);
            }
        }
        steps
    }

    fn name_of(&self, id: u64) -> Option<String> {
        let vgpu = self.vgpus.values().find(|vgpu| vgpu.id == id)?;
        Some(vgpu.name.clone())
    }

    fn carry_out(&mut self, order: Order, now_ns: u64, steps: &mut Steps) {
        let (Order::Leave(id) | Order::Return { id, .. } | Order::Grow(id)) = order;
        let Some(name) = self.name_of(id) else {
            return;
        };
        match order {
            Order::Leave(_) => self.order_leave(&name, now_ns, steps),
            Order::Return { bytes, .. } => self.order_return(&name, bytes, now_ns, steps),
            Order::Grow(_) => self.grow(&name, steps),
        }
    }

    /// Has the memory of a virtual GPU leave.
    pub(crate) fn order_leave(&mut self, name: &str, now_ns: u64, steps: &mut Steps) {
        let Registry { vgpus, clients, .. } = self;
        let Some(vgpu) = vgpus.get_mut(name) else {
            return;
        };
        vgpu.ledger.recall(u64::MAX, None);
        let mut told = false;
        for id in &vgpu.clients {
            let Some(client) = clients.get_mut(id).filter(|c| c.role == Role::Worker) else {
                continue;
            };
            if client.moved.place != Place::Resident || !client.moved.known {
                continue;
            }
            client.moved.order = next_order(client.moved.order, now_ns);
            client.moved.place = Place::Leaving;
            client.moved.floor_bytes = u64::MAX;
            client.moved.wanted = false;
            let order = client.moved.order;
            steps.tell(&client.socket, &DaemonMessage::Leave { order }, 0);
            told = true;
        }
        if told {
            vgpu.turns.exchanges += 1;
            vgpu.turns.away_since_ns.get_or_insert(now_ns);
            vgpu.turns.move_began_ns = Some(now_ns);
        }
    }

    /// Frees the card of a virtual GPU that is suspended, until it is resumed.
    pub(crate) fn free_card(&mut self, name: &str, now_ns: u64) -> Result<Steps, ApiError> {
        if !self.vgpu(name)?.is_swappable() {
            return Err(error(
                "state",
                format!("memory of {name} cannot leave its GPU: it is not swappable"),
                Some("make it with `mica create --swap`, or `mica run --swap`".into()),
            ));
        }
        let mut steps = Steps::default();
        self.order_leave(name, now_ns, &mut steps);
        let bytes = size(self.to_move_bytes(self.vgpu(name)?));
        let vgpu = self.vgpu_mut(name)?;
        vgpu.turns.put_away = true;
        let text = format!(
            "{name} is to leave GPU {}: {bytes} to move to host memory",
            vgpu.gpu
        );
        steps
            .news
            .push((Severity::Info, "swap_began", name.into(), 0, text));
        Ok(steps)
    }

    /// Has workers leave that have come to a suspended virtual GPU since its memory was taken off the card.
    fn put_away(&mut self, gpu: usize, now_ns: u64, steps: &mut Steps) {
        let stays = |vgpu: &&Vgpu| {
            let came =
                |client: &Client| client.moved.known && client.moved.place == Place::Resident;
            vgpu.turns.put_away && !vgpu.turns.is_pinned(now_ns) && self.workers_of(vgpu).any(came)
        };
        let names: Vec<String> = (self.swappable_on(gpu).filter(stays))
            .map(|vgpu| vgpu.name.clone())
            .collect();
        for name in names {
            self.order_leave(&name, now_ns, steps);
        }
    }

    /// Lets so many bytes of a virtual GPU come back.
    fn order_return(&mut self, name: &str, bytes: u64, now_ns: u64, steps: &mut Steps) {
        let Registry { vgpus, clients, .. } = self;
        let Some(vgpu) = vgpus.get_mut(name) else {
            return;
        };
        let mut left = bytes;
        for id in &vgpu.clients {
            let Some(client) = clients.get_mut(id).filter(|c| c.role == Role::Worker) else {
                continue;
            };
            let moved = &mut client.moved;
            if !matches!(moved.place, Place::Away | Place::Returning) {
                continue;
            }
            let unpromised = moved.out_bytes - moved.promised_bytes();
            let part = unpromised.min(left);
            if part == 0 && moved.out_bytes > 0 {
                continue;
            }
            left -= part;
            if moved.place == Place::Away {
                vgpu.turns.move_began_ns = Some(now_ns);
                let returning = &mut vgpu.turns.returning_bytes;
                *returning = returning.saturating_add(moved.out_bytes);
            }
            moved.floor_bytes = unpromised - part;
            moved.place = Place::Returning;
            moved.order = next_order(moved.order, now_ns);
            let (order, floor_bytes) = (moved.order, moved.floor_bytes);
            let message = DaemonMessage::Return { order, floor_bytes };
            steps.tell(&client.socket, &message, 0);
        }
    }

    /// Grants what a virtual GPU has asked for, in the order in which it was asked.
    fn grow(&mut self, name: &str, steps: &mut Steps) {
        let waiters = std::mem::take(&mut self.waiters);
        for waiter in waiters {
            if !waiter.for_room || waiter.vgpu != name {
                self.waiters.push(waiter);
                continue;
            }
            let credit = self
                .vgpus
                .get(name)
                .map_or(0, |v| v.ledger.credit_of(waiter.client));
            let need = waiter
                .bytes
                .saturating_sub(credit.saturating_sub(waiter.had_bytes));
            let granted = match need {
                0 => Ok(waiter.bytes),
                need => self.grant_grown(waiter.client, name, need),
            };
            let Some(socket) = self.clients.get(&waiter.client).map(|c| c.socket.clone()) else {
                continue;
            };
            match granted {
                Ok(bytes) => {
                    steps.tell(&socket, &DaemonMessage::Credit { bytes }, waiter.message_id)
                }
                Err(Shortage::Room(_)) => self.waiters.push(waiter),
                Err(Shortage::Limit(full)) => {
                    let why = full.to_string().as_str().into();
                    steps.tell(&socket, &DaemonMessage::NoCredit { why }, waiter.message_id);
                }
            }
        }
    }

    /// Grants what the plan has found room for, also to one that is on its way back.
    fn grant_grown(&mut self, client: u64, name: &str, bytes: u64) -> Result<u64, Shortage> {
        let removed = || Shortage::Room("the virtual GPU was removed".into());
        let gpu = self.vgpus.get(name).ok_or_else(removed)?.gpu;
        let room = self.room_bytes(gpu);
        if room < bytes {
            return Err(Shortage::Room("the card is full".into()));
        }
        let vgpu = self.vgpus.get_mut(name).ok_or_else(removed)?;
        vgpu.ledger.check(client, bytes).map_err(Shortage::Limit)?;
        // Exactly so much: others wait.
        vgpu.ledger
            .grant_within(client, bytes, bytes)
            .map_err(Shortage::Limit)
    }
}
