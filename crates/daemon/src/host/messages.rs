//! What is done with a message.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

use mica_control::api::{Severity, VgpuInfo};
use mica_wire::host::frame::{Frame, Packet};
use mica_wire::host::message::{
    self as wire, ClientMessage, DaemonMessage, Introduction, Refusal, Role, Topic,
    version_of_hello,
};

use super::answers::{memory_answer, send_pieces, welcome};
use super::credit::CreditRequest;
use super::join::{Joined, check_version, join};
use super::shared_files::FileRequest;
use super::{Flow, HostServer, PeerSocket};
use crate::namespaces::seen_by;

/// Entry points remembered for a process at most.
const MOST_NAMES: usize = 64;

pub(super) fn refusal(reason: Refusal, text: &str) -> DaemonMessage {
    let text = text.into();
    DaemonMessage::Refused { reason, text }
}

impl HostServer {
    pub(super) fn handle(&mut self, number: u64, frame: &Frame, fds: Vec<OwnedFd>) -> Flow {
        let Some(connection) = self.connections.get(&number) else {
            return Flow::Close;
        };
        let socket = connection.socket.clone();
        let answer = |answer: DaemonMessage| -> Flow {
            // A peer that does not read fills its buffer and is cut off; its death frees its memory.
            match socket.send_frame(&answer.frame(frame.id()), &[]) {
                Ok(()) => Flow::Keep,
                Err(_) => Flow::Close,
            }
        };
        let message = match (frame.read(), connection.client) {
            (Ok(ClientMessage::Hello { introduction }), None) => {
                return self.hello(number, frame.id(), &introduction, fds);
            }
            (Ok(message), Some(client)) => Ok((message, client)),
            (Ok(_), None) => Err((Refusal::Protocol, "say Hello first".to_owned())),
            (Err(error), _) => {
                let version = version_of_hello(frame).map_or(Ok(()), check_version);
                version.and(Err((Refusal::Protocol, error.to_string())))
            }
        };
        let (message, client) = match message {
            Ok(message) => message,
            Err((reason, text)) => {
                answer(refusal(reason, &text));
                return Flow::Close;
            }
        };
        match message {
            ClientMessage::NeedCredit {
                bytes,
                have_bytes,
                now,
            } => {
                let request = CreditRequest {
                    id: frame.id(),
                    bytes,
                    have_bytes,
                    now,
                };
                (self.need_credit(client, request)).map_or(Flow::Keep, answer)
            }
            ClientMessage::NeedHostBytes { bytes } => answer(self.need_host_bytes(client, bytes)),
            ClientMessage::AskMemory {} => {
                let reply = memory_answer(&self.daemon.registry(), client);
                reply.map_or(Flow::Close, answer)
            }
            ClientMessage::AskStats {} => {
                let text = serde_json::to_string(&self.stats_for(client)).unwrap_or_default();
                send_pieces(&text, answer)
            }
            ClientMessage::Note {
                severity,
                topic,
                text,
            } => {
                self.note(client, severity, topic, text.into());
                Flow::Keep
            }
            ClientMessage::ShareFile { name, bytes, what } => {
                let request = FileRequest::Share { bytes, what };
                self.share(number, frame.id(), (client, name), request, fds)
            }
            ClientMessage::OpenFile { name } => {
                self.share(number, frame.id(), (client, name), FileRequest::Open, fds)
            }
            ClientMessage::DropFile { name } => {
                self.share(number, frame.id(), (client, name), FileRequest::Drop, fds)
            }
            ClientMessage::Cancelled {
                request,
                kernels,
                copies,
            } => {
                let ended = (kernels, copies);
                self.daemon.cancels.answered(client, request, ended);
                Flow::Keep
            }
            ClientMessage::MapPiece { request, piece } => {
                self.daemon.maps.piece(client, request, piece);
                Flow::Keep
            }
            ClientMessage::MapEnd { request, sums } => {
                self.daemon.maps.ended(client, request, sums);
                Flow::Keep
            }
            ClientMessage::Profiled { row } => {
                self.daemon.worker_profiled(client, row);
                Flow::Keep
            }
            ClientMessage::Moved { residency } => {
                self.worker_moved(client, &residency);
                Flow::Keep
            }
            ClientMessage::Confined {
                applied,
                missing,
                why,
            } => {
                let mut registry = self.daemon.registry();
                if let Some(client) = registry.clients.get_mut(&client)
                    && client.role == Role::Worker
                {
                    let confinement = client.confinement.get_or_insert_default();
                    confinement.note(applied, missing, why.into());
                }
                Flow::Keep
            }
            ClientMessage::Hello { .. } => {
                answer(refusal(Refusal::Protocol, "a client says Hello once"));
                Flow::Close
            }
        }
    }

    /// Puts a client's note into the event log.
    fn note(&self, client: u64, severity: wire::Severity, topic: Topic, text: String) {
        let mut registry = self.daemon.registry();
        let Some(client) = registry.clients.get_mut(&client) else {
            return;
        };
        let kind = match topic {
            Topic::General => "note",
            Topic::UnknownSymbol => {
                note_symbol(&mut client.unknown_names, &text);
                "note"
            }
            Topic::RequestRefused => {
                note_symbol(&mut client.refused_requests, &text);
                "request_refused"
            }
            Topic::KernelFault => "kernel_fault",
            Topic::ModuleRefused => "module_refused",
            Topic::WorkerFailed => "worker_failed",
            Topic::CallRefused => "call_refused",
        };
        let severity = match severity {
            wire::Severity::Info => Severity::Info,
            wire::Severity::Warning => Severity::Warning,
            wire::Severity::Error => Severity::Error,
        };
        let (vgpu, pid) = (client.vgpu.clone(), client.pid);
        drop(registry);
        let events = &self.daemon.events;
        events.add(severity, kind, Some(&vgpu), Some(pid), text);
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

    fn hello(
        &mut self,
        number: u64,
        message_id: u32,
        introduction: &Introduction,
        fds: Vec<OwnedFd>,
    ) -> Flow {
        let Some(connection) = self.connections.get_mut(&number) else {
            return Flow::Close;
        };
        let (pid, uid, door) = (connection.pid, connection.uid, connection.door);
        let (socket, began) = (connection.socket.clone(), connection.start);
        let ended = (connection.process.take()).is_some_and(|process| !process.alive());
        // The socket may have been passed on. A process that came later must not be taken for the one that connected:
        // it would be watched, and killed when the virtual GPU is removed by force.
        let joined = match !ended && self.start_of(pid) == began {
            true => join(&self.daemon, introduction, fds, pid, uid, door, &socket),
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
                    Joined::Program { session, .. } => fds.push(session.as_fd()),
                }
                let welcome = match &joined {
                    Joined::Client { id, .. } => self.welcome_for(*id),
                    Joined::Program { vgpu, .. } => welcome(&self.daemon.registry(), vgpu, 0),
                };
                if socket.send_frame(&welcome.frame(message_id), &fds).is_err() {
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
                let vgpu = match door {
                    PeerSocket::Container(socket) => {
                        registry.sockets.get(socket).and_then(|socket| {
                            let named = socket.stored.new.is_none();
                            named.then(|| socket.stored.name.clone())
                        })
                    }
                    PeerSocket::Programs | PeerSocket::Workers => {
                        let vgpu = registry.by_token(&introduction.token);
                        vgpu.map(|(vgpu, _)| vgpu.name.clone())
                    }
                };
                drop(registry);
                self.daemon.events.add(
                    Severity::Warning,
                    "process_refused",
                    vgpu.as_deref(),
                    Some(pid),
                    format!("process {pid} of user {uid} was refused: {text}"),
                );
                let reply = refusal(kind, &text).frame(message_id);
                let _ = socket.send_frame(&reply, &[]);
                Flow::Close
            }
        }
    }

    fn welcome_for(&self, id: u64) -> DaemonMessage {
        let registry = self.daemon.registry();
        let name = registry.clients.get(&id).map(|c| c.vgpu.clone());
        welcome(&registry, &name.unwrap_or_default(), id)
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
