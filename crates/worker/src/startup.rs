//! When the steps of a worker's start were done, for whoever looks into the time to a program's first kernel.
//!
//! A few numbers are kept always. They are told, as a note, when the program first waits for its work, where the daemon
//! logs at the level `debug` (`MICA_LOG_LEVEL`).

use std::fmt::Write;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mica_limits::monotonic_ns;

/// Steps of one note.
const STEPS_OF_A_NOTE: usize = 5;
/// Most steps: a program can make many contexts before it waits.
const MOST_STEPS: usize = 64;

/// Steps with the time when each was done, in nanoseconds of the machine's monotonic clock.
static STEPS: Mutex<Vec<(&'static str, u64)>> = Mutex::new(Vec::new());
static IS_TOLD: AtomicBool = AtomicBool::new(false);

fn steps() -> MutexGuard<'static, Vec<(&'static str, u64)>> {
    STEPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A step was done just now.
pub(crate) fn done(step: &'static str) {
    if IS_TOLD.load(Relaxed) {
        return;
    }
    let mut steps = steps();
    if steps.len() < MOST_STEPS {
        steps.push((step, monotonic_ns()));
    }
}

/// Tells the steps, once, if somebody wants to know: in several notes, which are short.
#[inline]
pub(crate) fn tell(note: impl FnMut(&str)) {
    if !IS_TOLD.load(Relaxed) {
        tell_now(note);
    }
}

#[cold]
fn tell_now(mut note: impl FnMut(&str)) {
    if IS_TOLD.swap(true, Relaxed) {
        return;
    }
    let steps = std::mem::take(&mut *steps());
    let level = std::env::var("MICA_LOG_LEVEL").unwrap_or_default();
    if level.contains("debug") || level.contains("trace") {
        sentences(&steps).iter().for_each(|text| note(text));
    }
}

/// The steps as sentences: the time of the first one, then what each of the others took.
fn sentences(steps: &[(&str, u64)]) -> Vec<String> {
    let mut told = Vec::new();
    let mut last_ns = 0;
    for (index, some) in steps.chunks(STEPS_OF_A_NOTE).enumerate() {
        let mut text = String::from(match index {
            0 => "a worker's start:",
            _ => "a worker's start, then:",
        });
        for (place, (step, ns)) in some.iter().enumerate() {
            let comma = if place > 0 { "," } else { "" };
            let ms = ns.saturating_sub(last_ns) as f64 / 1e6;
            let _ = write!(text, "{comma} {step} {ms:.2} ms");
            last_ns = *ns;
        }
        told.push(text);
    }
    told
}

#[cfg(test)]
mod tests {
    #[test]
    fn steps_are_told_by_what_each_took_in_notes_that_are_short() {
        let mut steps = vec![("begun", 5_000_000_000), ("confined", 5_012_500_000)];
        let texts = super::sentences(&steps);
        assert_eq!(
            texts,
            ["a worker's start: begun 5000.00 ms, confined 12.50 ms"]
        );
        steps.extend((0..20).map(|more| ("a step with a long name", 5_100_000_000 + more)));
        let texts = super::sentences(&steps);
        assert!(texts.iter().all(|text| text.len() <= 192), "{texts:?}");
        let told: usize = texts.iter().map(|text| text.matches(" ms").count()).sum();
        assert_eq!(told, steps.len());
    }
}
