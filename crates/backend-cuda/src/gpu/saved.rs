//! What a device needs so that another process can continue it: addresses, the ages of events, and what of a context the
//! driver alone has and nobody can make again.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mica_cuda_abi::CuResult;
use mica_gpu::{
    Access, ContextId, DevicePtr, EventId, Gpu, GpuError, HostSpan, ModuleId, Result, StreamId,
};

use super::places::{FRAME_BYTES, Places};
use super::{Context, CudaGpu, lock};
use crate::driver::Raw;

/// When an event was reached, as far as the driver does not know it.
#[derive(Debug, Default)]
pub(super) struct Age(Mutex<Reached>);

#[derive(Clone, Copy, Debug, Default)]
struct Reached {
    /// When it was recorded last.
    recorded: Option<Instant>,
    /// It was recorded anew by a process that continues another one's device, and had been reached long before.
    before: Option<Before>,
}

/// Of an event from before.
#[derive(Clone, Copy, Debug)]
struct Before {
    /// How long before the process continued the device.
    age_ns: u64,
    /// How long after that it was recorded anew.
    late_ns: u64,
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Age {
    /// The event is recorded now.
    pub(super) fn recorded(&self) {
        *lock(&self.0) = Reached {
            recorded: Some(Instant::now()),
            before: None,
        };
    }

    /// The event was reached so long before the process continued the device, and has just been recorded.
    fn continues(&self, age_ns: u64, continued: Instant) {
        let mut reached = lock(&self.0);
        let recorded = reached.recorded.unwrap_or(continued);
        let late_ns = nanoseconds(recorded.saturating_duration_since(continued));
        reached.before = Some(Before { age_ns, late_ns });
    }

    /// Milliseconds between two events, of which the driver says `told`: what it knows of two that both were recorded anew is
    /// when that was.
    pub(super) fn milliseconds(start: &Self, end: &Self, told: f32) -> f32 {
        let ms = |ns: u64| ns as f64 / 1e6;
        // One after the other: both may be the same event.
        let start = lock(&start.0).before;
        let end = lock(&end.0).before;
        let earlier =
            |before: Option<Before>| before.map_or(0.0, |b| ms(b.age_ns.saturating_add(b.late_ns)));
        let between = match (start, end) {
            (Some(start), Some(end)) => ms(start.age_ns) - ms(end.age_ns),
            _ => f64::from(told) + earlier(start) - earlier(end),
        };
        between as f32
    }

    /// How long ago it was reached, at a moment, by this process's clock; `None` if it was never recorded.
    fn at_ns(&self, moment: Instant, continued: Instant) -> Option<u64> {
        let reached = *lock(&self.0);
        let since = |then| nanoseconds(moment.saturating_duration_since(then));
        match reached.before {
            Some(before) => Some(before.age_ns.saturating_add(since(continued))),
            None => reached.recorded.map(since),
        }
    }

    fn is_from_before(&self) -> bool {
        lock(&self.0).before.is_some()
    }
}

/// An event that ages are measured to, and when it was recorded.
pub(super) type Reference = Mutex<Option<(Instant, EventId)>>;

/// How long one serves: all events of a snapshot are measured to the same one.
const REFERENCE_SERVES: Duration = Duration::from_secs(5);
/// Parts of the address space that are tried.
const PLACES_TRIED: u32 = 8;
/// Names of functions in device code whose state only the driver has.
const STATEFUL: [(&[u8], &str); 2] = [
    (
        b"malloc",
        "kernels that allocate memory themselves (malloc)",
    ),
    (b"cudaLaunchDevice", "kernels that launch kernels"),
];

/// What kernels of an image keep in the driver alone, in words.
pub(super) fn stateful(symbols: &[String]) -> Option<&'static str> {
    let holds = |name: &[u8]| {
        symbols.iter().any(|symbol| {
            let symbol = symbol.trim_start_matches('_').as_bytes();
            symbol == name || name.len() > 6 && symbol.starts_with(name)
        })
    };
    STATEFUL
        .iter()
        .find(|(name, _)| holds(name))
        .map(|(_, what)| *what)
}

impl CudaGpu {
    /// Has memory lie where another process can have it again, from the first context on.
    pub fn make_continuable(&self) {
        let _ = self.places.set(Mutex::new(Places::anywhere()));
    }

    /// Has memory lie in the address space of an earlier device.
    ///
    /// # Errors
    /// It is no address space of a device, or memory lies elsewhere already.
    pub fn continue_in(&self, (base, bytes): (u64, u64)) -> Result<()> {
        let places = Places::at(base, bytes)?;
        let mut known = lock(self.places.get_or_init(|| Mutex::new(Places::anywhere())));
        if known.is_reserved {
            let what = "this device has memory at addresses of its own already";
            return Err(GpuError::new(CuResult::InvalidValue, what));
        }
        *known = places;
        Ok(())
    }

    /// Reserves the part of the address space that memory is to lie in, unless it is. A context is there: the driver then has
    /// its own things where it always has them.
    pub(super) fn reserve_places(&self) -> Result<()> {
        let Some(known) = self.places.get() else {
            return Ok(());
        };
        let mut known = lock(known);
        for _ in 0..PLACES_TRIED {
            if known.is_reserved {
                return Ok(());
            }
            let (base, bytes) = known.space();
            match self.reserve_near(bytes, 0, base)? {
                given if given.0 == base => {
                    known.is_reserved = true;
                    self.use_everything(given);
                }
                other if known.is_wanted => {
                    self.free_reserved(other, bytes)?;
                    let what = format!("{bytes} bytes of address space at {base:#x} are not free");
                    return Err(GpuError::new(CuResult::OutOfMemory, what));
                }
                other => {
                    self.free_reserved(other, bytes)?;
                    *known = Places::anywhere();
                }
            }
        }
        // Memory lies where the driver puts it, and cannot be saved.
        Ok(())
    }

    /// Fills and copies a frame once. The driver makes what it needs for that when it is first asked, beside variables of modules:
    /// a program that did so before it loaded a module would find them elsewhere when it goes on. Nothing depends on success.
    fn use_everything(&self, at: DevicePtr) {
        let Ok(frame) = self.new_frame(FRAME_BYTES) else {
            return;
        };
        let used = self.map_at(at, frame).and_then(|()| {
            let used = self.set_access(at, FRAME_BYTES, Access::ReadWrite);
            let used = used.and_then(|()| self.fill_and_copy(at.0));
            used.and(self.unmap(at, FRAME_BYTES))
        });
        let _ = used.and(self.end_frame(frame));
    }

    fn fill_and_copy(&self, at: u64) -> Result<()> {
        let Some(context) = self.contexts.any() else {
            return Ok(());
        };
        let functions = &self.driver.functions;
        let (stream, mut host): (Raw, _) = (std::ptr::null_mut(), [0_u8; 4096]);
        let bytes = host.len();
        let memory = host.as_mut_ptr();
        // SAFETY: the frame is mapped at this address and larger than all that is touched; the buffer lives until the
        // stream has been waited for.
        self.call(&context, "cuMemsetD8Async", || unsafe {
            let codes = [
                (functions.fill_8)(at, 1, bytes, stream),
                (functions.fill_16)(at, 1, bytes / 2, stream),
                (functions.fill_32)(at, 1, bytes / 4, stream),
                (functions.fill_2d_8)(at, 128, 1, 64, 16, stream),
                (functions.copy_to_device)(at, memory.cast(), bytes, stream),
                (functions.copy_on_device)(at + bytes as u64, at, bytes, stream),
                (functions.copy_to_host)(memory.cast(), at, bytes, stream),
                (functions.stream_synchronize)(stream),
            ];
            codes.into_iter().find(|code| *code != 0).unwrap_or(0)
        })
    }

    /// Looks into the part of the address space that memory lies in, if there is one.
    pub(super) fn with_places<T>(&self, look: impl FnOnce(&mut Places) -> T) -> Option<T> {
        let mut places = lock(self.places.get()?);
        places.is_reserved.then(|| look(&mut places))
    }

    /// The part of the address space, if another process can have it again. Before the first context it is not known.
    pub(super) fn own_space(&self) -> Option<(u64, u64)> {
        self.with_places(|places| places.space())
    }

    /// Whether no stream has work, by the driver's account, and no stream that was destroyed while it had. A context that has
    /// faulted runs nothing.
    pub(super) fn has_no_work(&self) -> bool {
        if self.releases.any() {
            return false;
        }
        let streams = self.streams.all();
        streams.into_iter().all(|stream| {
            // SAFETY: the driver's own handle.
            let asked = self.call(&stream.context, "cuStreamQuery", || unsafe {
                (self.driver.functions.stream_query)(stream.raw as Raw)
            });
            !matches!(asked, Err(error) if error.code == CuResult::NotReady)
        })
    }

    /// Loads a module whose variables were at these addresses. The driver puts them where it likes.
    pub(super) fn load_at(
        &self,
        context: ContextId,
        image: &[u8],
        wanted: &[DevicePtr],
    ) -> Result<ModuleId> {
        let module = self.load(context, image)?;
        let judged = self.describe(module).and_then(|info| {
            let found = info.globals.iter().zip(wanted);
            let moved = found.into_iter().find(|(global, wanted)| global.address != **wanted);
            match moved {
                None if info.globals.len() == wanted.len() => Ok(()),
                None => Err(unlike("a module has other variables than before".into())),
                Some((global, wanted)) => Err(unlike(format!(
                    "the driver puts variable {} of a module at {:#x}, and the program knows it at {:#x}",
                    global.name, global.address.0, wanted.0
                ))),
            }
        });
        if let Err(error) = judged {
            let _ = self.unload(module);
            return Err(error);
        }
        Ok(module)
    }

    /// What of a context nobody can make again.
    pub(super) fn obstacle(&self, id: ContextId) -> Option<String> {
        let context = self.context(id).ok()?;
        let same = |other: &Context| std::ptr::eq(other, &*context);
        let modules = self.modules.all();
        let mut own = modules.iter().filter(|module| same(&module.context));
        let what = own.find_map(|module| module.stateful);
        what.map(|what| format!("its program has {what}"))
    }

    /// How long ago an event was reached: by the driver's clock where it knows, so that the times between events stay what they
    /// were.
    pub(super) fn age_of(&self, id: EventId) -> Result<Option<u64>> {
        let event = self.event(id)?;
        let (moment, reference) = self.reference(&event.context)?;
        let continued = *self.continued.get_or_init(Instant::now);
        let Some(by_clock) = event.age.at_ns(moment, continued) else {
            return Ok(None);
        };
        if event.age.is_from_before() {
            return Ok(Some(by_clock));
        }
        match self.elapsed_ms(id, reference) {
            Ok(milliseconds) => Ok(Some((f64::from(milliseconds) * 1e6).max(0.0) as u64)),
            // The driver keeps no time for it.
            Err(_) => Ok(Some(by_clock)),
        }
    }

    /// The event of a context that ages are measured to, and when it was recorded.
    fn reference(&self, context: &Arc<Context>) -> Result<(Instant, EventId)> {
        let mut known = lock(&context.reference);
        if let Some((recorded, event)) = *known
            && recorded.elapsed() < REFERENCE_SERVES
        {
            return Ok((recorded, event));
        }
        let event = match *known {
            Some((_, event)) => event,
            None => self.new_event(Arc::clone(context), true)?,
        };
        let stream = context.default_stream.get();
        let stream = stream.ok_or_else(|| unlike("a context without a stream".into()))?;
        self.record(event, StreamId(*stream))?;
        self.event_synchronize(event)?;
        let moment = Instant::now();
        *known = Some((moment, event));
        Ok((moment, event))
    }

    /// Records an event on its context's default stream, as one that was reached so long ago.
    pub(super) fn set_age(&self, id: EventId, age_ns: u64) -> Result<()> {
        let event = self.event(id)?;
        let stream = event.context.default_stream.get();
        let stream = stream.ok_or_else(|| unlike("a context without a stream".into()))?;
        let continued = *self.continued.get_or_init(Instant::now);
        self.record(id, StreamId(*stream))?;
        self.event_synchronize(id)?;
        event.age.continues(age_ns, continued);
        Ok(())
    }

    /// Registers host memory that had an address before. The driver gives it the address that it has in this process.
    ///
    /// # Safety
    /// The span stays mapped until it is unregistered.
    pub(super) unsafe fn register_at(
        &self,
        context: ContextId,
        span: HostSpan,
        wanted: DevicePtr,
    ) -> Result<()> {
        // SAFETY: our contract is the callee's.
        let given = unsafe { self.register(context, span)? };
        if given == wanted {
            return Ok(());
        }
        self.unregister(context, given)?;
        Err(unlike(format!(
            "host memory that the program knows at {:#x} is at {:#x} here",
            wanted.0, given.0
        )))
    }
}

fn unlike(what: String) -> GpuError {
    GpuError::new(CuResult::InvalidValue, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_between_events_stay_what_they_were() {
        let continued = Instant::now();
        let at = |seconds| continued + Duration::from_secs(seconds);
        let old = |seconds: u64, late| {
            let age = Age::default();
            lock(&age.0).recorded = Some(continued + Duration::from_millis(late));
            age.continues(seconds * 1_000_000_000, continued);
            age
        };
        let (start, end, new) = (old(5, 1), old(2, 3), Age::default());
        assert_eq!(new.at_ns(at(1), continued), None);
        new.recorded();
        assert_eq!(Age::milliseconds(&start, &end, 2.0), 3000.0);
        // The driver counts from the second record of the first one, a millisecond late.
        assert_eq!(Age::milliseconds(&start, &new, 10.0), 5011.0);
        assert_eq!(Age::milliseconds(&new, &new, 0.25), 0.25);
        let ages = [&start, &end].map(|age| age.at_ns(at(1), continued));
        assert_eq!(ages, [Some(6_000_000_000), Some(3_000_000_000)]);
        start.recorded();
        assert!(!start.is_from_before() && end.is_from_before());
    }

    #[test]
    fn device_code_with_state_of_the_drivers_is_named() {
        let named = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            stateful(&names)
        };
        assert!(named(&["kernel", "malloc"]).unwrap().contains("malloc"));
        assert!(named(&["cudaLaunchDeviceV2"]).unwrap().contains("launch"));
        assert_eq!(named(&["vprintf", "my_malloc", "mallocator"]), None);
    }
}
