//! Which devices there are: the virtual GPU's one, as number 0.

use std::ffi::{c_char, c_int, c_uint, c_void};

use mica_cuda_abi::{PciAddress, SOFTWARE_PCI_DOMAIN};

use super::{SOFTWARE_DEVICE, answers, check, put, put_text};
use crate::abi::{Device, INVALID_ARGUMENT, NOT_FOUND, PciInfo, Return, SUCCESS};
use crate::forward::{slots, target};
use crate::state::{View, inside};
use crate::vgpu::Picture;

/// As the software device names itself to CUDA programs.
const SOFTWARE_NAME: &str = "Mica Software GPU";
const SOFTWARE_BUS: &str = "0000FFFF:00:00.0";
/// The generation of PTX the software GPU runs.
const SOFTWARE_CAPABILITY: (c_int, c_int) = (8, 0);

/// The real handle of the virtual GPU's physical GPU.
fn own_device(picture: &Picture) -> Result<Device, Return> {
    let mut device: Device = std::ptr::null_mut();
    let code = match &picture.gpu_uuid {
        Some(uuid) => {
            let name = std::ffi::CString::new(uuid.as_str()).map_err(|_| NOT_FOUND)?;
            // SAFETY: the slot leads to NVML's function of this type or to a stub.
            let find = unsafe {
                std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*const c_char, *mut Device) -> Return,
                >(target(&slots::nvmlDeviceGetHandleByUUID))
            };
            // SAFETY: a terminated name and a place for one handle.
            inside(|| unsafe { find(name.as_ptr(), &mut device) })
        }
        None => {
            // SAFETY: the slot leads to NVML's function of this type or to a stub.
            let find = unsafe {
                std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(c_uint, *mut Device) -> Return,
                >(target(&slots::nvmlDeviceGetHandleByIndex_v2))
            };
            // SAFETY: a place for one handle.
            inside(|| unsafe { find(picture.gpu, &mut device) })
        }
    };
    match code {
        SUCCESS => Ok(device),
        code => Err(code),
    }
}

/// Device number `index` of those there are.
fn by_index(view: &View, index: c_uint) -> Result<Device, Return> {
    match view {
        _ if index != 0 => Err(INVALID_ARGUMENT),
        View::Real(picture) => own_device(picture),
        View::Outside | View::Software(_) => Ok(SOFTWARE_DEVICE as Device),
    }
}

/// # Safety
/// `place` is null or valid for a write.
unsafe fn answer(place: *mut Device, found: Result<Device, Return>) -> Return {
    match found {
        // SAFETY: our contract.
        Ok(device) => unsafe { put(place, device) },
        Err(code) => code,
    }
}

/// What a real search found, if it is ours; a search of the software GPU by `matches`.
///
/// # Safety
/// `place` is null or valid for a write.
unsafe fn search(
    view: &View,
    place: *mut Device,
    real: impl FnOnce() -> Return,
    matches: impl FnOnce() -> bool,
) -> Return {
    match view {
        View::Real(picture) => {
            let code = real();
            if code != SUCCESS {
                return code;
            }
            // SAFETY: the real search has written it.
            let found = unsafe { place.read() };
            match own_device(picture) {
                Ok(own) if own == found => SUCCESS,
                Ok(_) => {
                    // SAFETY: as above. Other tenants' devices are not there.
                    unsafe { place.write(std::ptr::null_mut()) };
                    NOT_FOUND
                }
                Err(code) => code,
            }
        }
        View::Outside | View::Software(_) => match matches() {
            // SAFETY: our contract.
            true => unsafe { put(place, SOFTWARE_DEVICE as Device) },
            false => NOT_FOUND,
        },
    }
}

/// # Safety
/// `text` is null or a terminated string.
unsafe fn same_text(text: *const c_char, wanted: &str) -> bool {
    // SAFETY: not null, and otherwise our contract.
    !text.is_null()
        && unsafe { std::ffi::CStr::from_ptr(text) }
            .to_bytes()
            .eq_ignore_ascii_case(wanted.as_bytes())
}

/// Whether a text is the software GPU's address, in any spelling.
///
/// # Safety
/// `text` is null or a terminated string.
unsafe fn is_software_bus(text: *const c_char) -> bool {
    if text.is_null() {
        return false;
    }
    // SAFETY: not null, and otherwise our contract.
    let text = unsafe { std::ffi::CStr::from_ptr(text) }.to_str();
    let address = text.ok().and_then(PciAddress::parse);
    address.is_some_and(|address| address.means(SOFTWARE_PCI_DOMAIN, 0, 0))
}

/// A UUID that stays the same for a virtual GPU's name.
fn software_uuid(picture: &Picture) -> String {
    // FNV-1a, twice with different beginnings: it need only be stable and differ between names.
    let digest = |start: u64| {
        let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3);
        picture.name.as_bytes().iter().fold(start, fold)
    };
    let (a, b) = (digest(0xCBF2_9CE4_8422_2325), digest(0x4D49_4341_4D49_4341));
    format!(
        "GPU-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        a >> 32,
        a >> 16 & 0xFFFF,
        a & 0xFFFF,
        b >> 48,
        b & 0xFFFF_FFFF_FFFF
    )
}

fn software_pci() -> PciInfo {
    let mut info = PciInfo {
        legacy: [0; 16],
        domain: SOFTWARE_PCI_DOMAIN,
        bus: 0,
        device: 0,
        device_id: 0,
        subsystem_id: 0,
        bus_id: [0; 32],
    };
    for (slot, byte) in info.bus_id.iter_mut().zip(SOFTWARE_BUS.bytes()) {
        *slot = byte as c_char;
    }
    for (slot, byte) in info.legacy.iter_mut().zip(SOFTWARE_BUS[4..].bytes()) {
        *slot = byte as c_char;
    }
    info
}

macro_rules! on_software {
    ($($name:ident($($place:ident: $type:ty),*) = |$picture:ident| $answer:expr;)*) => {
        answers! {$(
            fn $name(device: Device, $($place: $type),*) |view, real| {
                match &view {
                    View::Software($picture) => match check(device) {
                        // SAFETY: null is refused; otherwise the caller's own places.
                        Ok(()) => unsafe { $answer },
                        Err(code) => code,
                    },
                    _ => real(),
                }
            }
        )*}
    };
}

on_software! {
    nvmlDeviceGetName(buffer: *mut c_char, length: c_uint) =
        |_picture| put_text(buffer, length, SOFTWARE_NAME);
    nvmlDeviceGetUUID(buffer: *mut c_char, length: c_uint) =
        |picture| put_text(buffer, length, &software_uuid(picture));
    nvmlDeviceGetPciInfo(place: *mut PciInfo) = |_picture| put(place, software_pci());
    nvmlDeviceGetPciInfo_v2(place: *mut PciInfo) = |_picture| put(place, software_pci());
    nvmlDeviceGetPciInfo_v3(place: *mut PciInfo) = |_picture| put(place, software_pci());
    nvmlDeviceGetMinorNumber(place: *mut c_uint) = |_picture| put(place, 0);
    nvmlDeviceGetComputeMode(place: *mut c_int) = |_picture| put(place, 0);
    nvmlDeviceGetPersistenceMode(place: *mut c_int) = |_picture| put(place, 1);
    nvmlDeviceGetCudaComputeCapability(major: *mut c_int, minor: *mut c_int) = |_picture| {
        match put(major, SOFTWARE_CAPABILITY.0) {
            SUCCESS => put(minor, SOFTWARE_CAPABILITY.1),
            code => code,
        }
    };
}

/// There is one device, whatever the real library says; whether it was initialized it says itself.
///
/// # Safety
/// `place` is null or valid for a write.
unsafe fn one(view: &View, place: *mut c_uint, real: impl FnOnce() -> Return) -> Return {
    let code = match view {
        View::Real(_) => real(),
        View::Outside | View::Software(_) => SUCCESS,
    };
    match code {
        // SAFETY: our contract.
        SUCCESS => unsafe { put(place, 1) },
        code => code,
    }
}

answers! {
    fn nvmlDeviceGetCount(place: *mut c_uint) |view, real| {
        // SAFETY: the caller's own place.
        unsafe { one(&view, place, real) }
    }

    fn nvmlDeviceGetCount_v2(place: *mut c_uint) |view, real| {
        // SAFETY: the caller's own place.
        unsafe { one(&view, place, real) }
    }

    fn nvmlDeviceGetHandleByIndex(index: c_uint, place: *mut Device) |view, _real| {
        // SAFETY: null is refused; otherwise the caller's own place.
        unsafe { answer(place, by_index(&view, index)) }
    }

    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, place: *mut Device) |view, _real| {
        // SAFETY: null is refused; otherwise the caller's own place.
        unsafe { answer(place, by_index(&view, index)) }
    }

    fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, place: *mut Device) |view, real| {
        let ours = || match &view {
            // SAFETY: the caller's terminated string, or null.
            View::Software(picture) => unsafe { same_text(uuid, &software_uuid(picture)) },
            _ => false,
        };
        // SAFETY: the caller's own place, which the real search checks.
        unsafe { search(&view, place, real, ours) }
    }

    fn nvmlDeviceGetHandleByUUIDV(_uuid: *const c_void, place: *mut Device) |view, real| {
        // SAFETY: the caller's own place, which the real search checks.
        unsafe { search(&view, place, real, || false) }
    }

    fn nvmlDeviceGetHandleByPciBusId(bus: *const c_char, place: *mut Device) |view, real| {
        // SAFETY: the caller's terminated string, or null.
        let ours = || unsafe { is_software_bus(bus) };
        // SAFETY: the caller's own place, which the real search checks.
        unsafe { search(&view, place, real, ours) }
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(bus: *const c_char, place: *mut Device) |view, real| {
        // SAFETY: the caller's terminated string, or null.
        let ours = || unsafe { is_software_bus(bus) };
        // SAFETY: the caller's own place, which the real search checks.
        unsafe { search(&view, place, real, ours) }
    }

    fn nvmlDeviceGetHandleBySerial(_serial: *const c_char, place: *mut Device) |view, real| {
        // SAFETY: the caller's own place, which the real search checks.
        unsafe { search(&view, place, real, || false) }
    }

    fn nvmlDeviceGetIndex(device: Device, place: *mut c_uint) |view, real| {
        let known = match &view {
            View::Real(_) => match real() {
                SUCCESS => Ok(()),
                code => Err(code),
            },
            _ => check(device),
        };
        match known {
            // SAFETY: null is refused; otherwise the caller's own place.
            Ok(()) => unsafe { put(place, 0) },
            Err(code) => code,
        }
    }
}
