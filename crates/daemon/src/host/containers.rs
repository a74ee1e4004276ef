//! Processes that come through the socket of a container.
//!
//! The socket says which virtual GPU, and nothing that the process sends or is changes that: tokens and users count only at
//! the daemon's other sockets.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use mica_control::api::Severity;
use mica_wire::host::message::{Refusal, Role};
use rustix::event::epoll;

use super::{CONTAINER_LISTENERS, HostServer, Rejection};
use crate::containers::{Container, key_of, look_up};
use crate::daemon::Daemon;
use crate::registry::Behind;

/// Containers that are remembered at most; beyond that they are looked up again.
const MOST_CONTAINERS: usize = 4096;

/// The virtual GPU that a process in a container joins.
pub(super) fn enter(
    daemon: &Arc<Daemon>,
    socket: u64,
    role: Role,
    container: Option<&Arc<Container>>,
) -> Result<String, Rejection> {
    if role == Role::Worker {
        let text = "a worker does not come through the socket of a container";
        return Err((Refusal::Permission, text.into()));
    }
    let behind = daemon.registry().behind(socket, container)?;
    let (Behind::There(name) | Behind::Made(name)) = &behind;
    if let (Behind::Made(name), Some(container)) = (&behind, container) {
        let text = format!("{name} was created for container {}", container.info.name);
        let (severity, kind) = (Severity::Info, "vgpu_created");
        daemon.events.add(severity, kind, Some(name), None, text);
        daemon.dirty.store(true, Relaxed);
    }
    Ok(name.clone())
}

impl Daemon {
    /// The container of a process.
    pub(crate) fn container_of(&self, pid: u32) -> Option<Arc<Container>> {
        let (key, found) = key_of(pid)?;
        let known = self.registry().containers.get(&key).cloned();
        if let Some(known) = known.filter(|container| container.alive()) {
            return Some(known);
        }
        let container = look_up(pid, &key, found.as_ref());
        let mut registry = self.registry();
        registry.containers.retain(|_, other| other.alive());
        if registry.containers.len() < MOST_CONTAINERS {
            registry.containers.insert(key, container.clone());
        }
        Some(container)
    }

    /// Looks up the containers of programs that have joined under an earlier daemon.
    pub(crate) fn find_containers_again(&self) {
        let registry = self.registry();
        let programs: Vec<(String, u32)> = registry
            .vgpus
            .values()
            .flat_map(|vgpu| vgpu.programs.iter().map(|p| (vgpu.name.clone(), p.pid)))
            .collect();
        drop(registry);
        for (name, pid) in programs {
            let container = self.container_of(pid);
            let mut registry = self.registry();
            if let Some(vgpu) = registry.vgpus.get_mut(&name) {
                vgpu.note_container(pid, Role::Program, container.as_ref());
            }
        }
    }
}

impl HostServer {
    /// Listens at the container sockets there are now, and at no others.
    pub(super) fn follow_container_sockets(&mut self) {
        let registry = self.daemon.registry();
        let there: Vec<_> = registry
            .sockets
            .iter()
            .map(|socket| (socket.stored.number, socket.listener.clone()))
            .collect();
        drop(registry);
        let epoll = &self.epoll;
        self.container_listeners.retain(|number, listener| {
            let stays = there.iter().any(|(other, _)| other == number);
            if !stays {
                let _ = epoll::delete(epoll, listener.as_fd());
            }
            stays
        });
        for (number, listener) in there {
            let data = epoll::EventData::new_u64(CONTAINER_LISTENERS + number);
            if !self.container_listeners.contains_key(&number)
                && epoll::add(epoll, listener.as_fd(), data, epoll::EventFlags::IN).is_ok()
            {
                self.container_listeners.insert(number, listener);
            }
        }
    }
}
