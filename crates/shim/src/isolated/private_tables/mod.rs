//! The tables of `cuGetExportTable`, which the CUDA runtime and libraries call behind the public
//! interface. Slot 0 is a table's size in bytes, except in the context-local storage's.
//!
//! Slots whose meaning is not known answer success without doing anything where a caller is known to
//! need that, else NOT_SUPPORTED with a line that names table and slot; no slot is null. The tables of single
//! libraries are in `library_tables`.

pub(crate) mod libraries;
pub(crate) mod md2;
pub(crate) mod unknown_slots;

use std::ffi::c_void;
use std::sync::OnceLock;

use mica_cuda_abi::{CuStatus, Handle};

use crate::isolated::context::storage::{storage_delete, storage_get, storage_put};
use crate::isolated::modules::calls;
use crate::isolated::state::{DRIVER_VERSION, state};
use crate::isolated::support::{Answer, driver, put, put_opt};

const CUDART: [u8; 16] = id("6bd5fb6c5bf4e74a8987d93912fd9df9");
const TOOLS: [u8; 16] = id("a094798c2e742e7493f20800200c0a66");
const TOOLS_TLS: [u8; 16] = id("42d85a8123f6cb478298f6e78a3aecdc");
const STORAGE: [u8; 16] = id("c693336e1121df11a8c368f355d89593");
const CONTEXTS: [u8; 16] = id("263e88607cd2614392f6bbd5006dfa7e");
const HANDSHAKE: [u8; 16] = id("d4082055bde6704b8d34ba123c66e1f2");
const OPTIONAL: [u8; 16] = id("f8cff95121468b4eb9e2fb469e7c0dd9");

/// Bytes of hexadecimal digits.
pub(crate) const fn id(text: &str) -> [u8; 16] {
    const fn digit(byte: u8) -> u8 {
        match byte {
            b'0'..=b'9' => byte - b'0',
            _ => byte - b'a' + 10,
        }
    }
    let text = text.as_bytes();
    let mut bytes = [0; 16];
    let mut at = 0;
    while at < 16 {
        bytes[at] = digit(text[2 * at]) << 4 | digit(text[2 * at + 1]);
        at += 1;
    }
    bytes
}

/// A table: numbers and addresses of code.
pub(crate) struct Table(Box<[usize]>);

impl Table {
    /// A table of so many slots, its size first, with the functions that are known. All other slots name
    /// themselves in the log as `name` and a number.
    pub(crate) fn sized(name: &'static str, slots: usize, known: &[(usize, usize)]) -> Self {
        let mut table = unknown_slots::of(name, slots);
        table[0] = slots * size_of::<usize>();
        for (slot, function) in known {
            table[*slot] = *function;
        }
        Self(table.into_boxed_slice())
    }

    /// What a program gets.
    pub(crate) fn as_ptr(&self) -> *const c_void {
        self.0.as_ptr().cast()
    }
}

struct Tables {
    cudart: Table,
    tools: Table,
    tools_tls: Table,
    storage: Table,
    contexts: Table,
    handshake: Table,
}

extern "C" fn succeed() -> CuStatus {
    0
}

fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES.get_or_init(|| {
        let succeed = succeed as *const () as usize;
        let mut storage = unknown_slots::of("c693336e", 8);
        storage[0] = local_put as *const () as usize;
        storage[1] = local_delete as *const () as usize;
        storage[2] = local_get as *const () as usize;
        Tables {
            cudart: Table::sized(
                "6bd5fb6c",
                13,
                &[
                    (1, load_wrapper as *const () as usize),
                    (2, primary_context as *const () as usize),
                    (6, load_wrapper_more as *const () as usize),
                    (7, succeed),
                    (8, load_header_more as *const () as usize),
                    (12, succeed),
                ],
            ),
            tools: Table::sized(
                "a094798c",
                7,
                &[
                    (2, tools_buffer as *const () as usize),
                    (6, tools_short_buffer as *const () as usize),
                ],
            ),
            tools_tls: Table::sized("42d85a81", 3, &[(2, tools_storage as *const () as usize)]),
            storage: Table(storage.into_boxed_slice()),
            contexts: Table::sized(
                "263e8860",
                32,
                &[(2, context_check as *const () as usize), (3, succeed)],
            ),
            handshake: Table::sized("d4082055", 3, &[(1, handshake as *const () as usize)]),
        }
    })
}

/// The table with this identity.
pub(crate) fn find(id: &[u8; 16]) -> Option<*const c_void> {
    let tables = tables();
    let table = match *id {
        CUDART => &tables.cudart,
        TOOLS => &tables.tools,
        TOOLS_TLS => &tables.tools_tls,
        STORAGE => &tables.storage,
        CONTEXTS => &tables.contexts,
        HANDSHAKE => &tables.handshake,
        // Asked for by every runtime, which does well without it.
        OPTIONAL => return None,
        _ => return libraries::find(id),
    };
    Some(table.0.as_ptr().cast())
}

type Buffer = std::sync::atomic::AtomicU64;
// Larger than their sizes say: runtimes of CUDA 13 read 1,760 bytes into the long one without a look at its size.
static LONG_BUFFER: [Buffer; 2048] = [const { Buffer::new(0) }; 2048];
static SHORT_BUFFER: [Buffer; 512] = [const { Buffer::new(0) }; 512];

driver! {
    fn load_wrapper(out: *mut Handle, wrapper: *const c_void) {
        put(out, calls::load_module(wrapper)?)
    }

    fn load_wrapper_more(out: *mut Handle, wrapper: *const c_void, _a: *mut c_void, _b: *mut c_void, _c: u32) {
        put(out, calls::load_module(wrapper)?)
    }

    fn load_header_more(header: *const c_void, out: *mut Handle, _a: *mut c_void, _b: *mut c_void, _c: u32) {
        put(out, calls::load_module(header)?)
    }

    fn primary_context(out: *mut Handle, device: i32) {
        let state = crate::isolated::context::check_device(device)?;
        put(out, state.primary.handle())
    }

    fn tools_buffer(out: *mut *const c_void, bytes: *mut usize) {
        put(out, LONG_BUFFER.as_ptr().cast())?;
        put(bytes, 1024)
    }

    fn tools_short_buffer(out: *mut *const c_void, bytes: *mut usize) {
        put(out, SHORT_BUFFER.as_ptr().cast())?;
        put(bytes, 14)
    }

    fn tools_storage(out: *mut *const c_void) {
        put(out, LONG_BUFFER.as_ptr().cast())
    }

    fn local_put(context: Handle, key: usize, value: usize, destructor: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void)>) {
        state()?;
        storage_put(context, key, value, destructor)
    }

    fn local_delete(context: Handle, key: usize) {
        state()?;
        storage_delete(context, key)
    }

    fn local_get(out: *mut usize, context: Handle, key: usize) {
        state()?;
        put_opt(out, 0);
        put(out, storage_get(context, key)?)
    }

    fn context_check(_context: Handle, out: *mut u32, _more: *mut *mut c_void) {
        put_opt(out, 0);
        Ok(())
    }

    fn handshake(version: u32, unix_seconds: u64, out: *mut [u64; 2]) {
        put(out, shake(version, unix_seconds)?)
    }
}

/// Key of the handshake's third answer.
const KEY: [u8; 16] = [
    0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52, 0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f,
];

/// Answers cudart's question whether this is a driver that it fits.
fn shake(version: u32, unix_seconds: u64) -> Answer<[u64; 2]> {
    match version % 10 {
        0 => return Ok([0x3341_181c_03cb_675c, 0x8ed3_83aa_1f4c_d1e8]),
        1 => return Ok([0x1841_181c_03cb_675c, 0x8ed3_83aa_1f4c_d1e8]),
        _ => {}
    }
    let tables = tables();
    // The thread is named by the low half of its `pthread_t`.
    // SAFETY: asks for a number only.
    let thread = unsafe { libc::pthread_self() } as u32;
    let mut message = Vec::with_capacity(128);
    for number in [DRIVER_VERSION as u32, version, std::process::id(), thread] {
        message.extend(number.to_ne_bytes());
    }
    let cudart = tables.cudart.0.as_ptr() as usize;
    let own = tables.handshake.0.as_ptr() as usize;
    for address in [cudart, own, tables.handshake.0[1]] {
        message.extend(address.to_ne_bytes());
    }
    message.extend(unix_seconds.to_ne_bytes());
    let state = state()?;
    message.extend(state.client.snapshot().uuid);
    for number in state.pci {
        message.extend(number.to_ne_bytes());
    }
    let digest = md2::hmac(&KEY, &message);
    let half = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&digest[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    Ok([half(0), half(8)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_slot_of_any_table_is_null() {
        for id in [CUDART, TOOLS, TOOLS_TLS, CONTEXTS, HANDSHAKE] {
            let table = find(&id).map(|table| table.cast::<usize>()).unwrap();
            // SAFETY: the table lives for ever and says how long it is.
            let slots = unsafe { std::slice::from_raw_parts(table, *table / 8) };
            assert!(slots.iter().all(|slot| *slot != 0));
        }
        assert!(find(&STORAGE).is_some());
    }

    #[test]
    fn the_first_two_answers_are_constants() {
        assert_eq!(shake(0, 0).unwrap()[0], 0x3341_181c_03cb_675c);
        assert_eq!(shake(41, 7).unwrap()[0], 0x1841_181c_03cb_675c);
    }
}
