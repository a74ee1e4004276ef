//! Memory of the program that it registers: its pages become pages of a file that both processes map.
//!
//! Pages are exchanged for pages of a sealed file with the same contents, at the same address, and for
//! private ones again at the end. The first and the last page may hold what is not registered, even the
//! calling thread's own stack or what other threads write to: they are copied and exchanged one by one, in
//! two or three microseconds and without touching the stack. What another thread writes to them in that
//! time may be lost, and after a `fork` parent and child share all of them; neither is so with a real driver.
//!
//! Registrations that lie in pages of another one share them. Memory that others see too, files and shared
//! memory, is refused: it would no longer be theirs.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::io::BufRead;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Mutex;

use mica_cuda_abi::CuResult;
use mica_wire::session::HostUnregister;
use mica_wire::session::client::HostPiece;
use rustix::mm::{
    MapFlags, MprotectFlags, MremapFlags, ProtFlags, mmap, mmap_anonymous, mprotect, mremap_fixed,
    munmap,
};

use crate::isolated::context::Context;
use crate::isolated::state::State;
use crate::isolated::support::{Answer, Code, invalid, lock, not_supported};
use crate::log;

const PAGE: u64 = 4096;
/// Bytes that are exchanged in one step.
const PIECE: usize = 32 << 20;

/// Pages that are registered, for one or more registrations.
struct Pages {
    bytes: u64,
    device: u64,
    context: &'static Context,
    epoch: u64,
    users: u32,
    /// Parts that the program may only read.
    read_only: Vec<(u64, u64)>,
    /// Where they lie, if that is the session's ivshmem file. Not given back while the program has these pages.
    piece: Option<ManuallyDrop<HostPiece>>,
}

/// By first address.
static PAGES: Mutex<BTreeMap<u64, Pages>> = Mutex::new(BTreeMap::new());

/// The pages around some bytes: their first address and size.
fn pages_of(pointer: u64, bytes: u64) -> (u64, u64) {
    let first = pointer & !(PAGE - 1);
    (first, (pointer + bytes).next_multiple_of(PAGE) - first)
}

/// The pages that hold nothing but these bytes.
fn inner_pages(pointer: u64, bytes: u64) -> Range<u64> {
    pointer.next_multiple_of(PAGE)..(pointer + bytes) & !(PAGE - 1)
}

/// Maps memory of the session at an address of the kernel's choice.
fn map_piece(piece: &HostPiece, bytes: u64) -> rustix::io::Result<u64> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let (any, len, shared) = (std::ptr::null_mut(), bytes as usize, MapFlags::SHARED);
    // SAFETY: a new mapping, which lies over no other.
    let at = unsafe { mmap(any, len, protection, shared, piece.file(), piece.offset()) }?;
    Ok(at as u64)
}

/// Registers bytes of the program, which do not wrap around; answers their address on the device.
pub(crate) fn register(
    state: &State,
    context: &'static Context,
    (pointer, bytes): (u64, u64),
    may_be_read_only: bool,
) -> Answer<u64> {
    let (first, room) = pages_of(pointer, bytes);
    let mut all = lock(&PAGES);
    all.retain(|_, pages| pages.epoch == pages.context.epoch());
    if let Some((start, pages)) = all.range_mut(..first + room).next_back()
        && first < start + pages.bytes
    {
        if first < *start || first + room > start + pages.bytes {
            return not_supported("a registration that shares some of its pages with another");
        }
        pages.users += 1;
        return Ok(pages.device + (pointer - start));
    }
    let read_only = examine(first, room)?;
    if !may_be_read_only && !read_only.is_empty() {
        return invalid();
    }
    let system = |error: rustix::io::Errno| {
        log::line(&format!("memory cannot be registered: {error}"));
        Code(CuResult::OutOfMemory as u32)
    };
    let client = &state.client;
    let piece = context.checked(client.host_piece(room))?;
    let copy = map_piece(&piece, room).map_err(system)?;
    let inner = inner_pages(pointer, bytes);
    // SAFETY: the program says that this memory is its own, and it was found to be readable.
    unsafe { exchange(copy, (first, room), &inner) }.map_err(system)?;
    protect(&read_only);
    let device = client.host_register_piece(context.wire(), &piece, false, first);
    let device = match context.checked(device) {
        Ok(device) => device,
        Err(error) => {
            if !restore((first, room), &inner) {
                std::mem::forget(piece);
            }
            protect(&read_only);
            return Err(error);
        }
    };
    let pages = Pages {
        bytes: room,
        device,
        context,
        epoch: context.epoch(),
        users: 1,
        read_only,
        piece: Some(piece)
            .filter(HostPiece::is_in_ivshmem)
            .map(ManuallyDrop::new),
    };
    all.insert(first, pages);
    Ok(device + (pointer - first))
}

/// Ends a registration; the last one of its pages gives the program private pages again.
pub(crate) fn unregister(state: &State, pointer: u64, bytes: u64) -> Answer {
    let mut all = lock(&PAGES);
    let Some((first, pages)) = all.range_mut(..=pointer).next_back() else {
        return Ok(());
    };
    let first = *first;
    if pages.users > 1 {
        pages.users -= 1;
        return Ok(());
    }
    let Some(pages) = all.remove(&first) else {
        return Ok(());
    };
    let request = HostUnregister {
        context: pages.context.wire(),
        address: pages.device,
    };
    let done = state.client.call(&request);
    state.print_output();
    // Where these bytes are not the first or not all that was registered, other pages may be others' now.
    let inner = inner_pages(pointer, bytes);
    if restore((first, pages.bytes), &inner) {
        drop(pages.piece.map(ManuallyDrop::into_inner));
    }
    protect(&pages.read_only);
    pages.context.checked(done).map(drop)
}

/// Looks at what is mapped: everything must be there and be read by nobody else. Answers the parts that
/// may only be read.
fn examine(first: u64, bytes: u64) -> Answer<Vec<(u64, u64)>> {
    let Ok(maps) = std::fs::File::open("/proc/self/maps") else {
        return Ok(Vec::new());
    };
    let (mut next, end, mut read_only) = (first, first + bytes, Vec::new());
    // Read as far as is needed: the system makes the lines one by one.
    for line in std::io::BufReader::new(maps).lines() {
        let line = line.unwrap_or_default();
        let mut words = line.split_ascii_whitespace();
        let range = words.next().and_then(|range| range.split_once('-'));
        let Some((from, to)) = range.and_then(|(from, to)| {
            let number = |text| u64::from_str_radix(text, 16).ok();
            number(from).zip(number(to))
        }) else {
            continue;
        };
        if to <= next || from > next {
            continue;
        }
        let rights = words.next().unwrap_or_default().as_bytes();
        if rights.first() != Some(&b'r') {
            return invalid();
        }
        if rights.get(3) == Some(&b's') {
            return not_supported("registering memory that other processes or a file share");
        }
        let upto = to.min(end);
        if rights.get(1) != Some(&b'w') {
            read_only.push((next, upto - next));
        }
        next = upto;
        if next == end {
            return Ok(read_only);
        }
    }
    invalid()
}

fn protect(read_only: &[(u64, u64)]) {
    for (first, bytes) in read_only {
        // SAFETY: the program could not write there before either.
        let _ = unsafe { mprotect(*first as *mut c_void, *bytes as usize, MprotectFlags::READ) };
    }
}

/// Gives the program private pages again; whether it has. If there is no memory for them, the shared ones stay.
fn restore((first, room): (u64, u64), inner: &Range<u64>) -> bool {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let (any, len) = (std::ptr::null_mut(), room as usize);
    // SAFETY: new memory at an address of the kernel's choice.
    let Ok(copy) = (unsafe { mmap_anonymous(any, len, protection, MapFlags::PRIVATE) }) else {
        return false;
    };
    // SAFETY: pages that `register` has made.
    unsafe { exchange(copy as u64, (first, room), inner) }.is_ok()
}

/// Puts the pages at `copy` where others are, with the contents of those: the inner ones, which are
/// nobody else's, in large pieces.
///
/// # Safety
/// The pages are the program's and can be read; `copy` is as many that nobody knows of.
unsafe fn exchange(
    copy: u64,
    (first, room): (u64, u64),
    inner: &Range<u64>,
) -> rustix::io::Result<()> {
    let at = |address: u64| copy + (address - first);
    let mut done = Ok(());
    // By pieces, so that the program need not have all of it twice.
    for start in inner.clone().step_by(PIECE) {
        let len = PIECE.min((inner.end - start) as usize);
        let (from, to) = (at(start), start);
        // SAFETY: both are mapped and as long as said; our contract.
        done = done.and_then(|()| unsafe {
            std::ptr::copy_nonoverlapping(to as *const u8, from as *mut u8, len);
            let (from, to) = (from as *mut c_void, to as *mut c_void);
            mremap_fixed(from, len, len, MremapFlags::MAYMOVE, to).map(drop)
        });
    }
    for page in (first..first + room).step_by(PAGE as usize) {
        if done.is_ok() && !inner.contains(&page) {
            // SAFETY: as above, for one page.
            done = unsafe { exchange_page(at(page), page) };
        }
    }
    if done.is_err() {
        // SAFETY: what was not moved is unknown to anybody; nothing is there where the rest was.
        let _ = unsafe { munmap(copy as *mut c_void, room as usize) };
    }
    done
}

/// Copies a page and moves the copy to its place, with nothing between the two and the stack untouched:
/// it may be a page of the stack.
///
/// # Safety
/// Both pages are mapped; nobody knows of the one at `copy`.
unsafe fn exchange_page(copy: u64, page: u64) -> rustix::io::Result<()> {
    let mut before = std::mem::MaybeUninit::uninit();
    let result: i64;
    // SAFETY: a handler would write to the page, if it is of the stack, so none runs meanwhile. The
    // instructions copy one page and make the system call; they touch no other memory.
    unsafe {
        let mut all = std::mem::MaybeUninit::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        std::arch::asm!(
            "rep movsb",
            "mov rdi, r9",
            "mov esi, 4096",
            "mov edx, 4096",
            "mov r10d, 3", // MREMAP_MAYMOVE | MREMAP_FIXED
            "mov eax, 25", // SYS_mremap
            "syscall",
            inout("rdi") copy => _,
            inout("rsi") page => _,
            inout("rcx") PAGE => _,
            in("r8") page,
            in("r9") copy,
            out("rax") result,
            out("rdx") _,
            out("r10") _,
            out("r11") _,
            options(nostack),
        );
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
    }
    match result {
        ..0 => Err(rustix::io::Errno::from_raw_os_error(-result as i32)),
        _ => Ok(()),
    }
}
