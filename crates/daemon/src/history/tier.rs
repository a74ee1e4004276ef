//! One resolution of the history: joins seconds to steps and writes each step when it is over.
//!
//! ```text
//!   seconds ─► open step of the series ─► file
//!                     └─ nothing happened ─► pending idle span ─► file, once it is over or long enough
//! ```

use std::collections::{HashMap, HashSet};
use std::io::Result;
use std::path::Path;

use mica_control::api::Point;

use super::blocks::{Blocks, Shape, Snapshot};
use super::points::{end_of, is_idle, joined};
use super::record::Record;
use super::ring::Opened;

/// Length of a step, of the longest record of an idle span, and how large the file is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resolution {
    pub(crate) step_seconds: u64,
    pub(crate) longest_idle_seconds: f32,
    pub(crate) shape: Shape,
}

/// Bytes of a block: large against the first records of all series, which are not packed against earlier ones.
const BLOCK_BYTES: usize = 60_000;

/// Ten seconds for a day, for 100 busy virtual GPUs: 8.9 bytes a record.
pub(crate) const FINE: Resolution = Resolution {
    step_seconds: 10,
    longest_idle_seconds: 600.0,
    shape: Shape {
        block_bytes: BLOCK_BYTES,
        blocks: 130,
    },
};
/// A minute for a month, for 100 busy virtual GPUs: 8.8 bytes a record.
pub(crate) const COARSE: Resolution = Resolution {
    step_seconds: 60,
    // As long as a crash may cost: an account counts shares in force also while nothing runs.
    longest_idle_seconds: 600.0,
    shape: Shape {
        block_bytes: BLOCK_BYTES,
        blocks: 645,
    },
};

/// Two spans with a smaller gap follow each other: the monitor's seconds are not exact.
const GAP_SECONDS: f64 = 3.0;

/// One resolution.
#[derive(Debug)]
pub(crate) struct Tier {
    resolution: Resolution,
    file: Option<Blocks>,
    /// The step of each series that is not over.
    open: HashMap<u32, Point>,
    /// Spans in which nothing happened, not written yet.
    idle: HashMap<u32, Point>,
    /// Records to write.
    finished: Vec<Record>,
}

impl Tier {
    /// Without a file: keeps only what is not over.
    pub(crate) fn new(resolution: Resolution) -> Self {
        Self {
            resolution,
            file: None,
            open: HashMap::new(),
            idle: HashMap::new(),
            finished: Vec::new(),
        }
    }

    /// With its file.
    pub(crate) fn open(path: &Path, resolution: Resolution) -> Result<(Self, Opened)> {
        let (file, opened) = Blocks::open(path, resolution.shape)?;
        let mut tier = Self::new(resolution);
        tier.file = Some(file);
        Ok((tier, opened))
    }

    /// Takes what was measured of all series that are.
    pub(crate) fn add(&mut self, points: &[(u32, Point)]) -> Result<()> {
        let step_of = |point: &Point| point.time_seconds / self.resolution.step_seconds;
        let mut over = Vec::new();
        for (series, point) in points {
            let open = self.open.remove(series);
            let open = match open {
                Some(open) if step_of(&open) == step_of(point) => joined(&open, point),
                Some(open) => {
                    over.push((*series, open));
                    *point
                }
                None => *point,
            };
            self.open.insert(*series, open);
        }
        let seen: HashSet<u32> = points.iter().map(|(series, _)| *series).collect();
        let gone = |series: &u32| !seen.contains(series);
        over.extend(self.open.extract_if(|series, _| gone(series)));
        let ended: Vec<(u32, Point)> = self.idle.extract_if(|series, _| gone(series)).collect();
        for (series, point) in over {
            self.finish(series, point);
        }
        // After the last step of each, which may have been idle too.
        for (series, point) in ended {
            self.write_later(series, point);
        }
        self.idle_of_the_gone(&seen);
        self.write()
    }

    /// Idle spans that the last steps of removed series began.
    fn idle_of_the_gone(&mut self, seen: &HashSet<u32>) {
        let gone: Vec<(u32, Point)> = self
            .idle
            .extract_if(|series, _| !seen.contains(series))
            .collect();
        for (series, point) in gone {
            self.write_later(series, point);
        }
    }

    /// A step is over.
    fn finish(&mut self, series: u32, point: Point) {
        let before = self.idle.remove(&series);
        let Some(before) = before else {
            return match is_idle(&point) {
                true => drop(self.idle.insert(series, point)),
                false => self.write_later(series, point),
            };
        };
        let follows = (end_of(&before) - point.time_seconds as f64).abs() < GAP_SECONDS;
        let unreserved = |point: &Point| (point.share_unreserved_percent * 100.0).round() as u32;
        let alike = (before.share_asked_percent - point.share_asked_percent).abs() < 0.01
            && unreserved(&before) == unreserved(&point)
            && before.memory_limit_bytes == point.memory_limit_bytes;
        let longest = self.resolution.longest_idle_seconds;
        let fits = before.measured_seconds + point.measured_seconds <= longest;
        if is_idle(&point) && follows && alike && fits {
            self.idle.insert(series, joined(&before, &point));
            return;
        }
        self.write_later(series, before);
        self.finish(series, point);
    }

    fn write_later(&mut self, series: u32, point: Point) {
        self.finished.push(Record { series, point });
    }

    fn write(&mut self) -> Result<()> {
        let mut finished = std::mem::take(&mut self.finished);
        // Neighbours are packed best; what a series did stays in its order.
        finished.sort_by_key(|record| record.series);
        match &mut self.file {
            Some(file) if !finished.is_empty() => file.append(&finished),
            _ => Ok(()),
        }
    }

    /// Writes everything, also steps that are not over: the daemon ends.
    pub(crate) fn close(&mut self) -> Result<()> {
        let open: Vec<(u32, Point)> = self.open.drain().collect();
        for (series, point) in open {
            self.finish(series, point);
        }
        let idle: Vec<(u32, Point)> = self.idle.drain().collect();
        for (series, point) in idle {
            self.write_later(series, point);
        }
        self.write()
    }

    /// What the file holds now, and what is not written yet.
    pub(crate) fn snapshot(&self) -> (Option<Snapshot>, Vec<(u32, Point)>) {
        let unwritten = self.idle.iter().chain(&self.open);
        let unwritten = unwritten.map(|(series, point)| (*series, *point));
        (
            self.file.as_ref().map(Blocks::snapshot),
            unwritten.collect(),
        )
    }
}
