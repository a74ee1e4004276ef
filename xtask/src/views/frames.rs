//! Frames of a tab: how many there are, and what they cost its main thread.
//!
//! Frames are counted by the page's own clock, so that everything else on the machine is in them. Processor time is counted
//! by the browser on the main thread, so that nothing else is in it: a task that used up the time of a frame or more on the
//! processor made the page miss frames that no other program took from it.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::browser::{Browser, Tab};

/// How long frames are counted.
pub(super) const LOOK: Duration = Duration::from_secs(5);
/// Time of one frame at 60 a second.
const FRAME_US: u64 = 16_667;

/// One look at a page.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    pub(super) frames: u64,
    pub(super) rate: f64,
    worst_ms: f64,
    /// Frames that came later than one and a half after the one before, whatever the reason.
    late: u64,
    /// Frames that the page's own work took.
    pub(super) own_missed: u64,
    /// Processor time of scripts for each frame.
    pub(super) script_ms: f64,
    /// Processor time of the main thread for each frame: scripts, style, layout, paint.
    pub(super) main_ms: f64,
}

impl fmt::Display for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.1} a second, script {:.2} ms, main thread {:.2} ms; late {}, by its own work {}; the longest {:.0} ms",
            self.rate, self.script_ms, self.main_ms, self.late, self.own_missed, self.worst_ms
        )
    }
}

/// Counts frames.
pub(super) fn look(browser: &mut Browser, tab: &Tab) -> Result<Look> {
    let count = format!(
        "new Promise((done) => {{ const t0 = performance.now(); let last = t0, frames = 0, worst = 0, late = 0; \
         const f = () => {{ const now = performance.now(); frames += 1; worst = Math.max(worst, now - last); late += now - last > 25; \
         last = now; now - t0 < {} ? requestAnimationFrame(f) : done({{ rate: frames * 1000 / (now - t0), worst, late, frames }}); }}; \
         requestAnimationFrame(f); }})",
        LOOK.as_millis()
    );
    browser.trace()?;
    let before = processor_seconds(browser, tab)?;
    let seen = browser.eval(tab, &count)?;
    let after = processor_seconds(browser, tab)?;
    let own_missed = missed(&browser.traced()?);
    let number = |key: &str| {
        let number = seen[key].as_f64();
        number.with_context(|| format!("no {key}: {seen}"))
    };
    let frames = number("frames")?.max(1.0);
    let a_frame = |place: usize| (after[place] - before[place]) * 1000.0 / frames;
    Ok(Look {
        frames: frames as u64,
        rate: number("rate")?,
        worst_ms: number("worst")?,
        late: number("late")? as u64,
        own_missed,
        script_ms: a_frame(0),
        main_ms: a_frame(1),
    })
}

/// The median of each figure.
pub(super) fn median(looks: &[Look]) -> Look {
    let of = |figure: &dyn Fn(&Look) -> f64| {
        let mut values: Vec<f64> = looks.iter().map(figure).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        match values.len() {
            0 => 0.0,
            even if even % 2 == 0 => (values[middle - 1] + values[middle]) / 2.0,
            _ => values[middle],
        }
    };
    Look {
        frames: of(&|look| look.frames as f64) as u64,
        rate: of(&|look| look.rate),
        worst_ms: of(&|look| look.worst_ms),
        late: of(&|look| look.late as f64) as u64,
        own_missed: of(&|look| look.own_missed as f64) as u64,
        script_ms: of(&|look| look.script_ms),
        main_ms: of(&|look| look.main_ms),
    }
}

/// Processor time of a page's main thread so far: of its scripts, and of everything.
fn processor_seconds(browser: &mut Browser, tab: &Tab) -> Result<[f64; 2]> {
    let metrics = browser.call(Some(tab), "Performance.getMetrics", json!({}))?;
    let all = metrics["metrics"].as_array().cloned().unwrap_or_default();
    let named = |name: &str| {
        let metric = all.iter().find(|metric| metric["name"] == name);
        let seconds = metric.and_then(|metric| metric["value"].as_f64());
        seconds.with_context(|| format!("the browser does not tell {name}"))
    };
    Ok([named("ScriptDuration")?, named("TaskDuration")?])
}

/// Frames that tasks of main threads took by themselves: each for every whole frame of its processor time.
fn missed(events: &[Value]) -> u64 {
    let of_main = |event: &&Value| {
        event["name"] == "thread_name" && event["args"]["name"] == "CrRendererMain"
    };
    let thread = |event: &Value| (event["pid"].as_u64(), event["tid"].as_u64());
    let main: Vec<_> = events.iter().filter(of_main).map(thread).collect();
    let tasks = events
        .iter()
        .filter(|event| event["name"] == "RunTask" && main.contains(&thread(event)));
    tasks
        .filter_map(|task| task["tdur"].as_u64())
        .map(|us| us / FRAME_US)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_a_task_took_are_counted_by_its_processor_time() {
        let name = |tid: u64, name: &str| json!({ "name": "thread_name", "pid": 7, "tid": tid, "args": { "name": name } });
        let task = |tid: u64, us: u64| json!({ "name": "RunTask", "pid": 7, "tid": tid, "dur": 90_000, "tdur": us });
        let events = [
            task(1, 40_000),
            name(1, "CrRendererMain"),
            name(2, "Compositor"),
            task(1, 16_000),
            task(2, 50_000),
        ];
        assert_eq!(missed(&events), 2);
    }

    #[test]
    fn a_median_is_in_the_middle() {
        let looks = [3.0, 1.0, 2.0, 10.0].map(|rate| Look {
            rate,
            ..Look::default()
        });
        assert!((median(&looks).rate - 2.5).abs() < 1e-9);
        assert!((median(&looks[..3]).rate - 2.0).abs() < 1e-9);
        assert!(median(&[]).rate.abs() < 1e-9);
    }
}
