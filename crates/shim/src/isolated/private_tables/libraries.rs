//! The private tables that single libraries use: cuBLAS, cuDNN, cuFFT, cuSOLVER, the profiler.
//!
//! What each slot does was learnt by recording what libraries pass and get on an H200 (driver 580). No slot
//! does work on the GPU, so all are answered here.

use std::ffi::c_void;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, OnceLock};

use mica_cuda_abi::{CuResult, CuStatus, Handle};

use super::{Table, id};
use crate::isolated::modules::calls;
use crate::isolated::state::state;
use crate::isolated::support::{driver, lock, put, put_opt};
use crate::log;

const LAUNCHES: [u8; 16] = id("21318c60971432488ca641ff7324c8f2");
const PROCESSORS: [u8; 16] = id("1734dc26800d47458726c0f1e7dd8bca");
const MODULES: [u8; 16] = id("6e163fbeb958444d835ce182aff1991e");
const COMPILED: [u8; 16] = id("da9151d33ae6cc41a5c04f26d533e328");
const PROFILER: [u8; 16] = id("69a28e9f24498b47b030c5da330ea4e9");

/// Slots of the table that stands for one whose size is not known.
const UNKNOWN_SLOTS: usize = 128;

/// A name for each table whose identity is not known, for as long as the process lives.
static UNKNOWN: Mutex<Vec<([u8; 16], &'static Table)>> = Mutex::new(Vec::new());

struct Tables {
    launches: Table,
    processors: Table,
    modules: Table,
    compiled: Table,
    profiler: Table,
}

extern "C" fn succeed() -> CuStatus {
    0
}

fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES.get_or_init(|| {
        let succeed = succeed as *const () as usize;
        Tables {
            launches: Table::sized(
                "21318c60",
                93,
                &[
                    (4, launch_query as *const () as usize),
                    (39, queue_number as *const () as usize),
                    (51, queue_of_stream as *const () as usize),
                ],
            ),
            processors: Table::sized(
                "1734dc26",
                17,
                &[
                    (4, processor_map as *const () as usize),
                    (13, processor_map_free as *const () as usize),
                ],
            ),
            modules: Table::sized(
                "6e163fbe",
                99,
                &[(7, module_functions as *const () as usize)],
            ),
            compiled: Table::sized(
                "da9151d3",
                7,
                &[
                    (1, compiled_open as *const () as usize),
                    (2, succeed),
                    (3, compiled_find as *const () as usize),
                    (4, succeed),
                ],
            ),
            profiler: Table::sized(
                "69a28e9f",
                34,
                &[
                    (19, profiler_subscribe as *const () as usize),
                    (21, succeed),
                    (24, succeed),
                    (25, succeed),
                ],
            ),
        }
    })
}

/// The table with this identity. One that is not known has slots that all fail with their number: callers do
/// not look whether there is a table before they call it.
pub(crate) fn find(id: &[u8; 16]) -> Option<*const c_void> {
    let tables = tables();
    let table = match *id {
        LAUNCHES => &tables.launches,
        PROCESSORS => &tables.processors,
        MODULES => &tables.modules,
        COMPILED => &tables.compiled,
        PROFILER => &tables.profiler,
        _ => unknown(id),
    };
    Some(table.as_ptr())
}

fn unknown(id: &[u8; 16]) -> &'static Table {
    let mut unknown = lock(&UNKNOWN);
    if let Some((_, table)) = unknown.iter().find(|(known, _)| known == id) {
        return table;
    }
    let digits: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    log::line(&format!(
        "the driver's private table {digits} is not known to Mica: calls through it will fail"
    ));
    // Tables are asked for a few times in a process's life and live as long as the process.
    let name: &'static str = digits.leak();
    let table: &'static Table = Box::leak(Box::new(Table::sized(name, UNKNOWN_SLOTS, &[])));
    unknown.push((*id, table));
    table
}

/// An object that a library passes back and does not look into.
type Object = [AtomicU64; 32];
static QUEUE: Object = [const { AtomicU64::new(0) }; 32];
static COMPILATION: Object = [const { AtomicU64::new(0) }; 32];
static SUBSCRIBER: Object = [const { AtomicU64::new(0) }; 32];

fn address(object: &'static Object) -> *const c_void {
    object.as_ptr().cast()
}

driver! {
    fn launch_query(_context: Handle, out: *mut u32) {
        put_opt(out, 1);
        Ok(())
    }

    fn queue_of_stream(_context: Handle, _stream: Handle, out: *mut *const c_void) {
        put(out, address(&QUEUE))
    }

    fn queue_number(_context: Handle, _queue: *const c_void, out: *mut u32) {
        put(out, 7)
    }

    fn processor_map(groups: *mut *mut u8, places: *mut *mut u8) {
        let snapshot = state()?.client.snapshot();
        if snapshot.processor_groups.is_empty() {
            return Err(CuResult::NotSupported.into());
        }
        put(groups, copied(&snapshot.processor_groups)?)?;
        put(places, copied(&snapshot.processor_places)?)
    }

    fn processor_map_free(groups: *mut u8, places: *mut u8) {
        for bytes in [groups, places] {
            libc::free(bytes.cast());
        }
        Ok(())
    }

    fn compiled_open(out: *mut *const c_void) {
        put(out, address(&COMPILATION))
    }

    fn compiled_find() {
        Err(CuResult::NotFound.into())
    }

    fn profiler_subscribe(out: *mut *const c_void) {
        put(out, address(&SUBSCRIBER))
    }
}

/// What a library is called with for each function of a module.
type EachFunction = unsafe extern "C" fn(data: *mut c_void, function: Handle);

/// Calls `each` for every function of a module; answers how many there are, 0 if the module is not one.
unsafe extern "C" fn module_functions(
    _context: Handle,
    module: Handle,
    each: Option<EachFunction>,
    data: *mut c_void,
) -> CuStatus {
    let (Ok(functions), Some(each)) = (calls::functions_of(module), each) else {
        return 0;
    };
    for function in &functions {
        // SAFETY: the library's own function and pointer.
        unsafe { each(data, *function) };
    }
    functions.len() as CuStatus
}

/// Bytes in memory that the caller frees with the C library.
fn copied(bytes: &[u8]) -> crate::isolated::support::Answer<*mut u8> {
    // SAFETY: a request for memory; a zero size is made one byte.
    let room = unsafe { libc::malloc(bytes.len().max(1)) }.cast::<u8>();
    if room.is_null() {
        return Err(CuResult::OutOfMemory.into());
    }
    // SAFETY: there is room for all bytes, and the two do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), room, bytes.len()) };
    Ok(room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_its_size_first_and_no_empty_slot() {
        for (id, bytes) in [
            (LAUNCHES, 0x2e8),
            (PROCESSORS, 0x88),
            (MODULES, 0x318),
            (COMPILED, 0x38),
            (PROFILER, 0x110),
            ([7; 16], UNKNOWN_SLOTS * 8),
        ] {
            let table = find(&id).unwrap().cast::<usize>();
            // SAFETY: the table lives for ever and says how long it is.
            let slots = unsafe { std::slice::from_raw_parts(table, *table / 8) };
            assert_eq!(slots[0], bytes);
            assert!(slots.iter().all(|slot| *slot != 0));
        }
        assert_eq!(find(&[7; 16]), find(&[7; 16]));
        assert_ne!(find(&[7; 16]), find(&[8; 16]));
    }

    #[test]
    fn a_slot_that_is_not_known_fails() {
        let table = find(&COMPILED)
            .unwrap()
            .cast::<extern "C" fn() -> CuStatus>();
        // SAFETY: slot 5 is a function that takes nothing.
        let slot = unsafe { *table.add(5) };
        assert_eq!(slot(), CuResult::NotSupported as CuStatus);
    }
}
