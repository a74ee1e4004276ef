//! From the words on the command line to what the daemon is asked for.

use anyhow::{Context, Result, bail};
use mica_control::api::{
    GpuKind, Mode, OnFull, Placement, PrecisionPolicy, Priority, Profile, VgpuSpec,
};
use mica_control::client::ControlClient;

use crate::args::{ModeArg, PlacementArg, PrecisionArg, PriorityArg, ProfileArg, SpecArgs};
use mica_command::size::Memory;

/// The specification that the options describe.
pub(crate) fn specification(args: &SpecArgs, client: &ControlClient) -> Result<VgpuSpec> {
    let gpu = args
        .gpu
        .as_deref()
        .map(|gpu| gpu_index(gpu, client))
        .transpose()?;
    specification_on(args, gpu)
}

/// The same, on a GPU that is known already or is chosen elsewhere.
pub(crate) fn specification_on(args: &SpecArgs, gpu: Option<u32>) -> Result<VgpuSpec> {
    Ok(VgpuSpec {
        memory_limit_bytes: args.memory.and_then(Memory::bytes),
        memory_limit_percent: args.memory.and_then(Memory::part),
        share_percent: args.share.map(|share| share.0),
        cap: args.cap,
        priority: priority(args.priority),
        gpu,
        placement: match args.placement {
            PlacementArg::Fit => Placement::Fit,
            PlacementArg::Spread => Placement::Spread,
            PlacementArg::Pack => Placement::Pack,
            PlacementArg::LeastLoaded => Placement::LeastLoaded,
        },
        mode: args.mode.map(|mode| match mode {
            ModeArg::Direct => Mode::Direct,
            ModeArg::Isolated => Mode::Isolated,
        }),
        on_full: match args.wait {
            Some(seconds) if seconds >= 0.0 => OnFull::Wait {
                timeout_ms: (seconds * 1e3) as u64,
            },
            Some(seconds) => bail!("--wait {seconds}: write how many seconds, such as 30"),
            None => OnFull::Fail,
        },
        swap: match (args.swap, args.no_swap) {
            (true, _) => Some(true),
            (false, true) => Some(false),
            (false, false) => None,
        },
        guard: args.guard,
        max_streams: args.max_streams,
        profile: args.profile.map(|profile| match profile {
            ProfileArg::Throughput => Profile::Throughput,
            ProfileArg::Balanced => Profile::Balanced,
            ProfileArg::Latency => Profile::Latency,
        }),
        tensor_cores: !args.no_tensor_cores,
        precision_policy: match args.precision {
            PrecisionArg::AsAsked => PrecisionPolicy::AsAsked,
            PrecisionArg::Full => PrecisionPolicy::Full,
            PrecisionArg::Reduced => PrecisionPolicy::Reduced,
        },
        allow_degraded: args.allow_degraded,
        ..VgpuSpec::default()
    })
}

/// The daemon's word for a priority.
pub(crate) fn priority(priority: PriorityArg) -> Priority {
    match priority {
        PriorityArg::High => Priority::High,
        PriorityArg::Normal => Priority::Normal,
        PriorityArg::Low => Priority::Low,
    }
}

pub(crate) fn gpu_index(text: &str, client: &ControlClient) -> Result<u32> {
    if let Ok(index) = text.parse() {
        return Ok(index);
    }
    let gpus = client.gpus().context("the daemon does not list its GPUs")?;
    let wanted = match text {
        "software" => GpuKind::Software,
        "nvidia" => GpuKind::Nvidia,
        other => bail!("--gpu {other}: write an index (see `mica gpus`), nvidia or software"),
    };
    match gpus.iter().find(|gpu| gpu.kind == wanted) {
        Some(gpu) => Ok(gpu.index),
        None => bail!(
            "--gpu {text}: this host has no such GPU that Mica can use\n  hint: `mica gpus` lists its GPUs; `mica doctor` may say why one is missing"
        ),
    }
}
