//! Answers made from the registry.

use mica_wire::host::message::{Kind, Message, TEXT_BYTES};

use super::Flow;
use crate::registry::Registry;

pub(super) fn welcome(registry: &Registry, name: &str) -> Message {
    let mut message = Message::new(Kind::Welcome).with_text(name);
    if let Some(vgpu) = registry.vgpus.get(name) {
        message.a = vgpu.ledger.limit_bytes();
        message.d = vgpu.gpu as u64;
        if let Some(gpu) = registry.gpus.get(vgpu.gpu) {
            message.b = gpu.facts.memory_total_bytes;
        }
    }
    message
}

pub(super) fn memory_answer(registry: &Registry, client: u64) -> Option<Message> {
    let client = registry.clients.get(&client)?;
    let vgpu = registry.vgpus.get(&client.vgpu)?;
    let mut message = Message::new(Kind::Memory);
    message.a = vgpu.ledger.limit_bytes();
    message.b = vgpu.ledger.used_bytes() + vgpu.ledger.unattributed_bytes();
    if let Some(gpu) = registry.gpus.get(vgpu.gpu) {
        match gpu.reading.memory_free_bytes {
            Some(free) => {
                message.c = gpu.facts.memory_total_bytes;
                message.d = free;
            }
            None => message.c = 0,
        }
    }
    Some(message)
}

pub(super) fn send_pieces(text: &str, mut send: impl FnMut(Message) -> Flow) -> Flow {
    let bytes = text.as_bytes();
    let mut rest = bytes.len();
    let mut pieces = bytes.chunks(TEXT_BYTES).peekable();
    if pieces.peek().is_none() {
        return send(Message::new(Kind::Stats));
    }
    for piece in pieces {
        rest -= piece.len();
        let mut message = Message::new(Kind::Stats);
        message.text[..piece.len()].copy_from_slice(piece);
        message.a = piece.len() as u64;
        message.b = rest as u64;
        if matches!(send(message), Flow::Close) {
            return Flow::Close;
        }
    }
    Flow::Keep
}
