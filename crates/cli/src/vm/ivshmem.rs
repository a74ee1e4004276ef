//! The memory that a virtual machine shares with its host: its files, and what QEMU and libvirt are told of them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use mica_command::size::{Size, show_bytes};
use mica_command::users::user_number;
use mica_control::client::ControlError;

use crate::args::IvshmemArgs;
use crate::control::connect;

/// Where the files are: libvirt takes them from here, by their names.
const FOLDER: &str = "/dev/shm";
/// Most ivshmem files that a machine can have.
const MOST: u32 = 32;

/// The name of an ivshmem file.
fn file_name(vgpu: &str, number: u32) -> String {
    format!("mica-{vgpu}-{number}")
}

fn path(vgpu: &str, number: u32) -> PathBuf {
    Path::new(FOLDER).join(file_name(vgpu, number))
}

fn bytes_each(args: &IvshmemArgs) -> Result<u64> {
    let text = &args.ivshmem_size;
    match text.parse::<Size>() {
        Ok(Size(bytes)) if bytes.is_power_of_two() && bytes >= 32 << 20 => Ok(bytes),
        _ => bail!(
            "--ivshmem-size {text}: the memory of a PCI device is a power of two, here from 32MiB up\n  \
             hint: write 256MiB or 1GiB"
        ),
    }
}

/// Makes a machine's ivshmem files, or takes those of an earlier run.
pub(super) fn prepare(vgpu: &str, args: &IvshmemArgs, owner: Option<&str>) -> Result<Vec<PathBuf>> {
    let bytes = bytes_each(args)?;
    let owner = match owner {
        Some(name) => Some(
            user_number(name).with_context(|| format!("--ivshmem-owner {name}: no such user"))?,
        ),
        None => None,
    };
    let paths: Vec<PathBuf> = (0..args.ivshmem).map(|number| path(vgpu, number)).collect();
    for path in &paths {
        mica_guest::prepare_ivshmem(path, bytes, owner)?;
    }
    mica_guest::clear_unused_ivshmem(&paths);
    if let Ok(system) = rustix::fs::statvfs(FOLDER) {
        let room = system.f_bavail.saturating_mul(system.f_frsize);
        if let Some(text) = short_of_room(bytes.saturating_mul(u64::from(args.ivshmem)), room) {
            errln!("mica: {text}");
        }
    }
    Ok(paths)
}

/// What a person is told where programs cannot have all of the memory that they see. Emptied files take no room.
fn short_of_room(wanted: u64, room: u64) -> Option<String> {
    (wanted > room).then(|| {
        format!(
            "{FOLDER} has room for {}, less than the {} of shared memory: programs of the machine will be refused memory\n  \
             hint: mount -o remount,size={}M {FOLDER}, or a smaller --ivshmem or --ivshmem-size",
            show_bytes(room),
            show_bytes(wanted),
            wanted.saturating_mul(2) >> 20
        )
    })
}

/// Removes a machine's ivshmem files.
pub(super) fn detach(vgpu: &str) -> Result<()> {
    if vgpu.is_empty() || vgpu.contains('/') {
        bail!("{vgpu:?} is not the name of a virtual GPU");
    }
    let paths: Vec<PathBuf> = (0..MOST)
        .map(|number| path(vgpu, number))
        .filter(|path| path.exists())
        .collect();
    if paths.is_empty() && is_unknown(vgpu) {
        bail!(
            "there is neither a virtual GPU nor shared memory of the name {vgpu}\n  hint: `mica ls` shows those there are"
        );
    }
    if mica_guest::clear_unused_ivshmem(&paths) < paths.len() {
        bail!(
            "a program of the machine uses its shared memory: end the program or the machine first"
        );
    }
    for path in &paths {
        std::fs::remove_file(path)
            .with_context(|| format!("{} cannot be removed", path.display()))?;
    }
    outln!("{vgpu}: {} shared-memory devices removed", paths.len());
    Ok(())
}

/// Whether a daemon says that there is no such virtual GPU; without a daemon nobody knows.
fn is_unknown(vgpu: &str) -> bool {
    let answer = connect().map(|client| client.get(vgpu));
    matches!(answer, Ok(Err(ControlError::Refused(_))))
}

/// What the commands and configurations of a machine say of its ivshmem files.
pub(super) struct Snippets<'a> {
    vgpu: &'a str,
    args: &'a IvshmemArgs,
    mebibytes: u64,
}

impl<'a> Snippets<'a> {
    pub(super) fn new(vgpu: &'a str, args: &'a IvshmemArgs) -> Result<Self> {
        let mebibytes = bytes_each(args)? >> 20;
        Ok(Self {
            vgpu,
            args,
            mebibytes,
        })
    }

    /// For `mica vm serve`.
    pub(super) fn words(&self) -> String {
        let Self {
            args, mebibytes, ..
        } = self;
        match args.ivshmem {
            0 => " --ivshmem 0".into(),
            count => format!(" --ivshmem {count} --ivshmem-size {mebibytes}MiB"),
        }
    }

    /// For QEMU: one device for each ivshmem file.
    pub(super) fn qemu(&self) -> String {
        (0..self.args.ivshmem)
            .map(|number| {
                format!(
                    " \\\n        -object memory-backend-file,id=mica{number},mem-path={},size={}M,share=on \
                     -device ivshmem-plain,memdev=mica{number}",
                    path(self.vgpu, number).display(),
                    self.mebibytes
                )
            })
            .collect()
    }

    /// For libvirt.
    pub(super) fn libvirt(&self) -> String {
        (0..self.args.ivshmem)
            .map(|number| {
                format!(
                    "\n    <shmem name='{}'>\n      <model type='ivshmem-plain'/>\n      <size unit='M'>{}</size>\n    </shmem>",
                    file_name(self.vgpu, number),
                    self.mebibytes
                )
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_folder_is_told_before_a_program_finds_out() {
        assert_eq!(short_of_room(512 << 20, 512 << 20), None);
        let text = short_of_room(512 << 20, 64 << 20).unwrap();
        assert!(
            text.contains("has room for 64 MiB, less than the 512 MiB"),
            "{text}"
        );
        assert!(text.contains("size=1024M"), "{text}");
    }
}
