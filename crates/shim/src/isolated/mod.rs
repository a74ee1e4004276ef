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

mod advice;
mod arrays;
mod attributes;
mod callbacks;
mod capture;
mod capture_calls;
mod conditionals;
mod context;
mod context_calls;
mod context_storage;
mod copies;
mod copy_boxes;
mod copy_calls;
mod device;
mod events;
mod exec;
mod exec_update;
mod fills;
mod flatten;
mod functions;
mod graph_memory;
mod graph_nodes;
mod graph_ops;
mod graph_params;
mod graph_shape;
mod graphs;
mod handles;
mod host;
mod ipc;
mod launch;
mod launch_attributes;
mod library_tables;
mod link;
mod managed_variables;
mod md2;
mod memory;
mod modules;
mod occupancy;
mod pool_memory;
mod pools;
mod procaddr;
mod refusals;
mod registered;
mod shared_pools;
mod slabs;
mod state;
mod stream_calls;
mod streams;
mod support;
mod tables;
mod tensor_maps;
mod unknown_slots;
mod user_objects;
mod variables;
mod vmm;

use std::ffi::c_void;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use mica_cuda_abi::{CuResult, CuStatus, ENTRY_POINTS, for_each_entry_point};

use crate::exports::{self, COUNT};
use support::Entries;

/// Every list of functions.
const LISTS: &[Entries] = &[
    advice::ENTRIES,
    advice::STREAM_ENTRIES,
    arrays::ENTRIES,
    callbacks::STREAM_ENTRIES,
    capture_calls::ENTRIES,
    capture_calls::STREAM_ENTRIES,
    context_calls::ENTRIES,
    copy_calls::STREAM_ENTRIES,
    device::ENTRIES,
    events::ENTRIES,
    events::STREAM_ENTRIES,
    exec::ENTRIES,
    exec_update::ENTRIES,
    conditionals::ENTRIES,
    exec::STREAM_ENTRIES,
    fills::STREAM_ENTRIES,
    graph_nodes::ENTRIES,
    graph_shape::ENTRIES,
    host::ENTRIES,
    ipc::ENTRIES,
    launch::STREAM_ENTRIES,
    link::ENTRIES,
    memory::ENTRIES,
    functions::ENTRIES,
    occupancy::ENTRIES,
    pools::ENTRIES,
    shared_pools::ENTRIES,
    pools::STREAM_ENTRIES,
    procaddr::ENTRIES,
    stream_calls::ENTRIES,
    stream_calls::STREAM_ENTRIES,
    user_objects::ENTRIES,
    tensor_maps::ENTRIES,
    vmm::ENTRIES,
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
