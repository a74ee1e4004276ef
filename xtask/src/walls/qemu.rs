//! A real virtual machine: QEMU without acceleration, a vsock device, once with and once without shared-memory devices, and a guest that has
//! nothing but busybox, the agent, Mica's libraries and CUDA programs.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::attach::Printed;
use super::machines::{Running, vgpu, wait_for};
use super::mica::Mica;
use super::podman::text;
use super::qemu_programs::{Said, chosen};
use super::{Options, Rows, root_folders};
use crate::bounded::Scratch;
use crate::command::target;

/// Modules of the guest's kernel. Which of them needs which others differs by version, so all are tried several times.
const MODULES: [&str; 8] = [
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci",
    "net/vmw_vsock/vsock",
    "net/vmw_vsock/vmw_vsock_virtio_transport_common",
    "net/vmw_vsock/vmw_vsock_virtio_transport",
];
/// Tools of busybox in the guest.
const APPLETS: [&str; 9] = [
    "sh", "mount", "insmod", "poweroff", "sleep", "env", "grep", "wc", "timeout",
];
/// Shared-memory devices of the machine.
const DEVICES: u32 = 4;
/// Memory of the machine.
const MEMORY: &str = "1536M";
const INIT: &str = "#!/bin/sh
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for round in 1 2 3; do for m in /mod/*.ko; do insmod $m 2>/dev/null; done; done
[ -e /dev/vsock ] || echo 'no vsock: a module is missing'
AGENT &
sleep 1
echo; echo \"shared-memory devices: $(grep -l 0x1110 /sys/bus/pci/devices/*/device | wc -l)\"
for p in '/bin/probe 1024' /programs/*; do echo; echo \"== $p\"; timeout -s KILL 900 env -i CHILD_PATIENCE=6 $p 2>&1; code=$?; echo; echo \"=> $code\"; done
echo '== end'
poweroff -f
";
/// Longest life of the guest: with some programs, and with all.
const SECONDS: [&str; 2] = ["400", "3600"];

/// What a machine is made of.
struct Parts {
    kernel: PathBuf,
    modules: PathBuf,
    vsock: PathBuf,
}

/// What is missing is said, with where to get it.
fn parts() -> Result<Parts> {
    for tool in ["qemu-system-x86_64", "cpio", "gzip", "strip", "busybox"] {
        root_folders::which(tool)?;
    }
    let tools = target().join("tools");
    let vsock = tools.join("bin/vhost-device-vsock");
    let vsock = root_folders::which("vhost-device-vsock")
        .ok()
        .or(vsock.is_file().then_some(vsock));
    let vsock = vsock.context(
        "vhost-device-vsock is missing: cargo install vhost-device-vsock --root target/tools",
    )?;
    let folder = tools.join("kernel");
    let only = |folder: PathBuf, prefix: &str| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut found = entries.filter(|e| e.file_name().to_string_lossy().starts_with(prefix));
        found.next().map(|entry| entry.path())
    };
    let missing = "a kernel is missing: unpack Debian's linux-image-cloud-amd64 into target/tools/kernel (dpkg -x)";
    let modules = only(folder.join("lib/modules"), "").context(missing)?;
    Ok(Parts {
        kernel: only(folder.join("boot"), "vmlinuz").context(missing)?,
        modules: modules.join("kernel"),
        vsock,
    })
}

/// The check.
pub(super) fn run(rows: &mut Rows, options: Options) -> Result<()> {
    let parts = match parts() {
        Ok(parts) => parts,
        Err(why) => {
            rows.skip("QEMU guest", &format!("{why:#}"));
            return Ok(());
        }
    };
    libvirt(rows, options)?;
    rows.check("QEMU guest: CUDA programs in ivshmem", || {
        guest(&parts, options, DEVICES)
    });
    rows.check("QEMU guest: CUDA programs over vsock", || {
        guest(&parts, options, 0)
    });
    Ok(())
}

/// The devices that `mica vm attach` prints for libvirt.
fn libvirt(rows: &mut Rows, options: Options) -> Result<()> {
    const NAME: &str = "the printed devices, in libvirt's schema";
    let scratch = Scratch::new("libvirt")?;
    let mica = Mica::new(options, &scratch.0);
    text(&mut mica.command(&["create", vgpu(), "-m", "64MiB", "-s", "10"]))?;
    let checked = Printed::read(&mica, MEMORY, DEVICES).and_then(|p| p.check_libvirt(&scratch.0));
    match checked.transpose() {
        Some(checked) => rows.check(NAME, || checked),
        None => rows.skip(
            NAME,
            "virt-xml-validate is missing: install libvirt-clients",
        ),
    }
    Ok(())
}

fn guest(parts: &Parts, options: Options, ivshmem: u32) -> Result<String> {
    let scratch = Scratch::new("qemu")?;
    let at = |name: &str| scratch.0.join(name);
    let programs = chosen(options)?;
    let mica = Mica::new(options, &scratch.0);
    text(&mut mica.command(&["create", vgpu(), "-m", "1GiB", "-s", "50"]))?;
    let printed = Printed::read(&mica, MEMORY, ivshmem)?;
    let image = image(parts, options, &scratch.0, &programs, &printed.agent)?;
    let _memory = SharedMemory(&mica);
    let words: Vec<&str> = printed.relay.iter().map(String::as_str).collect();
    let _relay = beside(&mut mica.command(&words), &scratch.0)?;
    let _vsock = beside(Command::new(&parts.vsock).args(&printed.vsock), &scratch.0)?;
    wait_for(&at("vhost.sock"))?;
    wait_for(&at("vm.vsock_9350"))?;
    let mut machine = machine(parts, options, &image, &printed);
    machine.current_dir(&scratch.0);
    let said = watched(machine, programs.len() + 1, options.all)?;
    ensure!(
        said.devices == Some(ivshmem),
        "the guest has {:?} shared-memory devices, not {ivshmem}, after {:?}",
        said.devices,
        said.boot()
    );
    let passed = said.verdict(&programs, ivshmem > 0)?;
    let shown = mica.json(&["show", vgpu(), "--json"])?;
    ensure!(shown["memory_used_bytes"] == 0, "{shown}");
    Ok(format!("{passed} programs, nothing left"))
}

/// Starts a command of the host in a folder, where the names that it was printed with lead.
fn beside(command: &mut Command, folder: &Path) -> Result<Running> {
    command.current_dir(folder).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Ok(Running(command.spawn()?))
}

/// QEMU with an emulated processor, and with the printed devices.
fn machine(parts: &Parts, options: Options, image: &Path, printed: &Printed) -> Command {
    let mut machine = Command::new("timeout");
    machine
        .arg(SECONDS[usize::from(options.all)])
        .arg("qemu-system-x86_64")
        .args(["-accel", "tcg", "-cpu", "max", "-m", MEMORY])
        .args(&printed.machine)
        .args(["-nographic", "-no-reboot", "-nodefaults"])
        .args(["-serial", "stdio"])
        .args(["-append", "console=ttyS0 panic=-1 quiet"])
        .arg("-kernel")
        .arg(&parts.kernel)
        .arg("-initrd")
        .arg(image);
    machine
}

/// The files of the machine's shared memory; removed when dropped.
struct SharedMemory<'a>(&'a Mica);

impl Drop for SharedMemory<'_> {
    fn drop(&mut self) {
        if let Err(error) = text(&mut self.0.command(&["vm", "detach", vgpu()])) {
            eprintln!("the machine's shared memory is left behind: {error:#}");
        }
    }
}

/// Runs the machine to its end and keeps what its console says; each program is told as it ends, if all run.
fn watched(mut machine: Command, programs: usize, is_told: bool) -> Result<Said> {
    machine.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut machine = Running(machine.spawn()?);
    let console = machine.0.stdout.take().context("no console")?;
    let mut said = Said::default();
    for line in BufReader::new(console).split(b'\n') {
        let line = line?;
        let ended = said.line(String::from_utf8_lossy(&line).trim_end_matches('\r'));
        if let (Some(ended), true) = (ended, is_told) {
            let at = said.count();
            println!("      {at} of {programs}: {ended}");
        }
    }
    Ok(said)
}

/// The guest's root folder as an image that the kernel unpacks.
fn image(
    parts: &Parts,
    options: Options,
    scratch: &Path,
    programs: &[PathBuf],
    agent: &str,
) -> Result<PathBuf> {
    let root = root_folders::glibc(scratch, programs)?.path;
    std::fs::create_dir_all(root.join("mod"))?;
    std::fs::copy(root_folders::which("busybox")?, root.join("bin/busybox"))?;
    for applet in APPLETS {
        let _ = std::fs::remove_file(root.join("bin").join(applet));
        symlink("busybox", root.join("bin").join(applet))?;
    }
    for (at, module) in MODULES.iter().enumerate() {
        let name = Path::new(module)
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let from = parts.modules.join(format!("{module}.ko"));
        std::fs::copy(&from, root.join(format!("mod/{at}-{name}.ko")))
            .with_context(|| format!("{} cannot be copied", from.display()))?;
    }
    let built = target().join(options.profile);
    let libraries = "usr/lib/x86_64-linux-gnu";
    for (from, to) in [
        ("mica-guest", "bin/mica-guest".to_owned()),
        ("libmica_shim.so", format!("{libraries}/libcuda.so.1")),
        (
            "libmica_nvml_shim.so",
            format!("{libraries}/libnvidia-ml.so.1"),
        ),
    ] {
        text(
            Command::new("strip")
                .arg("-o")
                .arg(root.join(to))
                .arg(built.join(from)),
        )?;
    }
    root_folders::add_libraries(&built.join("mica-guest"), &root)?;
    root_folders::add_libraries(&built.join("libmica_shim.so"), &root)?;
    let init = root.join("init");
    std::fs::write(&init, INIT.replace("AGENT", agent))?;
    std::fs::set_permissions(&init, PermissionsExt::from_mode(0o755))?;
    let image = scratch.join("initrd.gz");
    let script = "cd \"$1\" && find . | cpio -o -H newc --quiet | gzip -1 > \"$2\"";
    let packed = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(&root)
        .arg(&image)
        .status()?;
    if !packed.success() {
        bail!("the guest's image cannot be packed ({packed})");
    }
    Ok(image)
}
