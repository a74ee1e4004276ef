//! What the device says of itself, and linear memory.

use mica_cuda_abi::{CuResult, DeviceAttribute, Limit};

use super::{Check, Session, case_list, ensure, refused};
use crate::DevicePtr;

case_list![
    properties_make_sense,
    attributes_agree_with_properties,
    free_memory_follows_allocations,
    allocations_are_aligned_and_apart,
    empty_and_huge_allocations_are_refused,
    free_takes_only_the_start_of_a_live_allocation,
    ranges_are_found_from_inside,
    limits_can_be_read_and_set,
];

fn properties_make_sense(s: &Session<'_>) -> Check {
    let p = s.gpu.properties();
    ensure!(
        !p.name.is_empty() && p.uuid != [0; 16],
        "no identity: {p:?}"
    );
    ensure!(
        p.multiprocessors >= 1 && p.total_memory >= 16 << 20,
        "{p:?}"
    );
    ensure!(p.max_threads_per_block >= 1024, "{p:?}");
    ensure!(p.max_shared_per_block >= 48 << 10, "{p:?}");
    ensure!(p.frame_bytes.is_power_of_two(), "{p:?}");
    let (least, most) = p.stream_priorities;
    ensure!(most <= least, "lower is more urgent: {p:?}");
    ensure!(p.compute_capability >= (7, 5), "{p:?}");
    Ok(())
}

fn attributes_agree_with_properties(s: &Session<'_>) -> Check {
    let p = s.gpu.properties();
    use DeviceAttribute::*;
    let pairs = [
        (MaxThreadsPerBlock, p.max_threads_per_block),
        (WarpSize, 32),
        (MultiprocessorCount, p.multiprocessors),
        (UnifiedAddressing, 1),
        (ComputeCapabilityMajor, p.compute_capability.0),
        (ComputeCapabilityMinor, p.compute_capability.1),
        (CooperativeLaunch, 1),
        (MaxSharedMemoryPerBlockOptin, p.max_shared_per_block),
        (VirtualMemoryManagementSupported, 1),
    ];
    for (attribute, expected) in pairs {
        let told = s.gpu.attribute(attribute);
        ensure!(
            told == Some(expected as i32),
            "{attribute:?}: {told:?}, not {expected}"
        );
    }
    Ok(())
}

fn free_memory_follows_allocations(s: &Session<'_>) -> Check {
    let bytes = 64 << 20;
    let (before, total) = s.gpu.memory_info()?;
    ensure!(before <= total, "{before} free of {total}");
    let at = s.alloc(bytes)?;
    let (during, _) = s.gpu.memory_info()?;
    ensure!(
        during + bytes <= before + (4 << 20),
        "{before} then {during}"
    );
    s.gpu.memory_free(s.context, at)?;
    let (after, _) = s.gpu.memory_info()?;
    ensure!(after >= during + bytes - (4 << 20), "{during} then {after}");
    Ok(())
}

fn allocations_are_aligned_and_apart(s: &Session<'_>) -> Check {
    let mut seen: Vec<(u64, u64)> = Vec::new();
    for bytes in [1, 255, 256, 257, 4096, 100_000, 3 << 20, 1] {
        let at = s.alloc(bytes)?.0;
        ensure!(at.is_multiple_of(256), "{at:#x} is not aligned");
        for (other, len) in &seen {
            ensure!(
                at + bytes <= *other || other + len <= at,
                "{at:#x} overlaps {other:#x}"
            );
        }
        seen.push((at, bytes));
    }
    Ok(())
}

fn empty_and_huge_allocations_are_refused(s: &Session<'_>) -> Check {
    refused(s.alloc(0), &[CuResult::InvalidValue], "0 bytes")?;
    let total = s.gpu.properties().total_memory;
    refused(
        s.alloc(total * 2),
        &[CuResult::OutOfMemory],
        "twice the memory",
    )?;
    refused(
        s.alloc(u64::MAX - 4096),
        &[CuResult::OutOfMemory, CuResult::InvalidValue],
        "all",
    )?;
    s.alloc(4096)?;
    Ok(())
}

fn free_takes_only_the_start_of_a_live_allocation(s: &Session<'_>) -> Check {
    let invalid = [CuResult::InvalidValue];
    let at = s.alloc(4096)?;
    refused(
        s.gpu.memory_free(s.context, at.offset(256)),
        &invalid,
        "inside",
    )?;
    refused(
        s.gpu.memory_free(s.context, DevicePtr(0x10)),
        &invalid,
        "foreign",
    )?;
    s.gpu.memory_free(s.context, at)?;
    refused(s.gpu.memory_free(s.context, at), &invalid, "twice")
}

fn ranges_are_found_from_inside(s: &Session<'_>) -> Check {
    let at = s.alloc(10_000)?;
    for offset in [0, 1, 9_999] {
        let (base, bytes) = s.gpu.memory_range(s.context, at.offset(offset))?;
        ensure!(base == at, "{base:?} is not {at:?}");
        ensure!(bytes >= 10_000, "{bytes} bytes");
    }
    s.gpu.memory_free(s.context, at)?;
    let codes = [CuResult::InvalidValue, CuResult::NotFound];
    refused(
        s.gpu.memory_range(s.context, DevicePtr(0x10)),
        &codes,
        "foreign",
    )?;
    refused(s.gpu.memory_range(s.context, at), &codes, "freed")
}

fn limits_can_be_read_and_set(s: &Session<'_>) -> Check {
    let stack = s.gpu.context_limit(s.context, Limit::StackSize)?;
    ensure!(stack >= 16, "a stack of {stack}");
    s.gpu.context_set_limit(s.context, Limit::StackSize, 4096)?;
    let stack = s.gpu.context_limit(s.context, Limit::StackSize)?;
    ensure!(stack >= 4096, "a stack of {stack}");
    s.gpu
        .context_set_limit(s.context, Limit::MallocHeapSize, 16 << 20)?;
    let heap = s.gpu.context_limit(s.context, Limit::MallocHeapSize)?;
    ensure!(heap >= 16 << 20, "a heap of {heap}");
    ensure!(
        s.gpu.context_limit(s.context, Limit::PrintfFifoSize)? >= 1024,
        "a printf buffer"
    );
    let codes = [CuResult::UnsupportedLimit, CuResult::InvalidValue];
    // Only contexts that share a GPU with graphics have this one.
    let graphics = Limit::CigShmemFallbackEnabled;
    let what = "a limit of graphics";
    refused(
        s.gpu.context_set_limit(s.context, graphics, 1),
        &codes,
        what,
    )
}
