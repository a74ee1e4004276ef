//! Whether a virtual GPU may be made: names, values, quotas and room.

use mica_control::api::{ApiError, GpuKind, Percent, VgpuSpec};

use super::{Registry, Vgpu};
use crate::devices::host_memory_bytes;
use crate::placement::{Candidate, PlacementRequest, choose, error, size};

impl Registry {
    pub(super) fn wish(&self, spec: &VgpuSpec) -> PlacementRequest {
        let sharing = &self.config.sharing;
        PlacementRequest {
            memory_bytes: spec.memory_limit_bytes,
            memory_percent: spec.memory_limit_percent,
            share_percent: spec.share_percent,
            gpu: spec.gpu,
            placement: spec.placement,
            mode: spec.mode,
            // Memory of a swappable virtual GPU has bounds of its own.
            overcommit_memory: sharing.overcommit_memory && spec.swap != Some(true),
            overcommit_share: sharing.overcommit_share,
            default_memory_bytes: sharing.default_memory_bytes,
        }
    }

    /// Whether a virtual GPU of another GPU has a place on this one.
    pub(crate) fn check_place(&self, vgpu: &Vgpu, gpu: u32) -> Result<(), ApiError> {
        let spec = VgpuSpec {
            gpu: Some(gpu),
            memory_limit_bytes: Some(vgpu.ledger.limit_bytes()),
            memory_limit_percent: None,
            ..vgpu.spec.clone()
        };
        let candidates = self.candidates(vgpu.owner_uid, vgpu.is_swappable());
        choose(&candidates, &self.wish(&spec)).map(drop)
    }

    /// Host memory for memory that is away.
    fn backing_store_bytes(&self) -> u64 {
        match self.config.swap.arena_bytes {
            0 => host_memory_bytes() / 2,
            bytes => bytes,
        }
    }

    /// Memory that one more virtual GPU can have on a GPU of this size, and the other rule that bounds it, if one does.
    fn unreserved(&self, gpu: usize, total_bytes: u64, swap: bool) -> (u64, Option<String>) {
        let limits = |swappable: bool| {
            let here = self.vgpus.values().filter(move |v| v.has_place_on(gpu));
            let such = here.filter(move |v| v.is_swappable() == swappable);
            such.map(|v| v.ledger.limit_bytes())
        };
        let fixed = limits(false).sum::<u64>() + self.region_bytes(gpu);
        if !swap {
            // Each swappable one must fit beside all that never leave.
            let largest = limits(true).max().unwrap_or(0);
            return (total_bytes.saturating_sub(fixed + largest), None);
        }
        let beside = self.swap_capacity_bytes(gpu).saturating_sub(fixed);
        let factor = self.config.swap.overcommit;
        let most = (total_bytes as f64 * factor) as u64;
        let within = most.saturating_sub(fixed + limits(true).sum::<u64>());
        let everywhere = self.vgpus.values().filter(|v| v.is_swappable());
        let kept: u64 = everywhere.map(|v| v.ledger.limit_bytes()).sum();
        let store = self.backing_store_bytes();
        let in_store = store.saturating_sub(kept);
        let least = beside.min(within).min(in_store);
        let bound = match least {
            _ if least == beside => None,
            _ if least == within => Some(format!(
                "limits may add up to {factor} times the GPU (swap.overcommit)"
            )),
            _ => Some(format!(
                "host memory for swapping is {}, of which {} are reserved (swap.arena_bytes)",
                size(store),
                size(kept)
            )),
        };
        (least, bound)
    }

    /// The GPUs as placement sees them, for a user: what others have is counted and not named.
    pub(super) fn candidates(&self, uid: u32, swap: bool) -> Vec<Candidate> {
        let sharing = &self.config.sharing;
        self.gpus
            .iter()
            .enumerate()
            .map(|(index, gpu)| {
                let here = || self.vgpus.values().filter(|v| v.has_place_on(index));
                let kept = match gpu.facts.kind {
                    GpuKind::Nvidia => sharing.reserve_bytes,
                    GpuKind::Software => 0,
                };
                let total_bytes = gpu.facts.memory_total_bytes.saturating_sub(kept);
                let (unreserved, bound) = self.unreserved(index, total_bytes, swap);
                Candidate {
                    index: index as u32,
                    kind: gpu.facts.kind,
                    total_bytes,
                    reserved_bytes: total_bytes - unreserved.min(total_bytes),
                    bound,
                    share_reserved_percent: here().filter_map(|v| v.spec.share_percent).sum(),
                    vgpus: here().count() as u32,
                    load_percent: gpu
                        .reading
                        .utilization_percent
                        .unwrap_or(gpu.charged_percent),
                    unusable: (gpu.lost.as_ref())
                        .or(gpu.unshareable.as_ref())
                        .or(gpu.closed())
                        .cloned(),
                    largest: here()
                        .filter(|v| uid == 0 || v.owner_uid == uid)
                        .max_by_key(|v| v.ledger.limit_bytes())
                        .map(|v| (v.name.clone(), v.ledger.limit_bytes())),
                }
            })
            .collect()
    }

    /// Whether a user may have one more virtual GPU, or `except` with these values instead of its own.
    pub(super) fn check_quota(
        &self,
        uid: u32,
        limit: u64,
        share_percent: Option<Percent>,
        except: Option<&str>,
    ) -> Result<(), ApiError> {
        let quota = self.config.quota_of(uid);
        let own = || {
            let all = self.vgpus.values().filter(|v| v.owner_uid == uid);
            all.filter(|v| Some(v.name.as_str()) != except)
        };
        let over = |what: String| {
            error(
                "quota",
                format!("user {uid} may have {what}"),
                Some("remove one of your virtual GPUs, or ask the administrator".into()),
            )
        };
        if let Some(most) = quota.vgpus
            && own().count() as u32 >= most
        {
            return Err(over(format!("{most} virtual GPUs and has them")));
        }
        self.check_memory_quota(uid, limit, except)?;
        let share: Percent = own().filter_map(|v| v.spec.share_percent).sum();
        if let Some(most) = quota.share_percent
            && share + share_percent.unwrap_or_default() > most
        {
            return Err(over(format!("shares of {most} % and has {share} %")));
        }
        Ok(())
    }

    /// Whether a user may have these bytes more, for virtual GPUs (without `except`) and regions.
    pub(super) fn check_memory_quota(
        &self,
        uid: u32,
        more: u64,
        except: Option<&str>,
    ) -> Result<(), ApiError> {
        let own = self.vgpus.values().filter(|v| v.owner_uid == uid);
        let others = own.filter(|v| Some(v.name.as_str()) != except);
        let limits: u64 = others.map(|v| v.ledger.limit_bytes()).sum();
        let memory = limits + self.region_bytes_of_user(uid);
        match self.config.quota_of(uid).memory_bytes {
            Some(most) if memory.saturating_add(more) > most => Err(error(
                "quota",
                format!(
                    "user {uid} may have {} of GPU memory, has {} and asked for {} more",
                    size(most),
                    size(memory),
                    size(more)
                ),
                Some("remove one of your virtual GPUs, or ask the administrator".into()),
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn made_up_name(&mut self) -> String {
        loop {
            let id = self.fresh_id();
            let name = format!("vgpu-{id}");
            if !self.vgpus.contains_key(&name) {
                return name;
            }
        }
    }
}

pub(super) fn check_name(name: &str) -> Result<(), ApiError> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts_well && name.len() <= 64 && name.chars().all(good) {
        return Ok(());
    }
    Err(error(
        "invalid",
        format!("{name:?} is not a name for a virtual GPU"),
        Some(
            "use up to 64 letters, digits, '-', '_' and '.', beginning with a letter or digit"
                .into(),
        ),
    ))
}

pub(super) fn check_spec(spec: &VgpuSpec) -> Result<(), ApiError> {
    let invalid = |message: &str| Err(error("invalid", message.into(), None));
    let is_part = |percent: Percent| (Percent::from(1)..=Percent::WHOLE).contains(&percent);
    match spec.share_percent {
        Some(share) if !is_part(share) => {
            return invalid("a share is between 1 and 100 percent");
        }
        None if spec.cap => return invalid("a cap needs a share to be capped at"),
        _ => {}
    }
    if spec.memory_limit_percent.is_some_and(|part| !is_part(part)) {
        return invalid("a memory limit is between 1 and 100 percent of the GPU's memory");
    }
    if spec.memory_limit_percent.is_some() && spec.memory_limit_bytes.is_some() {
        return invalid("a memory limit is given in bytes or in percent, not both");
    }
    if spec.memory_limit_bytes.is_some_and(|bytes| bytes < 1 << 20) {
        return invalid("a memory limit is at least 1 MiB");
    }
    if spec.cores.is_some_and(|cores| !(1..=1024).contains(&cores)) {
        return invalid("kernels run on 1 to 1024 cores");
    }
    if (spec.capability.as_deref()).is_some_and(|text| !["8.0", "9.0"].contains(&text)) {
        return invalid("the software GPU has compute capability 8.0 or 9.0");
    }
    if spec.max_streams == Some(0) {
        return invalid("a virtual GPU needs at least one stream");
    }
    Ok(())
}

pub(super) fn random_token() -> Result<[u8; 16], ApiError> {
    use std::io::Read;
    let mut token = [0; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut token))
        .map_err(|source| {
            error(
                "internal",
                format!("no random numbers can be had: {source}"),
                None,
            )
        })?;
    Ok(token)
}
