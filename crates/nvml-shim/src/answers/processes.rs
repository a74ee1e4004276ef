//! Processes of the virtual GPU, and of nobody else.

use std::ffi::{c_char, c_uint, c_void};

use super::{answers, check, microseconds_now, put_list};
use crate::abi::{
    Device, GPU_IS_LOST, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, Process, ProcessV1, Return,
    SUCCESS, Sample, UNINITIALIZED,
};
use crate::forward::{slots, target};
use crate::state::{View, inside};
use crate::vgpu::Picture;

/// The picture, once the handle is known to be good.
pub(super) fn seen(view: &View, device: Device) -> Result<&Picture, Return> {
    match view {
        View::Outside => Err(NOT_SUPPORTED),
        View::Real(picture) => accepted(device).map(|()| picture),
        View::Software(picture) => check(device).map(|()| picture),
    }
}

/// Whether the real library takes the handle, and was initialized: any question about the device tells.
fn accepted(device: Device) -> Result<(), Return> {
    let mut name: [c_char; 96] = [0; 96];
    // SAFETY: the slot leads to NVML's function of this type or to a stub.
    let ask = unsafe {
        std::mem::transmute::<
            *mut c_void,
            unsafe extern "C" fn(Device, *mut c_char, c_uint) -> Return,
        >(target(&slots::nvmlDeviceGetName))
    };
    // SAFETY: the caller's handle, which the real library checks, and room for any name.
    match inside(|| unsafe { ask(device, name.as_mut_ptr(), name.len() as c_uint) }) {
        code @ (UNINITIALIZED | INVALID_ARGUMENT | GPU_IS_LOST) => Err(code),
        _ if device.is_null() => Err(INVALID_ARGUMENT),
        _ => Ok(()),
    }
}

fn listed(picture: &Picture) -> Vec<Process> {
    let entry = |process: &crate::vgpu::VgpuProcess| Process {
        pid: process.pid,
        used_bytes: process.memory_used_bytes,
        gpu_instance: u32::MAX,
        compute_instance: u32::MAX,
    };
    picture.processes.iter().map(entry).collect()
}

fn listed_v1(picture: &Picture) -> Vec<ProcessV1> {
    let short = |process: Process| ProcessV1 {
        pid: process.pid,
        used_bytes: process.used_bytes,
    };
    listed(picture).into_iter().map(short).collect()
}

fn samples(picture: &Picture, after_us: u64) -> Vec<Sample> {
    let timestamp_us = microseconds_now().max(after_us.saturating_add(1));
    let sample = |process: &crate::vgpu::VgpuProcess| Sample {
        pid: process.pid,
        timestamp_us,
        sm: process.utilization_percent.round() as c_uint,
        ..Sample::default()
    };
    picture.processes.iter().map(sample).collect()
}

macro_rules! lists {
    ($($name:ident: $type:ty = $entries:expr;)*) => {
        answers! {$(
            fn $name(device: Device, count: *mut c_uint, list: *mut $type) |view, _real| {
                match seen(&view, device) {
                    // SAFETY: the caller's own counter and list.
                    Ok(picture) => unsafe { put_list(count, list, &$entries(picture)) },
                    Err(code) => code,
                }
            }
        )*}
    };
}

lists! {
    nvmlDeviceGetComputeRunningProcesses: ProcessV1 = listed_v1;
    nvmlDeviceGetComputeRunningProcesses_v2: Process = listed;
    nvmlDeviceGetComputeRunningProcesses_v3: Process = listed;
    nvmlDeviceGetGraphicsRunningProcesses: ProcessV1 = (|_| [] as [ProcessV1; 0]);
    nvmlDeviceGetGraphicsRunningProcesses_v2: Process = (|_| [] as [Process; 0]);
    nvmlDeviceGetGraphicsRunningProcesses_v3: Process = (|_| [] as [Process; 0]);
    nvmlDeviceGetMPSComputeRunningProcesses: ProcessV1 = (|_| [] as [ProcessV1; 0]);
    nvmlDeviceGetMPSComputeRunningProcesses_v2: Process = (|_| [] as [Process; 0]);
    nvmlDeviceGetMPSComputeRunningProcesses_v3: Process = (|_| [] as [Process; 0]);
}

answers! {
    fn nvmlDeviceGetProcessUtilization(
        device: Device,
        list: *mut Sample,
        count: *mut c_uint,
        after_us: u64,
    ) |view, _real| {
        match seen(&view, device).map(|picture| samples(picture, after_us)) {
            Ok(_) if count.is_null() => INVALID_ARGUMENT,
            Ok(entries) if entries.is_empty() => NOT_FOUND,
            // SAFETY: the caller's own counter and list.
            Ok(entries) => unsafe { put_list(count, list, &entries) },
            Err(code) => code,
        }
    }

    // These tell of the whole GPU's processes in forms that cannot be narrowed.
    fn nvmlDeviceGetProcessesUtilizationInfo(device: Device, _info: *mut c_void) |view, _real| {
        refused(&view, device)
    }

    fn nvmlDeviceGetRunningProcessDetailList(device: Device, _list: *mut c_void) |view, _real| {
        refused(&view, device)
    }

    fn nvmlDeviceGetAccountingPids(
        device: Device,
        _count: *mut c_uint,
        _pids: *mut c_uint,
    ) |view, _real| {
        refused(&view, device)
    }

    fn nvmlDeviceGetAccountingStats(
        device: Device,
        _pid: c_uint,
        _stats: *mut c_void,
    ) |view, _real| {
        refused(&view, device)
    }

    fn nvmlDeviceGetAccountingStats_v2(device: Device, _stats: *mut c_void) |view, _real| {
        refused(&view, device)
    }
}

fn refused(view: &View, device: Device) -> Return {
    match seen(view, device).map(|_| SUCCESS) {
        Ok(_) => NOT_SUPPORTED,
        Err(code) => code,
    }
}
