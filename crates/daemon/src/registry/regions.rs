//! Regions: memory that several virtual GPUs share, with an account of its own.
//!
//! The daemon holds a file that stands for the memory: on the software GPU the memory itself, which the daemon makes; on an
//! NVIDIA GPU a file of the driver, from the first worker that opens the region. A worker is given the file if the region is
//! attached to its virtual GPU. The file is not on disk: a daemon that is started anew gets it from a worker that has
//! the region open.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use mica_control::api::{
    ApiError, GpuKind, Mode, Placement, RegionAccess, RegionAttachment, RegionHandle, RegionInfo,
    RegionSpec,
};
use mica_memory::FRAME_BYTES;
use mica_wire::session::{SharedHandle, check_foreign, create_sealed};
use serde::{Deserialize, Serialize};

use super::admission::{check_name, random_token};
use super::names::full_name;
use super::{Gpu, Registry, Vgpu};
use crate::http::Rights;
use crate::placement::{PlacementRequest, choose, error, size};

/// Regions of one user at most: each is a descriptor of the daemon.
const MOST_OF_ONE_USER: usize = 64;
/// How long a new daemon waits for workers of an earlier one, which may have a region open.
const RETURN_WITHIN: Duration = Duration::from_secs(10);

/// A region as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoredRegion {
    name: String,
    owner_uid: u32,
    gpu_key: String,
    bytes: u64,
    /// What workers ask for it by.
    id: [u8; 16],
    attached: BTreeMap<String, RegionAccess>,
    created_at_seconds: u64,
    /// Device and inode of the file with its memory, by which the file is known again.
    #[serde(default)]
    inode: Option<(u64, u64)>,
}

/// A region.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) gpu: usize,
    kept: StoredRegion,
    file: Option<OwnedFd>,
    /// The client that was told to make its memory.
    maker: Option<u64>,
    /// Until when a worker may bring the memory that an earlier daemon had.
    expected_until: Option<Instant>,
}

/// What a worker that opens a region is given.
pub(crate) enum OpenedRegion {
    /// The file, and what may be done with the memory.
    File(OwnedFd, u64, RegionAccess),
    /// The region has no memory yet: the worker makes these bytes.
    ToMake(u64),
}

impl Region {
    pub(crate) fn owner_uid(&self) -> u32 {
        self.kept.owner_uid
    }

    /// True for a region in the memory of a software GPU.
    fn is_software(&self, gpus: &[Gpu]) -> bool {
        let gpu = gpus.get(self.gpu);
        gpu.is_some_and(|gpu| gpu.facts.kind == GpuKind::Software)
    }

    pub(crate) fn info(&self) -> RegionInfo {
        let kept = &self.kept;
        let attachment = |(vgpu, access): (&String, &RegionAccess)| RegionAttachment {
            vgpu: vgpu.clone(),
            access: *access,
        };
        RegionInfo {
            name: kept.name.clone(),
            bytes: kept.bytes,
            gpu: u32::try_from(self.gpu).unwrap_or(u32::MAX),
            owner_uid: self.owner_uid(),
            created_at_seconds: kept.created_at_seconds,
            has_memory: self.file.is_some(),
            attached: kept.attached.iter().map(attachment).collect(),
        }
    }

    /// Keeps the file with its memory.
    fn keep(&mut self, file: OwnedFd) {
        self.kept.inode = inode(&file);
        self.file = Some(file);
        self.maker = None;
        self.expected_until = None;
    }

    fn has(&self, id: &[u8; 16]) -> bool {
        self.kept.id == *id
    }
}

fn inode(file: &OwnedFd) -> Option<(u64, u64)> {
    let stat = rustix::fs::fstat(file).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// Memory of the software GPU, which only this daemon's user can open anew for writing.
fn software_memory(bytes: u64) -> Result<OwnedFd, ApiError> {
    let made = create_sealed("mica-region", bytes).and_then(|file| {
        rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(0o600))?;
        Ok(file)
    });
    made.map_err(|source| {
        let what = format!("no memory of {} can be had: {source}", size(bytes));
        error("internal", what, None)
    })
}

/// The same file, opened anew.
fn reopened(file: impl AsFd, access: RegionAccess) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let how = match access {
        RegionAccess::Read => rustix::fs::OFlags::RDONLY,
        RegionAccess::ReadWrite => rustix::fs::OFlags::RDWR,
    };
    rustix::fs::open(
        path,
        how | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
}

/// Bytes of a region, which has whole frames.
fn whole_frames(bytes: u64) -> Result<u64, ApiError> {
    let whole = bytes.checked_next_multiple_of(FRAME_BYTES);
    let empty = || error("invalid", "a region has at least one byte".into(), None);
    whole.filter(|bytes| *bytes > 0).ok_or_else(empty)
}

/// Room for a region, which has no share and cannot be larger than what is unreserved.
fn wish(bytes: u64, gpu: Option<u32>) -> PlacementRequest {
    PlacementRequest {
        memory_bytes: Some(bytes),
        memory_percent: None,
        share_percent: None,
        gpu,
        placement: Placement::Fit,
        mode: None,
        overcommit_memory: false,
        overcommit_share: false,
        default_memory_bytes: 0,
    }
}

fn no_such_region(name: &str) -> ApiError {
    error(
        "not_found",
        format!("there is no region named {name}"),
        Some("`mica region ls` lists all regions".into()),
    )
}

impl Registry {
    /// The full name of what a user calls by a name, if the user may change it.
    pub(crate) fn region_meant_by(
        &self,
        uid: u32,
        name: &str,
        rights: Rights,
    ) -> Result<String, ApiError> {
        let own = full_name(name, uid);
        [own.as_str(), name]
            .into_iter()
            .find(|name| {
                let region = self.regions.get(*name);
                region.is_some_and(|region| rights.cover(region.owner_uid()))
            })
            .map(str::to_owned)
            .ok_or_else(|| no_such_region(name))
    }

    /// Bytes of a GPU that regions have.
    pub(crate) fn region_bytes(&self, gpu: usize) -> u64 {
        let here = self.regions.values().filter(|region| region.gpu == gpu);
        here.map(|region| region.kept.bytes).sum()
    }

    /// Bytes of a user's regions.
    pub(super) fn region_bytes_of_user(&self, uid: u32) -> u64 {
        let own = self
            .regions
            .values()
            .filter(|region| region.owner_uid() == uid);
        own.map(|region| region.kept.bytes).sum()
    }

    /// Bytes of the regions that are attached to a virtual GPU.
    pub(crate) fn attached_bytes(&self, vgpu: &str) -> u64 {
        let attached = |region: &&Region| region.kept.attached.contains_key(vgpu);
        let regions = self.regions.values().filter(attached);
        regions.map(|region| region.kept.bytes).sum()
    }

    /// How the programs of a virtual GPU open its regions.
    pub(crate) fn region_handles(&self, vgpu: &str) -> Vec<RegionHandle> {
        let handle = |region: &Region| {
            let kept = &region.kept;
            let access = *kept.attached.get(vgpu)?;
            let handle = SharedHandle::of_region(kept.id, kept.bytes).encode();
            Some(RegionHandle {
                name: kept.name.clone(),
                handle: handle.iter().map(|byte| format!("{byte:02x}")).collect(),
                bytes: kept.bytes,
                access,
            })
        };
        self.regions.values().filter_map(handle).collect()
    }

    /// Makes a region for a user.
    pub(crate) fn create_region(
        &mut self,
        spec: &RegionSpec,
        uid: u32,
    ) -> Result<RegionInfo, ApiError> {
        check_name(&spec.name)?;
        let name = full_name(&spec.name, uid);
        if self.regions.contains_key(&name) {
            return Err(error(
                "exists",
                format!("a region named {} exists", spec.name),
                Some("choose another name, or remove it with `mica region rm`".into()),
            ));
        }
        let own = (self.regions.values()).filter(|region| region.owner_uid() == uid);
        if own.count() >= MOST_OF_ONE_USER {
            let what = format!("user {uid} has {MOST_OF_ONE_USER} regions, and may have no more");
            return Err(error("quota", what, None));
        }
        let bytes = whole_frames(spec.bytes)?;
        let wish = wish(bytes, spec.gpu);
        let (gpu, _) = choose(&self.candidates(uid, false), &wish)?;
        self.check_memory_quota(uid, bytes, None)?;
        let facts = &self.gpus[gpu as usize].facts;
        let kept = StoredRegion {
            name: name.clone(),
            owner_uid: uid,
            gpu_key: facts.key(),
            bytes,
            id: random_token()?,
            attached: BTreeMap::new(),
            created_at_seconds: crate::events::now_seconds() as u64,
            inode: None,
        };
        let mut region = Region {
            gpu: gpu as usize,
            kept,
            file: None,
            maker: None,
            expected_until: None,
        };
        if facts.kind == GpuKind::Software {
            region.keep(software_memory(bytes)?);
        }
        let info = region.info();
        self.regions.insert(name, region);
        Ok(info)
    }

    /// Lets the programs of a virtual GPU open a region. Both names are full names.
    pub(crate) fn attach_region(
        &mut self,
        name: &str,
        vgpu: &str,
        access: RegionAccess,
    ) -> Result<RegionInfo, ApiError> {
        let here = self.vgpu(vgpu)?;
        if self.mode(here) == Mode::Direct {
            return Err(error(
                "enforcement",
                format!(
                    "{vgpu} is direct: its programs speak to the driver themselves, and a region is handed out by a worker"
                ),
                Some("regions are for isolated virtual GPUs (--mode isolated)".into()),
            ));
        }
        let (at, running) = (here.gpu, self.programs_in(here));
        let region = self
            .regions
            .get_mut(name)
            .ok_or_else(|| no_such_region(name))?;
        if region.gpu != at {
            return Err(error(
                "state",
                format!(
                    "the region {name} is in the memory of GPU {}, and {vgpu} is on GPU {at}",
                    region.gpu
                ),
                Some("make the region with --gpu on the GPU of the virtual GPU".into()),
            ));
        }
        let before = region.kept.attached.get(vgpu);
        let is_less = before == Some(&RegionAccess::ReadWrite) && access == RegionAccess::Read;
        if is_less && running > 0 {
            return Err(still_open(name, vgpu));
        }
        region.kept.attached.insert(vgpu.to_owned(), access);
        Ok(region.info())
    }

    /// Takes a region from a virtual GPU. Both names are full names.
    pub(crate) fn detach_region(&mut self, name: &str, vgpu: &str) -> Result<RegionInfo, ApiError> {
        let running = self
            .vgpus
            .get(vgpu)
            .map_or(0, |vgpu| self.programs_in(vgpu));
        let region = self
            .regions
            .get_mut(name)
            .ok_or_else(|| no_such_region(name))?;
        if !region.kept.attached.contains_key(vgpu) {
            let what = format!("the region {name} is not attached to {vgpu}");
            return Err(error("not_found", what, None));
        }
        // What a program has mapped stays mapped until the program ends.
        if running > 0 {
            return Err(still_open(name, vgpu));
        }
        region.kept.attached.remove(vgpu);
        Ok(region.info())
    }

    /// Removes a region.
    pub(crate) fn remove_region(&mut self, name: &str, force: bool) -> Result<(), ApiError> {
        let region = self.regions.get(name).ok_or_else(|| no_such_region(name))?;
        let in_use = |vgpu: &&String| {
            let vgpu = self.vgpus.get(*vgpu);
            vgpu.is_some_and(|vgpu: &Vgpu| self.programs_in(vgpu) > 0)
        };
        let attached = || region.kept.attached.keys();
        if let Some(vgpu) = attached().find(in_use) {
            return Err(still_open(name, vgpu));
        }
        if attached().next().is_some() && !force {
            let names: Vec<&str> = attached().map(String::as_str).collect();
            return Err(error(
                "busy",
                format!("the region {name} is attached to {}", names.join(", ")),
                Some("detach it, or remove it with --force".into()),
            ));
        }
        self.regions.remove(name);
        Ok(())
    }

    /// A virtual GPU has gone: another one of its name has none of its regions.
    pub(super) fn detach_everything(&mut self, vgpu: &str) {
        for region in self.regions.values_mut() {
            region.kept.attached.remove(vgpu);
        }
    }

    /// Opens the region that a handle names for a worker of a virtual GPU; `None` if the handle names no region.
    pub(crate) fn open_region(
        &mut self,
        client: u64,
        vgpu: &str,
        id: &[u8; 16],
    ) -> Option<Result<OpenedRegion, String>> {
        let region = self.regions.values_mut().find(|region| region.has(id))?;
        let Some(access) = region.kept.attached.get(vgpu).copied() else {
            // As if there were none: who is not given a region learns nothing of it.
            return None;
        };
        let name = &region.kept.name;
        if region.file.is_none()
            && region
                .expected_until
                .is_some_and(|until| Instant::now() < until)
        {
            return Some(Err(format!(
                "the daemon was started a moment ago, and no worker has brought the memory of the region {name} yet: try again"
            )));
        }
        let is_software = region.is_software(&self.gpus);
        if region.file.is_none() && is_software {
            tracing::warn!(
                "what was in the region {name} is lost: no program had it open when the daemon was started anew"
            );
            match software_memory(region.kept.bytes) {
                Ok(file) => region.keep(file),
                Err(error) => return Some(Err(error.error)),
            }
        }
        let bytes = region.kept.bytes;
        let Some(file) = &region.file else {
            region.maker = Some(client);
            return Some(Ok(OpenedRegion::ToMake(bytes)));
        };
        let given = match is_software {
            true => reopened(file, access),
            false => file.try_clone().map_err(|_| rustix::io::Errno::MFILE),
        };
        if let (Ok(_), Some(client)) = (&given, self.clients.get_mut(&client)) {
            client.opened_regions.insert(*id, bytes);
        }
        let given = given.map(|file| OpenedRegion::File(file, bytes, access));
        Some(
            given.map_err(|error| {
                format!("the region {} cannot be opened: {error}", region.kept.name)
            }),
        )
    }

    /// A worker brings the memory of a region: it was told to make it, or has kept it since an earlier daemon. `None` if
    /// this is no region that the virtual GPU has.
    pub(crate) fn bring_region(
        &mut self,
        client: u64,
        vgpu: &str,
        id: &[u8; 16],
        bytes: u64,
        file: OwnedFd,
    ) -> Option<Result<(), String>> {
        let region = self.regions.values_mut().find(|region| region.has(id))?;
        let access = *region.kept.attached.get(vgpu)?;
        // Another worker was faster: what it has brought is the region.
        if region.file.is_some() {
            return Some(Ok(()));
        }
        let is_software = region.is_software(&self.gpus);
        // Files of the driver look alike, so those that may only read are not believed.
        let is_it = match is_software {
            true => {
                region.kept.inode == inode(&file)
                    && check_foreign(&file, 0, region.kept.bytes).is_ok()
            }
            false => region.maker == Some(client) || access == RegionAccess::ReadWrite,
        };
        if bytes != region.kept.bytes || !is_it {
            return Some(Err("this is not the memory of the region".into()));
        }
        let file = match is_software {
            true => reopened(&file, RegionAccess::ReadWrite),
            false => Ok(file),
        };
        Some(match file {
            Ok(file) => {
                region.keep(file);
                Ok(())
            }
            Err(error) => Err(format!(
                "the memory of the region cannot be opened: {error}"
            )),
        })
    }

    /// What to keep of regions.
    pub(crate) fn stored_regions(&self) -> Vec<StoredRegion> {
        self.regions
            .values()
            .map(|region| region.kept.clone())
            .collect()
    }

    /// Puts back a region that an earlier daemon kept.
    pub(crate) fn restore_region(&mut self, kept: StoredRegion) {
        let gpu = self
            .gpus
            .iter()
            .position(|gpu| gpu.facts.key() == kept.gpu_key);
        let region = Region {
            gpu: gpu.unwrap_or(usize::MAX),
            file: None,
            maker: None,
            expected_until: Some(Instant::now() + RETURN_WITHIN),
            kept,
        };
        self.regions.insert(region.kept.name.clone(), region);
    }
}

fn still_open(name: &str, vgpu: &str) -> ApiError {
    error(
        "busy",
        format!("programs run in {vgpu} and may have the region {name} open"),
        Some(format!("end them first: `mica show {vgpu}` lists them")),
    )
}
