//! What is done with a message.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

use mica_wire::host::message::{
    Kind, Message, NOTE_KERNEL_FAULT, NOTE_MODULE_REFUSED, NOTE_UNKNOWN_SYMBOL, NOTE_WORKER_FAILED,
    Refusal, Role,
};

use super::answers::{memory_answer, send_pieces, welcome};
use super::join::{Joined, join};
use super::{Flow, HostServer};
use crate::api::{Severity, VgpuInfo};
use crate::namespaces::seen_by;

/// Entry points remembered for a process at most.
const MOST_NAMES: usize = 64;

pub(super) fn refusal(kind: Refusal, text: &str) -> Message {
    let mut message = Message::new(Kind::Refused).with_text(text);
    message.a = kind as u64;
    message
}

impl HostServer {
    pub(super) fn handle(&mut self, number: u64, message: &Message, fds: Vec<OwnedFd>) -> Flow {
        let Some(connection) = self.connections.get(&number) else {
            return Flow::Close;
        };
        let socket = connection.socket.clone();
        let answer = |mut answer: Message| -> Flow {
            answer.id = message.id;
            // A peer that does not read fills its buffer and is cut off; its death frees its memory.
            match socket.send(&answer, &[]) {
                Ok(()) => Flow::Keep,
                Err(_) => Flow::Close,
            }
        };
        let Some(client) = connection.client else {
            if message.kind() == Some(Kind::Hello) {
                return self.hello(number, message, fds);
            }
            answer(refusal(Refusal::Protocol, "say Hello first"));
            return Flow::Close;
        };
        match message.kind() {
            Some(Kind::NeedCredit) => match self.need_credit(client, message) {
                Some(reply) => answer(reply),
                None => Flow::Keep,
            },
            Some(Kind::AskMemory) => {
                let reply = memory_answer(&self.daemon.registry(), client);
                reply.map_or(Flow::Close, answer)
            }
            Some(Kind::AskStats) => {
                let text = serde_json::to_string(&self.stats_for(client)).unwrap_or_default();
                send_pieces(&text, answer)
            }
            Some(Kind::Note) => {
                let mut registry = self.daemon.registry();
                let from = registry.clients.get_mut(&client).map(|client| {
                    if message.b == NOTE_UNKNOWN_SYMBOL {
                        note_symbol(&mut client.unknown_names, &message.text());
                    }
                    (client.vgpu.clone(), client.pid)
                });
                drop(registry);
                if let Some((vgpu, pid)) = from {
                    let severity = match message.a {
                        0 => Severity::Info,
                        1 => Severity::Warning,
                        _ => Severity::Error,
                    };
                    let kind = match message.b {
                        NOTE_KERNEL_FAULT => "kernel_fault",
                        NOTE_MODULE_REFUSED => "module_refused",
                        NOTE_WORKER_FAILED => "worker_failed",
                        _ => "note",
                    };
                    let text = message.text();
                    self.daemon
                        .events
                        .add(severity, kind, Some(&vgpu), Some(pid), text);
                }
                Flow::Keep
            }
            Some(Kind::ShareFile | Kind::OpenFile | Kind::DropFile) => {
                self.share(number, client, message, fds)
            }
            Some(Kind::Confined) => {
                let mut registry = self.daemon.registry();
                if let Some(client) = registry.clients.get_mut(&client)
                    && client.role == Role::Worker
                {
                    let confinement = client.confinement.get_or_insert_default();
                    confinement.note(message.a, message.b, message.text());
                }
                Flow::Keep
            }
            _ => {
                let text = format!("message kind {} makes no sense here", message.kind);
                answer(refusal(Refusal::Protocol, &text));
                Flow::Close
            }
        }
    }

    /// The virtual GPU of a client, with its processes as that client sees them.
    fn stats_for(&self, client: u64) -> Option<VgpuInfo> {
        let registry = self.daemon.registry();
        let asker = registry.clients.get(&client)?;
        let pid = asker.pid;
        let mut info = registry.vgpu_info(registry.vgpus.get(&asker.vgpu)?);
        drop(registry);
        let seen = seen_by(pid, info.processes.iter().map(|process| process.pid));
        let mut seen = seen.into_iter();
        info.processes.retain_mut(|process| {
            let number = seen.next().flatten();
            process.pid = number.unwrap_or(process.pid);
            number.is_some()
        });
        Some(info)
    }

    pub(super) fn hello(&mut self, number: u64, message: &Message, fds: Vec<OwnedFd>) -> Flow {
        let Some(connection) = self.connections.get_mut(&number) else {
            return Flow::Close;
        };
        let (pid, uid, door) = (connection.pid, connection.uid, connection.door);
        let (socket, began) = (connection.socket.clone(), connection.start);
        let ended = (connection.process.take()).is_some_and(|process| !process.alive());
        // The socket may have been passed on. A process that came later must not be taken for the one that connected:
        // it would be watched, and killed when the virtual GPU is removed by force.
        let joined = match !ended && self.start_of(pid) == began {
            true => join(&self.daemon, message, fds, pid, uid, door, &socket),
            false => {
                let text = format!("process {pid}, which connected, has ended");
                Err((Refusal::Permission, text))
            }
        };
        match joined {
            Ok(joined) => {
                let mut fds = Vec::new();
                match &joined {
                    Joined::Client {
                        id,
                        governed,
                        bell,
                        resumed,
                    } => {
                        if let Some(connection) = self.connections.get_mut(&number) {
                            connection.client = Some(*id);
                        }
                        self.greeting = self.greeting.saturating_sub(1);
                        // One that resumes has its page already and takes the last descriptor.
                        if !resumed {
                            fds.push(governed.page.fd());
                        }
                        fds.push(bell.as_fd());
                    }
                    Joined::Program { session } => fds.push(session.as_fd()),
                }
                let mut welcome = match &joined {
                    Joined::Client { id, .. } => self.welcome_for(*id),
                    Joined::Program { .. } => self.welcome_by_token(&message.token),
                };
                welcome.id = message.id;
                if socket.send(&welcome, &fds).is_err() {
                    return Flow::Close;
                }
                if let Joined::Client { id, .. } = joined {
                    self.daemon.deliver_sessions(id);
                }
                Flow::Keep
            }
            Err((kind, text)) => {
                // Whoever has the token is told, by `mica run` too: the program itself hears a number at most.
                let registry = self.daemon.registry();
                let vgpu = registry.by_token(&message.token);
                let vgpu = vgpu.map(|(vgpu, _)| vgpu.name.clone());
                drop(registry);
                self.daemon.events.add(
                    Severity::Warning,
                    "process_refused",
                    vgpu.as_deref(),
                    Some(pid),
                    format!("process {pid} of user {uid} was refused: {text}"),
                );
                let mut reply = refusal(kind, &text);
                reply.id = message.id;
                let _ = socket.send(&reply, &[]);
                Flow::Close
            }
        }
    }

    pub(super) fn welcome_for(&self, id: u64) -> Message {
        let registry = self.daemon.registry();
        let name = registry.clients.get(&id).map(|c| c.vgpu.clone());
        let mut welcome = welcome(&registry, &name.unwrap_or_default());
        welcome.c = id;
        welcome
    }

    pub(super) fn welcome_by_token(&self, token: &[u8; 16]) -> Message {
        let registry = self.daemon.registry();
        let name = registry.by_token(token).map(|(vgpu, _)| vgpu.name.clone());
        welcome(&registry, &name.unwrap_or_default())
    }
}

/// Keeps the name a note about an entry point begins with.
fn note_symbol(names: &mut BTreeSet<String>, text: &str) {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let name = &text[..end.unwrap_or(text.len())];
    if names.len() < MOST_NAMES && !name.is_empty() {
        names.insert(name.to_owned());
    }
}
