//! Answers made from the registry.

use mica_wire::host::frame::TEXT_BYTES;
use mica_wire::host::message::DaemonMessage;

use super::Flow;
use crate::registry::Registry;

/// The welcome of a client with this number; 0 for a program.
pub(super) fn welcome(registry: &Registry, name: &str, client_id: u64) -> DaemonMessage {
    let vgpu = registry.vgpus.get(name);
    let gpu = vgpu.and_then(|vgpu| registry.gpus.get(vgpu.gpu));
    DaemonMessage::Welcome {
        limit_bytes: vgpu.map_or(0, |vgpu| vgpu.ledger.limit_bytes()),
        device_total_bytes: gpu.map_or(0, |gpu| gpu.facts.memory_total_bytes),
        client_id,
        gpu_index: vgpu.map_or(0, |vgpu| vgpu.gpu as u64),
        vgpu: name.into(),
    }
}

pub(super) fn memory_answer(registry: &Registry, client: u64) -> Option<DaemonMessage> {
    let client = registry.clients.get(&client)?;
    let vgpu = registry.vgpus.get(&client.vgpu)?;
    let gpu = registry.gpus.get(vgpu.gpu);
    Some(DaemonMessage::Memory {
        limit_bytes: vgpu.ledger.limit_bytes(),
        used_bytes: vgpu.ledger.used_bytes() + vgpu.ledger.unattributed_bytes(),
        device_free_bytes: gpu.and_then(|gpu| gpu.reading.memory_free_bytes),
    })
}

pub(super) fn send_pieces(text: &str, mut send: impl FnMut(DaemonMessage) -> Flow) -> Flow {
    let mut rest = text.as_bytes();
    loop {
        let (piece, after) = rest.split_at(rest.len().min(TEXT_BYTES));
        rest = after;
        let sent = send(DaemonMessage::Stats {
            piece: piece.to_vec(),
            rest_bytes: rest.len() as u64,
        });
        if rest.is_empty() || matches!(sent, Flow::Close) {
            return sent;
        }
    }
}
