//! Moving virtual GPUs to other GPUs.
//!
//! What the program has on its GPU is in a file in memory meanwhile, which this process lends to the daemon. Where the program
//! can go on on neither GPU, or the daemon is gone, that file is the only copy: it is put on the disk then.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use mica_command::refusal::explain;
use mica_control::api::{Migration, VgpuInfo, VgpuState};
use mica_control::client::ControlError;
use mica_snapshot::Snapshot;
use mica_wire::host::printable::printable;

use crate::args::MigrateArgs;
use crate::control::connect;
use crate::listing::print_json;
use crate::snapshot::{WITHIN, lent, sync_folder};

/// How often it is tried to put the file on a disk that is full.
const WRITE_EVERY: Duration = Duration::from_secs(2);
/// Files of one virtual GPU that may be left in a folder.
const MOST_LEFT: u32 = 1000;
const BLOCK: usize = 1 << 20;

pub(crate) fn migrate(args: &MigrateArgs) -> Result<()> {
    let client = connect()?.with_timeout(WITHIN);
    let created = client.join(&args.name).map_err(explain)?;
    let file = memory_file()?;
    let (_lent, name) = lent(&created, &file)?;
    let migration = Migration {
        gpu: args.gpu,
        file: name.file,
    };
    let info = match client.migrate(&created.name, &migration) {
        Ok(info) => info,
        Err(error) => after(&created.name, &file, error)?,
    };
    if args.json {
        return print_json(&info);
    }
    outln!("{} is on GPU {} now", printable(&info.name), info.gpu);
    if info.state == VgpuState::Snapshotted {
        outln!("its program waits; it goes on there with: mica restore FILE");
    }
    Ok(())
}

/// What is left to do after an error: to restore what a daemon that has gone had saved, wherever its virtual GPU is now, or to
/// keep the file for later.
fn after(name: &str, file: &File, error: ControlError) -> Result<VgpuInfo> {
    let is_left = error.reason() == Some("snapshotted");
    let is_refused = matches!(error, ControlError::Refused(_));
    // Its head is written last. A worker that has not come to it goes on with its program.
    if is_refused && !is_left || Snapshot::open(file).is_err() {
        return Err(explain(error));
    }
    let waits = if is_left {
        "its program waits"
    } else {
        match restore(name, file) {
            Ok(info) => return Ok(info),
            Err(_) if goes_on(name) => return Err(explain(error)),
            Err(_) => "whether its program waits only `mica ls` tells",
        }
    };
    let kept = keep(name, file);
    Err(anyhow!(
        "{error}\n  hint: all that {name} has on the GPU is in {kept}; {waits}; let it go on with: mica restore {kept}",
        error = with_source(error),
        name = printable(name),
        kept = kept.display(),
    ))
}

/// An error and what caused it, in one line.
fn with_source(error: ControlError) -> String {
    format!("{:#}", anyhow::Error::new(error))
}

/// Restores what is in a file; the daemon may be another one than before.
fn restore(name: &str, file: &File) -> Result<VgpuInfo> {
    let client = connect()?.with_timeout(WITHIN);
    let created = client.join(name).map_err(explain)?;
    let (_lent, lent_name) = lent(&created, file)?;
    client.restore(name, &lent_name).map_err(explain)
}

/// Whether a virtual GPU is known to be in no snapshot.
fn goes_on(name: &str) -> bool {
    let info = connect().ok().and_then(|client| client.get(name).ok());
    info.is_some_and(|info| {
        matches!(
            info.state,
            VgpuState::Active | VgpuState::Ready | VgpuState::Suspended
        )
    })
}

/// A file that is in memory only, and goes with its last descriptor.
fn memory_file() -> Result<File> {
    let file = rustix::fs::memfd_create("mica-migration", rustix::fs::MemfdFlags::CLOEXEC);
    Ok(file.context("a file in memory cannot be made")?.into())
}

/// Puts a file that is in memory only on the disk: where this command was started, or in the folder of temporary files. Where
/// neither has room this process keeps the file, says so, and tries again until one has.
fn keep(name: &str, file: &File) -> PathBuf {
    let here = std::env::current_dir().unwrap_or_else(|_| ".".into());
    let folders = [here, std::env::temp_dir()];
    let mut is_told = false;
    loop {
        let mut why = Vec::new();
        for folder in &folders {
            match copy_into(folder, name, file) {
                Ok(kept) => return kept,
                Err(error) => why.push(format!("{error:#}")),
            }
        }
        if !std::mem::replace(&mut is_told, true) {
            errln!(
                "mica: the snapshot of {} is in the memory of this process only ({}); do not end it: make room, or copy the file with: \
                 cp /proc/{}/fd/{} FILE",
                printable(name),
                why.join("; "),
                std::process::id(),
                file.as_raw_fd(),
            );
        }
        std::thread::sleep(WRITE_EVERY);
    }
}

/// Copies a file to one in a folder that its owner alone may read, named after the virtual GPU.
fn copy_into(folder: &Path, name: &str, file: &File) -> Result<PathBuf> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '@');
    let plain: String = name
        .chars()
        .map(|c| if is_plain(c) { c } else { '-' })
        .collect();
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    for number in 1..=MOST_LEFT {
        let target = folder.join(match number {
            1 => format!("{plain}.snap"),
            number => format!("{plain}-{number}.snap"),
        });
        let copy = match options.open(&target) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
            other => other.with_context(|| format!("{} cannot be made", target.display()))?,
        };
        if let Err(error) = copy_to(file, &copy) {
            let _ = std::fs::remove_file(&target);
            return Err(error).with_context(|| format!("{} cannot be written", target.display()));
        }
        sync_folder(&target);
        return Ok(target);
    }
    Err(anyhow!(
        "{} has {MOST_LEFT} snapshots of {} already",
        folder.display(),
        printable(name)
    ))
}

/// Copies all of a file to the disk. The place at which others read the file does not move.
fn copy_to(file: &File, mut copy: &File) -> std::io::Result<()> {
    let mut block = vec![0; BLOCK];
    let mut at = 0;
    loop {
        match file.read_at(&mut block, at)? {
            0 => return copy.sync_all(),
            bytes => {
                copy.write_all(&block[..bytes])?;
                at += bytes as u64;
            }
        }
    }
}
