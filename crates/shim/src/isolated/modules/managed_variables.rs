//! Variables that the driver in the worker keeps in managed memory of its own (`__managed__`).
//!
//! Their address is the worker's, and no memory of the driver's can be shared with this process. So the program has
//! memory of its own at the same address, a *shadow*. Bytes that the program has changed since the last exchange go to
//! the device before the next work ([`push`]); after each wait the device's bytes are fetched ([`pull`]). A program
//! that looks at a variable while a kernel changes it sees the bytes of the last exchange: that is why
//! `CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS` is 0 where there is a driver.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

use mica_cuda_abi::CuResult;
use mica_wire::session::StreamCreate;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::isolated::context::Context;
use crate::isolated::state::State;
use crate::isolated::support::{Answer, lock, not_supported};
use crate::log;

const PAGE: u64 = 4096;
/// Largest variable: each exchange compares all of it.
const MOST_BYTES: u64 = 1 << 20;
/// Changed bytes that are no farther apart travel together.
const NEAR_BYTES: usize = 64;

/// A variable with memory here.
struct Shadow {
    address: u64,
    /// Its bytes at the last exchange.
    exchanged: Vec<u8>,
    epoch: u64,
    /// A stream of its context that waits for no other, for reads.
    reader: u64,
}

static SHADOWS: Mutex<Vec<Shadow>> = Mutex::new(Vec::new());
/// Whether there ever was one, so that launches and waits need not look otherwise.
static ANY: AtomicBool = AtomicBool::new(false);
/// Pages with memory for shadows, and for how many.
static PAGES: Mutex<BTreeMap<u64, u32>> = Mutex::new(BTreeMap::new());

/// Gives a variable memory at its own address in this process.
pub(crate) fn add(
    state: &State,
    context: &'static Context,
    name: &str,
    (address, bytes): (u64, u64),
) -> Answer {
    if bytes > MOST_BYTES {
        let what = format!("the __managed__ variable {name} of {bytes} bytes (at most 1 MiB)");
        return not_supported(&what);
    }
    let epoch = context.epoch();
    let mut shadows = lock(&SHADOWS);
    let known = shadows.iter().find(|shadow| shadow.epoch == epoch);
    let reader = match known {
        Some(shadow) => shadow.reader,
        None => {
            let request = StreamCreate {
                context: context.wire(),
                non_blocking: true,
                priority: 0,
            };
            context.checked(state.client.call(&request))?.value
        }
    };
    let mut exchanged = vec![0; bytes as usize];
    context.checked(state.client.read(reader, address, &mut exchanged))?;
    if let Err(error) = hold_pages(address, bytes) {
        log::line(&format!(
            "the __managed__ variable {name} cannot have its address {address:#x} in this program: {error}"
        ));
        return Err(CuResult::OutOfMemory.into());
    }
    // SAFETY: pages of our own that the program does not know of yet.
    unsafe { copy_to(address, &exchanged) };
    shadows.push(Shadow {
        address,
        exchanged,
        epoch,
        reader,
    });
    ANY.store(true, Release);
    Ok(())
}

/// Ends a variable: its module goes.
pub(crate) fn remove(address: u64) {
    if ANY.load(Acquire) {
        drop_where(|shadow| shadow.address == address);
    }
}

/// Ends the variables of a life of a context that is over.
pub(crate) fn forget_epoch(epoch: u64) {
    if ANY.load(Acquire) {
        drop_where(|shadow| shadow.epoch == epoch);
    }
}

fn drop_where(gone: impl Fn(&Shadow) -> bool) {
    lock(&SHADOWS).retain(|shadow| {
        let gone = gone(shadow);
        if gone {
            release_pages(shadow.address, shadow.exchanged.len() as u64);
        }
        !gone
    });
}

/// Sends what the program has changed, in the order of a stream. To be called before work is submitted to it.
#[inline]
pub(crate) fn push(state: &State, context: &'static Context, stream: u64) -> Answer {
    match ANY.load(Acquire) {
        true => push_changes(state, context, stream),
        false => Ok(()),
    }
}

#[cold]
fn push_changes(state: &State, context: &'static Context, stream: u64) -> Answer {
    let epoch = context.epoch();
    let mut shadows = lock(&SHADOWS);
    for shadow in shadows.iter_mut().filter(|shadow| shadow.epoch == epoch) {
        let mut here = vec![0; shadow.exchanged.len()];
        // SAFETY: the shadow's pages are held.
        unsafe { copy_from(shadow.address, &mut here) };
        for range in changes(&here, &shadow.exchanged) {
            let at = shadow.address + range.start as u64;
            let bytes = &here[range.clone()];
            context.checked(state.client.write(stream, at, bytes))?;
            shadow.exchanged[range.clone()].copy_from_slice(bytes);
        }
    }
    Ok(())
}

/// Fetches what kernels have changed. To be called after a wait.
#[inline]
pub(crate) fn pull(state: &State) {
    if ANY.load(Acquire) {
        pull_changes(state);
    }
}

#[cold]
fn pull_changes(state: &State) {
    for shadow in lock(&SHADOWS).iter_mut() {
        let mut device = vec![0; shadow.exchanged.len()];
        let read = state
            .client
            .read(shadow.reader, shadow.address, &mut device);
        if let Err(error) = read {
            // A context that has failed: whoever waited is told.
            log::line(&format!("a __managed__ variable was not read: {error}"));
            continue;
        }
        let mut here = vec![0; device.len()];
        // SAFETY: the shadow's pages are held.
        unsafe { copy_from(shadow.address, &mut here) };
        for range in arrived(&here, &shadow.exchanged, &device) {
            // SAFETY: as above.
            unsafe { copy_to(shadow.address + range.start as u64, &device[range]) };
        }
        shadow.exchanged = device;
    }
}

/// Ranges in which two texts of the same length differ; near ones are one.
fn changes(here: &[u8], exchanged: &[u8]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (at, (new, old)) in here.iter().zip(exchanged).enumerate() {
        if new == old {
            continue;
        }
        match ranges.last_mut() {
            Some(last) if at - last.end <= NEAR_BYTES => last.end = at + 1,
            _ => ranges.push(at..at + 1),
        }
    }
    ranges
}

/// Ranges of bytes that the device has changed and the program has not.
fn arrived(here: &[u8], exchanged: &[u8], device: &[u8]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (at, old) in exchanged.iter().enumerate() {
        if device[at] == *old || here[at] != *old {
            continue;
        }
        match ranges.last_mut() {
            Some(last) if at == last.end => last.end = at + 1,
            _ => ranges.push(at..at + 1),
        }
    }
    ranges
}

/// # Safety
/// So many bytes at the address are held pages.
unsafe fn copy_from(address: u64, bytes: &mut [u8]) {
    // SAFETY: our contract. The program may write to them at the same time: then some of its bytes are sent later.
    unsafe { std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), bytes.len()) };
}

/// # Safety
/// As [`copy_from`].
unsafe fn copy_to(address: u64, bytes: &[u8]) {
    // SAFETY: our contract.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
}

fn pages_of(address: u64, bytes: u64) -> impl Iterator<Item = u64> {
    let first = address & !(PAGE - 1);
    (first..address + bytes.max(1)).step_by(PAGE as usize)
}

/// Makes memory for the pages of a range that have none; variables share pages.
fn hold_pages(address: u64, bytes: u64) -> rustix::io::Result<()> {
    let mut pages = lock(&PAGES);
    let mut made = Vec::new();
    for page in pages_of(address, bytes).filter(|page| !pages.contains_key(page)) {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: the kernel refuses a page that is taken: nothing is replaced.
        let mapped =
            unsafe { mmap_anonymous(page as *mut c_void, PAGE as usize, protection, flags) };
        if let Err(error) = mapped {
            made.into_iter().for_each(unmap);
            return Err(error);
        }
        made.push(page);
    }
    for page in pages_of(address, bytes) {
        *pages.entry(page).or_default() += 1;
    }
    Ok(())
}

fn release_pages(address: u64, bytes: u64) {
    let mut pages = lock(&PAGES);
    for page in pages_of(address, bytes) {
        let Some(users) = pages.get_mut(&page) else {
            continue;
        };
        *users -= 1;
        if *users == 0 {
            pages.remove(&page);
            unmap(page);
        }
    }
}

fn unmap(page: u64) {
    // SAFETY: mapped by `hold_pages`, and no shadow is in it any more.
    let _ = unsafe { munmap(page as *mut c_void, PAGE as usize) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_changes_travel_together() {
        let (mut here, old) = (vec![0_u8; 400], vec![0_u8; 400]);
        assert!(changes(&here, &old).is_empty());
        for at in [3, 10, 200, 399] {
            here[at] = 1;
        }
        assert_eq!(changes(&here, &old), [3..11, 200..201, 399..400]);
    }

    #[test]
    fn what_the_program_changed_stays_and_is_sent_later() {
        let exchanged = [0_u8; 6];
        let mut here = [0, 9, 0, 0, 9, 0];
        let device = [0, 5, 5, 5, 0, 0];
        let ranges = arrived(&here, &exchanged, &device);
        assert_eq!(ranges, vec![2..4; 1]);
        for range in ranges {
            here[range.clone()].copy_from_slice(&device[range]);
        }
        assert_eq!(here, [0, 9, 5, 5, 9, 0]);
        // The device's bytes are the last exchange now, so the program's own are found to differ.
        assert_eq!(changes(&here, &device), vec![1..5; 1]);
    }

    #[test]
    fn pages_are_shared_given_back_and_never_taken_from_others() {
        // SAFETY: the address is a wish; the test owns the four pages. Far from where the system puts other mappings, so that
        // no other thread of the tests gets the pages that are freed here.
        let base = unsafe {
            let len = 4 * PAGE as usize;
            let base = mmap_anonymous(
                std::ptr::without_provenance_mut(0x1000_0000_0000),
                len,
                ProtFlags::empty(),
                MapFlags::PRIVATE,
            );
            let base = base.unwrap();
            // The first three are free, the last is somebody's.
            munmap(base, 3 * PAGE as usize).unwrap();
            base as u64
        };
        hold_pages(base + 100, 8).unwrap();
        hold_pages(base + 200, PAGE).unwrap();
        // SAFETY: held above.
        unsafe { copy_to(base + 200, &[7; 4000]) };
        assert!(hold_pages(base + 2 * PAGE, PAGE + 1).is_err());
        release_pages(base + 200, PAGE);
        let mut byte = [0];
        // SAFETY: the first page is still held.
        unsafe { copy_from(base + 200, &mut byte) };
        assert_eq!(byte, [7]);
        release_pages(base + 100, 8);
        assert!(hold_pages(base, 3 * PAGE).is_ok());
        release_pages(base, 3 * PAGE);
    }
}
