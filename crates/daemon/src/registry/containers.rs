//! What containers use: the sockets that lead to virtual GPUs, and those made for one container.

use std::sync::Arc;

use mica_control::Paths;
use mica_control::api::{ApiError, ContainerInfo, ContainerSocket, Mode, VgpuSpec};
use mica_wire::host::message::{Refusal, Role};
use serde::{Deserialize, Serialize};

use super::admission::{check_name, check_spec};
use super::{Registry, Vgpu};
use crate::containers::{Container, ContainerSocketEntry, StoredSocket};
use crate::daemon::source_text;
use crate::host::Rejection;
use crate::placement::error;
use crate::watched::Watched;

/// The container that a virtual GPU was made for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MadeFor {
    /// Number of the socket that made it.
    pub(crate) socket: u64,
    pub(crate) key: String,
    pub(crate) info: ContainerInfo,
}

/// What a socket leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    /// This virtual GPU.
    There(String),
    /// This virtual GPU, which was made for the container that connects.
    Made(String),
}

impl Registry {
    /// A socket for containers with one virtual GPU, or with one for each: the one there is, or a new one. Its number.
    pub(crate) fn socket_for(
        &mut self,
        paths: &Paths,
        owner_uid: u32,
        name: &str,
        new: Option<VgpuSpec>,
    ) -> Result<u64, ApiError> {
        let new = match new {
            Some(spec) => {
                check_name(name)?;
                check_spec(&spec)?;
                Some(for_containers(spec))
            }
            None => None,
        };
        if let Some(number) = self.sockets.find(owner_uid, name, new.is_some()) {
            if let Some(spec) = new {
                self.sockets.change(number, spec);
            }
            return Ok(number);
        }
        if self.sockets.is_full(owner_uid) {
            return Err(error(
                "quota",
                format!("user {owner_uid} has as many sockets for containers as one may have"),
                Some("remove some with `mica cdi rm`".into()),
            ));
        }
        let number = self.sockets.fresh_number();
        let stored = StoredSocket {
            number,
            owner_uid,
            name: name.into(),
            new,
        };
        let opened = self.sockets.open(paths, stored);
        opened.map_err(|failure| {
            let text = format!("{failure}: {}", source_text(&failure));
            error("internal", text, None)
        })?;
        Ok(number)
    }

    /// A socket as the API shows it.
    pub(crate) fn socket_info(&self, entry: &ContainerSocketEntry) -> ContainerSocket {
        let stored = &entry.stored;
        let vgpu = self
            .vgpus
            .get(&stored.name)
            .filter(|_| stored.new.is_none());
        let mode = match &stored.new {
            Some(spec) => spec.mode.unwrap_or(Mode::Isolated),
            None => vgpu.map_or(Mode::Isolated, |vgpu| self.mode(vgpu)),
        };
        let chosen = stored.new.as_ref().and_then(|spec| spec.gpu);
        let chosen = chosen.and_then(|gpu| self.gpus.get(gpu as usize));
        ContainerSocket {
            name: stored.name.clone(),
            makes_new: stored.new.is_some(),
            folder: entry.folder.display().to_string(),
            owner_uid: stored.owner_uid,
            mode,
            gpu_kind: match vgpu {
                Some(vgpu) => Some(self.kind(vgpu)),
                None => chosen.map(|gpu| gpu.facts.kind),
            },
        }
    }

    /// The virtual GPU that a process in a container reaches through a socket; it is made if there is none yet.
    pub(crate) fn behind(
        &mut self,
        socket: u64,
        container: Option<&Arc<Container>>,
    ) -> Result<Behind, Rejection> {
        let gone = || (Refusal::State, "this container socket was removed".into());
        let stored = self.sockets.get(socket).ok_or_else(gone)?.stored.clone();
        let Some(spec) = stored.new else {
            return match self.vgpus.contains_key(&stored.name) {
                true => Ok(Behind::There(stored.name)),
                false => Err((
                    Refusal::State,
                    format!("there is no virtual GPU named {} now", stored.name),
                )),
            };
        };
        let Some(container) = container else {
            let text = "this process is in no container, for which a virtual GPU could be made";
            return Err((Refusal::Permission, text.into()));
        };
        let is_its = |vgpu: &&mut Vgpu| {
            let made_for = vgpu.made_for.as_ref();
            made_for.is_some_and(|made| made.socket == socket && made.key == container.key)
        };
        if let Some(vgpu) = self.vgpus.values_mut().find(is_its) {
            if !vgpu.holder.as_ref().is_some_and(Watched::alive) {
                vgpu.holder = holder(container);
            }
            return Ok(Behind::There(vgpu.name.clone()));
        }
        let name = self.free_name(stored.owner_uid, container);
        let spec = VgpuSpec {
            name: Some(name),
            ..spec
        };
        let made = self.create(spec, stored.owner_uid, None);
        let name = made
            .map_err(|refused| (Refusal::Busy, refused.error))?
            .name
            .clone();
        if let Some(vgpu) = self.vgpus.get_mut(&name) {
            vgpu.holder = holder(container);
            vgpu.made_for = Some(MadeFor {
                socket,
                key: container.key.clone(),
                info: container.info.clone(),
            });
        }
        Ok(Behind::Made(name))
    }

    /// A name for the virtual GPU of a container: the container's, else with its id.
    fn free_name(&self, owner_uid: u32, container: &Container) -> String {
        let good = |c: char| match c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') {
            true => c,
            false => '-',
        };
        let name: String = container.info.name.chars().take(40).map(good).collect();
        let name = match name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            true => name,
            false => format!("c{name}"),
        };
        match self.has(owner_uid, &name) {
            false => name,
            true => {
                let id = match container.info.id.as_str() {
                    "" => container.key.as_str(),
                    id => id,
                };
                let first = id.chars().count().saturating_sub(12);
                format!("{name}-{}", id.chars().skip(first).collect::<String>())
            }
        }
    }
}

/// It lives as long as the container's first process.
fn holder(container: &Container) -> Option<Watched> {
    let first = container.first.as_ref()?;
    Watched::open(first.pid).filter(|process| process.is(first))
}

/// What is made for a container ends with it, and gives it no device file unless that was asked for.
fn for_containers(spec: VgpuSpec) -> VgpuSpec {
    VgpuSpec {
        name: None,
        ephemeral: true,
        mode: spec.mode.or(Some(Mode::Isolated)),
        ..spec
    }
}

impl Vgpu {
    /// Remembers which container a process that joins is in.
    pub(crate) fn note_container(
        &mut self,
        pid: u32,
        role: Role,
        container: Option<&Arc<Container>>,
    ) {
        if role != Role::Monitor && !self.probes.iter().any(|probe| probe.pid == pid) {
            self.container = container.map(|container| container.info.name.clone());
        }
        self.in_containers.retain(|(process, _)| process.alive());
        let (Some(process), Some(container)) = (Watched::open(pid), container) else {
            return;
        };
        if !self.in_containers.iter().any(|(p, _)| p.is(&process)) {
            self.in_containers.push((process, container.clone()));
        }
    }

    /// The name of a program's container.
    pub(crate) fn container_of(&self, program: (u32, u64)) -> Option<String> {
        let is_it =
            |(process, _): &&(Watched, Arc<Container>)| (process.pid, process.start) == program;
        let found = self.in_containers.iter().find(is_it);
        found.map(|(_, container)| container.info.name.clone())
    }
}
