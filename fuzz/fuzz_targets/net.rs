//! Any bytes as what a peer of the network sends: its hello, records of TLS and what is in them, frames of a tunnel, messages behind TLS, a pairing string,
//! changes of host memory, what frames and lists say of pieces, an index of pieces. Refused or read, never a panic.
#![no_main]

use std::io;
use std::sync::{Arc, Mutex};

use libfuzzer_sys::fuzz_target;
use mica_remote::hello;
use mica_remote::invite::Invite;
use mica_remote::message::{self, Answer, Request};
use mica_remote::records;
use mica_tunnel::shadow::Shadow;
use mica_tunnel::{Carrier, FrameReader, HEADER_BYTES, Header};
use mica_wire::session::{MappedBytes, create_sealed};

/// Bytes that come in pieces.
struct Pieces(Mutex<Vec<u8>>);

impl Carrier for Pieces {
    fn send(&self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let Ok(mut rest) = self.0.lock() else { return Ok(0) };
        let piece = rest.first().map_or(0, |byte| usize::from(*byte) + 1);
        let piece = piece.min(rest.len()).min(buffer.len());
        buffer[..piece].copy_from_slice(&rest[..piece]);
        rest.drain(..piece);
        Ok(piece)
    }
    fn close(&self) {}
}

fuzz_target!(|bytes: &[u8]| {
    if let Some(first) = bytes.first_chunk() {
        let _ = hello::read_client(first);
    }
    if let Some(first) = bytes.first_chunk::<HEADER_BYTES>()
        && let Ok(header) = Header::parse(first)
    {
        assert_eq!(Header::parse(&header.to_bytes()).ok(), Some(header));
    }
    if let Ok(Some(length)) = records::record_bytes(bytes) {
        assert!(length <= 5 + (16 << 10) + 256);
    }
    if let [kind, payload @ ..] = bytes {
        let _ = records::read_plain((*kind).into(), payload);
    }
    // Changes of host memory whose last page is not whole: inside, or refused.
    if let Some((offset, changes)) = bytes.split_first_chunk() {
        const BYTES: usize = 3 * 4096 + 12;
        let file = create_sealed("fuzz", BYTES as u64).expect("a file in memory");
        let mut shadow = Shadow::new(MappedBytes::map(&file, 0, BYTES, 0).expect("maps"), BYTES as u64);
        shadow.map_as_zeros();
        shadow.merge(u64::from_le_bytes(*offset), changes);
        shadow.merge(u64::from(offset[0]) << 8, changes);
        shadow.changes(|_, _| {});
    }
    mica_tunnel::fuzzing::pieces(bytes);
    let carrier = Arc::new(Pieces(Mutex::new(bytes.to_vec())));
    let mut frames = FrameReader::new(carrier);
    while frames.read().is_ok() {}
    let _ = message::parse::<Request>(bytes);
    let _ = message::parse::<Answer>(bytes);
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(invite) = Invite::parse(text)
    {
        assert_eq!(Invite::parse(&invite.to_text()).ok(), Some(invite));
    }
});
