//! Snapshots whose parts are any bytes, with hashes that are right: what a hostile user can make.

use std::fs::File;
use std::os::unix::fs::FileExt;

use mica_wire::session::{Field, Reader};

use crate::head::{HEAD_BYTES, Head};
use crate::{BLOCK_BYTES, Manifest, Part, SavedPort, SavedSession, Snapshot};

/// Memory that is filled as a file says. Each byte of a file can stand for a block of zeros.
const MOST_FILLED: u64 = 64 << 20;

/// Writes a snapshot with these bytes as its objects and its memory, as the manifest says for the rest.
///
/// # Errors
/// The file cannot be written.
pub fn seal(
    file: &File,
    manifest: &Manifest,
    objects: &[u8],
    memory: &[u8],
) -> std::io::Result<()> {
    let part = |at: u64, bytes: &[u8]| Part {
        at,
        bytes: bytes.len() as u64,
        blake3: blake3::hash(bytes).to_hex().to_string(),
    };
    let memory_at = HEAD_BYTES + objects.len() as u64;
    let manifest = Manifest {
        session: part(HEAD_BYTES, objects),
        memory: part(memory_at, memory),
        ..manifest.clone()
    };
    let text = serde_json::to_vec(&manifest)?;
    let manifest_at = memory_at + memory.len() as u64;
    let head = Head {
        manifest_bytes: text.len() as u32,
        manifest_at,
        file_bytes: manifest_at + text.len() as u64,
        manifest_hash: *blake3::hash(&text).as_bytes(),
    };
    file.write_all_at(&head.to_bytes(), 0)?;
    file.write_all_at(objects, HEAD_BYTES)?;
    file.write_all_at(memory, memory_at)?;
    file.write_all_at(&text, manifest_at)
}

/// Objects as they lie in a file.
pub fn objects(session: &SavedSession, port: &SavedPort) -> Vec<u8> {
    let mut bytes = Vec::new();
    session.put(&mut bytes);
    port.put(&mut bytes);
    bytes
}

/// Reads any bytes as objects; what is read is written as it was.
///
/// # Panics
/// If it is not.
pub fn read_objects(bytes: &[u8]) -> Option<(SavedSession, SavedPort)> {
    let mut reader = Reader::new(bytes);
    let session = SavedSession::take(&mut reader).ok()?;
    let port = SavedPort::take(&mut reader).ok()?;
    reader.finish().ok()?;
    assert_eq!(objects(&session, &port), bytes);
    Some((session, port))
}

/// Reads all of a file, whatever it is, and checks it: a file that can be read passes.
///
/// # Panics
/// If it does not.
pub fn read_all(file: &File) -> crate::Result<()> {
    let snapshot = Snapshot::open(file)?;
    let (session, _) = snapshot.session()?;
    let claimed = (session.memory()).fold(0_u64, |sum, (_, _, bytes)| sum.saturating_add(*bytes));
    if claimed > MOST_FILLED {
        return snapshot.check();
    }
    let mut blocks = snapshot.blocks()?;
    let mut block = Vec::new();
    for (_, _, bytes) in session.memory() {
        let mut left = *bytes;
        while left > 0 {
            let length = left.min(BLOCK_BYTES);
            block.resize(length as usize, 0);
            blocks.next(&mut block)?;
            left -= length;
        }
    }
    blocks.finish()?;
    let checked = snapshot.check();
    assert!(checked.is_ok(), "{checked:?}");
    Ok(())
}
