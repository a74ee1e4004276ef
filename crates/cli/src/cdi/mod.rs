//! `mica cdi`: virtual GPUs for containers.
//!
//! The daemon makes a socket for each device and keeps it; the files are a picture of the caller's sockets. A container gets the
//! folder of its socket and Mica's libraries. It has no device file, unless direct mode is asked for.

mod direct;
mod document;
mod kinds;
mod libraries;

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use mica_control::api::{ContainerSocket, ContainerSocketSpec, GpuKind, Mode, VgpuInfo};
use mica_control::client::ControlClient;
use mica_limits::CONTAINER_DIR;
use serde::Serialize;

use crate::args::{CdiArgs, CdiCommand, CdiGenerateArgs, CdiRemoveArgs, JsonArgs, ModeArg};
use crate::control::connect;
use crate::listing::print_json;
use document::{Device, Document, Edits, Mount, device_name};
use mica_command::refusal::explain;
use mica_command::size::show_bytes;
use mica_command::table::Table;

pub(crate) use kinds::Kind;

/// Where engines look for files.
const USUAL_FOLDER: &str = "/etc/cdi";

pub(crate) fn run(args: &CdiArgs) -> Result<()> {
    match &args.command {
        CdiCommand::Generate(args) => generate(args),
        CdiCommand::Ls(args) => list(args),
        CdiCommand::Rm(args) => remove(args),
    }
}

/// What was written, for programs.
#[derive(Debug, Serialize)]
struct Written {
    files: Vec<PathBuf>,
    devices: Vec<String>,
    musl: bool,
}

fn generate(args: &CdiGenerateArgs) -> Result<()> {
    let client = connect()?;
    let mode = match args.mode {
        ModeArg::Direct => Mode::Direct,
        ModeArg::Isolated => Mode::Isolated,
    };
    if mode == Mode::Direct {
        // Before a device is made that could not be written.
        direct::edits(&all_cards(&client)?)?;
    }
    for name in &args.vgpu {
        let vgpu = client.get(name).map_err(explain)?;
        if needs_device_files(&vgpu, mode) {
            bail!(
                "{name} is a direct virtual GPU: a container would need device files, with which a program can pass its limits\n\
                 hint: allow that with --mode direct, or make an isolated one (mica create NAME --mode isolated)"
            );
        }
        ask(&client, Some(name.clone()), None)?;
    }
    for kind in &args.new {
        ask(&client, None, Some(kind.spec(mode)))?;
    }
    if args.vgpu.is_empty() && args.new.is_empty() {
        ask_for_all(&client, mode)?;
    }
    let written = write(&client, folder_of(args.output.as_deref()))?;
    warn_of_large(&client, &args.new)?;
    match args.json {
        true => print_json(&written),
        false => {
            written.show();
            Ok(())
        }
    }
}

/// Whether a container would need device files for a virtual GPU, and the mode does not allow them.
fn needs_device_files(vgpu: &VgpuInfo, mode: Mode) -> bool {
    vgpu.mode == Mode::Direct && mode == Mode::Isolated
}

/// Asks for a socket for each virtual GPU of the caller that lasts.
fn ask_for_all(client: &ControlClient, mode: Mode) -> Result<()> {
    let vgpus = client.list().map_err(explain)?;
    let own = vgpus.iter().filter(|v| v.owner_uid == mica_control::uid());
    for vgpu in own.filter(|vgpu| !vgpu.ephemeral) {
        match needs_device_files(vgpu, mode) {
            true => errln!(
                "mica: {} is left out: it is a direct virtual GPU (--mode direct allows device files)",
                vgpu.name
            ),
            false => ask(client, Some(vgpu.name.clone()), None)?,
        }
    }
    Ok(())
}

impl Written {
    /// Says which files there are now, and how to use a device.
    fn show(&self) {
        let Some(first) = self.devices.first() else {
            outln!(
                "no devices: make a virtual GPU (mica create NAME -m 8GiB -s 30 --mode isolated) or name a kind (--new 8GiB-30)"
            );
            return;
        };
        for file in &self.files {
            outln!("wrote {}", file.display());
        }
        for device in &self.devices {
            outln!("  {device}");
        }
        if !self.musl {
            errln!(
                "mica: this build has no libraries for musl: programs built for Alpine do not find a GPU"
            );
        }
        outln!("try: podman run --device {first} IMAGE");
    }
}

fn ask(
    client: &ControlClient,
    vgpu: Option<String>,
    new: Option<mica_control::api::VgpuSpec>,
) -> Result<()> {
    let spec = ContainerSocketSpec { vgpu, new };
    client.container_socket(&spec).map_err(explain)?;
    Ok(())
}

fn list(args: &JsonArgs) -> Result<()> {
    let sockets = connect()?.container_sockets().map_err(explain)?;
    if args.json {
        return print_json(&sockets);
    }
    if sockets.is_empty() {
        outln!("no devices for containers; make some with `mica cdi generate`");
        return Ok(());
    }
    let mut table = Table::new(&["DEVICE", "MODE", "FOLDER"]);
    for socket in &sockets {
        let mode = format!("{:?}", socket.mode).to_lowercase();
        table.row(vec![device_of(socket), mode, socket.folder.clone()]);
    }
    out!("{}", table.render());
    Ok(())
}

fn remove(args: &CdiRemoveArgs) -> Result<()> {
    if args.vgpu.is_empty() && args.new.is_empty() {
        bail!(
            "name what to remove: --vgpu NAME or --new 8GiB-30 (`mica cdi ls` shows what there is)"
        );
    }
    let client = connect()?;
    for name in &args.vgpu {
        (client.remove_container_socket(name, false)).map_err(explain)?;
    }
    for kind in &args.new {
        (client.remove_container_socket(kind.name(), true)).map_err(explain)?;
    }
    let written = write(&client, folder_of(args.output.as_deref()))?;
    if args.json {
        return print_json(&written);
    }
    outln!("{} devices are left", written.devices.len());
    Ok(())
}

fn folder_of(chosen: Option<&Path>) -> &Path {
    chosen.unwrap_or(Path::new(USUAL_FOLDER))
}

/// The full name of a device.
fn device_of(socket: &ContainerSocket) -> String {
    let class = if socket.makes_new { "new" } else { "vgpu" };
    format!("mica.dev/{class}={}", device_name(&socket.name))
}

/// Writes the files for all sockets that this user has; a file without devices is removed.
fn write(client: &ControlClient, folder: &Path) -> Result<Written> {
    let uid = mica_control::uid();
    let sockets = client.container_sockets().map_err(explain)?;
    // Root also writes the devices of others: an engine reads root's folder only.
    let own = sockets.iter().filter(|s| uid == 0 || s.owner_uid == uid);
    let own: Vec<&ContainerSocket> = own.collect();
    make_folder(folder)?;
    let mut written = Written {
        files: Vec::new(),
        devices: own.iter().map(|socket| device_of(socket)).collect(),
        musl: false,
    };
    for (class, makes_new) in [("vgpu", false), ("new", true)] {
        let file = folder.join(match uid {
            0 => format!("mica.dev-{class}.json"),
            uid => format!("mica.dev-{class}-{uid}.json"),
        });
        let of_class = own.iter().filter(|socket| socket.makes_new == makes_new);
        let devices: Vec<Device> = of_class
            .map(|socket| device(client, socket))
            .collect::<Result<_>>()?;
        if devices.is_empty() {
            let _ = std::fs::remove_file(&file);
            continue;
        }
        let libraries = libraries::install()?;
        written.musl = libraries.has_musl;
        let common = Edits {
            mounts: libraries.mounts,
            ..Edits::default()
        };
        replace(&file, &Document::new(class, devices, common))?;
        written.files.push(file);
    }
    Ok(written)
}

/// The folder of the files; what a person can do if there cannot be one is said.
fn make_folder(folder: &Path) -> Result<()> {
    let shown = folder.display();
    std::fs::create_dir_all(folder).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
            anyhow!("--output {shown}: this is not a folder")
        }
        ErrorKind::PermissionDenied => anyhow!(
            "{shown} cannot be made: {error}\n  hint: engines read {USUAL_FOLDER}, which is root's: \
             sudo mica cdi generate --vgpu NAME@UID; --output writes the files elsewhere"
        ),
        _ => anyhow!("{shown} cannot be made: {error}"),
    })
}

/// Tells of kinds that no GPU of this host can hold: their containers would be refused, one after the other.
fn warn_of_large(client: &ControlClient, kinds: &[Kind]) -> Result<()> {
    let gpus = client.gpus().map_err(explain)?;
    let most = gpus.iter().map(|gpu| gpu.memory_total_bytes).max();
    for kind in kinds {
        if let Some(most) = most.filter(|most| kind.memory_bytes() > *most) {
            errln!(
                "mica: no GPU of this host has the memory of {}: the largest has {}",
                kind.name(),
                show_bytes(most)
            );
        }
    }
    Ok(())
}

fn device(client: &ControlClient, socket: &ContainerSocket) -> Result<Device> {
    let mut edits = match socket.mode {
        Mode::Isolated => Edits::default(),
        Mode::Direct => direct::edits(&cards(client, socket)?)?,
    };
    edits
        .mounts
        .push(Mount::socket(&socket.folder, CONTAINER_DIR));
    Ok(Device {
        name: device_name(&socket.name),
        container_edits: edits,
    })
}

/// The cards that a device in direct mode may be on: that of its virtual GPU, or all where one is chosen for each container.
fn cards(client: &ControlClient, socket: &ContainerSocket) -> Result<Vec<String>> {
    if !socket.makes_new {
        let vgpu = client.get(&socket.name).map_err(explain)?;
        return Ok(vec![vgpu.gpu_uuid]);
    }
    all_cards(client)
}

fn all_cards(client: &ControlClient) -> Result<Vec<String>> {
    let gpus = client.gpus().map_err(explain)?;
    let cards = gpus.into_iter().filter(|gpu| gpu.kind == GpuKind::Nvidia);
    Ok(cards.map(|card| card.uuid).collect())
}

/// Writes a file beside its name and renames it: an engine never reads half of one.
fn replace(file: &Path, document: &Document) -> Result<()> {
    let write = || -> Result<()> {
        let folder = file.parent().unwrap_or(Path::new("/"));
        // Engines read every file that ends with .json.
        let mut fresh = tempfile::Builder::new()
            .prefix(".mica-")
            .suffix(".new")
            .tempfile_in(folder)?;
        serde_json::to_writer_pretty(&mut fresh, document)?;
        fresh.write_all(b"\n")?;
        let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        fresh.as_file().set_permissions(readable)?;
        fresh.persist(file)?;
        Ok(())
    };
    write().with_context(|| format!("{} cannot be written", file.display()))
}
