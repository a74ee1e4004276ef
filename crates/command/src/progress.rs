//! One line on the terminal that says what takes so long, and since when.
//!
//! The line is on standard error, and only where that is a terminal. It goes when another line is printed and returns
//! below that line, so nobody who prints needs to know of it.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often the line is written anew.
const EVERY: Duration = Duration::from_millis(250);
/// What takes less time shows no line.
const PATIENCE: Duration = Duration::from_millis(700);

/// What the line shows.
struct Shown {
    /// Tells this line from an earlier line.
    number: u64,
    what: String,
    since: Instant,
    whole: Option<Duration>,
    is_visible: bool,
}

static SHOWN: Mutex<Option<Shown>> = Mutex::new(None);
static NUMBERS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

fn shown() -> MutexGuard<'static, Option<Shown>> {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the line away when dropped.
#[derive(Debug)]
#[must_use = "the line goes when this is dropped"]
pub struct Progress(u64);

impl Progress {
    /// Says what takes long; with `whole`, also how long it takes in all. A line that is shown already is replaced.
    pub fn of(what: &str, whole: Option<Duration>) -> Self {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let number = NUMBERS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if is_dumb || !std::io::stderr().is_terminal() {
            return Self(number);
        }
        erase();
        *shown() = Some(Shown {
            number,
            what: what.to_owned(),
            since: Instant::now(),
            whole,
            is_visible: false,
        });
        // Without a thread there is no line, and nothing else is lost.
        let _ = std::thread::Builder::new()
            .name("progress".into())
            .spawn(move || {
                std::thread::sleep(PATIENCE);
                while write_again(number) {
                    std::thread::sleep(EVERY);
                }
            });
        Self(number)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        erase();
        let mut shown = shown();
        if shown.as_ref().is_some_and(|line| line.number == self.0) {
            *shown = None;
        }
    }
}

/// Writes a line anew; false if the line is not shown any more.
fn write_again(number: u64) -> bool {
    let mut shown = shown();
    let Some(line) = shown.as_mut().filter(|line| line.number == number) else {
        return false;
    };
    let words = words(&line.what, line.since.elapsed(), line.whole);
    let _ = std::io::stderr().write_all(format!("\r{words}\x1b[K").as_bytes());
    line.is_visible = true;
    true
}

fn words(what: &str, elapsed: Duration, whole: Option<Duration>) -> String {
    let seconds = elapsed.as_secs_f64();
    match whole {
        Some(whole) => format!("{what}: {seconds:.0} of {:.0} s", whole.as_secs_f64()),
        None => format!("{what}: {seconds:.0} s"),
    }
}

/// Takes the line away because something else is about to be printed; the line is written again below it.
pub(crate) fn erase() {
    let mut shown = shown();
    if let Some(line) = shown.as_mut().filter(|line| line.is_visible) {
        let _ = std::io::stderr().write_all(b"\r\x1b[K");
        line.is_visible = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_and_how_long() {
        let time = Duration::from_secs(3);
        assert_eq!(words("measuring", time, None), "measuring: 3 s");
        let whole = Some(Duration::from_secs(5));
        assert_eq!(words("looking at a", time, whole), "looking at a: 3 of 5 s");
    }

    #[test]
    fn without_a_terminal_there_is_no_line() {
        // Tests run with standard error in a pipe or file; on a terminal the line is shown and goes.
        let progress = Progress::of("test", None);
        if !std::io::stderr().is_terminal() {
            assert!(shown().is_none());
        }
        drop(progress);
        assert!(shown().is_none());
    }
}
