//! Sees each resource-manager request of libcuda on its way to the kernel.
//!
//! Refuses nothing and changes nothing, but for the one thing it may be asked for: while a slice is
//! pinned, the driver's own setting of a compute group's slice carries ours instead.

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::RmError;
use crate::abi::{self, Alloc21, Alloc64, Control, Free, GroupParams, Transfer};
use crate::got;
use crate::registry::{Object, Origin, Registry};

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;

static REGISTRY: Mutex<Registry> = Mutex::new(Registry::new());
/// The function the slot held, 0 to use this library's own `ioctl`.
static ORIGINAL: AtomicUsize = AtomicUsize::new(0);
/// The process that observes; a child after a fork does not.
static OWNER: AtomicI32 = AtomicI32::new(0);
static GENERATION: AtomicU64 = AtomicU64::new(0);
static REQUESTS: AtomicU64 = AtomicU64::new(0);
static OVERWRITTEN: AtomicBool = AtomicBool::new(false);
/// 0: the driver's own slices pass.
static PINNED_US: AtomicU64 = AtomicU64::new(0);

/// Whether kernels are kept from memory that only the host has mapped.
static WITHOUT_HMM: AtomicBool = AtomicBool::new(false);

/// Keeps kernels of this process from memory that only the host has mapped: the kernel module shows it to them by
/// default on newer systems. Call this before `cuInit`; what came of it is in the device's attribute for pageable
/// memory.
pub fn keep_kernels_from_host_memory() {
    WITHOUT_HMM.store(true, Release);
}

/// Most kinds of refused requests that are remembered.
const MOST_REFUSED: usize = 16;
/// Numbers of requests that the kernel refused with "operation not permitted", each once; 0 is a free place.
static REFUSED: [AtomicU32; MOST_REFUSED] = [const { AtomicU32::new(0) }; MOST_REFUSED];

/// Numbers of libcuda's requests that the kernel refused with "operation not permitted", each once and at most 16: a
/// filter of system calls answers so.
pub fn refused_requests() -> Vec<u32> {
    let known = REFUSED.iter().map(|place| place.load(Acquire));
    known.filter(|request| *request != 0).collect()
}

/// Remembers a request that was not permitted.
fn note_refused(request: u32) {
    for place in &REFUSED {
        let taken = place.compare_exchange(0, request, AcqRel, Acquire);
        if taken.is_ok() || taken == Err(request) {
            return;
        }
    }
}

/// Watches the requests of the library behind `handle`; call it after the real libcuda is loaded and
/// before `cuInit`. Watching the same library again changes nothing.
///
/// # Safety
/// `handle` came from `dlopen` of the driver library, which stays loaded until the process ends.
///
/// # Errors
/// [`RmError::NoIoctlSlot`] if the library imports no `ioctl`; the library is then untouched.
pub unsafe fn observe(handle: *mut c_void) -> Result<(), RmError> {
    // SAFETY: our contract is the callee's, and the hook has the type of `ioctl`.
    let held = unsafe { got::take_over(handle, "ioctl", watched_ioctl as *const () as usize)? };
    // SAFETY: asks for a number only.
    OWNER.store(unsafe { libc::getpid() }, Release);
    if let Some(held) = held {
        ORIGINAL.store(held, Release);
    }
    Ok(())
}

/// Whether requests of this process are being watched.
pub fn observed() -> bool {
    // SAFETY: asks for a number only.
    OWNER.load(Acquire) == unsafe { libc::getpid() }
}

/// Grows whenever groups or channels appear or go, or the driver sets a slice of its own.
pub fn generation() -> u64 {
    GENERATION.load(Acquire)
}

/// Whether the driver has set a compute group's slice since this was last asked; ours must then be
/// set again.
pub fn take_overwritten() -> bool {
    OVERWRITTEN.load(Relaxed) && OVERWRITTEN.swap(false, AcqRel)
}

pub(crate) fn requests() -> u64 {
    REQUESTS.load(Relaxed)
}

pub(crate) fn set_pinned(us: u64) {
    PINNED_US.store(us, Release);
}

pub(crate) fn pinned() -> Option<u64> {
    match PINNED_US.load(Acquire) {
        0 => None,
        us => Some(us),
    }
}

pub(crate) fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn errno() -> i32 {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: i32) {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = value }
}

/// What stands in libcuda's slot for `ioctl`.
unsafe extern "C" fn watched_ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if request == abi::UVM_INITIALIZE && !argument.is_null() && WITHOUT_HMM.load(Acquire) {
        let flags = argument.cast::<u64>();
        // SAFETY: the argument of this request begins with a word of flags, which libcuda fills.
        unsafe { flags.write_unaligned(flags.read_unaligned() | abi::UVM_WITHOUT_HMM) };
    }
    let (kind, nr, bytes) = abi::parts(request);
    if kind != abi::ESCAPE_TYPE || argument.is_null() || !observed() {
        // SAFETY: the caller's own arguments.
        return unsafe { original(fd, request, argument) };
    }
    REQUESTS.fetch_add(1, Relaxed);
    // SAFETY: libcuda passes parameter blocks of the size it names.
    let escape = unsafe { Escape::open(nr, bytes, argument) };
    if escape.nr == abi::ESC_CONTROL
        // SAFETY: as above.
        && let Some(control) = unsafe { escape.get::<Control>() }
        && control.command == abi::CTRL_SET_TIMESLICE
    {
        // SAFETY: as above.
        return unsafe { watched_slice(fd, request, argument, &escape, control) };
    }
    // SAFETY: the caller's own arguments.
    let rc = unsafe { original(fd, request, argument) };
    if rc >= 0 && matches!(escape.nr, abi::ESC_ALLOC | abi::ESC_FREE) {
        let errno = errno();
        // A panic must not unwind into libcuda; what could not be recorded is not recorded.
        let _ = std::panic::catch_unwind(|| {
            // SAFETY: the kernel has just read and written this block.
            let changed = unsafe { record(&mut registry(), &escape, || origin(fd)) };
            if changed {
                GENERATION.fetch_add(1, AcqRel);
            }
        });
        set_errno(errno);
    }
    rc
}

/// The driver sets a slice: carry ours instead if one is pinned, and note that it did.
///
/// # Safety
/// The arguments are those of a control that libcuda is making.
unsafe fn watched_slice(
    fd: c_int,
    request: c_ulong,
    argument: *mut c_void,
    escape: &Escape,
    control: Control,
) -> c_int {
    let wanted = (control.params != 0 && control.params_bytes as usize == size_of::<u64>())
        // SAFETY: the control's parameters are one 64-bit number.
        .then(|| unsafe { (control.params as *const u64).read_unaligned() });
    let ours =
        pinned().filter(|_| wanted.is_some() && registry().may_pin(control.client, control.object));
    if let (Some(wanted), Some(mut ours)) = (wanted, ours) {
        let mut copy = Control {
            params: std::ptr::from_mut(&mut ours) as u64,
            ..control
        };
        let number = abi::request(abi::ESC_CONTROL, size_of::<Control>());
        // SAFETY: the copy and the number it points to outlive the call.
        let rc = unsafe { original(fd, number, std::ptr::from_mut(&mut copy).cast()) };
        if rc >= 0 && copy.status == 0 {
            registry().driver_slice(control.client, control.object, wanted);
            copy.params = control.params;
            // SAFETY: the caller's block has this type and size.
            unsafe { escape.put(copy) };
            GENERATION.fetch_add(1, AcqRel);
            return rc;
        }
        // Refused with our value: the driver gets its own way.
    }
    // SAFETY: the caller's own arguments.
    let rc = unsafe { original(fd, request, argument) };
    // SAFETY: the kernel has just written this block.
    let succeeded = rc >= 0 && unsafe { escape.get::<Control>() }.is_some_and(|c| c.status == 0);
    if let (true, Some(us)) = (succeeded, wanted) {
        let errno = errno();
        if registry().driver_slice(control.client, control.object, us) {
            OVERWRITTEN.store(true, Release);
            GENERATION.fetch_add(1, AcqRel);
        }
        set_errno(errno);
    }
    rc
}

/// # Safety
/// The arguments are those of a call to `ioctl`.
unsafe fn original(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: our contract; the word stood in a slot for `ioctl`.
    let rc = unsafe { call_ioctl(ORIGINAL.load(Acquire), fd, request, argument) };
    if rc < 0 && errno() == libc::EPERM {
        // The kernel compares these bits only.
        note_refused(request as u32);
    }
    rc
}

/// Calls the `ioctl` a slot held, or this library's own for 0.
///
/// # Safety
/// `address` is 0 or stood in a slot for `ioctl`; the arguments are those of a call to it.
pub(crate) unsafe fn call_ioctl(
    address: usize,
    fd: c_int,
    request: c_ulong,
    argument: *mut c_void,
) -> c_int {
    if address == 0 {
        // SAFETY: the caller's own arguments.
        return unsafe { libc::ioctl(fd, request as _, argument) };
    }
    // SAFETY: passing a third argument to `ioctl` is how its variadic form is called on the
    // architectures supported here.
    let function = unsafe { std::mem::transmute::<usize, Ioctl>(address) };
    // SAFETY: the caller's own arguments.
    unsafe { function(fd, request, argument) }
}

fn origin(fd: c_int) -> Origin {
    // SAFETY: an all-zero `stat` is a valid one.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: writes one `stat`.
    let rc = unsafe { libc::fstat(fd, &mut stat) };
    let rdev = if rc == 0 { stat.st_rdev } else { 0 };
    Origin { fd, rdev }
}

/// Whether a descriptor still is the file through which an object was made.
pub(crate) fn still_open(known: Origin) -> bool {
    origin(known.fd) == known
}

/// One request, taken out of its envelope.
pub(crate) struct Escape {
    pub(crate) nr: u32,
    bytes: usize,
    block: *mut c_void,
}

impl Escape {
    /// # Safety
    /// `block` holds `bytes` readable bytes if they are an envelope's.
    pub(crate) unsafe fn open(nr: u32, bytes: usize, block: *mut c_void) -> Self {
        if nr == abi::ESC_XFER && bytes == size_of::<Transfer>() {
            // SAFETY: an envelope of this size, by our contract.
            let transfer = unsafe { block.cast::<Transfer>().read_unaligned() };
            return Self {
                nr: transfer.nr,
                bytes: transfer.bytes as usize,
                block: transfer.pointer as *mut c_void,
            };
        }
        Self { nr, bytes, block }
    }

    /// The parameters, if they have the size of a `T`.
    ///
    /// # Safety
    /// The block holds the bytes the request names, and any bytes make a `T`.
    pub(crate) unsafe fn get<T: Copy>(&self) -> Option<T> {
        if self.bytes != size_of::<T>() || self.block.is_null() {
            return None;
        }
        // SAFETY: the size was checked; alignment is not assumed.
        Some(unsafe { self.block.cast::<T>().read_unaligned() })
    }

    /// # Safety
    /// As for `get`, and the block may be written.
    unsafe fn put<T: Copy>(&self, value: T) {
        if self.bytes == size_of::<T>() && !self.block.is_null() {
            // SAFETY: the size was checked; alignment is not assumed.
            unsafe { self.block.cast::<T>().write_unaligned(value) }
        }
    }
}

/// Records what a finished request made or freed. Returns whether groups or channels changed.
///
/// # Safety
/// The escape's block, and the parameters it points to, are readable as the request says.
pub(crate) unsafe fn record(
    registry: &mut Registry,
    escape: &Escape,
    origin: impl FnOnce() -> Origin,
) -> bool {
    if escape.nr == abi::ESC_FREE {
        // SAFETY: our contract.
        let freed = unsafe { escape.get::<Free>() }.filter(|f| f.status == 0);
        return freed.is_some_and(|f| registry.free(f.client, f.object));
    }
    // SAFETY: our contract.
    let Some(alloc) = (unsafe { allocation(escape) }).filter(|a| a.status == 0) else {
        return false;
    };
    let class = alloc.class;
    let known = [abi::CLASS_DEVICE, abi::CLASS_SUBDEVICE, abi::CLASS_GROUP];
    if !known.contains(&class) && !abi::is_channel_class(class) {
        return false;
    }
    let mut engine = 0;
    // Older callers leave the size 0, meaning "as the class has it".
    let large_enough =
        alloc.params_bytes == 0 || alloc.params_bytes as usize >= size_of::<GroupParams>();
    if class == abi::CLASS_GROUP && alloc.params != 0 && large_enough {
        // SAFETY: the kernel has read these parameters of the group it just made.
        engine = unsafe { (alloc.params as *const GroupParams).read_unaligned() }.engine;
    }
    registry.add(Object {
        origin: origin(),
        client: alloc.client,
        handle: alloc.object,
        parent: alloc.parent,
        class,
        engine,
        driver_slice_us: None,
    })
}

/// # Safety
/// The escape's block is readable as the request says.
unsafe fn allocation(escape: &Escape) -> Option<Alloc21> {
    if escape.nr != abi::ESC_ALLOC {
        return None;
    }
    // SAFETY: our contract.
    if let Some(alloc) = unsafe { escape.get::<Alloc21>() } {
        return Some(alloc);
    }
    // SAFETY: our contract.
    let alloc = unsafe { escape.get::<Alloc64>() }?;
    Some(Alloc21 {
        client: alloc.client,
        parent: alloc.parent,
        object: alloc.object,
        class: alloc.class,
        params: alloc.params,
        params_bytes: alloc.params_bytes,
        status: alloc.status,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escape<T>(nr: u32, block: &mut T) -> Escape {
        let pointer = std::ptr::from_mut(block).cast();
        // SAFETY: the block is a live value of this size.
        unsafe { Escape::open(nr, size_of::<T>(), pointer) }
    }

    fn record_in(registry: &mut Registry, escape: &Escape) -> bool {
        // SAFETY: the tests' blocks point to live values.
        unsafe { record(registry, escape, || Origin { fd: 3, rdev: 9 }) }
    }

    #[test]
    fn groups_and_channels_are_learnt_from_both_forms_of_alloc() {
        let mut registry = Registry::new();
        let engine = GroupParams {
            engine: 1,
            ..GroupParams::default()
        };
        let mut group = Alloc64 {
            client: 1,
            parent: 2,
            object: 10,
            class: abi::CLASS_GROUP,
            params: std::ptr::from_ref(&engine) as u64,
            params_bytes: size_of::<GroupParams>() as u32,
            ..Alloc64::default()
        };
        assert!(record_in(
            &mut registry,
            &escape(abi::ESC_ALLOC, &mut group)
        ));
        let mut channel = Alloc21 {
            client: 1,
            parent: 10,
            object: 11,
            class: 0xC86F,
            ..Alloc21::default()
        };
        assert!(record_in(
            &mut registry,
            &escape(abi::ESC_ALLOC, &mut channel)
        ));
        let groups = registry.groups();
        assert_eq!(groups[0].object.engine, 1);
        assert_eq!(groups[0].channels, [11]);
        assert_eq!(groups[0].object.origin, Origin { fd: 3, rdev: 9 });
    }

    #[test]
    fn an_envelope_is_opened() {
        let mut registry = Registry::new();
        let mut group = Alloc21 {
            client: 1,
            parent: 2,
            object: 10,
            class: abi::CLASS_GROUP,
            ..Alloc21::default()
        };
        let mut envelope = Transfer {
            nr: abi::ESC_ALLOC,
            bytes: size_of::<Alloc21>() as u32,
            pointer: std::ptr::from_mut(&mut group) as u64,
        };
        assert!(record_in(
            &mut registry,
            &escape(abi::ESC_XFER, &mut envelope)
        ));
        let mut free = Free {
            client: 1,
            object: 10,
            ..Free::default()
        };
        assert!(record_in(&mut registry, &escape(abi::ESC_FREE, &mut free)));
        assert!(registry.groups().is_empty());
    }

    #[test]
    fn failed_and_foreign_requests_record_nothing() {
        let mut registry = Registry::new();
        let mut group = Alloc21 {
            client: 1,
            object: 10,
            class: abi::CLASS_GROUP,
            status: 0x1F,
            ..Alloc21::default()
        };
        assert!(!record_in(
            &mut registry,
            &escape(abi::ESC_ALLOC, &mut group)
        ));
        let mut odd = [0_u8; 20];
        assert!(!record_in(&mut registry, &escape(abi::ESC_ALLOC, &mut odd)));
        let mut other = Alloc21 {
            class: 0x0040,
            ..Alloc21::default()
        };
        assert!(!record_in(
            &mut registry,
            &escape(abi::ESC_ALLOC, &mut other)
        ));
    }
}
