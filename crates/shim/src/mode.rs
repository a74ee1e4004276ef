//! Decides once, at the first call of any entry point, what stands behind the symbols.

use std::ffi::{CStr, c_void};
use std::path::Path;
use std::sync::Once;

use mica_driver_files::CONTAINER_DRIVER_DIR;

use crate::{direct, exports, isolated, trace};

/// Name of the variable that chooses the mode: `direct` or `isolated`.
const MODE: &str = "MICA_MODE";

static RESOLVED: Once = Once::new();

/// Runs when the library is loaded, before the program's own code.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    let _ = std::panic::catch_unwind(mica_limits::remember_environment);
}

/// Fills all slots; later calls return at once.
pub(crate) fn resolve_once() {
    RESOLVED.call_once(|| {
        match is_isolated() {
            true => isolated::install(),
            false => direct::install(),
        }
        trace::install();
    });
}

/// A container has no device files unless it was given them together with the variable that says `direct` and the driver. A
/// program that was started without the variable (`su -`, `ssh`, `env -i`) finds the driver.
fn is_isolated() -> bool {
    match mica_limits::variable(MODE) {
        Some(mode) => mode == "isolated",
        None => mica_limits::in_container() && !Path::new(CONTAINER_DRIVER_DIR).is_dir(),
    }
}

/// What stands behind a name that this library does not know.
pub(crate) fn newer(name: &CStr) -> *mut c_void {
    let found = match is_isolated() {
        true => None,
        false => direct::newer(name),
    };
    found.unwrap_or(exports::answer_not_supported as *mut c_void)
}
