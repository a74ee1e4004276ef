//! The memory that a virtual machine shares with its host: its files, and what QEMU and libvirt are told of them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use mica_command::size::Size;
use mica_command::users::user_number;

use crate::args::IvshmemArgs;

/// Where the files are: libvirt takes them from here, by their names.
const FOLDER: &str = "/dev/shm";
/// Most regions that a machine can have.
const MOST: u32 = 32;

/// The name of a region.
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

/// Makes the files of a machine's regions, or takes those of an earlier run.
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
        mica_guest::prepare_region(path, bytes, owner)?;
    }
    mica_guest::clear_unused_regions(&paths);
    Ok(paths)
}

/// Removes the files of a machine's regions.
pub(super) fn detach(vgpu: &str) -> Result<()> {
    if vgpu.is_empty() || vgpu.contains('/') {
        bail!("{vgpu:?} is not the name of a virtual GPU");
    }
    let paths: Vec<PathBuf> = (0..MOST)
        .map(|number| path(vgpu, number))
        .filter(|path| path.exists())
        .collect();
    if mica_guest::clear_unused_regions(&paths) < paths.len() {
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

/// What the commands and configurations of a machine say of its regions.
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

    /// For QEMU: one device a region.
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
