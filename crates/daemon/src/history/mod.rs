//! What was measured, kept on disk: seconds for ten minutes (in memory), 10 s for a day, 1 min for a month.
//!
//! Owns the files `history/series`, `history/fine` and `history/coarse` of the state directory, together at most 50 MB. The
//! monitor adds what it measured each second; [`query`] answers questions. A file that cannot be written costs the
//! history, never the daemon.

mod blocks;
mod observe;
mod pack;
mod points;
pub(crate) mod query;
mod record;
mod ring;
mod series;
#[cfg(test)]
mod tests;
mod tier;
mod usage;

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mica_control::api::{Point, Sample};
use mica_control::files::make_directory;

pub(crate) use observe::Observer;
pub(crate) use record::Identity;
use ring::Opened;
use series::Series;
use tier::{COARSE, FINE, Resolution, Tier};

/// Seconds that are kept one by one.
const SECONDS: u64 = 600;

/// The history of this host.
#[derive(Debug)]
pub(crate) struct History {
    store: Mutex<Store>,
}

#[derive(Debug)]
struct Store {
    series: Series,
    fine: Tier,
    coarse: Tier,
    seconds: HashMap<u32, VecDeque<Point>>,
    /// When the first second was measured.
    began: Option<u64>,
    /// Why the last write failed; told once.
    failure: Option<String>,
}

impl Default for History {
    /// Without files.
    fn default() -> Self {
        Self {
            store: Mutex::new(Store {
                series: Series::default(),
                fine: Tier::new(FINE),
                coarse: Tier::new(COARSE),
                seconds: HashMap::new(),
                began: None,
                failure: None,
            }),
        }
    }
}

impl History {
    /// Opens the files; returns also what is wrong with them, if something is. Without files the history goes back to the
    /// start of this daemon.
    pub(crate) fn open(state_dir: &Path) -> (Self, Option<String>) {
        let folder = state_dir.join("history");
        match Self::try_open(&folder, FINE) {
            Ok((history, Opened::Kept)) => (history, None),
            Ok((history, Opened::Replaced)) => {
                let folder = folder.display();
                let text = format!(
                    "a file in {folder} was damaged or of another version: the history in it is lost"
                );
                (history, Some(text))
            }
            Err(error) => {
                let folder = folder.display();
                let text = format!("the history in {folder} cannot be used: {error}");
                (Self::default(), Some(text))
            }
        }
    }

    fn try_open(folder: &Path, resolution: Resolution) -> std::io::Result<(Self, Opened)> {
        make_directory(folder, 0o700).map_err(std::io::Error::other)?;
        let (series, named) = Series::open(&folder.join("series"))?;
        let (fine, finely) = Tier::open(&folder.join("fine"), resolution)?;
        let (coarse, coarsely) = Tier::open(&folder.join("coarse"), COARSE)?;
        let history = Self::default();
        *history.store() = Store {
            series,
            fine,
            coarse,
            seconds: HashMap::new(),
            began: None,
            failure: None,
        };
        let replaced = [named, finely, coarsely].contains(&Opened::Replaced);
        let opened = match replaced {
            true => Opened::Replaced,
            false => Opened::Kept,
        };
        Ok((history, opened))
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one second of everything that is. Returns what went wrong, the first time that it does.
    pub(crate) fn add(&self, now: u64, measured: Vec<(Identity, Point)>) -> Option<String> {
        let mut store = self.store();
        let failure = store.add(now, measured).err().map(|e| e.to_string());
        let news = failure
            .clone()
            .filter(|text| store.failure.as_ref() != Some(text));
        store.failure = failure;
        news.map(|text| format!("the history cannot be written: {text}"))
    }

    /// The last minutes of a virtual GPU, a sample a second.
    pub(crate) fn samples(&self, name: &str) -> Vec<Sample> {
        let store = self.store();
        let named = store.series.iter().filter(|(_, identity)| {
            identity.subject == mica_control::api::Subject::Vgpu && identity.name == name
        });
        let points = named.filter_map(|(series, _)| store.seconds.get(&series));
        let mut samples: Vec<Sample> = points.flatten().map(sample).collect();
        samples.sort_by_key(|sample| sample.time_seconds);
        samples
    }

    /// Adds a second and asks for everything.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn fuzz(&self) {
        let point = Point {
            time_seconds: 1_790_000_100,
            measured_seconds: 1.0,
            ..Point::default()
        };
        self.add(point.time_seconds, vec![(Identity::default(), point)]);
        for step in [1, 10, 60, 86_400] {
            let Ok(picture) = self.picture(step, |_| true) else {
                continue;
            };
            let (since, until) = (1_790_000_000, 1_790_001_000);
            let _ = picture.timelines(query::Asked { since, until, step });
            let _ = picture.usage(0, u64::MAX, mica_control::api::AccountBy::Vgpu);
        }
        self.close();
    }

    /// Writes what is not written yet: the daemon ends.
    pub(crate) fn close(&self) {
        let mut store = self.store();
        let closed = [store.fine.close(), store.coarse.close()];
        for error in closed.into_iter().filter_map(Result::err) {
            tracing::warn!("the history cannot be written: {error}");
        }
    }
}

/// Takes records off any bytes; what comes of them is packed again and must be the same.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz_packed(mut bytes: &[u8]) {
    let (mut reads, mut packs, mut again) = (
        pack::Memory::default(),
        pack::Memory::default(),
        pack::Memory::default(),
    );
    while let Some(record) = reads.unpack(&mut bytes) {
        let mut packed = Vec::new();
        packs.pack(&record, &mut packed);
        let back = again.unpack(&mut &packed[..]);
        assert_eq!(back.map(|back| back.series), Some(record.series));
    }
}

impl Store {
    fn add(&mut self, now: u64, measured: Vec<(Identity, Point)>) -> std::io::Result<()> {
        self.began.get_or_insert(now);
        let mut points = Vec::with_capacity(measured.len());
        let mut failure = Ok(());
        for (identity, point) in measured {
            match self.series.number_of(identity) {
                Ok(series) => points.push((series, point)),
                Err(error) => failure = Err(error),
            }
        }
        for (series, point) in &points {
            self.seconds.entry(*series).or_default().push_back(*point);
        }
        let oldest = now.saturating_sub(SECONDS);
        self.seconds.retain(|series, points| {
            // Of series that were forgotten nothing is asked any more.
            if !self.series.knows(*series) {
                return false;
            }
            while points.front().is_some_and(|p| p.time_seconds < oldest) {
                points.pop_front();
            }
            !points.is_empty()
        });
        let fine = self.fine.add(&points);
        let coarse = self.coarse.add(&points);
        failure.and(fine).and(coarse)
    }
}

fn sample(point: &Point) -> Sample {
    Sample {
        time_seconds: point.time_seconds,
        memory_used_bytes: point.memory_used_bytes,
        share_measured_percent: point.share_got_percent,
        launches: u32::try_from(point.launches).unwrap_or(u32::MAX),
        gate_wait_percent: point.waiting_percent,
        processes: u16::try_from(point.processes).unwrap_or(u16::MAX),
    }
}
