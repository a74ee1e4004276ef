//! Launches on their common path: sixty bytes of code, and three cache lines of data with the shared page's two.
//!
//! A large program's own work fills the caches between two launches, and then each line that is touched is a wait. As
//! the compiler writes it, a hook keeps six registers for the path that waits at the gate and reads three variables that
//! lie apart. In a loop of nothing but launches this is 14 cycles less.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU64};

use mica_cuda_abi::{Handle, LaunchConfig, Symbol};
use mica_wire::host::page::ClientPage;

use super::{driver, streams, submission};
use crate::exports;
use crate::stub::{Registers, common};

/// What every submission reads in this library.
#[repr(C, align(64))]
pub(super) struct Submission {
    /// The shared page, null without limits.
    pub(super) page: AtomicPtr<ClientPage>,
    /// See [`streams`].
    pub(super) stream: AtomicU64,
    /// The driver's functions, each at its [`place`]; in the table of all functions they lie apart.
    pub(super) real: [AtomicPtr<c_void>; LAUNCHES.len()],
}

pub(super) static SUBMISSION: Submission = Submission {
    page: AtomicPtr::new(std::ptr::null_mut()),
    stream: AtomicU64::new(streams::NONE),
    real: [const { AtomicPtr::new(exports::answer_not_supported as *mut c_void) }; LAUNCHES.len()],
};

/// The launches that have a path of their own.
pub(super) const LAUNCHES: [Symbol; 4] = [
    Symbol::cuLaunchKernel,
    Symbol::cuLaunchKernel_ptsz,
    Symbol::cuLaunchKernelEx,
    Symbol::cuLaunchKernelEx_ptsz,
];

/// Where the driver's function is in [`Submission::real`].
#[inline(always)]
pub(super) const fn place(symbol: Symbol) -> Option<usize> {
    let mut place = 0;
    while place < LAUNCHES.len() {
        if LAUNCHES[place] as usize == symbol as usize {
            return Some(place);
        }
        place += 1;
    }
    None
}

/// Offset of the driver's function in [`SUBMISSION`].
pub(super) const fn real_offset(symbol: Symbol) -> usize {
    match place(symbol) {
        Some(place) => std::mem::offset_of!(Submission, real) + place * size_of::<*mut c_void>(),
        None => panic!("not a launch with a path of its own"),
    }
}

/// A launch: goes on to the driver if the gate is open and the stream is the one used last, or one of several; else by
/// way of [`wait`]. The first words bring the stream into rax, and go to 2 if it takes more than that.
macro_rules! launch_path {
    ($symbol:ident, $wait:path, $($stream:literal),+ $(, $name:ident = const $value:expr)?) => {
        std::arch::naked_asm!(
            "mov r11, [rip + {submission}]",
            "test r11, r11",
            "je 3f",
            $($stream,)+
            "test byte ptr [r11 + {gate}], 3",
            "jne 2f",
            "cmp rax, [rip + {submission} + {used}]",
            "je 1f",
            "cmp qword ptr [rip + {submission} + {used}], {several}",
            "jne 2f",
            // Two threads may lose a count between them; nothing is decided by one launch.
            "1: inc qword ptr [r11 + {launches}]",
            "3: jmp qword ptr [rip + {submission} + {real}]",
            "2: push {number}",
            "jmp {wait}",
            submission = sym $crate::direct::launch::SUBMISSION,
            used = const std::mem::offset_of!($crate::direct::launch::Submission, stream),
            several = const $crate::direct::streams::SEVERAL as i64,
            gate = const std::mem::offset_of!(mica_wire::host::page::ClientPage, lease.gate),
            launches = const std::mem::offset_of!(mica_wire::host::page::ClientPage, counters.launches),
            real = const $crate::direct::launch::real_offset(mica_cuda_abi::Symbol::$symbol),
            number = const mica_cuda_abi::Symbol::$symbol as usize,
            wait = sym $wait,
            $($name = const $value,)?
        )
    };
}
pub(super) use launch_path;

common!(pub(super) wait => waited);

/// Everything but the common path; then to the driver.
extern "C" fn waited(registers: *mut Registers) -> *mut c_void {
    // SAFETY: laid down by the stub.
    let registers = unsafe { &*registers };
    let symbol = LAUNCHES
        .into_iter()
        .find(|symbol| *symbol as u64 == registers.number);
    let Some(symbol) = symbol else {
        return exports::answer_not_supported as *mut c_void;
    };
    let stream: Handle = match symbol {
        Symbol::cuLaunchKernel | Symbol::cuLaunchKernel_ptsz => {
            // SAFETY: the ninth argument, which every caller passes.
            unsafe { registers.stack.as_ptr().add(2).read() as Handle }
        }
        _ => {
            // SAFETY: null, or the program's configuration.
            let config = unsafe { (registers.rdi as *const LaunchConfig).as_ref() };
            config.map_or(std::ptr::null_mut(), |config| config.stream)
        }
    };
    submission::submit(symbol, stream);
    driver::real_address(symbol)
}
