//! What `mica vm attach` prints: the walls run these commands as they stand.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::machines::vgpu;
use super::mica::Mica;
use super::podman::text;
use super::root_folders::which;

/// Memory of the machine in the printed commands.
const PRINTED_MEMORY: &str = "size=4G";

/// Commands as words, and a configuration.
pub(super) struct Printed {
    /// For `vhost-device-vsock`.
    pub(super) vsock: Vec<String>,
    /// For `mica`.
    pub(super) relay: Vec<String>,
    /// For QEMU, but for `...`, where a user has other options.
    pub(super) machine: Vec<String>,
    /// For the guest.
    pub(super) agent: String,
    /// Devices in libvirt's words.
    libvirt: String,
}

impl Printed {
    /// For a machine with so much memory and so many shared-memory devices of 256 MiB.
    pub(super) fn read(mica: &Mica, memory: &str, ivshmem: u32) -> Result<Self> {
        let count = ivshmem.to_string();
        let words = ["vm", "attach", vgpu(), "--cid", "3", "--ivshmem", &count];
        let printed = text(mica.command(&words).args(["--ivshmem-size", "256MiB"]))?;
        let between = |from: &str, to: &str| {
            let (_, rest) = printed.split_once(from)?;
            let (part, _) = rest.split_once(to)?;
            Some(part.trim().replace("\\\n", " "))
        };
        let missing = || format!("`mica vm attach` printed {printed}");
        let on_host = between("with the program vhost-device-vsock:", "In the guest");
        let on_host = on_host.with_context(missing)?;
        let mut commands = on_host.lines().filter(|line| !line.trim().is_empty());
        let mut command = |program: &str| {
            let mut words = commands.next().unwrap_or_default().split_whitespace();
            ensure!(words.next() == Some(program), "{program}: {}", missing());
            let words = words.filter(|word| *word != "...");
            let memory = format!("size={memory}");
            Ok(words
                .map(|word| word.replace(PRINTED_MEMORY, &memory))
                .collect())
        };
        let (vsock, relay) = (command("vhost-device-vsock")?, command("mica")?);
        let machine = command("qemu-system-x86_64")?;
        let libvirt = between("inside <devices>:", "Without the module").with_context(missing)?;
        let agent = printed.trim_end().lines().next_back();
        Ok(Self {
            vsock,
            relay,
            machine,
            agent: agent.unwrap_or_default().trim().into(),
            libvirt,
        })
    }

    /// Has libvirt's schema check the devices; `None` where there is no libvirt.
    pub(super) fn check_libvirt(&self, scratch: &Path) -> Result<Option<String>> {
        let Ok(validate) = which("virt-xml-validate") else {
            return Ok(None);
        };
        let file = scratch.join("domain.xml");
        let devices = &self.libvirt;
        let domain = format!(
            "<domain type='kvm'><name>walls</name><memory>1048576</memory><os><type>hvm</type></os><devices>{devices}</devices></domain>"
        );
        std::fs::write(&file, &domain)?;
        text(Command::new(&validate).arg(&file).arg("domain")).context(domain.clone())?;
        // It looks at the devices: others are refused.
        std::fs::write(&file, domain.replace("ivshmem-plain", "ivshmem-plane"))?;
        let wrong = Command::new(validate).arg(&file).arg("domain").output()?;
        ensure!(!wrong.status.success(), "libvirt's schema takes any device");
        Ok(Some("vsock and shared memory are valid".into()))
    }
}
