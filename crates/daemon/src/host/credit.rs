//! Requests for memory: granted, refused, or kept until there is room.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mica_control::api::{OnFull, Severity};
use mica_wire::host::frame::{Frame, Packet};
use mica_wire::host::message::{DaemonMessage, Role};
use mica_wire::host::socket::HostSocket;

use super::HostServer;
use crate::config::Config;
use crate::ledger::Full;
use crate::registry::{Registry, Waiter};
use crate::swap::Shortage;

/// What a client asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct CreditRequest {
    /// Number of its message.
    pub(super) id: u32,
    /// Bytes that it needs beyond `have_bytes`.
    pub(super) bytes: u64,
    /// Credit that it has left.
    pub(super) have_bytes: u64,
    /// Refuse at once instead of waiting, and without an event.
    pub(super) now: bool,
}

fn no_credit(why: impl Into<mica_wire::host::frame::Text>) -> DaemonMessage {
    DaemonMessage::NoCredit { why: why.into() }
}

/// When a request that waits for room on the card is refused.
fn room_deadline(config: &Config) -> Instant {
    Instant::now() + Duration::from_secs(config.swap.wait_seconds)
}

/// Answers a request of a swappable virtual GPU that its limit allows; nothing if it has to wait for the card.
fn ask_for_room(
    registry: &mut Registry,
    id: u64,
    name: &str,
    request: CreditRequest,
) -> Option<DaemonMessage> {
    let gpu = registry.vgpus.get(name)?.gpu;
    let others_wait = registry.somebody_waits(gpu) && !request.now;
    let granted = match others_wait {
        true => Err(Shortage::Room("others wait for the card".into())),
        false => registry.grant_resident(id, name, request.bytes, request.now),
    };
    match granted {
        Ok(bytes) => Some(DaemonMessage::Credit { bytes }),
        Err(Shortage::Room(_)) if !request.now => {
            let deadline = room_deadline(&registry.config);
            registry.waiters.push(Waiter {
                vgpu: name.to_owned(),
                client: id,
                message_id: request.id,
                bytes: request.bytes,
                had_bytes: request.have_bytes,
                deadline,
                for_room: true,
            });
            None
        }
        Err(shortage) => Some(no_credit(shortage.to_string())),
    }
}

impl HostServer {
    /// Answers a request for credit, or puts it among the waiting.
    pub(super) fn need_credit(&mut self, id: u64, request: CreditRequest) -> Option<DaemonMessage> {
        let mut registry = self.daemon.registry();
        let denied = |text: &str| Some(no_credit(text));
        let client = registry.clients.get(&id)?;
        if client.role == Role::Monitor {
            return denied("a tool that only looks has no memory");
        }
        let name = client.vgpu.clone();
        let (pid, is_probe) = (client.pid, client.is_probe);
        // In order of arrival: a request that comes while others wait is queued behind them, however small it is.
        let others_wait = registry.waiters.iter().any(|waiter| waiter.vgpu == name);
        let Some(vgpu) = registry.vgpus.get_mut(&name) else {
            return denied("the virtual GPU was removed");
        };
        if vgpu.is_swappable() && vgpu.ledger.check(id, request.bytes).is_ok() {
            let answer = ask_for_room(&mut registry, id, &name, request);
            drop(registry);
            if answer.is_none() {
                self.plan_swaps();
            }
            return answer;
        }
        let granted = match others_wait {
            true => Err(vgpu.ledger.full(request.bytes)),
            false => vgpu.ledger.grant(id, request.bytes),
        };
        match granted {
            Ok(bytes) => Some(DaemonMessage::Credit { bytes }),
            Err(full) if request.now || is_probe => denied(&full.to_string()),
            Err(full) => match vgpu.spec.on_full {
                OnFull::Wait { timeout_ms } if request.bytes <= vgpu.ledger.limit_bytes() => {
                    registry.waiters.push(Waiter {
                        vgpu: name,
                        client: id,
                        message_id: request.id,
                        bytes: request.bytes,
                        had_bytes: request.have_bytes,
                        deadline: Instant::now()
                            + Duration::from_millis(timeout_ms.min(86_400_000)),
                        for_room: false,
                    });
                    None
                }
                _ => {
                    drop(registry);
                    self.daemon.events.add(
                        Severity::Warning,
                        "memory_denied",
                        Some(&name),
                        Some(pid),
                        full.to_string(),
                    );
                    denied(&full.to_string())
                }
            },
        }
    }

    /// Answers a worker's request for host memory, at once.
    pub(super) fn need_host_bytes(&mut self, id: u64, bytes: u64) -> DaemonMessage {
        let mut registry = self.daemon.registry();
        let name = match registry.clients.get(&id) {
            Some(client) if client.role == Role::Worker => client.vgpu.clone(),
            _ => return no_credit("only a worker holds host memory for programs"),
        };
        let Some(vgpu) = registry.vgpus.get_mut(&name) else {
            return no_credit("the virtual GPU was removed");
        };
        match vgpu.host_ledger.grant(id, bytes) {
            Ok(bytes) => DaemonMessage::Credit { bytes },
            Err(full) => no_credit(format!("host memory of the virtual GPU: {full}")),
        }
    }

    /// Tries the waiting requests again, and refuses those that have waited long enough.
    pub(super) fn retry_waiters(&mut self) {
        let (answers, denied) = {
            let mut registry = self.daemon.registry();
            if registry.waiters.is_empty() {
                return;
            }
            let waiters = std::mem::take(&mut registry.waiters);
            let mut round = Round::at(Instant::now());
            for waiter in waiters {
                round.retry(&mut registry, waiter);
            }
            (round.answers, round.denied)
        };
        for (socket, reply) in answers {
            let _ = socket.send_frame(&reply, &[]);
        }
        for (vgpu, pid, text) in denied {
            let (severity, kind) = (Severity::Warning, "memory_denied");
            self.daemon
                .events
                .add(severity, kind, Some(&vgpu), Some(pid), text);
        }
    }
}

/// One round over the waiting requests: what to do when the lock is free.
struct Round {
    now: Instant,
    /// Virtual GPUs with a request that goes on waiting. Requests wait in order of arrival: a small one may not starve a
    /// large one before it.
    blocked: Vec<String>,
    answers: Vec<(Arc<HostSocket>, Frame)>,
    /// Requests that were refused after their wait: virtual GPU, process, and why.
    denied: Vec<(String, u32, String)>,
}

impl Round {
    fn at(now: Instant) -> Self {
        Self {
            now,
            blocked: Vec::new(),
            answers: Vec::new(),
            denied: Vec::new(),
        }
    }

    fn retry(&mut self, registry: &mut Registry, waiter: Waiter) {
        let (Some(vgpu), Some(client)) = (
            registry.vgpus.get_mut(&waiter.vgpu),
            registry.clients.get(&waiter.client),
        ) else {
            return;
        };
        // Room on the card is given out by the plan.
        let result = if self.blocked.contains(&waiter.vgpu) || waiter.for_room {
            None
        } else if vgpu.is_swappable() {
            match vgpu.ledger.check(waiter.client, waiter.bytes) {
                // The limit allows it; what is left is to wait for the card.
                Ok(()) => {
                    let deadline = room_deadline(&registry.config);
                    registry.waiters.push(Waiter {
                        for_room: true,
                        deadline,
                        ..waiter
                    });
                    return;
                }
                Err(full) => Some(Err(full)),
            }
        } else {
            let (bytes, had_bytes) = (waiter.bytes, waiter.had_bytes);
            Some(vgpu.ledger.grant_beyond(waiter.client, bytes, had_bytes))
        };
        let (answer, denied) = match result {
            Some(Ok(bytes)) => (DaemonMessage::Credit { bytes }, None),
            refused if self.now >= waiter.deadline => {
                let text = in_vain(&waiter, refused.and_then(Result::err));
                (no_credit(text.as_str()), Some(text))
            }
            _ => {
                self.blocked.push(waiter.vgpu.clone());
                registry.waiters.push(waiter);
                return;
            }
        };
        let reply = answer.frame(waiter.message_id);
        self.answers.push((client.socket.clone(), reply));
        if let Some(text) = denied {
            self.denied.push((waiter.vgpu, client.pid, text));
        }
    }
}

/// Why a request was not granted in time; `full` is what its virtual GPU lacks.
fn in_vain(waiter: &Waiter, full: Option<Full>) -> String {
    match full {
        Some(full) => format!("waited without success: {full}"),
        None if waiter.for_room => {
            "waited without success for room on the GPU: the memory on it does not leave".to_owned()
        }
        None => "waited without success behind an earlier request".to_owned(),
    }
}
