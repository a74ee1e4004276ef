//! What only the driver's private tables tell.

use std::ffi::c_void;

use crate::driver::CudaDriver;

/// Identity of the table with the map of multiprocessors.
const PROCESSORS: [u8; 16] = [
    0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b, 0xca,
];
/// Bytes of the table in the drivers whose slots are known.
const PROCESSORS_BYTES: usize = 0x88;
const MAKE_MAP: usize = 4;
const FREE_MAP: usize = 13;

type MakeMap = unsafe extern "C" fn(*mut *mut u8, *mut *mut u8) -> u32;
type FreeMap = unsafe extern "C" fn(*mut u8, *mut u8) -> u32;

impl CudaDriver {
    /// For each pair of multiprocessors its cluster, and its place there. `None` if this driver has another
    /// table than the one that is known.
    pub(crate) fn processor_map(&self, multiprocessors: u32) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut table: *const c_void = std::ptr::null();
        // SAFETY: writes one pointer; the identity has sixteen bytes.
        let code = unsafe { (self.functions.export_table)(&mut table, PROCESSORS.as_ptr().cast()) };
        if code != 0 || table.is_null() {
            return None;
        }
        let table = table.cast::<usize>();
        // SAFETY: this table's first word is its size.
        if unsafe { *table } != PROCESSORS_BYTES {
            return None;
        }
        // SAFETY: in a table of this size these slots are these functions (recorded on an H200, driver 580).
        let (make, free) = unsafe {
            let slot = |at: usize| *table.add(at) as *const c_void;
            (
                std::mem::transmute::<*const c_void, MakeMap>(slot(MAKE_MAP)),
                std::mem::transmute::<*const c_void, FreeMap>(slot(FREE_MAP)),
            )
        };
        let (mut groups, mut places) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: writes two pointers.
        let code = unsafe { make(&mut groups, &mut places) };
        if code != 0 || groups.is_null() || places.is_null() {
            return None;
        }
        let pairs = (multiprocessors / 2) as usize;
        // SAFETY: the driver made a byte for each pair of multiprocessors.
        let copy = |bytes: *mut u8| unsafe { std::slice::from_raw_parts(bytes, pairs) }.to_vec();
        let map = (copy(groups), copy(places));
        // SAFETY: made above, copied, and used by nobody else.
        unsafe { free(groups, places) };
        Some(map)
    }
}
