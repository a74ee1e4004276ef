//! Restores a session.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::AcqRel;

use mica_gpu::Share;
use mica_snapshot::{BLOCK_BYTES, Manifest, SavedHost, SavedPort, SavedSession, Snapshot};
use mica_vgpu::Session;
use mica_wire::session::SESSION_VERSION;

use super::{Kept, Task, lock};
use crate::OutputBuffer;
use crate::last_resort;

/// What a session is charged for while it is read.
const OBJECTS: &str = "the objects of a snapshot";
/// What a list of bytes takes beside them.
const PIECE_BYTES: usize = 64;

/// A session that waits for its program.
pub(crate) struct Restored {
    /// The number by which the program knows it.
    pub(crate) number: u64,
    pub(crate) session: Arc<Session>,
    pub(crate) output: Arc<OutputBuffer>,
    /// What the program's area does not say.
    pub(crate) port: SavedPort,
    /// Host memory whose files the program brings.
    pub(crate) host: Vec<SavedHost>,
    /// What the two lists above are charged as.
    pub(crate) held: Share,
}

pub(super) fn run(task: &Task, file: File, life: Option<&OwnedFd>, number: u64) {
    let worker = &task.worker;
    // Counted as a session from now on, so that the worker does not end for want of one.
    worker.sessions.fetch_add(1, AcqRel);
    if let Some(life) = life {
        last_resort::end_after_program(worker, life);
    }
    match read(task, &file, number) {
        Ok(restored) => {
            *lock(&worker.saving.restored) = Some(restored);
            task.restored("");
        }
        Err(why) => {
            task.restored(&why);
            let _ = task.end.send("its snapshot was not restored");
        }
    }
}

fn read(task: &Task, file: &File, number: u64) -> Result<Restored, String> {
    let failed = |error: mica_snapshot::SnapshotError| error.to_string();
    let snapshot = Snapshot::open(file).map_err(failed)?;
    let manifest = snapshot.manifest();
    if manifest.protocol != SESSION_VERSION {
        return Err(format!(
            "its program speaks session version {}, this Mica version {SESSION_VERSION}",
            manifest.protocol
        ));
    }
    if manifest.program.session != number {
        return Err("its program waits for another snapshot, which was made later".into());
    }
    let (session, output) = open(task, manifest)?;
    match read_into(&snapshot, &session) {
        Ok((port, host, held)) => Ok(Restored {
            number,
            session,
            output,
            port,
            host,
            held,
        }),
        Err(why) => {
            session.close();
            Err(why)
        }
    }
}

/// Reads everything into a new session; what is for later, and what that is charged as.
fn read_into(
    snapshot: &Snapshot<'_>,
    session: &Session,
) -> Result<(SavedPort, Vec<SavedHost>, Share), String> {
    let (most, left) = snapshot.session_room();
    // Before a byte of them is read: whoever made the file may have made much of it.
    let held = session.budget().take(most, OBJECTS);
    let mut held = held.map_err(|error| error.message)?;
    let (saved, port) = snapshot.session().map_err(|error| error.to_string())?;
    let resized = held.resize(left, OBJECTS);
    resized.map_err(|error| error.message)?;
    session.restore(&saved).map_err(|error| error.sentence())?;
    restore_memory(snapshot, &saved, session)?;
    let resized = held.resize(kept_bytes(&port, &saved.host), OBJECTS);
    resized.map_err(|error| error.message)?;
    Ok((port, saved.host, held))
}

/// Host memory of what waits for the program.
fn kept_bytes(port: &SavedPort, host: &[SavedHost]) -> u64 {
    let answers = port.unfinished.iter().map(|(_, bytes)| bytes.len());
    let printed = port.output.iter().map(|(_, bytes)| bytes.len());
    let blobs = port.blobs.iter().map(|(_, bytes)| bytes.len());
    let lists = answers.chain(printed).chain(blobs);
    let bytes: usize = lists.map(|bytes| bytes + PIECE_BYTES).sum();
    (bytes + size_of_val(host)) as u64
}

/// A session on a device with the addresses of the old one.
fn open(task: &Task, manifest: &Manifest) -> Result<Kept, String> {
    let worker = &task.worker;
    let output = Arc::new(OutputBuffer::recorded_by(&worker.recorder));
    let place = manifest.device.address_space;
    let gpu = worker.devices.open_at(Arc::clone(&output), place);
    let gpu = gpu.map_err(|error| error.to_string())?;
    let (has, had) = (
        gpu.properties().compute_capability,
        manifest.device.compute_capability,
    );
    if has < had {
        return Err(format!(
            "the snapshot is of a GPU of compute capability {}.{}, this one has {}.{}",
            had.0, had.1, has.0, has.1
        ));
    }
    let session = worker.vgpu.open_session_on(gpu);
    Ok((session.map_err(|error| error.sentence())?, output))
}

fn restore_memory(
    snapshot: &Snapshot<'_>,
    saved: &SavedSession,
    session: &Session,
) -> Result<(), String> {
    let failed = |error: mica_snapshot::SnapshotError| error.to_string();
    let mut blocks = snapshot.blocks().map_err(failed)?;
    let mut block = Vec::new();
    for (index, (context, address, bytes)) in saved.memory().enumerate() {
        // Allocations are zeros already; variables have what their module says.
        let is_zero = index < saved.allocations.len();
        let mut done = 0;
        while done < *bytes {
            let length = (bytes - done).min(BLOCK_BYTES);
            block.resize(length as usize, 0);
            let has_more = blocks.next(&mut block).map_err(failed)?;
            if has_more || !is_zero {
                let restored = session.restore_memory(context, address + done, &mut block);
                restored.map_err(|error| error.sentence())?;
            }
            done += length;
        }
    }
    blocks.finish().map_err(failed)
}
