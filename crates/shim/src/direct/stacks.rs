//! Stacks, local memory and the heap: charged as they grow beyond what a new context has. The printf
//! buffer is not: the driver keeps it in the host's memory (256 MiB of it left the process's figure as it
//! was on an H200).
//!
//! The driver keeps room for the stack and the local variables of every thread that can run at once, as
//! much for each as the most demanding kernel needs, and never less than the stack limit says. It makes
//! it larger when such a kernel is launched; here it is charged when the kernel is looked up.

use std::collections::HashMap;
use std::ffi::{c_char, c_int};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mica_cuda_abi::{
    CuResult, CuStatus, DeviceAttribute, FunctionAttribute, Handle, Limit, Symbol, function,
};

use super::context::{current_device, owner};
use super::driver::real;
use super::reconcile;
use super::state::{Direct, making, state};

const LIMIT_STACK: u32 = Limit::StackSize as u32;
/// Local memory a thread can have on any GPU. A larger stack is the driver's to refuse, and its answer is not that
/// memory is short.
const MOST_LOCAL: usize = 512 << 10;
const LIMIT_MALLOC_HEAP: u32 = Limit::MallocHeapSize as u32;
const FUNCTION_LOCAL_BYTES: c_int = FunctionAttribute::LocalSizeBytes as c_int;
const OUT_OF_MEMORY: CuStatus = CuResult::OutOfMemory as CuStatus;

/// One limit of one context.
#[derive(Clone, Copy, Default)]
struct Grown {
    /// Its value in a new context, which is part of what a context takes.
    first: u64,
    /// Its value now.
    value: u64,
    /// The most a kernel asks for, where the limit is the stack's.
    kernel: u64,
    /// Bytes charged beyond the first value.
    charged: u64,
}

/// All contexts' stacks and heaps.
#[derive(Default)]
pub(crate) struct Stacks {
    records: Mutex<HashMap<(usize, u32), Grown>>,
}

impl Stacks {
    fn records(&self) -> MutexGuard<'_, HashMap<(usize, u32), Grown>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A context has ended: the bytes to give back.
    pub(crate) fn ended(&self, context: usize) -> u64 {
        let mut bytes = 0;
        self.records().retain(|(owner, _), grown| {
            if *owner == context {
                bytes += grown.charged;
            }
            *owner != context
        });
        bytes
    }
}

/// Charges what `grown` needs beyond what it is charged already; returns what it is charged then, or how much cannot
/// be had now.
fn grow(direct: &Direct, limit: u32, grown: &Grown) -> Result<u64, u64> {
    let needed = grown
        .value
        .max(grown.kernel)
        .saturating_sub(grown.first)
        .saturating_mul(unit(limit));
    match needed.saturating_sub(grown.charged) {
        more if direct.charge_now(more) => Ok(needed.max(grown.charged)),
        more => Err(more),
    }
}

/// `cuCtxSetLimit`.
pub(crate) unsafe fn set_limit(
    _: Symbol,
    real: function::cuCtxSetLimit,
    limit: u32,
    value: usize,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let call = || unsafe { real(limit, value) };
    let context = owner();
    if limit == LIMIT_STACK && value > MOST_LOCAL {
        return call();
    }
    let (Some(direct), LIMIT_STACK | LIMIT_MALLOC_HEAP, 1..) = (state(), limit, context) else {
        let status = call();
        // What launches from the device may take is not told; the daemon sees it.
        reconcile::look();
        return status;
    };
    let (mut records, before, mut grown, charged) = loop {
        let mut records = direct.stacks.records();
        let before = *records
            .entry((context, limit))
            .or_insert_with(|| as_first(limit));
        let grown = Grown {
            value: value as u64,
            ..before
        };
        match grow(direct, limit, &grown) {
            Ok(charged) => break (records, before, grown, charged),
            Err(more) => {
                drop(records);
                if direct.make_room(more).is_err() {
                    return OUT_OF_MEMORY;
                }
            }
        }
    };
    let status = call();
    if status == 0 {
        // A smaller limit gives memory back.
        let kept = grown.value.max(grown.kernel).saturating_sub(grown.first);
        grown.charged = kept.saturating_mul(unit(limit));
        records.insert((context, limit), grown);
        direct.release(charged - grown.charged);
    } else {
        direct.release(charged - before.charged);
    }
    status
}

/// `cuModuleGetFunction`.
pub(crate) unsafe fn function(
    _: Symbol,
    real: function::cuModuleGetFunction,
    out: *mut Handle,
    module: Handle,
    name: *const c_char,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(out, module, name) };
    if status != 0 || out.is_null() {
        return status;
    }
    // SAFETY: the driver has just written `out`.
    function_needs(unsafe { out.read() })
}

/// A function that is about to be used.
fn function_needs(function: Handle) -> CuStatus {
    let get = real!(cuFuncGetAttribute);
    let mut bytes = 0;
    // SAFETY: the driver's own handle; writes one number.
    let told = unsafe { get(&mut bytes, FUNCTION_LOCAL_BYTES, function) };
    needs_local(told, bytes)
}

/// `cuFuncLoad`: what was enumerated may say what it needs only now.
pub(crate) unsafe fn load(_: Symbol, real: function::cuFuncLoad, function: Handle) -> CuStatus {
    // SAFETY: the program's argument.
    match unsafe { real(function) } {
        0 => function_needs(function),
        status => status,
    }
}

/// `cuModuleEnumerateFunctions`.
pub(crate) unsafe fn functions(
    _: Symbol,
    real: function::cuModuleEnumerateFunctions,
    out: *mut Handle,
    count: u32,
    module: Handle,
) -> CuStatus {
    let total = real!(cuModuleGetFunctionCount);
    // SAFETY: the program's arguments.
    unsafe {
        enumerated(
            out,
            count,
            module,
            || real(out, count, module),
            total,
            function_needs,
        )
    }
}

/// `cuLibraryEnumerateKernels`.
pub(crate) unsafe fn kernels(
    _: Symbol,
    real: function::cuLibraryEnumerateKernels,
    out: *mut Handle,
    count: u32,
    library: Handle,
) -> CuStatus {
    let total = real!(cuLibraryGetKernelCount);
    // SAFETY: the program's arguments.
    unsafe {
        enumerated(
            out,
            count,
            library,
            || real(out, count, library),
            total,
            kernel_needs,
        )
    }
}

/// A call that writes as many handles of what `code` holds as there are, `count` at most.
///
/// # Safety
/// `out` is null, or has room for them; `total` tells how many `code` holds.
unsafe fn enumerated(
    out: *const Handle,
    count: u32,
    code: Handle,
    call: impl FnOnce() -> CuStatus,
    total: unsafe extern "C" fn(*mut u32, Handle) -> CuStatus,
    needs: impl Fn(Handle) -> CuStatus,
) -> CuStatus {
    let status = call();
    if status != 0 || making(out).is_none() {
        return status;
    }
    let mut all = 0;
    // SAFETY: writes one number.
    if unsafe { total(&mut all, code) } != 0 {
        return status;
    }
    // SAFETY: the driver has just written so many.
    let written = unsafe { std::slice::from_raw_parts(out, count.min(all) as usize) };
    let refused = written
        .iter()
        .map(|one| needs(*one))
        .find(|needs| *needs != 0);
    refused.unwrap_or(status)
}

/// `cuLibraryGetKernel`.
pub(crate) unsafe fn kernel(
    _: Symbol,
    real: function::cuLibraryGetKernel,
    out: *mut Handle,
    library: Handle,
    name: *const c_char,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(out, library, name) };
    if status != 0 || out.is_null() {
        return status;
    }
    // SAFETY: the driver has just written `out`.
    kernel_needs(unsafe { out.read() })
}

/// A kernel that is about to be used on the current device.
fn kernel_needs(kernel: Handle) -> CuStatus {
    let Some(device) = current_device() else {
        return 0;
    };
    let get = real!(cuKernelGetAttribute);
    let mut bytes = 0;
    // SAFETY: the driver's own handle; writes one number.
    let told = unsafe { get(&mut bytes, FUNCTION_LOCAL_BYTES, kernel, device) };
    needs_local(told, bytes)
}

/// A kernel whose threads have so many bytes of local memory is about to be used.
fn needs_local(told: CuStatus, bytes: c_int) -> CuStatus {
    let (Some(direct), 0, Ok(bytes @ 1..)) = (state(), told, u64::try_from(bytes)) else {
        return 0;
    };
    let context = owner();
    if context == 0 {
        return 0;
    }
    loop {
        let mut records = direct.stacks.records();
        let grown = records
            .entry((context, LIMIT_STACK))
            .or_insert_with(|| as_first(LIMIT_STACK));
        if bytes <= grown.kernel {
            return 0;
        }
        let more = Grown {
            kernel: bytes,
            ..*grown
        };
        match grow(direct, LIMIT_STACK, &more) {
            Ok(charged) => {
                *grown = Grown { charged, ..more };
                return 0;
            }
            Err(missing) => {
                drop(records);
                if direct.make_room(missing).is_err() {
                    return OUT_OF_MEMORY;
                }
            }
        }
    }
}

/// A limit before anything was charged for it.
fn as_first(limit: u32) -> Grown {
    let get = real!(cuCtxGetLimit);
    let mut value = 0;
    // SAFETY: writes one size.
    unsafe { get(&mut value, limit) };
    Grown {
        first: value as u64,
        value: value as u64,
        ..Grown::default()
    }
}

/// Bytes of the device a byte of a limit takes: the stack is one thread's, for all that can run.
fn unit(limit: u32) -> u64 {
    if limit != LIMIT_STACK {
        return 1;
    }
    let get = real!(cuDeviceGetAttribute);
    let device = current_device().unwrap_or(0);
    let attribute = |which: DeviceAttribute| {
        let mut value = 1;
        // SAFETY: writes one number.
        unsafe { get(&mut value, which as i32, device) };
        value.max(1) as u64
    };
    attribute(DeviceAttribute::MultiprocessorCount)
        * attribute(DeviceAttribute::MaxThreadsPerMultiprocessor)
}
