//! The session with the worker, and the device as it was when the session began.

use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, OnceLock};

use mica_cuda_abi::{CuResult, DeviceAttribute};
use mica_limits::{Environment, connect_session};
use mica_wire::session::client::{SessionClient, WindowCopy, observe_window_copies};
use mica_wire::session::transport::ClientTransport;

use crate::isolated::check;
use crate::isolated::context::Context;
use crate::isolated::device::attributes;
use crate::isolated::memory::MemoryMap;
use crate::isolated::memory::copied::Copied;
use crate::isolated::support::{Answer, Code, FORKED, lock};
use crate::{cancel, log};

/// Version of the driver interface that this library offers.
pub(crate) const DRIVER_VERSION: i32 = 13000;

/// The process's session and all that hangs on it.
pub(crate) struct State {
    pub(crate) client: SessionClient,
    attributes: [Option<i32>; 256],
    pub(crate) pci: [i32; 3],
    pub(crate) primary: &'static Context,
    pub(crate) memory: MemoryMap,
    /// Numbers for whatever needs one.
    next: AtomicU64,
    /// Values the program has set, by what they belong to.
    pub(crate) loose: Mutex<HashMap<(u64, u32), u64>>,
    pub(crate) copied: Copied,
}

static STATE: OnceLock<State> = OnceLock::new();
static STARTING: Mutex<()> = Mutex::new(());
static EXITING: AtomicBool = AtomicBool::new(false);

/// The session; `NOT_INITIALIZED` before `cuInit`.
#[inline]
pub(crate) fn state() -> Answer<&'static State> {
    STATE.get().ok_or(Code(CuResult::NotInitialized as u32))
}

/// Opens the session, once.
pub(crate) fn start() -> Answer {
    if STATE.get().is_some() {
        return Ok(());
    }
    let _starting = lock(&STARTING);
    if STATE.get().is_some() {
        return Ok(());
    }
    let client = connect()?;
    if mica_limits::is_profiled() {
        observe_window_copies(window_copied);
    }
    let snapshot = client.snapshot();
    let mut attributes = [None; 256];
    for (number, value) in &snapshot.attributes {
        if let Some(attribute) = DeviceAttribute::from_number(*number) {
            attributes[attribute as usize] = Some(*value);
        }
    }
    let pci = parse_pci(&snapshot.pci_bus_id);
    attributes[DeviceAttribute::PciDomainId as usize] = Some(pci[0]);
    attributes[DeviceAttribute::PciBusId as usize] = Some(pci[1]);
    attributes[DeviceAttribute::PciDeviceId as usize] = Some(pci[2]);
    let copies_host_memory = client.transport().copies_host_memory();
    attributes::answer(&mut attributes, snapshot.has_driver, copies_host_memory);
    let state = State {
        client,
        attributes,
        pci,
        primary: Context::new(true, 0),
        memory: MemoryMap::default(),
        next: AtomicU64::new(1),
        loose: Mutex::default(),
        copied: Copied::new(copies_host_memory),
    };
    // SAFETY: the handlers store to atomics and write what kernels have printed.
    unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
        libc::atexit(at_exit);
    }
    check::begin();
    let _ = STATE.set(state);
    Ok(())
}

/// Tells `mica profile` of a copy that this program made itself; the worker does not see it.
fn window_copied(copy: WindowCopy) {
    let name = match copy.into_host {
        true => "device to host",
        false => "host to device",
    };
    let end_ns = mica_limits::monotonic_ns();
    let begin_ns = end_ns.saturating_sub(copy.took.as_nanos() as u64);
    let bytes = copy.bytes;
    let line = format!("[\"copy\",\"{name}\",0,{begin_ns},{begin_ns},{end_ns},{bytes}]\n");
    cancel::held_off(|| mica_limits::write_profile(line.as_bytes()));
}

fn connect() -> Answer<SessionClient> {
    let environment = match Environment::read() {
        Some(Ok(environment)) => environment,
        Some(Err(error)) => {
            log::line(&format!("no virtual GPU: {error}"));
            return Err(CuResult::NoDevice.into());
        }
        None => {
            log::line("no virtual GPU: isolated mode needs the environment that `mica run` makes");
            return Err(CuResult::NoDevice.into());
        }
    };
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(|path| path.file_name());
    let program = program.unwrap_or_default().to_string_lossy();
    connect_session(&environment, &program).map_err(|error| {
        log::line(&format!("no session with the virtual GPU: {error}"));
        CuResult::NoDevice.into()
    })
}

/// `domain:bus:device.function`, all in hexadecimal.
fn parse_pci(text: &str) -> [i32; 3] {
    let mut numbers = text
        .split([':', '.'])
        .map(|part| i32::from_str_radix(part, 16).unwrap_or(0));
    [(); 3].map(|()| numbers.next().unwrap_or(0))
}

extern "C" fn in_child() {
    FORKED.store(true, Relaxed);
}

extern "C" fn at_exit() {
    EXITING.store(true, Release);
    if let (Some(state), false) = (STATE.get(), FORKED.load(Relaxed)) {
        state.print_output();
    }
}

/// Runs after the program's own exit handlers, which may still free memory.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = at_end;

extern "C" fn at_end() {
    if let (Some(state), false, true) = (STATE.get(), FORKED.load(Relaxed), check::is_on()) {
        let _ = std::panic::catch_unwind(|| {
            state.print_output();
            check::tell_leaks(&state.memory.all());
            check::objects::tell_left();
            check::ended();
        });
    }
}

/// Output that is no kernel's: records of `mica check`, lines of `mica profile`.
const CHECK_RECORDS: u8 = 2;
const PROFILE_LINES: u8 = 3;
/// Output comes in pieces of a mebibyte or so; a kernel that prints without end is not followed without end.
const MOST_TAKES: u32 = 64;

/// Whether the process is about to end.
pub(crate) fn exiting() -> bool {
    EXITING.load(Acquire)
}

impl State {
    /// A device attribute, if the device knows it.
    #[inline]
    pub(crate) fn attribute(&self, attribute: DeviceAttribute) -> Option<i32> {
        self.attributes[attribute as usize]
    }

    /// A number nobody has had.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    /// To be called after a wait for the device: prints what kernels have printed, fetches what they have changed.
    pub(crate) fn waited(&self) {
        self.print_output();
        crate::isolated::modules::managed_variables::pull(self);
    }

    /// Prints what kernels have printed.
    pub(crate) fn print_output(&self) {
        for _ in 0..MOST_TAKES {
            let Ok(pieces) = self.client.take_output() else {
                return;
            };
            if pieces.is_empty() {
                return;
            }
            pieces.into_iter().for_each(pass_on);
        }
    }
}

/// Writes a line to the program's standard error. For what a program would otherwise wait for in vain, and nothing else.
pub(crate) fn warn(text: &str) {
    pass_on((1, format!("mica: {text}\n").into_bytes()));
}

/// Passes on one piece of output, through the C library so that it comes in order with the program's own.
fn pass_on((kind, bytes): (u8, Vec<u8>)) {
    unsafe extern "C" {
        static stdout: *mut libc::FILE;
        static stderr: *mut libc::FILE;
    }
    match kind {
        CHECK_RECORDS => check::write(&bytes),
        PROFILE_LINES => cancel::held_off(|| mica_limits::write_profile(&bytes)),
        _ => cancel::held_off(|| {
            // SAFETY: the C library's own streams and a live buffer.
            unsafe {
                let file = if kind == 0 { stdout } else { stderr };
                libc::fwrite(bytes.as_ptr().cast(), 1, bytes.len(), file);
                libc::fflush(file);
            }
        }),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn pci_addresses_are_hexadecimal() {
        assert_eq!(super::parse_pci("0000:1a:10.0"), [0, 0x1a, 0x10]);
        assert_eq!(super::parse_pci("nonsense"), [0, 0, 0]);
    }
}
