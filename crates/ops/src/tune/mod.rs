//! The choice of a kernel by measurement.
//!
//! The first product of a size times every kernel that could compute it; later ones of that size use
//! the fastest without a question. Choices are kept in a file, which several processes may use at once.
//! A choice holds for a device, a set of kernels and a setting of tensor cores; with any other of these
//! it is made anew.

mod file;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::gemm::Variant;
use crate::{DType, Error, Ops, Result};

/// What distinguishes products for which the fastest kernels may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// m, n, k and the matrices of the stack, rounded by [`bucket`].
    pub(crate) sizes: [u32; 4],
    pub(crate) dtype: DType,
    /// Type of the result.
    pub(crate) out: DType,
    /// Whether a kernel of this crate has to follow a library's product.
    pub(crate) has_epilogue: bool,
    pub(crate) is_tf32: bool,
    /// Whether rows of the factors are contiguous, and both can be read 16 bytes at once.
    pub(crate) layout: [bool; 3],
}

/// Rounds a size up to two steps between powers of two, so that near sizes share a choice.
pub(crate) fn bucket(size: usize) -> u32 {
    let size = u32::try_from(size).unwrap_or(u32::MAX).clamp(1, 1 << 30);
    let power = size.next_power_of_two();
    if power >= 4 && size <= power / 4 * 3 {
        return power / 4 * 3;
    }
    power
}

/// Choices made so far.
pub(crate) struct Tuner {
    known: Mutex<HashMap<Key, Variant>>,
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

    fn known(&self) -> MutexGuard<'_, HashMap<Key, Variant>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn text(&self, key: &Key) -> String {
        let [m, n, k, batch] = key.sizes;
        let [a, b, aligned] = key.layout.map(u8::from);
        let (dtype, out) = (key.dtype, key.out);
        let (tf32, epilogue) = (u8::from(key.is_tf32), u8::from(key.has_epilogue));
        format!(
            "gemm {batch}x{m}x{n}x{k} {dtype} {out} tf32={tf32} epilogue={epilogue} layout={a}{b}{aligned} {}",
            self.setting
        )
    }

    /// The choice for a key, made by `measure` (seconds of a candidate) where there is none yet.
    pub(crate) fn choose(
        &self,
        key: Key,
        candidates: impl FnOnce() -> Result<Vec<Variant>>,
        mut measure: impl FnMut(Variant) -> Result<f64>,
    ) -> Result<Variant> {
        if let Some(variant) = self.known().get(&key) {
            return Ok(*variant);
        }
        let candidates = candidates()?;
        let text = self.text(&key);
        let kept = self
            .file
            .as_deref()
            .and_then(|path| file::find(path, &text));
        let kept = candidates
            .iter()
            .find(|variant| Some(variant.label()) == kept);
        let chosen = match (kept, &candidates[..]) {
            (Some(variant), _) => *variant,
            (None, [only]) => *only,
            (None, _) => {
                let chosen = fastest(&candidates, &mut measure)?;
                if let Some(path) = &self.file {
                    // A file that cannot be written costs the next process a measurement, nothing else.
                    let _ = file::add(path, &text, &chosen.label());
                }
                chosen
            }
        };
        self.known().insert(key, chosen);
        Ok(chosen)
    }
}

/// The candidate that takes the least time; one that cannot run is left out.
fn fastest(
    candidates: &[Variant],
    measure: &mut impl FnMut(Variant) -> Result<f64>,
) -> Result<Variant> {
    let mut best: Option<(f64, Variant)> = None;
    let mut failure = None;
    for variant in candidates {
        match measure(*variant) {
            Ok(time) if best.is_none_or(|(least, _)| time < least) => best = Some((time, *variant)),
            Ok(_) => {}
            Err(error) => failure = Some(error),
        }
    }
    match (best, failure) {
        (Some((_, variant)), _) => Ok(variant),
        (None, Some(error)) => Err(error),
        (None, None) => Err(Error::argument(
            "gemm",
            "there is no kernel for this product",
        )),
    }
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

/// Runs of which the fastest counts.
const RUNS: usize = 3;

impl Ops {
    /// Seconds that work in the stream takes, by the device's events: the fastest of a few runs.
    pub(crate) fn seconds_of(&self, work: impl Fn() -> Result<()>) -> Result<f64> {
        // The first run loads and compiles.
        work()?;
        let (start, end) = (self.vgpu.event()?, self.vgpu.event()?);
        let mut least = f64::INFINITY;
        for _ in 0..RUNS {
            start.record(&self.stream)?;
            work()?;
            end.record(&self.stream)?;
            end.synchronize()?;
            least = least.min(f64::from(end.elapsed_since_ms(&start)?) / 1e3);
        }
        Ok(least)
    }
}

#[cfg(test)]
mod tests;
