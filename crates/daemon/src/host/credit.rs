//! Requests for memory: granted, refused, or kept until there is room.

use std::time::{Duration, Instant};

use mica_wire::host::message::{Kind, Message, Role};

use super::HostServer;
use crate::api::{OnFull, Severity};
use crate::registry::Waiter;

/// A request that is not to wait, nor to be told of.
const NOW: u64 = 1;

impl HostServer {
    /// Answers a request for credit, or puts it among the waiting.
    pub(super) fn need_credit(&mut self, id: u64, message: &Message) -> Option<Message> {
        let mut registry = self.daemon.registry();
        let denied = |text: &str| Some(Message::new(Kind::Credit).with_text(text));
        let client = registry.clients.get(&id)?;
        if client.role == Role::Monitor {
            return denied("a tool that only looks has no memory");
        }
        let name = client.vgpu.clone();
        let (pid, is_probe) = (client.pid, client.is_probe);
        let now = message.c == NOW;
        // In order of arrival: whoever comes while others wait waits behind them, however little it wants.
        let others_wait = registry.waiters.iter().any(|waiter| waiter.vgpu == name);
        let Some(vgpu) = registry.vgpus.get_mut(&name) else {
            return denied("the virtual GPU was removed");
        };
        let granted = match others_wait {
            true => Err(vgpu.ledger.full(message.a)),
            false => vgpu.ledger.grant(id, message.a),
        };
        match granted {
            Ok(bytes) => {
                let mut credit = Message::new(Kind::Credit);
                credit.a = bytes;
                Some(credit)
            }
            Err(full) if now || is_probe => denied(&full.to_string()),
            Err(full) => match vgpu.spec.on_full {
                OnFull::Wait { timeout_ms } if message.a <= vgpu.ledger.limit_bytes() => {
                    registry.waiters.push(Waiter {
                        vgpu: name,
                        client: id,
                        message_id: message.id,
                        bytes: message.a,
                        had_bytes: message.b,
                        deadline: Instant::now()
                            + Duration::from_millis(timeout_ms.min(86_400_000)),
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

    pub(super) fn retry_waiters(&mut self) {
        let mut answers = Vec::new();
        let mut in_vain = Vec::new();
        {
            let mut registry = self.daemon.registry();
            if registry.waiters.is_empty() {
                return;
            }
            let waiters = std::mem::take(&mut registry.waiters);
            let now = Instant::now();
            // In order of arrival within a virtual GPU: a small request may not starve a large one.
            let mut blocked = Vec::new();
            for waiter in waiters {
                let registry = &mut *registry;
                let (Some(vgpu), Some(client)) = (
                    registry.vgpus.get_mut(&waiter.vgpu),
                    registry.clients.get(&waiter.client),
                ) else {
                    continue;
                };
                let result = if blocked.contains(&waiter.vgpu) {
                    None
                } else {
                    Some(
                        vgpu.ledger
                            .grant_beyond(waiter.client, waiter.bytes, waiter.had_bytes),
                    )
                };
                let mut reply = Message::new(Kind::Credit);
                reply.id = waiter.message_id;
                match result {
                    Some(Ok(bytes)) => {
                        reply.a = bytes;
                        answers.push((client.socket.clone(), reply));
                    }
                    refused if now >= waiter.deadline => {
                        let text = match refused {
                            Some(Err(full)) => format!("waited in vain: {full}"),
                            _ => "waited in vain behind an earlier request".to_owned(),
                        };
                        answers.push((client.socket.clone(), reply.with_text(&text)));
                        in_vain.push((waiter.vgpu, client.pid, text));
                    }
                    _ => {
                        blocked.push(waiter.vgpu.clone());
                        registry.waiters.push(waiter);
                    }
                }
            }
        }
        for (socket, reply) in answers {
            let _ = socket.send(&reply, &[]);
        }
        for (vgpu, pid, text) in in_vain {
            let (severity, kind) = (Severity::Warning, "memory_denied");
            self.daemon
                .events
                .add(severity, kind, Some(&vgpu), Some(pid), text);
        }
    }
}
