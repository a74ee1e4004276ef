//! Images of device code in the program's memory.

/// Reads the program's memory up to the end of a page.
pub(crate) fn read_memory(address: u64, into: &mut [u8]) -> usize {
    const PAGE: u64 = 4096;
    if address < PAGE {
        return 0;
    }
    let len = (into.len() as u64).min(PAGE - address % PAGE) as usize;
    // SAFETY: the program says that an image is here, and a page is readable as a whole.
    unsafe { std::ptr::copy_nonoverlapping(address as *const u8, into.as_mut_ptr(), len) };
    len
}
