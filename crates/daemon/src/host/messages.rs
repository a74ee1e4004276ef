//! What is done with a message.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use mica_control::api::{Severity, VgpuInfo};
use mica_wire::host::frame::{Frame, Packet};
use mica_wire::host::message::{
    self as wire, ClientMessage, DaemonMessage, Introduction, Refusal, Role, Topic,
    version_of_hello,
};
use mica_wire::host::socket::HostSocket;

use super::answers::{memory_answer, send_pieces, welcome};
use super::credit::CreditRequest;
use super::join::{Hello, Joined, check_version, join};
use super::shared_files::FileRequest;
use super::{Flow, HostServer, PeerSocket, Rejection};
use crate::namespaces::seen_by;

/// Entry points remembered for a process at most.
const MOST_NAMES: usize = 64;

pub(super) fn refusal(reason: Refusal, text: &str) -> DaemonMessage {
    let text = text.into();
    DaemonMessage::Refused { reason, text }
}

/// The way back to the sender of a message.
pub(super) struct Reply {
    socket: Arc<HostSocket>,
    /// Number of the message.
    id: u32,
}

impl Reply {
    pub(super) fn send(&self, answer: &DaemonMessage) -> Flow {
        self.send_with(answer, &[])
    }

    pub(super) fn send_with(&self, answer: &DaemonMessage, fds: &[BorrowedFd<'_>]) -> Flow {
        // A peer that does not read fills its buffer and is cut off; its death frees its memory.
        match self.socket.send_frame(&answer.frame(self.id), fds) {
            Ok(()) => Flow::Keep,
            Err(_) => Flow::Close,
        }
    }

    pub(super) fn refuse(&self, reason: Refusal, text: &str) -> Flow {
        self.send(&refusal(reason, text));
        Flow::Close
    }
}

impl HostServer {
    /// Does what the message of a connection says.
    pub(super) fn handle(&mut self, number: u64, frame: &Frame, fds: Vec<OwnedFd>) -> Flow {
        let Some(connection) = self.connections.get(&number) else {
            return Flow::Close;
        };
        let reply = Reply {
            socket: connection.socket.clone(),
            id: frame.id(),
        };
        match (frame.read(), connection.client) {
            (Ok(ClientMessage::Hello { introduction }), None) => {
                self.hello(number, &reply, &introduction, fds)
            }
            (Ok(message), Some(client)) => self.client_message(client, &reply, message, fds),
            (Ok(_), None) => reply.refuse(Refusal::Protocol, "say Hello first"),
            (Err(error), _) => match version_of_hello(frame).map_or(Ok(()), check_version) {
                Ok(()) => reply.refuse(Refusal::Protocol, &error.to_string()),
                Err((reason, text)) => reply.refuse(reason, &text),
            },
        }
    }

    /// Does what a client says that has been welcomed.
    fn client_message(
        &mut self,
        client: u64,
        reply: &Reply,
        message: ClientMessage,
        fds: Vec<OwnedFd>,
    ) -> Flow {
        let daemon = &self.daemon;
        match message {
            ClientMessage::NeedCredit {
                bytes,
                have_bytes,
                now,
            } => {
                let request = CreditRequest {
                    id: reply.id,
                    bytes,
                    have_bytes,
                    now,
                };
                return match self.need_credit(client, request) {
                    Some(answer) => reply.send(&answer),
                    None => Flow::Keep,
                };
            }
            ClientMessage::NeedHostBytes { bytes } => {
                return reply.send(&self.need_host_bytes(client, bytes));
            }
            ClientMessage::AskMemory {} => {
                let answer = memory_answer(&daemon.registry(), client);
                return answer.map_or(Flow::Close, |answer| reply.send(&answer));
            }
            ClientMessage::AskStats {} => {
                let text = serde_json::to_string(&self.stats_for(client)).unwrap_or_default();
                return send_pieces(&text, |piece| reply.send(&piece));
            }
            ClientMessage::ShareFile { name, bytes, what } => {
                let request = FileRequest::Share { bytes, what };
                return self.share(reply, (client, name), request, fds);
            }
            ClientMessage::OpenFile { name } => {
                return self.share(reply, (client, name), FileRequest::Open, fds);
            }
            ClientMessage::DropFile { name } => {
                return self.share(reply, (client, name), FileRequest::Drop, fds);
            }
            ClientMessage::Hello { .. } => {
                return reply.refuse(Refusal::Protocol, "a client says Hello once");
            }
            ClientMessage::Note {
                severity,
                topic,
                text,
            } => self.note(client, severity, topic, text.into()),
            ClientMessage::Cancelled {
                request,
                kernels,
                copies,
            } => daemon.cancels.answered(client, request, (kernels, copies)),
            ClientMessage::MapPiece { request, piece } => {
                daemon.maps.piece(client, request, piece);
            }
            ClientMessage::MapEnd { request, sums } => daemon.maps.ended(client, request, sums),
            ClientMessage::Saved {
                request,
                session,
                why,
            } => daemon.worker_saved(client, request, session, why.into()),
            ClientMessage::Restored { request, why } => {
                let _ = daemon.snapshots.told(client, request, 0, why.into());
            }
            ClientMessage::LendFile { name } => return self.lend(reply, client, name, fds),
            ClientMessage::Profiled { row } => daemon.worker_profiled(client, row),
            ClientMessage::Moved { residency } => self.worker_moved(client, &residency),
            ClientMessage::Confined {
                applied,
                missing,
                why,
            } => self.worker_confined(client, applied, missing, why.into()),
        }
        Flow::Keep
    }

    /// Remembers which layers of a worker's confinement are in force.
    fn worker_confined(&self, client: u64, applied: u64, missing: u64, why: String) {
        let mut registry = self.daemon.registry();
        if let Some(client) = registry.clients.get_mut(&client)
            && client.role == Role::Worker
        {
            let confinement = client.confinement.get_or_insert_default();
            confinement.note(applied, missing, why);
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

    /// Answers a process that says Hello.
    fn hello(
        &mut self,
        number: u64,
        reply: &Reply,
        introduction: &Introduction,
        fds: Vec<OwnedFd>,
    ) -> Flow {
        let Some(connection) = self.connections.get_mut(&number) else {
            return Flow::Close;
        };
        let kept_page = fds.into_iter().next();
        let hello = Hello {
            introduction,
            resumes: kept_page.is_some(),
            pid: connection.pid,
            uid: connection.uid,
            door: connection.door,
            socket: &reply.socket,
        };
        let began = connection.start;
        let ended = (connection.process.take()).is_some_and(|process| !process.alive());
        // The socket may have been passed on. A process that came later must not be taken for the one that connected:
        // it would be watched, and killed when the virtual GPU is removed by force.
        if ended || self.start_of(hello.pid) != began {
            let text = format!("process {}, which connected, has ended", hello.pid);
            return self.refuse_hello(&hello, reply, (Refusal::Permission, text));
        }
        match join(&self.daemon, &hello, kept_page) {
            Ok(joined) => self.welcome_process(number, reply, &joined),
            Err(rejection) => self.refuse_hello(&hello, reply, rejection),
        }
    }

    /// Sends a process that was let in its descriptors and what it must know.
    fn welcome_process(&mut self, number: u64, reply: &Reply, joined: &Joined) -> Flow {
        let (id, governed, bell, resumed) = match joined {
            Joined::Program { vgpu, session } => {
                let welcome = welcome(&self.daemon.registry(), vgpu, 0);
                return reply.send_with(&welcome, &[session.as_fd()]);
            }
            Joined::Client {
                id,
                governed,
                bell,
                resumed,
            } => (*id, governed, bell, *resumed),
        };
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.client = Some(id);
        }
        self.greeting = self.greeting.saturating_sub(1);
        // A process that resumes has its page already. The doorbell is the last descriptor in both cases.
        let mut fds = Vec::new();
        if !resumed {
            fds.push(governed.page.fd());
        }
        fds.push(bell.as_fd());
        let sent = reply.send_with(&self.welcome_for(id), &fds);
        if let Flow::Keep = sent {
            if let Some(client) = self.daemon.registry().clients.get_mut(&id) {
                client.is_welcomed = true;
            }
            self.daemon.deliver_sessions(id);
        }
        sent
    }

    /// Tells a process, and the event log, why it may not join.
    fn refuse_hello(&self, hello: &Hello<'_>, reply: &Reply, (reason, text): Rejection) -> Flow {
        // A program that waits for a snapshot asks again and again.
        if reason == Refusal::Parked {
            return reply.refuse(reason, &text);
        }
        // `mica run` shows the event of its virtual GPU. The program itself hears a number at most.
        let vgpu = self.vgpu_meant(hello);
        let (pid, uid) = (hello.pid, hello.uid);
        self.daemon.events.add(
            Severity::Warning,
            "process_refused",
            vgpu.as_deref(),
            Some(pid),
            format!("process {pid} of user {uid} was refused: {text}"),
        );
        reply.refuse(reason, &text)
    }

    /// The virtual GPU that a hello names, whether or not its sender may use it.
    fn vgpu_meant(&self, hello: &Hello<'_>) -> Option<String> {
        let registry = self.daemon.registry();
        match hello.door {
            PeerSocket::Container(socket) => {
                let stored = &registry.sockets.get(socket)?.stored;
                stored.new.is_none().then(|| stored.name.clone())
            }
            PeerSocket::Programs | PeerSocket::Workers => {
                let (vgpu, _) = registry.by_token(&hello.introduction.token)?;
                Some(vgpu.name.clone())
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
