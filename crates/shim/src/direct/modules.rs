//! Modules and libraries: what their global variables take is charged before they are loaded.
//!
//! Code itself, and what is not looked into beforehand (a process's later images, if they are many), the driver
//! takes when it pleases: the daemon is asked to compare its figure with the records soon, and counts it.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use mica_cuda_abi::{CuStatus, DeviceAttribute, Handle, Symbol, function};
use mica_fatbin::{Cubin, EntryKind, Format, Image, Region, locate};
use mica_ptx::ast::Space;

use super::allocations::Entry;
use super::driver::real;
use super::state::{footprint, making, state};
use super::{context, reconcile};
use crate::image;

/// Bytes of images that are looked into in one process: a framework brings gigabytes, mostly code that
/// is never loaded, and its start must not wait for that.
const LOOK_INTO: u64 = 2 << 20;
static LOOKED_INTO: AtomicU64 = AtomicU64::new(0);

/// `cuModuleLoadData`, `cuModuleLoadFatBinary`.
pub(crate) unsafe fn load_data(
    _: Symbol,
    real: function::cuModuleLoadData,
    out: *mut Handle,
    image: *const c_void,
) -> CuStatus {
    // SAFETY: the program's arguments.
    unsafe {
        loaded(out, image_bytes(image), context::owner(), || {
            real(out, image)
        })
    }
}

/// `cuModuleLoadDataEx`.
pub(crate) unsafe fn load_data_ex(
    _: Symbol,
    real: function::cuModuleLoadDataEx,
    out: *mut Handle,
    image: *const c_void,
    count: u32,
    options: *mut i32,
    values: *mut *mut c_void,
) -> CuStatus {
    // SAFETY: the program's arguments.
    unsafe {
        loaded(out, image_bytes(image), context::owner(), || {
            real(out, image, count, options, values)
        })
    }
}

/// `cuModuleLoad`.
pub(crate) unsafe fn load_file(
    _: Symbol,
    real: function::cuModuleLoad,
    out: *mut Handle,
    path: *const c_char,
) -> CuStatus {
    // SAFETY: the program's arguments.
    unsafe { loaded(out, file_bytes(path), context::owner(), || real(out, path)) }
}

/// `cuLibraryLoadData`, `cuLibraryLoadFromFile`.
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn load_library(
    symbol: Symbol,
    real: function::cuLibraryLoadData,
    out: *mut Handle,
    code: *const c_void,
    jit_options: *mut c_void,
    jit_values: *mut c_void,
    jit_count: u32,
    options: *mut c_void,
    values: *mut c_void,
    count: u32,
) -> CuStatus {
    // SAFETY: the program's argument, which is either.
    let bytes = unsafe {
        match symbol {
            Symbol::cuLibraryLoadData => image_bytes(code),
            _ => file_bytes(code.cast()),
        }
    };
    // SAFETY: the program's arguments.
    unsafe {
        loaded(out, bytes, 0, || {
            real(
                out,
                code,
                jit_options,
                jit_values,
                jit_count,
                options,
                values,
                count,
            )
        })
    }
}

/// `cuModuleUnload`, `cuLibraryUnload`.
pub(crate) unsafe fn unload(_: Symbol, real: function::cuModuleUnload, module: Handle) -> CuStatus {
    let held = state().and_then(|direct| direct.objects.remove(module as u64));
    // SAFETY: the program's argument.
    let status = unsafe { real(module) };
    if let (Some(direct), Some(entry)) = (state(), held) {
        match status {
            0 => direct.release(entry.bytes),
            _ => direct.objects.insert(module as u64, entry),
        }
    }
    reconcile::look();
    status
}

/// A call that loads an image with so many bytes of variables.
///
/// # Safety
/// `call` writes a handle to `out` when it succeeds.
unsafe fn loaded(
    out: *mut Handle,
    variables: u64,
    context: usize,
    call: impl FnOnce() -> CuStatus,
) -> CuStatus {
    let Some(direct) = making(out) else {
        return call();
    };
    // Smaller ones share pieces with others, as small allocations do.
    let bytes = footprint(variables);
    let status = direct.charged(bytes, call);
    if status == 0 {
        if bytes > 0 {
            // SAFETY: our contract.
            let module = unsafe { out.read() } as u64;
            direct.objects.insert(module, Entry::own(bytes, context));
        }
        reconcile::look();
    }
    status
}

/// Whether so much more may be looked into.
fn may_look_into(bytes: u64) -> bool {
    LOOKED_INTO.load(Relaxed) <= LOOK_INTO
        && LOOKED_INTO.fetch_add(bytes, Relaxed).saturating_add(bytes) <= LOOK_INTO
}

/// Bytes of the global variables in an image, as far as that can be told cheaply.
///
/// # Safety
/// `image` is null or an image that the program wants loaded.
unsafe fn image_bytes(image: *const c_void) -> u64 {
    if image.is_null() || state().is_none() || LOOKED_INTO.load(Relaxed) > LOOK_INTO {
        return 0;
    }
    let regions = locate(&image::read_memory, image as u64).unwrap_or_default();
    let in_region = |region: &Region| {
        if !may_look_into(region.len) {
            return 0;
        }
        let bytes = image::bytes_of(region);
        bytes.and_then(in_image).unwrap_or(0)
    };
    regions.iter().map(in_region).fold(0, u64::saturating_add)
}

/// The same of an image in a file.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn file_bytes(path: *const c_char) -> u64 {
    if path.is_null() || state().is_none() {
        return 0;
    }
    // SAFETY: our contract.
    let path = Path::new(OsStr::from_bytes(
        unsafe { CStr::from_ptr(path) }.to_bytes(),
    ));
    // Anything but a file might make its reader wait.
    let length = std::fs::metadata(path)
        .ok()
        .filter(std::fs::Metadata::is_file);
    let bytes = length.and_then(|file| {
        let fits = file.len() <= LOOK_INTO && may_look_into(file.len());
        fits.then(|| std::fs::read(path).ok())?
    });
    bytes.and_then(|bytes| in_image(&bytes)).unwrap_or(0)
}

fn in_image(bytes: &[u8]) -> Option<u64> {
    let image = Image::parse(bytes).ok()?;
    let entry = match image.format {
        Format::Cubin | Format::Ptx => image.entries.first()?,
        _ => {
            let capability = capability()?;
            let code = image.select_cubin(capability);
            code.or_else(|| image.select_ptx(capability))?
        }
    };
    let code = entry.payload(LOOK_INTO * 8).ok()?;
    match entry.kind {
        EntryKind::Cubin => Some(Cubin::parse(&code).ok()?.global_bytes),
        EntryKind::Ptx => Some(in_ptx(&code)),
        _ => None,
    }
}

/// The device's compute capability as one number, such as 90.
fn capability() -> Option<u32> {
    let get = real!(cuDeviceGetAttribute);
    let attribute = |which: DeviceAttribute| {
        let mut value = 0;
        // SAFETY: writes one number.
        let status = unsafe { get(&mut value, which as i32, 0) };
        u32::try_from(value).ok().filter(|_| status == 0)
    };
    let major = attribute(DeviceAttribute::ComputeCapabilityMajor)?;
    Some(major * 10 + attribute(DeviceAttribute::ComputeCapabilityMinor)?)
}

/// Bytes of the variables that PTX defines in global memory.
fn in_ptx(text: &[u8]) -> u64 {
    // The daemon finds the variables of a text that cannot be read in the driver's own figure.
    let outline = mica_ptx::outline(text).unwrap_or_default();
    let global = outline
        .variables()
        .filter(|(_, space, _)| *space == Space::Global);
    global
        .map(|(_, _, bytes)| bytes)
        .fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_ptx_are_added_up() {
        let text = ".version 8.0\n.target sm_90\n.address_size 64\n\
            // .global .b8 not[5];\n\
            .visible .global .align 16 .b8 big[1048576];\n\
            .global .align 4 .u32 one = 7;\n.global .v4 .f32 table[2][3];\n\
            .extern .global .b8 elsewhere[4096];\n\
            .visible .entry k(.param .u64 p) { .reg .b64 %a; ld.global.u32 %r, [%a]; }\n\
            .weak .global .b64 last[2];";
        assert_eq!(in_ptx(text.as_bytes()), 1_048_576 + 4 + 16 * 6 + 16);
        assert_eq!(in_ptx(b"no ptx at all [12"), 0);
        let several = b".version 8.0 .global .align 4 .b8 a[1048576], b[1048576], c;";
        assert_eq!(in_ptx(several), 2 * 1_048_576 + 1);
    }
}
