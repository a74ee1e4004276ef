//! Virtual GPUs: how they are made, what they are and what they use.

use std::ffi::c_char;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use mica::{Device, NumberFormats};
use mica_ops::Ops;

use crate::handles::{get, insert, mica_vgpu, remove};
use crate::pointers::Out;
use crate::status::{Failure, Result, call, mica_status};

/// What a virtual GPU handle stands for.
pub(crate) struct Vgpu {
    pub(crate) vgpu: mica::Vgpu,
    ops: OnceLock<Ops>,
}

impl Vgpu {
    fn new(vgpu: mica::Vgpu) -> Self {
        let ops = OnceLock::new();
        Self { vgpu, ops }
    }

    /// The compute library, in the default stream.
    pub(crate) fn ops(&self) -> Result<&Ops> {
        if self.ops.get().is_none() {
            // Two threads may both make one; the first is kept.
            let _ = self.ops.set(Ops::new(&self.vgpu)?);
        }
        let none = || Failure::Argument("the compute library is gone".into());
        self.ops.get().ok_or_else(none)
    }
}

/// Refuses objects of two virtual GPUs in one call: their handles below this crate are numbers that may be equal.
pub(crate) fn same(name: &str, first: &Arc<Vgpu>, other: &Arc<Vgpu>) -> Result<()> {
    if Arc::ptr_eq(first, other) {
        return Ok(());
    }
    Err(Failure::Handle(format!(
        "{name} belongs to another virtual GPU"
    )))
}

/// Code with matrix instructions is refused.
pub const MICA_FORBID_TENSOR_CORES: u32 = 1;
/// Code that computes in 64-bit floats is refused.
pub const MICA_FORBID_F64: u32 = 2;
/// Code that computes in 16-bit floats is refused.
pub const MICA_FORBID_HALF: u32 = 4;
/// Code that computes in TF32 is refused.
pub const MICA_FORBID_TF32: u32 = 8;
/// Code that computes in 8-bit floats is refused.
pub const MICA_FORBID_F8: u32 = 16;

/// How a virtual GPU is to be. Set all to zero, then `struct_size`, then what is wanted.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mica_vgpu_options {
    /// `sizeof(mica_vgpu_options)`.
    pub struct_size: usize,
    /// The memory limit in bytes; 0 for all that the device has left.
    pub memory_bytes: u64,
    /// The share of the device in percent when others want it too; 0 for 100.
    pub share_percent: f64,
    /// Not 0: the share is also the most that the virtual GPU gets.
    pub cap: u32,
    /// Most streams beside the default one; 0 for no limit.
    pub max_streams: u32,
    /// A sum of MICA_FORBID_*.
    pub forbid: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Memory of a virtual GPU in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mica_memory {
    /// Can still be allocated.
    pub free_bytes: u64,
    /// The limit.
    pub limit_bytes: u64,
    /// In use.
    pub used_bytes: u64,
}

/// What a virtual GPU shows of its device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mica_device_info {
    /// The name, with a NUL at its end.
    pub name: [c_char; 128],
    /// The UUID.
    pub uuid: [u8; 16],
    /// Compute capability, first number.
    pub compute_major: u32,
    /// Compute capability, second number.
    pub compute_minor: u32,
    /// The memory limit in bytes.
    pub total_memory: u64,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Most threads of a block.
    pub max_threads_per_block: u32,
    /// Most bytes of shared memory of a block.
    pub max_shared_per_block: u32,
    /// 1 for the software GPU, else 0.
    pub is_software: u32,
}

/// The software GPU of this process, which all its embedded virtual GPUs share.
fn device() -> Result<Device> {
    static DEVICE: Mutex<Option<Device>> = Mutex::new(None);
    let mut device = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    match &*device {
        Some(device) => Ok(device.clone()),
        None => Ok(device.insert(Device::software()?).clone()),
    }
}

fn create(wanted: &mica_vgpu_options) -> Result<mica::Vgpu> {
    const KNOWN: u32 = MICA_FORBID_TENSOR_CORES
        | MICA_FORBID_F64
        | MICA_FORBID_HALF
        | MICA_FORBID_TF32
        | MICA_FORBID_F8;
    if wanted.forbid & !KNOWN != 0 || wanted.reserved != 0 {
        return Err(Failure::Argument(format!(
            "forbid is {:#x} and reserved {}: this library knows the bits {KNOWN:#x}, and reserved is 0",
            wanted.forbid, wanted.reserved
        )));
    }
    let allows = |bit| wanted.forbid & bit == 0;
    let mut builder = mica::Vgpu::builder()
        .cap(wanted.cap != 0)
        .max_streams(wanted.max_streams)
        .tensor_cores(allows(MICA_FORBID_TENSOR_CORES))
        .precision(NumberFormats {
            f64: allows(MICA_FORBID_F64),
            half: allows(MICA_FORBID_HALF),
            tf32: allows(MICA_FORBID_TF32),
            f8: allows(MICA_FORBID_F8),
        });
    if wanted.memory_bytes != 0 {
        builder = builder.memory(wanted.memory_bytes);
    }
    if wanted.share_percent != 0.0 {
        builder = builder.share(wanted.share_percent);
    }
    Ok(builder.build(&device()?)?)
}

/// Makes a virtual GPU in this process, on the software GPU. No daemon is needed. `options` may be null.
///
/// # Safety
/// Pointers are null or lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mica_vgpu_create(
    options: *const mica_vgpu_options,
    vgpu: *mut *mut mica_vgpu,
) -> mica_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new("vgpu", vgpu) }?;
        let defaults = mica_vgpu_options {
            struct_size: size_of::<mica_vgpu_options>(),
            memory_bytes: 0,
            share_percent: 0.0,
            cap: 0,
            max_streams: 0,
            forbid: 0,
            reserved: 0,
        };
        // SAFETY: the caller's promise; the struct begins with its size.
        let wanted = unsafe { crate::pointers::options("options", options, defaults) }?;
        out.set(insert(Vgpu::new(create(&wanted)?)));
        Ok(())
    })
}

/// Opens the virtual GPU that `mica run` or `mica exec` started this program in.
///
/// # Safety
/// `vgpu` is null or leads to room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mica_vgpu_connect(vgpu: *mut *mut mica_vgpu) -> mica_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new("vgpu", vgpu) }?;
        out.set(insert(Vgpu::new(mica::Vgpu::connect()?)));
        Ok(())
    })
}

/// Frees the handle. The virtual GPU ends when its buffers, streams, modules, kernels and tensors are freed too.
#[unsafe(no_mangle)]
pub extern "C" fn mica_vgpu_free(vgpu: *mut mica_vgpu) -> mica_status {
    call(|| remove("vgpu", vgpu))
}

/// Waits for all work of the virtual GPU, and reports what went wrong in it.
#[unsafe(no_mangle)]
pub extern "C" fn mica_vgpu_synchronize(vgpu: *mut mica_vgpu) -> mica_status {
    call(|| Ok(get("vgpu", vgpu)?.vgpu.synchronize()?))
}

/// Changes the memory limit.
#[unsafe(no_mangle)]
pub extern "C" fn mica_vgpu_resize(vgpu: *mut mica_vgpu, memory_bytes: u64) -> mica_status {
    call(|| Ok(get("vgpu", vgpu)?.vgpu.resize(memory_bytes)?))
}

/// Changes the share.
#[unsafe(no_mangle)]
pub extern "C" fn mica_vgpu_set_share(vgpu: *mut mica_vgpu, percent: f64) -> mica_status {
    call(|| Ok(get("vgpu", vgpu)?.vgpu.set_share(percent)?))
}

/// The memory of the virtual GPU now. Memory that the compute library keeps for later tensors counts as used.
///
/// # Safety
/// `memory` is null or leads to room for the struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mica_vgpu_memory(
    vgpu: *mut mica_vgpu,
    memory: *mut mica_memory,
) -> mica_status {
    call(|| {
        let vgpu = get("vgpu", vgpu)?;
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new("memory", memory) }?;
        let now = vgpu.vgpu.memory()?;
        out.set(mica_memory {
            free_bytes: now.free_bytes,
            limit_bytes: now.limit_bytes,
            used_bytes: now.used_bytes,
        });
        Ok(())
    })
}

/// What the virtual GPU shows of its device.
///
/// # Safety
/// `info` is null or leads to room for the struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mica_vgpu_info(
    vgpu: *mut mica_vgpu,
    info: *mut mica_device_info,
) -> mica_status {
    call(|| {
        let vgpu = get("vgpu", vgpu)?;
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new("info", info) }?;
        let shown = vgpu.vgpu.info();
        let mut name = [0; 128];
        let last = name.len() - 1;
        for (place, byte) in name[..last].iter_mut().zip(shown.name.bytes()) {
            *place = byte as c_char;
        }
        out.set(mica_device_info {
            name,
            uuid: shown.uuid,
            compute_major: shown.compute_capability.0,
            compute_minor: shown.compute_capability.1,
            total_memory: shown.total_memory,
            multiprocessors: shown.multiprocessors,
            max_threads_per_block: shown.max_threads_per_block,
            max_shared_per_block: shown.max_shared_per_block,
            is_software: shown.is_software().into(),
        });
        Ok(())
    })
}
