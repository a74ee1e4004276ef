//! The one device: answered from what the worker said when the session began.

pub(crate) mod attributes;

use std::ffi::{c_char, c_void};

use mica_cuda_abi::{CuResult, DeviceAttribute, PciAddress};
use mica_wire::session::MemoryInfo;

use crate::isolated::context::{check_device, current};
use crate::isolated::state::{self, DRIVER_VERSION, state};
use crate::isolated::support::{
    Answer, Code, driver, entries, get, invalid, put, put_opt, room_for, string,
};

/// A name in the program's buffer, cut to fit and ended.
unsafe fn put_text(out: *mut c_char, len: i32, text: &str) -> Answer {
    if out.is_null() || len <= 0 {
        return invalid();
    }
    let bytes = text.as_bytes();
    let kept = bytes.len().min(len as usize - 1);
    // SAFETY: the program says that `len` bytes can be written.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), out, kept);
        out.add(kept).write(0);
    }
    Ok(())
}

/// `cuDeviceGetProperties`' structure.
#[repr(C)]
struct Properties {
    max_threads_per_block: i32,
    max_threads: [i32; 3],
    max_grid: [i32; 3],
    shared_per_block: i32,
    constant: i32,
    warp: i32,
    pitch: i32,
    registers_per_block: i32,
    clock_khz: i32,
    texture_alignment: i32,
}

driver! {
    fn init(flags: u32) {
        if flags != 0 {
            return invalid();
        }
        state::start()
    }

    fn driver_version(out: *mut i32) {
        put(out, DRIVER_VERSION)
    }

    fn device_get(out: *mut i32, ordinal: i32) {
        state()?;
        if out.is_null() {
            return invalid();
        }
        if ordinal != 0 {
            return Err(CuResult::InvalidDevice.into());
        }
        put(out, 0)
    }

    fn device_count(out: *mut i32) {
        state()?;
        put(out, 1)
    }

    fn device_name(out: *mut c_char, len: i32, device: i32) {
        let state = check_device(device)?;
        put_text(out, len, &state.client.snapshot().name)
    }

    fn device_uuid(out: *mut [u8; 16], device: i32) {
        let state = check_device(device)?;
        put(out, state.client.snapshot().uuid)
    }

    fn device_luid(luid: *mut c_char, mask: *mut u32, device: i32) {
        check_device(device)?;
        room_for(luid)?;
        room_for(mask)?;
        Err(CuResult::NotSupported.into())
    }

    fn device_total_memory(out: *mut usize, device: i32) {
        let state = check_device(device)?;
        put(out, state.client.snapshot().total_memory as usize)
    }

    fn device_attribute(out: *mut i32, attribute: u32, device: i32) {
        let state = check_device(device)?;
        if out.is_null() || attribute == 0 {
            return invalid();
        }
        let known = DeviceAttribute::from_number(attribute);
        match known.and_then(|attribute| state.attribute(attribute)) {
            Some(value) => put(out, value),
            None if attribute < 200 => put(out, 0),
            None => invalid(),
        }
    }

    fn device_pci_bus_id(out: *mut c_char, len: i32, device: i32) {
        let state = check_device(device)?;
        let [domain, bus, number] = state.pci;
        put_text(out, len, &format!("{domain:04X}:{bus:02X}:{number:02X}.0"))
    }

    fn device_by_pci_bus_id(out: *mut i32, text: *const c_char) {
        let state = state()?;
        let text = string(text)?;
        let [domain, bus, number] = state.pci.map(|part| part as u32);
        if !PciAddress::parse(&text).is_some_and(|named| named.means(domain, bus, number)) {
            return Err(CuResult::InvalidDevice.into());
        }
        put(out, 0)
    }

    fn device_compute_capability(major: *mut i32, minor: *mut i32, device: i32) {
        let state = check_device(device)?;
        let (a, b) = state.client.snapshot().compute_capability;
        put(major, a as i32)?;
        put(minor, b as i32)
    }

    fn device_properties(out: *mut Properties, device: i32) {
        let state = check_device(device)?;
        use DeviceAttribute::*;
        let of = |attribute| state.attribute(attribute).unwrap_or(0);
        put(out, Properties {
            max_threads_per_block: of(MaxThreadsPerBlock),
            max_threads: [of(MaxBlockDimX), of(MaxBlockDimY), of(MaxBlockDimZ)],
            max_grid: [of(MaxGridDimX), of(MaxGridDimY), of(MaxGridDimZ)],
            shared_per_block: of(MaxSharedMemoryPerBlock),
            constant: of(TotalConstantMemory),
            warp: of(WarpSize),
            pitch: of(MaxPitch),
            registers_per_block: of(MaxRegistersPerBlock),
            clock_khz: of(ClockRate),
            texture_alignment: of(TextureAlignment),
        })
    }

    fn device_can_access_peer(out: *mut i32, device: i32, peer: i32) {
        check_device(device)?;
        check_device(peer)?;
        put(out, 0)
    }

    fn device_p2p_attribute(out: *mut i32, _attribute: u32, a: i32, b: i32) {
        room_for(out)?;
        check_device(a)?;
        check_device(b)?;
        // A device is no peer of itself.
        Err(CuResult::InvalidDevice.into())
    }

    fn device_exec_affinity(out: *mut i32, _kind: u32, device: i32) {
        check_device(device)?;
        put(out, 0)
    }

    fn device_linear_texture_width(out: *mut usize, format: u32, channels: u32, device: i32) {
        let state = check_device(device)?;
        let _ = (format, channels);
        let most = state.attribute(DeviceAttribute::MaximumTexture1dLinearWidth);
        put(out, most.unwrap_or(1 << 27) as usize)
    }

    fn memory_info(free: *mut usize, total: *mut usize) {
        let (state, context) = current()?;
        let memory = context.checked(state.client.call(&MemoryInfo {}))?;
        put_opt(free, memory.free_bytes as usize);
        put_opt(total, memory.limit_bytes.min(state.client.snapshot().total_memory) as usize);
        Ok(())
    }

    fn error_name(code: u32, out: *mut *const c_char) {
        put_error(code, out, &NAMES)
    }

    fn error_string(code: u32, out: *mut *const c_char) {
        put_error(code, out, &SENTENCES)
    }

    fn profiler_initialize(_a: *const c_char, _b: *const c_char, _mode: u32) {
        Err(CuResult::NotSupported.into())
    }

    fn profiler() {
        current().map(drop)
    }

    fn loading_mode(out: *mut u32) {
        state()?;
        // As the driver reads it; a runtime that hears 1 loads all modules of the program at once.
        let is_eager = std::env::var_os("CUDA_MODULE_LOADING").is_some_and(|mode| mode == "EAGER");
        put(out, if is_eager { 1 } else { 2 })
    }

    fn flush_rdma(target: u32, scope: u32) {
        current()?;
        // The current context; to the owner or to all devices.
        if target != 0 || !matches!(scope, 100 | 200) {
            return invalid();
        }
        Err(CuResult::NotSupported.into())
    }

    fn get_export_table(out: *mut *const c_void, id: *const [u8; 16]) {
        let id = get(id)?;
        match crate::isolated::private_tables::find(&id) {
            Some(table) => put(out, table),
            None => {
                put_opt(out, std::ptr::null());
                invalid()
            }
        }
    }
}

type Texts = std::sync::LazyLock<std::collections::HashMap<u32, std::ffi::CString>>;

static NAMES: Texts = std::sync::LazyLock::new(|| {
    let text = |result: &CuResult| std::ffi::CString::new(result.name()).unwrap_or_default();
    CuResult::ALL.iter().map(|r| (*r as u32, text(r))).collect()
});

static SENTENCES: Texts = std::sync::LazyLock::new(|| {
    let text = |result: &CuResult| std::ffi::CString::new(sentence(*result)).unwrap_or_default();
    CuResult::ALL.iter().map(|r| (*r as u32, text(r))).collect()
});

/// What a code means, made of its name where it has no sentence of its own.
fn sentence(result: CuResult) -> String {
    match result {
        CuResult::Success => "no error".into(),
        CuResult::InvalidValue => "invalid argument".into(),
        CuResult::NotInitialized => "initialization error".into(),
        CuResult::Deinitialized => "driver shutting down".into(),
        CuResult::NoDevice => "no CUDA-capable device is detected".into(),
        CuResult::InvalidDevice => "invalid device ordinal".into(),
        CuResult::InvalidImage => "device kernel image is invalid".into(),
        CuResult::InvalidContext => "invalid device context".into(),
        CuResult::NoBinaryForGpu => {
            "no kernel image is available for execution on the device".into()
        }
        CuResult::InvalidPtx => "a PTX JIT compilation failed".into(),
        CuResult::InvalidHandle => "invalid resource handle".into(),
        CuResult::NotFound => "named symbol not found".into(),
        CuResult::NotReady => "device not ready".into(),
        CuResult::IllegalAddress => "an illegal memory access was encountered".into(),
        CuResult::LaunchOutOfResources => "too many resources requested for launch".into(),
        CuResult::Assert => "device-side assert triggered".into(),
        CuResult::LaunchFailed => "unspecified launch failure".into(),
        CuResult::NotSupported => "operation not supported".into(),
        CuResult::Unknown => "unknown error".into(),
        other => {
            let name = other.name().trim_start_matches("CUDA_ERROR_");
            name.to_lowercase().replace('_', " ")
        }
    }
}

unsafe fn put_error(code: u32, out: *mut *const c_char, texts: &'static Texts) -> Answer {
    let text = texts.get(&code);
    let pointer = text.map_or(std::ptr::null(), |text| text.as_ptr());
    // SAFETY: the program's pointer.
    unsafe { put(out, pointer)? };
    text.map(drop).ok_or(Code(CuResult::InvalidValue as u32))
}

entries! {
    cuInit = init;
    cuDriverGetVersion = driver_version;
    cuDeviceGet = device_get;
    cuDeviceGetCount = device_count;
    cuDeviceGetName = device_name;
    cuDeviceGetUuid = device_uuid;
    cuDeviceGetUuid_v2 = device_uuid;
    cuDeviceGetLuid = device_luid;
    cuDeviceTotalMem_v2 = device_total_memory;
    cuDeviceGetAttribute = device_attribute;
    cuDeviceGetPCIBusId = device_pci_bus_id;
    cuDeviceGetByPCIBusId = device_by_pci_bus_id;
    cuDeviceComputeCapability = device_compute_capability;
    cuDeviceGetProperties = device_properties;
    cuDeviceCanAccessPeer = device_can_access_peer;
    cuDeviceGetP2PAttribute = device_p2p_attribute;
    cuDeviceGetExecAffinitySupport = device_exec_affinity;
    cuDeviceGetTexture1DLinearMaxWidth = device_linear_texture_width;
    cuMemGetInfo_v2 = memory_info;
    cuGetErrorName = error_name;
    cuGetErrorString = error_string;
    cuProfilerInitialize = profiler_initialize;
    cuProfilerStart = profiler;
    cuProfilerStop = profiler;
    cuModuleGetLoadingMode = loading_mode;
    cuFlushGPUDirectRDMAWrites = flush_rdma;
    cuGetExportTable = get_export_table;
}
