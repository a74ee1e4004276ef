//! Saves a session.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use mica_gpu::Gpu;
use mica_snapshot::{
    BLOCK_BYTES, DeviceFacts, Manifest, ProgramFacts, SavedPort, Writer, objects_room,
};
use mica_vgpu::Session;
use mica_wire::session::SESSION_VERSION;

use super::{Task, lock};
use crate::serve::{SessionThreads, Still};
use crate::shared_files::random_name;

/// How long the work of a session may take to end.
const DRAIN_WITHIN: Duration = Duration::from_secs(30);
/// How often it looks whether the daemon is gone.
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(super) fn run(task: &Task, file: File) {
    let (threads, pid) = match served(task) {
        Ok(served) => served,
        Err(why) => return task.not_saved(why),
    };
    let still = match threads.hold_still(DRAIN_WITHIN) {
        Ok(still) => still,
        Err(why) => return task.not_saved(&why),
    };
    // Before the daemon hears of it, whose word comes at once.
    let ending = task.worker.saving.expect_end();
    let daemon = task.link.replacements();
    match write(task, &threads, &still, pid, &file) {
        Err(why) => task.not_saved(&why),
        Ok(number) => {
            // Nothing more is written; whoever gave the file may use it.
            drop(file);
            // First: from here on the file has all, and whoever ends this process before the daemon's word costs the program
            // nothing.
            threads.port().park(number);
            task.saved(number);
            if is_parked(task, daemon, &ending) {
                let _ = task.end.send("its session was saved");
                // Nothing is carried out any more, until the process has ended.
                loop {
                    std::thread::park();
                }
            }
            threads.port().go_on();
        }
    }
    drop(still);
}

/// The session that is served, and the number of its program's process. A program whose session was restored may be on its way
/// back.
fn served(task: &Task) -> Result<(Arc<SessionThreads>, u32), &'static str> {
    let saving = &task.worker.saving;
    let began = Instant::now();
    loop {
        let is_awaited = lock(&saving.restored).is_some();
        let (threads, pid) = {
            let open = lock(&saving.open);
            (open.0.upgrade(), open.1)
        };
        match threads {
            // The end of the worker would be the end of the others.
            Some(_) if task.worker.welcomed.load(Acquire) > 1 => {
                return Err(
                    "its program has more than one session, of which only one could be saved",
                );
            }
            Some(threads) => return Ok((threads, pid)),
            None if !is_awaited => return Err("no program uses it, so there is nothing to save"),
            None if began.elapsed() >= DRAIN_WITHIN => {
                return Err("its program has made no call since it was restored");
            }
            None => std::thread::sleep(LOOK_EVERY),
        }
    }
}

/// Waits for the word of this daemon, which always says it, and of no later one, which does not know of the snapshot.
fn is_parked(task: &Task, daemon: u32, ending: &Receiver<bool>) -> bool {
    let is_there = || !task.link.is_down() && task.link.replacements() == daemon;
    while is_there() {
        match ending.recv_timeout(LOOK_EVERY) {
            Ok(park) => return park,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
    }
    // A word that came at the last moment counts: who passed it on relies on that.
    !task.worker.saving.give_up_ending() && ending.recv().unwrap_or(false)
}

/// Writes all of a session that holds still; the number by which its program and the file know each other.
fn write(
    task: &Task,
    threads: &SessionThreads,
    still: &Still<'_>,
    pid: u32,
    file: &File,
) -> Result<u64, String> {
    let session = threads.session();
    if let Some(obstacle) = threads.obstacle_to_saving() {
        return Err(obstacle);
    }
    // The copies of its objects; whoever restores it is charged no more.
    let copies = objects_room(session.image_bytes() + threads.blob_bytes());
    let held = session.budget().take(copies, "the objects of a snapshot");
    let _held = held.map_err(|error| error.message)?;
    let saved = session.save().map_err(|error| error.sentence())?;
    let port = SavedPort {
        position: still.position(),
        unfinished: threads.port().state().unfinished,
        output: threads.output().held(),
        blobs: threads.blobs(),
    };
    let failed = |error: mica_snapshot::SnapshotError| error.to_string();
    let mut writer = Writer::new(file).map_err(failed)?;
    let objects = writer.session(&saved, &port).map_err(failed)?;
    let mut memory_bytes = 0;
    for (context, address, bytes) in saved.memory() {
        write_memory(session, &mut writer, (context, *address, *bytes))?;
        memory_bytes += bytes;
    }
    let memory = writer.memory();
    let number = session_number()?;
    let manifest = Manifest {
        mica: env!("CARGO_PKG_VERSION").into(),
        protocol: SESSION_VERSION,
        made_at_seconds: SystemTime::UNIX_EPOCH
            .elapsed()
            .map_or(0, |now| now.as_secs()),
        vgpu: task.link.welcome().vgpu.clone(),
        device: device_facts(&**session.gpu())?,
        program: ProgramFacts {
            pid,
            session: number,
        },
        contexts: saved.contexts.len() as u64,
        modules: saved.modules.len() as u64,
        allocations: saved.allocations.len() as u64,
        memory_bytes,
        session: objects,
        memory,
    };
    writer.finish(&manifest).map_err(failed)?;
    Ok(number)
}

fn write_memory(
    session: &Session,
    writer: &mut Writer<'_>,
    (context, address, bytes): (u64, u64, u64),
) -> Result<(), String> {
    let mut block = Vec::new();
    let mut done = 0;
    while done < bytes {
        let length = (bytes - done).min(BLOCK_BYTES);
        block.resize(length as usize, 0);
        let saved = session.save_memory(context, address + done, &mut block);
        saved.map_err(|error| error.sentence())?;
        writer.block(&block).map_err(|error| error.to_string())?;
        done += length;
    }
    Ok(())
}

fn device_facts(gpu: &dyn Gpu) -> Result<DeviceFacts, String> {
    let properties = gpu.properties();
    Ok(DeviceFacts {
        name: properties.name.clone(),
        compute_capability: properties.compute_capability,
        memory_bytes: properties.total_memory,
        address_space: gpu
            .address_space()
            .ok_or("its GPU cannot be given the same addresses again")?,
    })
}

/// A number that no other session has, and that is not 0.
fn session_number() -> Result<u64, String> {
    let [a, b, c, d, e, f, g, h, ..] = random_name()?;
    Ok(u64::from_le_bytes([a | 1, b, c, d, e, f, g, h]))
}
