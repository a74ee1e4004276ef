//! Maps of the memory of virtual GPUs.

use std::time::Duration;

use axum::Json;
use mica_control::api::{
    ApiError, MemoryMap, MemoryPiece, Mode, PieceKind, PoolFigures, ProgramMemory,
};
use mica_memory::{FRAME_BYTES, Figures};
use mica_wire::host::message::{DaemonMessage, MemorySums, Piece, PieceKind as WireKind, Role};
use tokio::sync::oneshot::Receiver;

use super::{Answer, Caller, Path, Peer};
use crate::daemon::Daemon;
use crate::maps::Told;
use crate::placement::error;
use crate::registry::{Client, Registry, Vgpu};

/// Where the memory of a virtual GPU is, piece by piece.
#[utoipa::path(get, tag = "vgpus", path = "/v1/vgpus/{name}/memory", params(("name" = String, Path)),
    responses((status = 200, body = MemoryMap), (status = "4XX", body = ApiError)))]
pub(crate) async fn map(
    Caller { daemon, peer }: Caller,
    Path(name): Path<String>,
) -> Answer<MemoryMap> {
    ask(&daemon, peer, &name, Wanted::Map).await
}

/// Has the workers of a virtual GPU give back memory that they keep for later; where the memory is afterwards.
#[utoipa::path(post, tag = "vgpus", path = "/v1/vgpus/{name}/memory/compact", params(("name" = String, Path)),
    responses((status = 200, body = MemoryMap), (status = "4XX", body = ApiError)))]
pub(crate) async fn compact(
    Caller { daemon, peer }: Caller,
    Path(name): Path<String>,
) -> Answer<MemoryMap> {
    ask(&daemon, peer, &name, Wanted::Compact).await
}

/// What workers are asked for.
#[derive(Clone, Copy)]
enum Wanted {
    Map,
    /// The map after memory was given back.
    Compact,
}

impl Wanted {
    fn message(self, request: u64) -> DaemonMessage {
        match self {
            Self::Map => DaemonMessage::AskMap { request },
            Self::Compact => DaemonMessage::Compact { request },
        }
    }

    /// How long a worker may take.
    fn within(self) -> Duration {
        match self {
            Self::Map => Duration::from_secs(3),
            Self::Compact => Duration::from_secs(30),
        }
    }
}

async fn ask(daemon: &Daemon, peer: Peer, name: &str, wanted: Wanted) -> Answer<MemoryMap> {
    let (name, asked) = {
        let registry = daemon.registry();
        let name = daemon.owned(&registry, peer, name)?;
        let vgpu = registry.vgpu(&name)?;
        is_known(&registry, vgpu)?;
        let asked = daemon.ask_for_maps(&registry, vgpu, wanted);
        (name, asked)
    };
    let mut programs = Vec::new();
    for (mut program, told) in asked {
        match tokio::time::timeout(wanted.within(), told).await {
            Ok(Ok((pieces, sums))) => fill(&mut program, pieces, &sums),
            // A worker that ends meanwhile has no memory.
            Ok(Err(_)) => continue,
            Err(_) => program.unanswered = true,
        }
        programs.push(program);
    }
    let registry = daemon.registry();
    let map = registry.sums_of(registry.vgpu(&name)?);
    Ok(Json(MemoryMap { programs, ..map }))
}

fn is_known(registry: &Registry, vgpu: &Vgpu) -> Result<(), ApiError> {
    match registry.mode(vgpu) {
        Mode::Isolated => Ok(()),
        Mode::Direct => Err(error(
            "state",
            format!(
                "the memory of {} is known in sum only: it is direct",
                vgpu.name
            ),
            Some(
                "`mica show` has the sums; isolated mode (`--mode isolated`) knows every piece"
                    .into(),
            ),
        )),
    }
}

impl Registry {
    fn sums_of(&self, vgpu: &Vgpu) -> MemoryMap {
        let info = self.vgpu_info(vgpu);
        let free = info
            .memory_limit_bytes
            .saturating_sub(info.memory_used_bytes);
        MemoryMap {
            name: info.name,
            limit_bytes: info.memory_limit_bytes,
            used_bytes: info.memory_used_bytes,
            largest_free_bytes: vgpu.is_swappable().then_some(free - free % FRAME_BYTES),
            programs: Vec::new(),
        }
    }
}

impl Daemon {
    /// Asks the workers of a virtual GPU; their answers are still to come.
    fn ask_for_maps(
        &self,
        registry: &Registry,
        vgpu: &Vgpu,
        wanted: Wanted,
    ) -> Vec<(ProgramMemory, Receiver<Told>)> {
        let info = registry.vgpu_info(vgpu);
        let ask = |(id, client): (u64, &Client)| {
            let its = (info.processes.iter()).find(|process| process.worker() == Some(client.pid));
            let program = ProgramMemory {
                pid: its.map_or(client.pid, |process| process.pid),
                name: its.map_or_else(String::new, |process| process.name.clone()),
                ..ProgramMemory::default()
            };
            let (request, told) = self.maps.expect(id);
            let sent = client.socket.send(&wanted.message(request), &[]);
            sent.is_ok().then_some((program, told))
        };
        let members = vgpu.clients.iter();
        let members = members.filter_map(|id| Some((*id, registry.clients.get(id)?)));
        let workers = members.filter(|(_, client)| client.role == Role::Worker);
        workers.filter_map(ask).collect()
    }
}

fn fill(program: &mut ProgramMemory, pieces: Vec<Piece>, sums: &MemorySums) {
    let figures = Figures {
        held_bytes: sums.pool_held_bytes,
        asked_bytes: sums.pool_asked_bytes,
        given_bytes: sums.pool_given_bytes,
        largest_free_bytes: sums.pool_largest_free_bytes,
        pieces: sums.pool_pieces,
    };
    program.pieces_total = sums.pieces;
    program.asked_bytes = sums.asked_bytes;
    program.away_bytes = sums.away_bytes;
    program.pinned_bytes = sums.pinned_bytes;
    program.arena_bytes = sums.store_bytes;
    program.pool = PoolFigures {
        held_bytes: figures.held_bytes,
        asked_bytes: figures.asked_bytes,
        given_bytes: figures.given_bytes,
        largest_free_bytes: figures.largest_free_bytes,
        pieces: figures.pieces,
        fragmentation_percent: figures.fragmentation_percent(),
        waste_percent: figures.waste_percent(),
    };
    program.pieces = pieces.into_iter().map(shown).collect();
    program.pieces.sort_by_key(|piece| piece.address);
}

fn shown(piece: Piece) -> MemoryPiece {
    let why = String::from(piece.pinned);
    MemoryPiece {
        address: piece.address,
        kind: match piece.kind {
            WireKind::Allocation => PieceKind::Allocation,
            WireKind::Pooled => PieceKind::Pooled,
            WireKind::Mapping => PieceKind::Mapping,
            WireKind::Variable => PieceKind::Variable,
        },
        asked_bytes: piece.asked_bytes,
        held_bytes: piece.held_bytes,
        away: piece.away,
        pinned: (!why.is_empty()).then_some(why),
    }
}
