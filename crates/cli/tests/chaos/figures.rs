//! How long the way back took.

use std::collections::BTreeMap;
use std::time::Duration;

/// What is promised.
const GOAL: Duration = Duration::from_millis(100);

/// Times by kind of victim.
#[derive(Debug, Default)]
pub(crate) struct Figures(BTreeMap<&'static str, Vec<Duration>>);

impl Figures {
    pub(crate) fn add(&mut self, victim: &'static str, time: Duration) {
        self.0.entry(victim).or_default().push(time);
    }
}

impl std::fmt::Display for Figures {
    /// One line, or with `{:#}` a line for each kind of victim.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        for (index, (victim, times)) in self.0.iter().enumerate() {
            let mut times = times.clone();
            times.sort();
            let at = |part: f64| {
                let last = times.len() - 1;
                milliseconds(times[((last as f64) * part).round() as usize])
            };
            let late = times.iter().filter(|time| **time > GOAL).count();
            if f.alternate() {
                writeln!(
                    f,
                    "{victim:<9} {:>4} killed, back after {:.1} ms (median), {:.1} (90 %), {:.1} (99 %), {:.1} (most); {late} later than 100 ms",
                    times.len(),
                    at(0.5),
                    at(0.9),
                    at(0.99),
                    at(1.0),
                )?;
            } else {
                let comma = if index > 0 { ", " } else { "" };
                write!(
                    f,
                    "{comma}{victim} {}x {:.1}/{:.1} ms ({late} late)",
                    times.len(),
                    at(0.5),
                    at(1.0)
                )?;
            }
        }
        Ok(())
    }
}
