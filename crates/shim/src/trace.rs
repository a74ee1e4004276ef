//! `MICA_TRACE=path`: one line for each call with its arguments and result, and a summary at the end.
//!
//! Only when asked for: slots then lead through a stub that notes the call and puts itself into its
//! return address, so that the result is seen too. A line is written when its call returns, so calls made
//! within another come before it. Calls cost a few microseconds more.

use std::arch::naked_asm;
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64};

use mica_cuda_abi::{CuResult, ENTRY_POINTS};
use mica_limits::monotonic_ns;

use crate::cancel;
use crate::exports::{self, COUNT};
use crate::stub::{Registers, stubs};

/// Name of the variable with the file's path.
pub(crate) const TRACE: &str = "MICA_TRACE";
/// Calls within calls of one thread that are followed.
const DEPTH: usize = 32;

static FILE: OnceLock<File> = OnceLock::new();
static ON: AtomicBool = AtomicBool::new(false);
/// Where each symbol leads behind the stub.
static TARGETS: [AtomicPtr<c_void>; COUNT] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; COUNT];
static CALLS: [AtomicU64; COUNT] = [const { AtomicU64::new(0) }; COUNT];
static ERRORS: [AtomicU64; COUNT] = [const { AtomicU64::new(0) }; COUNT];
static NANOSECONDS: [AtomicU64; COUNT] = [const { AtomicU64::new(0) }; COUNT];

/// A call whose result is awaited.
#[derive(Clone, Copy)]
struct Pending {
    number: usize,
    return_address: usize,
    /// Where on the stack that was.
    place: usize,
    begun_ns: u64,
    /// Its arguments, a boxed `String`, or null.
    arguments: *mut String,
}

impl Pending {
    const NONE: Self = Self {
        number: 0,
        return_address: 0,
        place: 0,
        begun_ns: 0,
        arguments: std::ptr::null_mut(),
    };

    /// Name and arguments, once.
    fn text(&self) -> String {
        let symbol = ENTRY_POINTS[self.number].symbol;
        if self.arguments.is_null() {
            return symbol.to_owned();
        }
        // SAFETY: boxed when the call was entered, and taken out of the list before this.
        let arguments = unsafe { Box::from_raw(self.arguments) };
        format!("{symbol}{arguments}")
    }
}

/// The calls a thread is in.
struct Followed {
    calls: [Pending; DEPTH],
    count: usize,
}

thread_local! {
    // Without a destructor, so that it is usable to the thread's very end.
    static FOLLOWED: RefCell<Followed> = const {
        RefCell::new(Followed {
            calls: [Pending::NONE; DEPTH],
            count: 0,
        })
    };
}

stubs!($ traced => entered);

/// Where a followed call returns to: notes the result and goes back to the caller.
#[unsafe(naked)]
unsafe extern "C" fn leave() {
    naked_asm!(
        "push rax",
        "push rax",
        "mov edi, eax",
        "mov rsi, rsp",
        "call {left}",
        "mov r11, rax",
        "pop rax",
        "pop rax",
        "jmp r11",
        left = sym left,
    )
}

/// Notes a call and goes on to its target.
extern "C" fn entered(registers: *mut Registers) -> *mut c_void {
    // SAFETY: the stub has laid them down and uses them again only after this call.
    let registers = unsafe { &mut *registers };
    let number = registers.number as usize;
    let followed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        CALLS[number].fetch_add(1, Relaxed);
        FOLLOWED
            .try_with(|followed| {
                let Ok(mut followed) = followed.try_borrow_mut() else {
                    return false;
                };
                if followed.count == DEPTH {
                    return false;
                }
                let at = followed.count;
                let arguments = Box::into_raw(Box::new(arguments(registers, number)));
                followed.calls[at] = Pending {
                    number,
                    return_address: registers.return_address,
                    place: std::ptr::from_ref(&registers.return_address) as usize,
                    begun_ns: monotonic_ns(),
                    arguments,
                };
                followed.count += 1;
                true
            })
            .unwrap_or(false)
    }));
    if followed.unwrap_or(false) {
        registers.return_address = leave as *const () as usize;
    }
    TARGETS[number].load(Relaxed)
}

extern "C" fn left(status: u32, stack: usize) -> usize {
    // Two words were pushed where the return address had been before.
    let place = stack + 8;
    let call = loop {
        let call = FOLLOWED.with(|followed| {
            let mut followed = followed.borrow_mut();
            followed.count -= 1;
            followed.calls[followed.count]
        });
        if call.place == place {
            break call;
        }
        // A call whose frame is gone: the program has jumped out of it.
        let _ = std::panic::catch_unwind(|| write(&format!("{} did not return", call.text())));
    };
    let took = monotonic_ns().saturating_sub(call.begun_ns);
    NANOSECONDS[call.number].fetch_add(took, Relaxed);
    if status != 0 {
        ERRORS[call.number].fetch_add(1, Relaxed);
    }
    let _ = std::panic::catch_unwind(|| {
        let name = CuResult::from_code(status).map_or("", CuResult::name);
        let took = took as f64 / 1e3;
        write(&format!("{} = {status} {name} {took:.1} us", call.text()));
    });
    call.return_address
}

/// The arguments in brackets, as their kinds say.
fn arguments(registers: &Registers, number: usize) -> String {
    let whole = [
        registers.rdi,
        registers.rsi,
        registers.rdx,
        registers.rcx,
        registers.r8,
        registers.r9,
    ];
    let kinds = ENTRY_POINTS[number].args;
    // A structure by value lies on the stack before what follows it; how large it is, is not known.
    let kinds = kinds.split_once('S').map_or(kinds, |(before, _)| before);
    let (mut integers, mut floats) = (0, 0);
    let mut text = String::from("(");
    for kind in kinds.chars() {
        let separator = if text.len() > 1 { ", " } else { "" };
        if matches!(kind, 'f' | 'F') {
            let value = registers.floats.get(floats).map_or(0.0, |pair| pair[0]);
            floats += 1;
            let value = if kind == 'f' {
                f64::from(f32::from_bits(value.to_bits() as u32))
            } else {
                value
            };
            let _ = write!(text, "{separator}{value}");
            continue;
        }
        let value = match whole.get(integers) {
            Some(value) => *value,
            // SAFETY: the caller has put its further arguments there.
            None => unsafe { registers.stack.as_ptr().add(integers - whole.len()).read() },
        };
        integers += 1;
        let _ = match kind {
            'u' => write!(text, "{separator}{}", value as u32),
            'd' if value < 1 << 40 => write!(text, "{separator}{value}"),
            's' if value != 0 => {
                // SAFETY: the function takes a C string here.
                let string = unsafe { CStr::from_ptr(value as *const c_char) };
                write!(text, "{separator}{string:?}")
            }
            _ => write!(text, "{separator}{value:#x}"),
        };
    }
    if ENTRY_POINTS[number].args.contains('S') {
        text.push_str(", …");
    }
    text.push(')');
    text
}

fn write(text: &str) {
    if let Some(mut file) = FILE.get() {
        // SAFETY: asks for a number only.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) };
        // One write, so that threads and processes do not mix within a line.
        let line = format!("{}/{thread} {text}\n", std::process::id());
        let _ = cancel::held_off(|| file.write_all(line.as_bytes()));
    }
}

/// Whether calls are traced.
pub(crate) fn on() -> bool {
    ON.load(Relaxed)
}

/// Puts a stub before every slot if a trace is asked for; call it after the slots are filled.
pub(crate) fn install() {
    let Some(path) = mica_limits::variable(TRACE) else {
        return;
    };
    let Ok(file) = OpenOptions::new().append(true).create(true).open(path) else {
        return;
    };
    if FILE.set(file).is_err() {
        return;
    }
    for (number, stub) in traced::STUBS.iter().enumerate() {
        TARGETS[number].store(exports::target(number).cast_mut(), Relaxed);
        exports::point(number, stub.0);
    }
    ON.store(true, Relaxed);
}

/// Runs after the program's own exit handlers, which may still make calls.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = summary;

/// Calls by total time.
extern "C" fn summary() {
    if on() {
        let _ = std::panic::catch_unwind(write_summary);
    }
}

fn write_summary() {
    let mut rows: Vec<_> = (0..COUNT)
        .map(|number| (NANOSECONDS[number].load(Relaxed), number))
        .filter(|(_, number)| CALLS[*number].load(Relaxed) > 0)
        .collect();
    rows.sort_by(|a, b| b.cmp(a));
    write("summary: calls, errors, microseconds in all, entry point");
    for (ns, number) in rows {
        let (calls, errors) = (CALLS[number].load(Relaxed), ERRORS[number].load(Relaxed));
        let symbol = ENTRY_POINTS[number].symbol;
        write(&format!(
            "summary: {calls:>9} {errors:>6} {:>12.1} {symbol}",
            ns as f64 / 1e3
        ));
    }
}
