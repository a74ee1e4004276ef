//! Questions about the history: which records answer them, and how they are joined to steps.
//!
//! The newest times come from the finest source that the step asks for; older times, which that source has
//! forgotten, come from the next coarser one. Records at the border are cut there, so that no second counts twice.

use std::collections::{BTreeMap, HashMap};
use std::io::Result;

use mica_control::api::{Point, Subject, Timeline, Timelines};

use super::blocks::Snapshot;
use super::points::{clipped, end_of, is_idle, joined, rounded};
use super::record::Identity;
use super::{History, SECONDS, Store};

/// Steps of one answer at most.
pub(crate) const MOST_STEPS: u64 = 2_000;
/// Points of one answer at most, over all timelines.
pub(crate) const MOST_POINTS: usize = 200_000;
/// Steps of an answer to a question that names no step, about.
const STEPS: u64 = 300;
/// Steps that people think in.
const ROUND_STEPS: [u32; 15] = [
    1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 21_600, 86_400,
];

/// A span of time, in seconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) since: u64,
    pub(crate) until: u64,
    pub(crate) step: u32,
}

/// The step of an answer that has about [`STEPS`] of them.
pub(crate) fn usual_step(since: u64, until: u64) -> u32 {
    let span = until.saturating_sub(since);
    let enough = |step: &&u32| span / u64::from(**step) <= STEPS;
    let days = || u32::try_from(span.div_ceil(STEPS).next_multiple_of(86_400));
    let usual = ROUND_STEPS.iter().find(enough).copied();
    usual.unwrap_or_else(|| days().unwrap_or(u32::MAX))
}

/// Where points come from.
struct Source {
    file: Option<Snapshot>,
    /// In memory alone.
    points: Vec<(u32, Point)>,
}

/// All that a question needs, taken at one moment.
pub(crate) struct Picture {
    /// Finest first; each with the time from which on it is used.
    sources: Vec<(u64, Source)>,
    /// Series wanted: their numbers, and their places in `identities`.
    wanted: HashMap<u32, usize>,
    pub(super) identities: Vec<Identity>,
}

impl History {
    /// What is needed to answer for the series that `may` lets through.
    pub(crate) fn picture(&self, step: u32, may: impl Fn(&Identity) -> bool) -> Result<Picture> {
        let store = self.store();
        let mut wanted = HashMap::new();
        let mut identities = Vec::new();
        for (series, identity) in store.series.iter().filter(|(_, identity)| may(identity)) {
            wanted.insert(series, identities.len());
            identities.push(identity.clone());
        }
        let mut sources = Vec::new();
        if step < 10 {
            sources.push((store.seconds_begin(), store.of_seconds()));
        }
        if step < 60 {
            let fine = Source::of(store.fine.snapshot());
            sources.push((fine.begin(60)?, fine));
        }
        sources.push((0, Source::of(store.coarse.snapshot())));
        Ok(Picture {
            sources,
            wanted,
            identities,
        })
    }
}

impl Store {
    fn of_seconds(&self) -> Source {
        let all = self.seconds.iter();
        let points = all.flat_map(|(series, points)| points.iter().map(|p| (*series, *p)));
        Source {
            file: None,
            points: points.collect(),
        }
    }

    /// The time from which on seconds are complete.
    fn seconds_begin(&self) -> u64 {
        let newest = self.seconds.values().filter_map(|points| points.back());
        let newest = newest.map(|p| p.time_seconds).max().unwrap_or(u64::MAX);
        let oldest = newest.saturating_sub(SECONDS);
        oldest
            .max(self.began.unwrap_or(u64::MAX))
            .next_multiple_of(10)
    }
}

impl Source {
    fn of((file, points): (Option<Snapshot>, Vec<(u32, Point)>)) -> Self {
        Self { file, points }
    }

    /// The time from which on this source is complete, rounded up to the next coarser step.
    fn begin(&self, step: u64) -> Result<u64> {
        let Some(file) = &self.file else {
            return Ok(0);
        };
        let oldest = file.overwritten_until()?;
        let ends = oldest
            .iter()
            .map(|record| end_of(&record.point).ceil() as u64);
        Ok(ends.max().unwrap_or(0).next_multiple_of(step))
    }

    /// Shows every point that ends after `since`.
    fn each(&self, since: u64, mut show: impl FnMut(u32, &Point)) -> Result<()> {
        for (series, point) in &self.points {
            show(*series, point);
        }
        let Some(file) = &self.file else {
            return Ok(());
        };
        file.newest_first(|record| {
            show(record.series, &record.point);
            end_of(&record.point) > since as f64
        })
    }
}

impl Picture {
    /// Shows every measured span of the wanted series between two times, cut to them: its place in
    /// `identities` and the span.
    pub(super) fn each(
        &self,
        since: u64,
        until: u64,
        mut show: impl FnMut(usize, Point),
    ) -> Result<()> {
        let mut end = until;
        for (begin, source) in &self.sources {
            let begin = since.max(*begin);
            if begin >= end {
                continue;
            }
            source.each(begin, |series, point| {
                let place = self.wanted.get(&series);
                if let (Some(place), Some(part)) = (place, clipped(point, begin, end)) {
                    show(*place, part);
                }
            })?;
            end = begin;
        }
        Ok(())
    }

    /// The oldest time that is kept of the wanted series.
    pub(super) fn oldest(&self) -> Result<Option<u64>> {
        let mut oldest = None;
        self.each(0, u64::MAX, |_, point| {
            let time = point.time_seconds;
            oldest = Some(oldest.map_or(time, |known: u64| known.min(time)));
        })?;
        Ok(oldest)
    }

    /// The answer, by name; what a name had in several containers stays apart.
    pub(crate) fn timelines(&self, asked: Asked) -> Result<Timelines> {
        let step = u64::from(asked.step.max(1));
        let mut lines: Vec<BTreeMap<u64, Point>> = vec![BTreeMap::new(); self.identities.len()];
        self.each(asked.since, asked.until, |place, point| {
            for part in cut_to_steps(&point, step) {
                let bucket = part.time_seconds / step * step;
                let line = &mut lines[place];
                let whole = line.get(&bucket).map_or(part, |known| joined(known, &part));
                line.insert(bucket, whole);
            }
        })?;
        let all = self.identities.iter().zip(lines);
        let mut timelines: Vec<Timeline> = all
            .filter(|(_, line)| !line.is_empty())
            .map(|(identity, line)| timeline(identity, line))
            .collect();
        let order = |a: &Timeline| (a.subject != Subject::Gpu, a.gpu, a.name.clone());
        timelines.sort_by_cached_key(order);
        Ok(Timelines {
            since_seconds: asked.since,
            until_seconds: asked.until,
            step_seconds: asked.step,
            timelines,
        })
    }
}

/// A span in pieces that lie within one step each, if nothing happened in it: such spans are long. Others stay whole in the
/// step that they begin in.
fn cut_to_steps(point: &Point, step: u64) -> impl Iterator<Item = Point> + use<'_> {
    let idle = is_idle(point);
    let first = point.time_seconds / step;
    let last = match idle {
        true => (end_of(point).ceil() as u64).saturating_sub(1) / step,
        false => first,
    };
    (first..=last).filter_map(move |bucket| match idle {
        true => clipped(point, bucket * step, (bucket + 1) * step),
        false => Some(*point),
    })
}

fn timeline(identity: &Identity, line: BTreeMap<u64, Point>) -> Timeline {
    let is_vgpu = identity.subject == Subject::Vgpu;
    let points = line.into_iter().map(|(bucket, point)| Point {
        time_seconds: bucket,
        ..rounded(point)
    });
    Timeline {
        subject: identity.subject,
        name: identity.name.clone(),
        gpu: identity.gpu,
        gpu_uuid: identity.gpu_uuid.clone(),
        owner_uid: is_vgpu.then_some(identity.owner_uid),
        container: Some(identity.container.clone()).filter(|name| !name.is_empty()),
        points: points.collect(),
    }
}
