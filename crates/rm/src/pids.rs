//! Shows a monitoring library only some of the processes on a GPU.
//!
//! Tools such as nvidia-smi list processes through private tables of NVIDIA's library, but all of
//! those lists come from one control, whose answer is narrowed here on its way back.

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::RmError;
use crate::abi::{self, Control, PidsHeader};
use crate::got;
use crate::observer::{Escape, call_ioctl};

/// Whether a process may be shown.
pub type Shown = fn(u32) -> bool;

static SHOWN: OnceLock<Shown> = OnceLock::new();
static ORIGINAL: AtomicUsize = AtomicUsize::new(0);

/// Makes the library behind `handle` see only the processes for which `shown` holds. The first
/// `shown` stays for the life of the process.
///
/// # Safety
/// `handle` came from `dlopen` of NVIDIA's management library, which stays loaded until the process
/// ends.
///
/// # Errors
/// [`RmError::NoIoctlSlot`] if the library imports no `ioctl`; it is then untouched.
pub unsafe fn show_only(handle: *mut c_void, shown: Shown) -> Result<(), RmError> {
    SHOWN.get_or_init(|| shown);
    let hook = narrowing_ioctl as *const () as usize;
    // SAFETY: our contract is the callee's, and the hook has the type of `ioctl`.
    if let Some(held) = unsafe { got::take_over(handle, "ioctl", hook)? } {
        ORIGINAL.store(held, Release);
    }
    Ok(())
}

/// What stands in the library's slot for `ioctl`.
unsafe extern "C" fn narrowing_ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's own arguments, and a word that stood in a slot for `ioctl`.
    let rc = unsafe { call_ioctl(ORIGINAL.load(Acquire), fd, request, argument) };
    let (kind, nr, bytes) = abi::parts(request);
    if rc >= 0 && kind == abi::ESCAPE_TYPE && !argument.is_null() {
        // SAFETY: the kernel has just read this block.
        let escape = unsafe { Escape::open(nr, bytes, argument) };
        // A panic must not unwind into the library.
        let _ = std::panic::catch_unwind(|| {
            // SAFETY: the kernel has just written the block and the list it points to.
            unsafe { narrow(&escape) };
        });
    }
    rc
}

/// # Safety
/// The escape's block, and the parameters it points to, are readable and writable as it says.
unsafe fn narrow(escape: &Escape) {
    if escape.nr != abi::ESC_CONTROL {
        return;
    }
    // SAFETY: our contract.
    let Some(control) = (unsafe { escape.get::<Control>() }) else {
        return;
    };
    let header_bytes = size_of::<PidsHeader>();
    let room = (control.params_bytes as usize).saturating_sub(header_bytes) / size_of::<u32>();
    let Some(shown) = SHOWN.get() else {
        return;
    };
    if control.command != abi::CTRL_GET_PIDS || control.status != 0 || control.params == 0 {
        return;
    }
    let header = control.params as *mut PidsHeader;
    // SAFETY: the parameters begin with this header.
    let mut found = unsafe { header.read_unaligned() };
    let table = (control.params as usize + header_bytes) as *mut u32;
    let mut kept = 0;
    for index in 0..room.min(found.count as usize) {
        // SAFETY: inside the parameters, whose size the control says.
        let pid = unsafe { table.add(index).read_unaligned() };
        if shown(pid) {
            // SAFETY: as above, at or before the entry just read.
            unsafe { table.add(kept).write_unaligned(pid) };
            kept += 1;
        }
    }
    found.count = kept as u32;
    // SAFETY: as the read above.
    unsafe { header.write_unaligned(found) };
}
