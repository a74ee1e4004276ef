//! The choice of a kernel by measurement.
//!
//! The first product of a size times every kernel that could compute it; later ones of that size use
//! the fastest without a question. A product of a near size times only those kernels that were nearly
//! the fastest: which of these is best depends on how a size divides into blocks. Programs whose sizes
//! change all the time do not measure all the time: after [`MOST_OF_A_GROUP`] sizes, a group's best is used.
//! Choices are kept in a file, which several processes may use at once.
//! A choice holds for a device, a driver, a set of kernels and a setting of tensor cores; with any other of
//! these it is made anew.

mod file;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mica::Grid;

use crate::gemm::Variant;
use crate::{DType, Error, Ops, Result};

/// What distinguishes products for which the fastest kernels may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// m, n, k and the matrices of the stack.
    pub(crate) sizes: [usize; 4],
    pub(crate) dtype: DType,
    /// Type of the result.
    pub(crate) out: DType,
    /// Whether a kernel of this crate has to follow a library's product.
    pub(crate) has_epilogue: bool,
    pub(crate) is_tf32: bool,
    /// Whether rows of the factors are contiguous, and both can be read 16 bytes at once.
    pub(crate) layout: [bool; 3],
}

impl Key {
    /// The group of products of near sizes.
    fn group(self) -> Self {
        let sizes = self.sizes.map(bucket);
        Self { sizes, ..self }
    }
}

/// Rounds a size up to two steps between powers of two, so that near sizes share a group.
pub(crate) fn bucket(size: usize) -> usize {
    let size = size.clamp(1, 1 << 30);
    let power = size.next_power_of_two();
    if power >= 4 && size <= power / 4 * 3 {
        return power / 4 * 3;
    }
    power
}

/// Sizes of a group that are measured by themselves.
const MOST_OF_A_GROUP: usize = 16;
/// Kernels that a group's further sizes compare, and how much longer than the fastest they may have taken.
const MOST_CONTENDERS: usize = 6;
const NEARLY_FASTEST: f64 = 1.5;
/// Two measurements of one kernel differ by less than this, and how often kernels are measured again that are as close.
const BY_CHANCE: f64 = 1.1;
const MORE_ROUNDS: usize = 2;
/// Choices that are remembered; then all are forgotten and found in the file again.
const MOST_KNOWN: usize = 1 << 16;

/// What is known of a group of sizes.
struct Group {
    /// Kernels that were nearly the fastest, the fastest first.
    contenders: Vec<Variant>,
    /// Sizes that have been measured.
    measured: usize,
}

#[derive(Default)]
struct Known {
    choices: HashMap<Key, Variant>,
    groups: HashMap<Key, Group>,
}

/// Choices made so far.
pub(crate) struct Tuner {
    known: Mutex<Known>,
    /// `None`: choices end with the process.
    file: Option<PathBuf>,
    /// Device, kernels and settings, as the file has them.
    setting: String,
}

impl Tuner {
    pub(crate) fn new(file: Option<PathBuf>, setting: String) -> Self {
        Self {
            known: Mutex::default(),
            file,
            setting,
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the file names a key: `gemm` with a size of its own, `near` with a group of sizes.
    fn text(&self, kind: &str, key: &Key) -> String {
        let [m, n, k, batch] = key.sizes;
        let [a, b, aligned] = key.layout.map(u8::from);
        let (dtype, out) = (key.dtype, key.out);
        let (tf32, epilogue) = (u8::from(key.is_tf32), u8::from(key.has_epilogue));
        format!(
            "{kind} {batch}x{m}x{n}x{k} {dtype} {out} tf32={tf32} epilogue={epilogue} layout={a}{b}{aligned} {}",
            self.setting
        )
    }

    /// The kernels that the file names for a key, of those that can run, in the file's order.
    fn kept(&self, kind: &str, key: &Key, candidates: &[Variant]) -> Vec<Variant> {
        let path = self.file.as_deref();
        let labels = path.and_then(|path| file::find(path, &self.text(kind, key)));
        let labels = labels.unwrap_or_default();
        let named = |label: &str| candidates.iter().find(|v| v.label() == label).copied();
        labels.split(' ').filter_map(named).collect()
    }

    fn keep(&self, kind: &str, key: &Key, variants: &[Variant]) {
        let Some(path) = &self.file else { return };
        let labels: Vec<String> = variants.iter().map(|variant| variant.label()).collect();
        // A file that cannot be written costs the next process a measurement, nothing else.
        let _ = file::add(path, &self.text(kind, key), &labels.join(" "));
    }

    /// The choice for a key, made by `measure` (seconds of a candidate) where there is none yet.
    pub(crate) fn choose(
        &self,
        key: Key,
        candidates: impl FnOnce() -> Result<Vec<Variant>>,
        mut measure: impl FnMut(Variant) -> Result<f64>,
    ) -> Result<Variant> {
        if let Some(variant) = self.known().choices.get(&key) {
            return Ok(*variant);
        }
        let candidates = candidates()?;
        let chosen = match (
            &candidates[..],
            self.kept("gemm", &key, &candidates).first(),
        ) {
            ([only], _) => *only,
            (_, Some(kept)) => *kept,
            _ => self.measure(key, &candidates, &mut measure)?,
        };
        let mut known = self.known();
        if known.choices.len() >= MOST_KNOWN {
            *known = Known::default();
        }
        known.choices.insert(key, chosen);
        Ok(chosen)
    }

    /// The choice for a key, if it was made or the file has it; else the first candidate.
    pub(crate) fn likely(&self, key: Key, candidates: &[Variant]) -> Option<Variant> {
        let known = self.known().choices.get(&key).copied();
        known
            .or_else(|| self.kept("gemm", &key, candidates).first().copied())
            .or_else(|| candidates.first().copied())
    }

    /// Measures what may be the fastest for a key, and keeps what was found.
    fn measure(
        &self,
        key: Key,
        candidates: &[Variant],
        measure: &mut impl FnMut(Variant) -> Result<f64>,
    ) -> Result<Variant> {
        let group = key.group();
        let known = self.known().groups.get(&group).map(|group| {
            let runnable = group.contenders.iter().filter(|v| candidates.contains(v));
            (runnable.copied().collect::<Vec<_>>(), group.measured)
        });
        let (contenders, measured) =
            known.unwrap_or_else(|| (self.kept("near", &group, candidates), 0));
        if let Some(best) = contenders.first()
            && measured >= MOST_OF_A_GROUP
        {
            return Ok(*best);
        }
        let is_first = contenders.is_empty();
        // A library numbers its kernels anew for each size, so all of them are compared.
        let compared = candidates.iter().filter(|variant| {
            is_first || contenders.contains(variant) || matches!(variant, Variant::Library(_))
        });
        let mut order = by_time(compared, measure)?;
        decide(&mut order, measure)?;
        let contenders = if is_first {
            let limit = order[0].0 * NEARLY_FASTEST;
            let near = order.iter().filter(|(time, _)| *time <= limit);
            let near: Vec<Variant> = near.map(|(_, v)| *v).take(MOST_CONTENDERS).collect();
            self.keep("near", &group, &near);
            near
        } else {
            contenders
        };
        let measured = measured + 1;
        (self.known().groups).insert(
            group,
            Group {
                contenders,
                measured,
            },
        );
        let chosen = order[0].1;
        self.keep("gemm", &key, &[chosen]);
        Ok(chosen)
    }
}

/// Measures those again, in turns, of which the order may be chance.
fn decide(
    order: &mut [(f64, Variant)],
    measure: &mut impl FnMut(Variant) -> Result<f64>,
) -> Result<()> {
    let limit = order[0].0 * BY_CHANCE;
    let close = order.partition_point(|(time, _)| *time <= limit);
    if close > 1 {
        for _ in 0..MORE_ROUNDS {
            for (time, variant) in &mut order[..close] {
                *time = time.min(measure(*variant)?);
            }
        }
        order[..close].sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    Ok(())
}

/// Seconds of each candidate, the fastest first, never none; one that cannot run is left out.
fn by_time<'a>(
    candidates: impl Iterator<Item = &'a Variant>,
    measure: &mut impl FnMut(Variant) -> Result<f64>,
) -> Result<Vec<(f64, Variant)>> {
    let (mut times, mut failure) = (Vec::new(), None);
    for variant in candidates {
        match measure(*variant) {
            Ok(time) => times.push((time, *variant)),
            Err(error) => failure = Some(error),
        }
    }
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    match failure {
        Some(error) if times.is_empty() => Err(error),
        None if times.is_empty() => Err(Error::argument(
            "gemm",
            "there is no kernel for this product",
        )),
        _ => Ok(times),
    }
}

/// The version of NVIDIA's driver of this machine, which translates the kernels of a card; empty where there is none.
pub(crate) fn driver_version() -> String {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    version_in(&text).to_owned()
}

/// The first number with points, as a version is, of a text's first line.
fn version_in(text: &str) -> &str {
    let mut words = text.lines().next().unwrap_or_default().split_whitespace();
    let is_version = |word: &&str| {
        let parts = || word.split('.');
        parts().count() > 1 && parts().all(|part| part.parse::<u32>().is_ok())
    };
    words.find(is_version).unwrap_or_default()
}

/// The file of choices: `MICA_OPS_TUNE` (empty or `off`: none), else one in the user's cache folder.
pub(crate) fn default_file() -> Option<PathBuf> {
    let set = std::env::var_os("MICA_OPS_TUNE").map(PathBuf::from);
    if let Some(path) = set {
        let none = path.as_os_str().is_empty() || path.as_os_str() == "off";
        return (!none).then_some(path);
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    Some(cache.or_else(home)?.join("mica/ops-choices"))
}

/// Measurements of which the fastest counts.
const MEASUREMENTS: usize = 3;
/// Work that is shorter is repeated within a measurement: a kernel of a few microseconds takes less than events tell apart.
const SHORTEST_SECONDS: f64 = 2e-4;
const MOST_REPEATED: f64 = 16.0;
/// A kernel that keeps the GPU until all of a measurement is queued. Without it the measurement of short work would say how
/// long the host takes to launch it.
const HOLD: &str = "
.version 7.0
.target sm_60
.address_size 64
.visible .entry hold(.param .u64 nanoseconds)
{
    .reg .u64 %now, %end;
    .reg .pred %early;
    ld.param.u64 %end, [nanoseconds];
    mov.u64 %now, %globaltimer;
    add.u64 %end, %end, %now;
again:
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %early, %now, %end;
    @%early bra again;
    ret;
}
";
/// What a host takes at most to launch work once, and to begin.
const LAUNCH_NS: u64 = 10_000;
const BEGIN_NS: u64 = 50_000;

impl Ops {
    /// Seconds that work in the stream takes, by the device's events: the fastest of a few measurements.
    pub(crate) fn seconds_of(&self, work: impl Fn() -> Result<()>) -> Result<f64> {
        let _paused = self.pause_recording();
        let (start, end) = (self.vgpu.event()?, self.vgpu.event()?);
        let timed = |times: u32| {
            if times > 1 && !self.is_software {
                let hold = self.kernels.made("hold", "hold", || HOLD.to_owned())?;
                let nanoseconds = BEGIN_NS + LAUNCH_NS * u64::from(times);
                (self.stream).launch(&hold, Grid::new(1, 1), (nanoseconds,))?;
            }
            start.record(self.stream())?;
            for _ in 0..times {
                work()?;
            }
            end.record(self.stream())?;
            end.synchronize()?;
            Ok::<f64, Error>(f64::from(end.elapsed_since_ms(&start)?) / 1e3 / f64::from(times))
        };
        // The first run loads and compiles.
        work()?;
        let once = timed(1)?;
        let times = (SHORTEST_SECONDS / once).clamp(1.0, MOST_REPEATED) as u32;
        let mut least = if times == 1 { once } else { f64::INFINITY };
        for _ in 0..MEASUREMENTS {
            least = least.min(timed(times)?);
        }
        Ok(least)
    }
}

#[cfg(test)]
mod tests;
