//! Isolated mode: the program's calls go to a worker process that owns the device.
//!
//! Not in this version yet: every entry point answers NOT_SUPPORTED, loudly in the log, so that a
//! program never runs past its limits by accident.

use crate::exports;
use crate::log;

/// Fills all slots.
pub(crate) fn install() {
    log::line(
        "isolated mode is not built into this libcuda.so.1; every call answers NOT_SUPPORTED",
    );
    for number in 0..exports::COUNT {
        exports::point(number, exports::answer_not_supported as *const _);
    }
}
