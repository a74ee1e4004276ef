//! The blocks of a cluster, run in turns on one thread as the device does.

use std::sync::Arc;

use mica_kernel::{
    BlockContext, BlockOutcome, Cluster, ClusterPlace, Dim3, Executable, Fault, LiveSlot, Monitor,
    MonitorRef,
};

use super::Device;
use super::watch::Watch;

/// A block with its own memory.
pub(super) struct Member {
    context: BlockContext,
    scratch: Vec<u128>,
    live: Vec<LiveSlot>,
    watch: Box<Watch>,
    is_told: bool,
}

impl Member {
    /// A block like `context`, with memory of its own.
    pub(super) fn new(device: &mut Device, kernel: usize, context: &BlockContext) -> Member {
        let locals = context.local_stride * context.block.count();
        let shared_base = device.alloc(context.shared_len.max(16));
        let local_base = device.alloc(locals);
        if device.gap > 0 {
            device.allow(shared_base, context.shared_len);
            device.allow(local_base, locals);
        }
        let scratch = device
            .module
            .scratch_bytes(kernel, context.block.count() as u32);
        Member {
            context: BlockContext {
                shared_base,
                local_base,
                ..context.clone()
            },
            scratch: vec![0; scratch.div_ceil(16) + 4],
            live: vec![LiveSlot::default(); device.module.live_slots(kernel)],
            watch: Box::new(Watch {
                host: Arc::clone(&device.host),
                locals: (local_base, context.local_stride),
            }),
            is_told: device.module.tells_monitor(kernel),
        }
    }
}

/// Runs the blocks of the cluster with this place among `clusters`.
///
/// # Safety
/// As `Executable::run_block` asks of each member.
pub(super) unsafe fn run(
    module: &dyn Executable,
    kernel: usize,
    members: &mut [Member],
    place: Dim3,
    clusters: Dim3,
) -> (BlockOutcome, Fault) {
    let size = members.len() as u32;
    let mut cluster = Cluster::new(members.iter().map(|m| m.context.shared_base));
    let shared = &raw mut cluster;
    let mut monitors: Vec<MonitorRef> = members
        .iter_mut()
        .map(|m| MonitorRef(&raw mut *m.watch as *mut dyn Monitor))
        .collect();
    for (rank, (member, monitor)) in members.iter_mut().zip(&mut monitors).enumerate() {
        let rank = rank as u32;
        let context = &mut member.context;
        context.ctaid = Dim3 {
            x: place.x * size + rank,
            ..place
        };
        context.scratch = (member.scratch.as_mut_ptr() as usize).next_multiple_of(64) as *mut u8;
        (context.live, context.live_len) = (member.live.as_mut_ptr(), member.live.len() as u64);
        context.monitor = match member.is_told {
            true => &raw mut *monitor,
            false => std::ptr::null_mut(),
        };
        (context.fault, context.resumes) = (Fault::default(), 0);
        if size == 1 {
            context.cluster_place = ClusterPlace::alone(context.ctaid, clusters);
            // SAFETY: by contract.
            let outcome = unsafe { module.run_block(kernel, context) };
            return (outcome, context.fault);
        }
        context.cluster = shared;
        context.cluster_place = ClusterPlace {
            extent: Dim3 {
                x: size,
                y: 1,
                z: 1,
            },
            block: Dim3 {
                x: rank,
                y: 0,
                z: 0,
            },
            cluster: place,
            clusters,
            rank,
            size,
            is_explicit: 1,
        };
    }
    // SAFETY: by contract, and the cluster and the monitors outlive the rounds.
    unsafe { rounds(module, kernel, members, shared) }
}

/// Gives each block a turn until all are over, or none can go on.
///
/// # Safety
/// As for [`run`].
unsafe fn rounds(
    module: &dyn Executable,
    kernel: usize,
    members: &mut [Member],
    shared: *mut Cluster,
) -> (BlockOutcome, Fault) {
    loop {
        // SAFETY: no block runs now.
        let before = unsafe { *shared };
        let mut waiting = None;
        for (rank, member) in members.iter_mut().enumerate() {
            // SAFETY: as above.
            if unsafe { (*shared).is_over[rank] } {
                continue;
            }
            let context = &mut member.context;
            // SAFETY: by contract.
            match unsafe { module.run_block(kernel, context) } {
                // SAFETY: as above.
                BlockOutcome::Done => unsafe { (*shared).is_over[rank] = true },
                BlockOutcome::Waiting => {
                    context.resumes = 1;
                    waiting = waiting.or(Some(context.fault));
                }
                ended => return (ended, context.fault),
            }
        }
        let Some(fault) = waiting else {
            return (BlockOutcome::Done, Fault::default());
        };
        // SAFETY: as above.
        let now = unsafe { *shared };
        let moved = (now.ended, now.is_over) != (before.ended, before.is_over);
        let is_live = |rank: &usize| !now.is_over[*rank];
        if !moved
            && (0..members.len())
                .filter(is_live)
                .all(|rank| now.is_stuck[rank])
        {
            return (BlockOutcome::Faulted, fault);
        }
    }
}
