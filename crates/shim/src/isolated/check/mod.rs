//! The program's part of `mica check` and `--leaks`: the file of records, who made what, and what was never freed.
//!
//! Owns the file that `MICA_CHECK_REPORT` names, to which the worker's records are passed on as they are. Each
//! record is one line of JSON; `mica check` reads them.

pub(crate) mod objects;

use std::ffi::CStr;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::memory::{Allocation, AllocationKind};

/// Names the file of records.
const REPORT: &str = "MICA_CHECK_REPORT";
/// Names the tools, separated by commas.
const TOOLS: &str = "MICA_CHECK";
/// Frames of the stack that are looked at, and that are told.
const MOST_FRAMES: usize = 48;
const TOLD_FRAMES: usize = 12;

static FILE: OnceLock<Option<File>> = OnceLock::new();
/// A context has faulted: the program can free nothing in it any more.
static FAULTED: AtomicBool = AtomicBool::new(false);

fn file() -> Option<&'static File> {
    let open = || {
        let path = mica_limits::variable(REPORT)?;
        OpenOptions::new().append(true).open(path).ok()
    };
    FILE.get_or_init(open).as_ref()
}

/// Whether the program is checked.
pub(crate) fn is_on() -> bool {
    file().is_some()
}

/// Passes on records of the worker.
pub(crate) fn write(records: &[u8]) {
    if let Some(mut file) = file() {
        let _ = file.write_all(records);
    }
}

/// Remembers who allocated memory, and tells it.
pub(crate) fn allocated(made: &Allocation) {
    let is_programs = is_programs(made.kind);
    if !is_on() || !is_programs {
        return;
    }
    let (address, bytes) = (made.device, made.bytes);
    let list = frames_json(&frames());
    let line = format!(
        "{{\"record\":\"allocation\",\"address\":{address},\"bytes\":{bytes},\"frames\":{list}}}\n"
    );
    write(line.as_bytes());
}

fn is_programs(kind: AllocationKind) -> bool {
    use AllocationKind::{Device, Managed, Pinned, Pool};
    matches!(kind, Device | Pool | Managed | Pinned)
}

/// A context has faulted.
pub(crate) fn faulted() {
    FAULTED.store(true, Relaxed);
}

/// Whether a tool is asked for.
fn is_wanted(tool: &str) -> bool {
    if !is_on() {
        return false;
    }
    let wanted = mica_limits::variable(TOOLS).unwrap_or_default();
    let wanted = wanted.to_string_lossy().into_owned();
    wanted.split(',').any(|one| one == tool)
}

/// Whether the program is to say what memory it has not freed.
fn are_leaks_wanted() -> bool {
    is_wanted("leakcheck")
}

/// Whether a fault keeps the program from freeing anything.
fn faulted_already() -> bool {
    FAULTED.load(Relaxed)
}

/// Milliseconds since the program's first call.
fn when() -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let passed = FIRST.get_or_init(Instant::now).elapsed().as_millis();
    u64::try_from(passed).unwrap_or(u64::MAX)
}

/// When something is made, where leaks are told.
pub(crate) fn made_ms() -> u64 {
    match is_on() {
        true => when(),
        false => 0,
    }
}

/// Begins to count time, if times are told.
pub(crate) fn begin() {
    if is_on() {
        when();
    }
}

/// Says that all was said. For the end of the process, after [`tell_leaks`].
pub(crate) fn ended() {
    if are_leaks_wanted() {
        let faulted = FAULTED.load(Relaxed);
        write(format!("{{\"record\":\"ended\",\"faulted\":{faulted}}}\n").as_bytes());
    }
}

/// Tells what the program has not freed, unless a fault kept it from that. For the end of the process.
pub(crate) fn tell_leaks(left: &[Arc<Allocation>]) {
    if !are_leaks_wanted() || faulted_already() {
        return;
    }
    for made in left.iter().filter(|made| is_programs(made.kind)) {
        let what = match made.kind {
            AllocationKind::Pinned => "pinned host memory",
            AllocationKind::Managed => "managed memory",
            _ => "device memory",
        };
        let (address, bytes, made_ms) = (made.device, made.bytes, made.made_ms);
        let line = format!(
            "{{\"record\":\"finding\",\"tool\":\"leakcheck\",\"kind\":\"leak\",\"severity\":\"error\",\
             \"message\":\"{bytes} bytes of {what} were never freed\",\"parties\":[],\"count\":1,\
             \"allocation\":{{\"address\":{address},\"bytes\":{bytes},\"state\":\"live\",\
             \"distance\":0,\"what\":\"{what}\",\"made_ms\":{made_ms}}}}}\n"
        );
        write(line.as_bytes());
    }
}

/// Where the program is: file and offset of each frame, innermost first, without Mica's own.
fn frames() -> Vec<(String, u64)> {
    let own = file_of(frames as *const () as u64).map(|(file, _)| file);
    // A return address is behind the call, perhaps in the next line or function.
    (return_addresses().iter())
        .filter_map(|at| file_of(at.wrapping_sub(1)))
        .filter(|(file, _)| Some(file) != own.as_ref())
        .take(TOLD_FRAMES)
        .collect()
}

/// Where the calls of this thread return to, innermost first, at most [`MOST_FRAMES`]. From the unwinder, which panics need as well: of the C libraries
/// only glibc has `backtrace`.
fn return_addresses() -> Vec<u64> {
    type Visit = unsafe extern "C" fn(*mut libc::c_void, *mut libc::c_void) -> libc::c_int;
    unsafe extern "C" {
        fn _Unwind_Backtrace(visit: Visit, into: *mut libc::c_void) -> libc::c_int;
        fn _Unwind_GetIP(context: *mut libc::c_void) -> usize;
    }
    const GO_ON: libc::c_int = 0;
    const STOP: libc::c_int = 5;
    unsafe extern "C" fn note(context: *mut libc::c_void, into: *mut libc::c_void) -> libc::c_int {
        // SAFETY: `into` is the vector below, which nobody else uses meanwhile.
        let into = unsafe { &mut *into.cast::<Vec<u64>>() };
        // SAFETY: the context that the unwinder has just given.
        into.push(unsafe { _Unwind_GetIP(context) } as u64);
        match into.len() < MOST_FRAMES {
            true => GO_ON,
            false => STOP,
        }
    }
    let mut found: Vec<u64> = Vec::with_capacity(MOST_FRAMES);
    // SAFETY: the function takes the unwinder's context and the vector, which lives until this returns.
    unsafe { _Unwind_Backtrace(note, (&raw mut found).cast()) };
    found
}

/// The file that holds the code at an address, and the offset in it.
fn file_of(address: u64) -> Option<(String, u64)> {
    // SAFETY: all fields are pointers, for which null is a value.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: only asks, and fills the structure.
    let known = unsafe { libc::dladdr(address as *const libc::c_void, &raw mut info) };
    if known == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own text.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let offset = address.wrapping_sub(info.dli_fbase as u64);
    Some((name.to_string_lossy().into_owned(), offset))
}

fn frames_json(frames: &[(String, u64)]) -> String {
    let mut out = String::from("[");
    for (i, (file, offset)) in frames.iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        let _ = write!(out, "{comma}[{},{offset}]", quoted(file));
    }
    out.push(']');
    out
}

/// A string of JSON.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_quoted_as_json_wants() {
        assert_eq!(quoted("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
        let frames = [("/bin/x".to_owned(), 16), ("y".to_owned(), 0)];
        assert_eq!(frames_json(&frames), "[[\"/bin/x\",16],[\"y\",0]]");
    }
}
