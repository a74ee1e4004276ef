//! Isolated mode: the program's calls go to a worker process that owns the device.
//!
//! Owns the program's side of the driver: handles, contexts, which thread has which context current,
//! what pointers mean, stream capture, graphs, the private tables. Attributes, look-ups and checks of
//! arguments are answered here; launches, copies and records are posted to the worker's ring; what
//! must wait is called. Errors that come late are kept and told by the next call that can tell them.
//!
//! ```text
//!   program ── cuLaunchKernel ──► checked ──► ring ──► worker
//!           ── cuFuncGetAttribute ─► answered here
//!           ── cuGraphicsMapResources ─► NOT_SUPPORTED, with its name in the log
//! ```
//!
//! What is not here answers `CUDA_ERROR_NOT_SUPPORTED` and says so; nothing succeeds silently.

mod capture;
mod check;
mod context;
mod copies;
mod device;
mod graphs;
mod handles;
mod launch;
mod memory;
mod modules;
mod pools;
mod private_tables;
mod procaddr;
mod refusals;
mod state;
mod streams;
mod support;

use std::ffi::c_void;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use mica_cuda_abi::{CuResult, CuStatus, ENTRY_POINTS, for_each_entry_point};

use crate::exports::{self, COUNT};
use support::Entries;

/// Every list of functions.
const LISTS: &[Entries] = &[
    memory::advice::ENTRIES,
    memory::advice::STREAM_ENTRIES,
    memory::arrays::ENTRIES,
    streams::callbacks::STREAM_ENTRIES,
    capture::calls::ENTRIES,
    capture::calls::STREAM_ENTRIES,
    context::calls::ENTRIES,
    copies::calls::STREAM_ENTRIES,
    device::ENTRIES,
    streams::events::ENTRIES,
    streams::events::STREAM_ENTRIES,
    graphs::exec::ENTRIES,
    graphs::exec_update::ENTRIES,
    graphs::conditionals::ENTRIES,
    graphs::exec::STREAM_ENTRIES,
    copies::fills::STREAM_ENTRIES,
    graphs::nodes::ENTRIES,
    graphs::dependencies::ENTRIES,
    memory::host_memory::ENTRIES,
    memory::ipc::ENTRIES,
    launch::STREAM_ENTRIES,
    modules::link::ENTRIES,
    memory::ENTRIES,
    modules::calls::ENTRIES,
    launch::occupancy::ENTRIES,
    pools::ENTRIES,
    pools::shared::ENTRIES,
    pools::STREAM_ENTRIES,
    procaddr::ENTRIES,
    streams::calls::ENTRIES,
    streams::calls::STREAM_ENTRIES,
    streams::values::STREAM_ENTRIES,
    graphs::dot::ENTRIES,
    graphs::user_objects::ENTRIES,
    memory::tensor_maps::ENTRIES,
    memory::vmm::ENTRIES,
];

/// Says, once for each entry point, that a program wanted something that is not here.
#[cold]
fn refuse(number: usize) -> CuStatus {
    static SAID: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];
    if !SAID[number].swap(true, Relaxed) {
        let symbol = ENTRY_POINTS[number].symbol;
        refusals::tell(&format!("{symbol} is not supported in isolated mode"));
    }
    CuResult::NotSupported as CuStatus
}

macro_rules! refusals {
    ($(($symbol:ident, $base:ident, $version:literal, $stream:ident, $class:ident, $args:literal))*) => {
        $(
            #[allow(non_snake_case, reason = "the driver's name")]
            extern "C" fn $symbol() -> CuStatus {
                refuse(mica_cuda_abi::Symbol::$symbol as usize)
            }
        )*
        fn refusal(number: usize) -> *const c_void {
            static REFUSALS: [extern "C" fn() -> CuStatus; COUNT] = [$($symbol),*];
            REFUSALS[number] as *const c_void
        }
    };
}
for_each_entry_point!(refusals);

/// Fills all slots.
pub(crate) fn install() {
    let mut targets: Vec<*const c_void> = (0..COUNT).map(refusal).collect();
    for (symbol, function) in LISTS.iter().copied().flatten() {
        targets[*symbol as usize] = function.0;
    }
    for (number, target) in targets.into_iter().enumerate() {
        exports::point(number, target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_entry_point_is_listed_twice() {
        let mut seen = std::collections::HashSet::new();
        for (symbol, _) in LISTS.iter().copied().flatten() {
            assert!(seen.insert(*symbol as usize), "{}", symbol.entry().symbol);
        }
        assert!(seen.len() > 400, "{} entry points", seen.len());
    }

    #[test]
    fn the_support_list_says_what_is_served() {
        let listed = LISTS.iter().copied().flatten();
        let served: std::collections::HashSet<usize> =
            listed.map(|(symbol, _)| *symbol as usize).collect();
        for (number, entry) in ENTRY_POINTS.iter().enumerate() {
            let refused = entry.isolated() == mica_cuda_abi::Isolated::Refused;
            assert!(
                served.contains(&number) != refused,
                "{}: bring the lists in crates/cuda-abi/src and docs/SUPPORT.md up to date",
                entry.symbol
            );
        }
    }
}
