//! libnvidia-ml.so.1: shows the virtual GPU to monitoring tools.
//!
//! Lies before the real library in a tenant's library path. Every function of NVML is exported; most
//! jump straight to the real one (`forward`), those that would show more than the virtual GPU are
//! answered here (`answers`) from what the daemon says (`vgpu`). On the software GPU, where there is no
//! real library, the common questions are answered here and the rest are "not supported".
//!
//! It prints nothing, never panics into its caller, and never waits long. In a virtual GPU whose
//! daemon cannot be asked it fails rather than show the whole GPU.
#![deny(clippy::unwrap_used, clippy::expect_used)]

mod abi;
mod answers;
mod forward;
mod names;
mod state;
mod vgpu;

/// Proves a library to be Mica's: looked up before any library is taken for the real one.
#[unsafe(no_mangle)]
pub static MICA_SHIM_MARKER: u32 = 1;

/// Runs when the library is loaded, before the program's own code.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    let _ = std::panic::catch_unwind(mica_limits::remember_environment);
}
