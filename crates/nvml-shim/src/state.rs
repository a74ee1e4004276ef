//! Which NVML answers: the real one alone, the real one seen from a virtual GPU, or this library.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use mica_backend_cuda::library::Library;
use mica_limits::Environment;

use crate::abi::{LIBRARY_NOT_FOUND, Return, SUCCESS, UNINITIALIZED, UNKNOWN};
use crate::forward;
use crate::vgpu::{Picture, Vgpu};

/// What was found when NVML was first initialized.
struct Surroundings {
    real: Option<Library>,
    vgpu: Option<Vgpu>,
    /// The environment names a virtual GPU, in a way that leads to none.
    misled: bool,
}

static SURROUNDINGS: OnceLock<Surroundings> = OnceLock::new();
/// Initializations not yet undone, where there is no real library to count them.
static USERS: AtomicI32 = AtomicI32::new(0);

thread_local! {
    /// Calls of the real library that this thread is in.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
}

/// Calls the real library. It calls some of its own functions by name, and where this library comes
/// first in the process those calls arrive here: they are then the real library's own business.
pub(crate) fn inside<T>(call: impl FnOnce() -> T) -> T {
    INSIDE.set(INSIDE.get() + 1);
    let result = call();
    INSIDE.set(INSIDE.get() - 1);
    result
}

/// How a call is to be answered.
pub(crate) enum View {
    /// By the real library: this process is in no virtual GPU, or the real library itself asks.
    Outside,
    /// From the picture, with the real library behind it.
    Real(Picture),
    /// From the picture alone.
    Software(Picture),
}

fn surroundings() -> &'static Surroundings {
    SURROUNDINGS.get_or_init(|| {
        let (vgpu, misled) = match Environment::read() {
            Some(Ok(environment)) => (Some(Vgpu::new(environment)), false),
            Some(Err(_)) => (None, true),
            None => (None, false),
        };
        let software = vgpu
            .as_ref()
            .and_then(Vgpu::picture)
            .is_some_and(|picture| picture.software);
        let real = match software {
            true => None,
            false => Library::find("libnvidia-ml.so.1", "MICA_LIBNVML").ok(),
        };
        if let (Some(_), Some(library)) = (&vgpu, &real) {
            // nvidia-smi lists processes through private tables, which end in one control. Where it
            // cannot be narrowed the public functions still are.
            // SAFETY: `Library` never unloads what it has accepted.
            let _ = unsafe { mica_rm::show_only(library.handle(), is_ours) };
        }
        forward::connect(real.as_ref(), vgpu.is_some());
        Surroundings { real, vgpu, misled }
    })
}

/// Whether a process is in the virtual GPU. The number is the driver's, which in a container may be
/// another than the daemon's: this process itself is always known.
fn is_ours(pid: u32) -> bool {
    if pid == std::process::id() {
        return true;
    }
    let vgpu = SURROUNDINGS.get().and_then(|found| found.vgpu.as_ref());
    let picture = vgpu.and_then(Vgpu::picture);
    picture.is_some_and(|picture| picture.processes.iter().any(|process| process.pid == pid))
}

/// Starts NVML; `real` calls the real library's own initialization.
pub(crate) fn initialize(real: impl FnOnce() -> Return) -> Return {
    if INSIDE.get() > 0 {
        return real();
    }
    let found = surroundings();
    let picture = match &found.vgpu {
        Some(vgpu) => match vgpu.picture() {
            Some(picture) => Some(picture),
            // In a virtual GPU that cannot be seen, the whole GPU must not be shown in its place.
            None => return UNKNOWN,
        },
        None if found.misled => return UNKNOWN,
        None => None,
    };
    match (picture, &found.real) {
        (Some(picture), _) if picture.software => {
            USERS.fetch_add(1, AcqRel);
            SUCCESS
        }
        (_, Some(_)) => inside(real),
        (_, None) => LIBRARY_NOT_FOUND,
    }
}

/// Undoes one [`initialize`].
pub(crate) fn finish(real: impl FnOnce() -> Return) -> Return {
    let Some(found) = SURROUNDINGS.get() else {
        return UNINITIALIZED;
    };
    if found.real.is_some() {
        return inside(real);
    }
    let one_less = |users: i32| (users > 0).then(|| users - 1);
    match USERS.fetch_update(AcqRel, Acquire, one_less) {
        Ok(_) => SUCCESS,
        Err(_) => UNINITIALIZED,
    }
}

/// How to answer a call now.
pub(crate) fn view() -> Result<View, Return> {
    let found = SURROUNDINGS.get().ok_or(UNINITIALIZED)?;
    let vgpu = match &found.vgpu {
        Some(vgpu) if INSIDE.get() == 0 => vgpu,
        _ => return Ok(View::Outside),
    };
    let picture = vgpu.picture().ok_or(UNKNOWN)?;
    match found.real {
        Some(_) => Ok(View::Real(picture)),
        None if USERS.load(Acquire) > 0 => Ok(View::Software(picture)),
        None => Err(UNINITIALIZED),
    }
}
