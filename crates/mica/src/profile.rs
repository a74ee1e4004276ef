//! What took the device's time: [`Vgpu::profile`].
//!
//! An embedded virtual GPU tells itself when each kernel, copy and fill began and ended. Elsewhere events stand before and after
//! each of them, as far as this crate submits them: a graph is one line, and work in between on other streams counts too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use mica_gpu::profile::Activity;
use mica_gpu::profile::{RecordLevel, Recorder, Span, Sum};
use mica_ptx::names::readable;

use crate::backend::Backend;
use crate::vgpu::Vgpu;
use crate::{Error, Result};

/// Kinds of kernels that a profile tells apart; others are one line together.
const LINES: usize = 64;

/// All work of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileLine {
    /// What it was.
    pub activity: Activity,
    /// The kernel's name; what was copied where.
    pub name: String,
    /// How often.
    pub calls: u64,
    /// From begin to end, all together.
    pub total: Duration,
    /// The longest.
    pub longest: Duration,
    /// Bytes that were moved; 0 where that is not known.
    pub bytes: u64,
}

/// What [`Vgpu::profile`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Kernels, copies and fills, those that took most time first; also compilations and waits on the software GPU.
    pub lines: Vec<ProfileLine>,
    /// From the begin of the first kernel, copy or fill to the end of the last.
    pub wall: Duration,
    /// Time in which at least one of them ran.
    pub busy: Duration,
    /// The longest time in between in which none ran.
    pub longest_gap: Duration,
}

fn is_work(activity: Activity) -> bool {
    use Activity::{Compile, Copy, Fill, Kernel, Turn, Wait};
    match activity {
        Kernel | Copy | Fill => true,
        Compile | Wait | Turn => false,
    }
}

impl Profile {
    fn of(recorder: &Recorder) -> Self {
        let (_, sums) = recorder.sums(LINES);
        let mut lines: Vec<ProfileLine> = sums.into_iter().map(line).collect();
        lines.sort_by_key(|line| (!is_work(line.activity), std::cmp::Reverse(line.total)));
        let mut spans = recorder.take(usize::MAX).spans;
        spans.retain(|span| is_work(span.activity));
        spans.sort_unstable_by_key(|span| span.begin_ns);
        let begin = spans.first().map_or(0, |span| span.begin_ns);
        let (mut end, mut idle, mut longest) = (begin, 0, 0);
        for span in &spans {
            let gap = span.begin_ns.saturating_sub(end);
            (idle, longest) = (idle + gap, longest.max(gap));
            end = end.max(span.end_ns);
        }
        Self {
            lines,
            wall: Duration::from_nanos(end - begin),
            busy: Duration::from_nanos(end - begin - idle),
            longest_gap: Duration::from_nanos(longest),
        }
    }
}

fn line(sum: Sum) -> ProfileLine {
    ProfileLine {
        activity: sum.activity,
        name: sum.name,
        calls: sum.calls,
        total: Duration::from_nanos(sum.total_ns),
        longest: Duration::from_nanos(sum.most_ns),
        bytes: sum.bytes,
    }
}

impl std::fmt::Display for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let part = |of: Duration, all: Duration| ms(of) * 100.0 / ms(all).max(1e-6);
        writeln!(
            f,
            "{:.3} ms from the first work to the last; the device had work for {:.1} % of it, the longest gap was {:.3} ms",
            ms(self.wall),
            part(self.busy, self.wall),
            ms(self.longest_gap),
        )?;
        let work = self.lines.iter().filter(|line| is_work(line.activity));
        let total: Duration = work.map(|line| line.total).sum();
        writeln!(f, "  SHARE    TOTAL ms    CALLS  LONGEST ms    GB/s  WHAT")?;
        for line in &self.lines {
            match is_work(line.activity) {
                true => write!(f, "{:5.1} %", part(line.total, total))?,
                false => write!(f, "      -")?,
            }
            let rate = match line.bytes {
                0 => "-".into(),
                bytes => format!("{:.1}", bytes as f64 / 1e6 / ms(line.total).max(1e-6)),
            };
            let (total, longest) = (ms(line.total), ms(line.longest));
            let calls = line.calls;
            write!(f, " {total:11.3} {calls:8} {longest:11.3} {rate:>7}  ")?;
            match (line.activity.word(), line.name.as_str()) {
                (what, name) if what == name => writeln!(f, "{what}")?,
                (what, name) => writeln!(f, "{what} {name}")?,
            }
        }
        Ok(())
    }
}

/// A piece of work between two events.
struct Timed {
    activity: Activity,
    name: String,
    stream: u64,
    bytes: u64,
    start: u64,
    end: u64,
}

/// Events around work, for a device that does not tell what it does.
#[derive(Default)]
pub(crate) struct Timings {
    /// A profile is being made, by whatever means.
    is_taken: AtomicBool,
    is_on: AtomicBool,
    list: Mutex<Vec<Timed>>,
}

impl Timings {
    fn list(&self) -> MutexGuard<'_, Vec<Timed>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits work, between two events while a profile needs them. Who never profiles pays one load.
    pub(crate) fn around(
        &self,
        backend: &dyn Backend,
        (activity, name, bytes): (Activity, &str, u64),
        stream: u64,
        submit: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if !self.is_on.load(Ordering::Acquire) {
            return submit();
        }
        let (start, end) = (backend.event_create(true)?, backend.event_create(true)?);
        let submitted = backend
            .event_record(start, stream)
            .and_then(|()| submit())
            .and_then(|()| backend.event_record(end, stream));
        if submitted.is_err() {
            let _ = backend.event_destroy(start);
            let _ = backend.event_destroy(end);
            return submitted;
        }
        self.list().push(Timed {
            activity,
            name: name.into(),
            stream,
            bytes,
            start,
            end,
        });
        Ok(())
    }

    /// Tells a recorder what was timed since an event.
    fn tell(&self, backend: &dyn Backend, origin: u64, recorder: &Recorder) -> Result<()> {
        for timed in std::mem::take(&mut *self.list()) {
            let since = |event| -> Result<u64> {
                let ms = backend.event_elapsed_ms(origin, event)?;
                Ok((f64::from(ms.max(0.0)) * 1e6) as u64)
            };
            let times = since(timed.start).and_then(|begin| Ok((begin, since(timed.end)?)));
            let _ = backend.event_destroy(timed.start);
            let _ = backend.event_destroy(timed.end);
            let (begin_ns, end_ns) = times?;
            let span = Span {
                activity: timed.activity,
                name: 0,
                stream: timed.stream,
                queued_ns: begin_ns,
                begin_ns,
                end_ns: end_ns.max(begin_ns),
                bytes: timed.bytes,
            };
            recorder.record(&timed.name, span);
        }
        Ok(())
    }
}

/// Ends a profile, however its function ends.
struct Ending<'t>(&'t Timings, Option<&'t Recorder>);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if let Some(recorder) = self.1 {
            recorder.set_level(RecordLevel::Off);
        }
        self.0.is_on.store(false, Ordering::Release);
        self.0.is_taken.store(false, Ordering::Release);
    }
}

impl Vgpu {
    /// Does some work and waits for it; which kernels, copies and fills took the device's time meanwhile. `mica profile` does
    /// the same for whole programs, and writes traces.
    ///
    /// ```
    /// # const PTX: &str = include_str!("../tests/kernels.ptx");
    /// # fn main() -> Result<(), mica::Error> {
    /// use mica::{Device, Grid, Vgpu};
    ///
    /// let vgpu = Vgpu::builder().memory(16 << 20).build(&Device::software()?)?;
    /// let vadd = vgpu.load_ptx(PTX)?.kernel("vadd")?;
    /// let stream = vgpu.default_stream();
    /// let (sum, profile) = vgpu.profile(|| {
    ///     let (x, y) = (vgpu.upload(&[1.0_f32; 1000])?, vgpu.alloc::<f32>(1000)?);
    ///     for _ in 0..5 {
    ///         stream.launch(&vadd, Grid::covering(1000, 256), (&x, &y, &y, 1000_u32))?;
    ///     }
    ///     y.to_vec()
    /// })?;
    /// assert_eq!(sum[999], 5.0);
    /// let kernel = profile.lines.iter().find(|line| line.name.starts_with("vadd"));
    /// assert_eq!(kernel.map(|line| line.calls), Some(5));
    /// println!("{profile}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of the function; also if a profile of this virtual GPU is being made already, or its work fails.
    pub fn profile<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, Profile)> {
        let timings = &*self.timings;
        if timings.is_taken.swap(true, Ordering::AcqRel) {
            let message = "a profile of this virtual GPU is being made already";
            return Err(Error::Argument(message.into()));
        }
        let own = self.backend.recorder();
        let ending = Ending(timings, own.as_deref());
        self.synchronize()?;
        let found = match &own {
            Some(recorder) => {
                recorder.set_level(RecordLevel::Spans);
                let done = work()?;
                self.synchronize()?;
                (done, Profile::of(recorder))
            }
            None => self.profile_by_events(work)?,
        };
        drop(ending);
        Ok(found)
    }

    fn profile_by_events<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, Profile)> {
        let backend = &*self.backend;
        let recorder = Recorder::new(|name| readable(name).into_owned());
        recorder.set_level(RecordLevel::Spans);
        let origin = backend.event_create(true)?;
        backend.event_record(origin, backend.default_stream())?;
        self.timings.is_on.store(true, Ordering::Release);
        let done = work();
        self.timings.is_on.store(false, Ordering::Release);
        let told = self
            .synchronize()
            .and_then(|()| self.timings.tell(backend, origin, &recorder));
        let _ = backend.event_destroy(origin);
        let done = done?;
        told?;
        Ok((done, Profile::of(&recorder)))
    }
}
