//! Saving virtual GPUs to files, and restoring them.
//!
//! The file is this process's: it is opened with the rights of the one who asked, and lent to the daemon. It has its name, on
//! the disk too, before anything is saved: whoever dies from then on, what is whole is found. A file that is not whole says so,
//! for its head is written last.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use mica_command::refusal::explain;
use mica_command::size::show_bytes;
use mica_control::api::{Created, SnapshotFile};
use mica_control::client::{ControlClient, ControlError};
use mica_limits::{Environment, LentFile, lend_file};
use mica_snapshot::{Manifest, Snapshot, SnapshotError};
use mica_wire::host::printable::printable;
use serde::Serialize;

use crate::args::{RestoreArgs, SnapshotArgs};
use crate::control::connect;
use crate::listing::print_json;

/// How long a snapshot may take; the daemon itself gives up before.
pub(crate) const WITHIN: Duration = Duration::from_secs(3600);

/// What is printed as JSON.
#[derive(Serialize)]
struct Shown<'a> {
    file: &'a Path,
    file_bytes: u64,
    snapshot: &'a Manifest,
}

pub(crate) fn snapshot(args: &SnapshotArgs) -> Result<()> {
    if let Some(file) = &args.inspect {
        return inspect(file, args.json);
    }
    let (Some(name), Some(target)) = (&args.name, &args.file) else {
        bail!("say which virtual GPU and which file: mica snapshot NAME FILE");
    };
    ensure!(!target.exists(), "{} is there already", target.display());
    let client = connect()?.with_timeout(WITHIN);
    let created = client.join(name).map_err(explain)?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(target)
        .with_context(|| format!("{} cannot be made", target.display()))?;
    sync_folder(target);
    let unknown = match save(&client, &created, &file) {
        Ok(unknown) => unknown,
        Err(error) => {
            let _ = std::fs::remove_file(target);
            return Err(error);
        }
    };
    if let Some(error) = unknown {
        let target = target.display();
        let text =
            format!("all is saved in {target}, but whether its program waits only `mica ls` tells");
        return Err(error).context(text);
    }
    show(target, &file, args.json)?;
    if !args.json {
        outln!(
            "its program waits; it goes on with: mica restore {}",
            target.display()
        );
    }
    Ok(())
}

/// Has a virtual GPU saved. A daemon that ends meanwhile may have had the worker end, or the worker itself was killed: the file, once
/// whole, is the only copy then, and the answer is why nothing more is known. After an error there is nothing in the file that
/// anybody needs.
fn save(client: &ControlClient, created: &Created, file: &File) -> Result<Option<anyhow::Error>> {
    let (_lent, name) = lent(created, file)?;
    match client.snapshot(&created.name, &name) {
        Ok(_) => Ok(None),
        Err(error @ ControlError::Refused(_)) if error.reason() != Some("worker_ended") => {
            Err(explain(error))
        }
        // Its head is written last. A worker that has not come to it goes on with its program.
        Err(error) => match Snapshot::open(file) {
            Err(SnapshotError::NotASnapshot(_)) => Err(explain(error)),
            Ok(_) | Err(_) => Ok(Some(explain(error))),
        },
    }
}

pub(crate) fn restore(args: &RestoreArgs) -> Result<()> {
    let file = open(&args.file)?;
    let manifest = read(&args.file, &file)?;
    let client = connect()?.with_timeout(WITHIN);
    let created = client.join(&manifest.vgpu).map_err(explain)?;
    let (_lent, name) = lent(&created, &file)?;
    let info = client.restore(&created.name, &name).map_err(explain)?;
    if args.json {
        return print_json(&info);
    }
    let process = manifest.program.pid;
    let name = printable(&info.name);
    outln!(
        "{name} was restored from {}; process {process} goes on",
        args.file.display()
    );
    Ok(())
}

fn inspect(path: &Path, json: bool) -> Result<()> {
    let file = open(path)?;
    // Whether all of it is as it was written, and not only the manifest.
    let snapshot = Snapshot::open(&file).with_context(|| path.display().to_string())?;
    let whole = snapshot.check();
    whole.with_context(|| path.display().to_string())?;
    show(path, &file, json)
}

fn show(path: &Path, file: &File, json: bool) -> Result<()> {
    let manifest = read(path, file)?;
    let file_bytes = file.metadata().map_or(0, |file| file.len());
    if json {
        return print_json(&Shown {
            file: path,
            file_bytes,
            snapshot: &manifest,
        });
    }
    outln!(
        "{}: {} with {} of memory, {} in the file\n{} contexts, {} modules, {} allocations; of process {} on {}",
        path.display(),
        printable(&manifest.vgpu),
        show_bytes(manifest.memory_bytes),
        show_bytes(file_bytes),
        manifest.contexts,
        manifest.modules,
        manifest.allocations,
        manifest.program.pid,
        printable(&manifest.device.name),
    );
    Ok(())
}

fn open(path: &Path) -> Result<File> {
    File::open(path).with_context(|| format!("{} cannot be opened", path.display()))
}

fn read(path: &Path, file: &File) -> Result<Manifest> {
    let snapshot = Snapshot::open(file).with_context(|| path.display().to_string())?;
    Ok(snapshot.manifest().clone())
}

/// Lends the daemon a file for a request; the request names it so.
fn lent(created: &Created, file: &File) -> Result<(LentFile, SnapshotFile)> {
    let mut name = [0; 16];
    let mut random = File::open("/dev/urandom").context("/dev/urandom cannot be read")?;
    random
        .read_exact(&mut name)
        .context("/dev/urandom cannot be read")?;
    let token = Environment::parse_token(&created.token);
    let environment = Environment {
        socket: created.host_socket.clone().into(),
        token: token.context("the daemon's answer has no token")?,
    };
    let lent = lend_file(&environment, name, file.as_fd())?;
    let file = format!("{:032x}", u128::from_be_bytes(name));
    Ok((lent, SnapshotFile { file }))
}

/// Has the name outlive the machine, as far as the file system can.
fn sync_folder(target: &Path) {
    let folder = target
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    if let Ok(folder) = File::open(folder.unwrap_or(Path::new("."))) {
        let _ = folder.sync_all();
    }
}
