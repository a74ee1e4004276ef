//! What `mica top` shows: the last answers of the daemon, and what the person chose.

use std::collections::{BTreeMap, BTreeSet};

use mica_control::api::{Point, Stats, Subject, Timeline, Timelines, VgpuInfo};

use super::act::Action;

/// How the daemon was reached last.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Link {
    /// It has not answered yet.
    #[default]
    Waiting,
    /// It answers.
    Up,
    /// It does not: since when, in seconds since the epoch, and why.
    Down(f64, String),
}

/// What was measured between the last two answers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rate {
    pub(crate) waiting_percent: f64,
    pub(crate) launches_per_second: f64,
}

/// What rows are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sort {
    #[default]
    Name,
    Share,
    Waiting,
    Memory,
    GpuTime,
}

impl Sort {
    pub(crate) const ALL: [Self; 5] = [
        Self::Name,
        Self::Share,
        Self::Waiting,
        Self::Memory,
        Self::GpuTime,
    ];

    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Share => "share",
            Self::Waiting => "waiting",
            Self::Memory => "memory",
            Self::GpuTime => "GPU time",
        }
    }

    fn next(self) -> Self {
        let place = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL[(place + 1) % Self::ALL.len()]
    }
}

/// A row that is remembered while rows come and go.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RowKey {
    Vgpu(String),
    Container(String, String),
    Process(String, u32),
}

impl RowKey {
    /// The virtual GPU that it is, or is in.
    pub(crate) fn vgpu(&self) -> &str {
        match self {
            Self::Vgpu(name) | Self::Container(name, _) | Self::Process(name, _) => name,
        }
    }
}

/// A question in place of the line of keys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Prompt {
    /// Shall this be done?
    Confirm(Action),
    /// New limits of a virtual GPU, as typed so far, and what is wrong with them.
    Resize {
        vgpu: String,
        text: String,
        wrong: Option<String>,
    },
    /// Letters that rows must contain.
    Filter,
    /// The page of keys.
    Help,
}

/// Spans of time that can be shown: seconds and words, and the seconds of a step.
pub(crate) const SPANS: [(u64, &str, u32); 7] = [
    (60, "1 minute", 1),
    (600, "10 minutes", 5),
    (3_600, "1 hour", 30),
    (21_600, "6 hours", 180),
    (86_400, "1 day", 720),
    (604_800, "1 week", 5_040),
    (2_678_400, "1 month", 22_320),
];

/// Everything that a frame is made of.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) host: String,
    /// Seconds since the epoch, and the clock as people read it.
    pub(crate) now: f64,
    pub(crate) clock: String,
    pub(crate) stats: Stats,
    pub(crate) history: Timelines,
    pub(crate) rates: BTreeMap<String, Rate>,
    pub(crate) users: BTreeMap<u32, String>,
    pub(crate) link: Link,
    /// Place in [`SPANS`].
    pub(crate) zoom: usize,
    pub(crate) sort: Sort,
    pub(crate) reversed: bool,
    pub(crate) filter: String,
    /// Virtual GPUs whose processes are hidden.
    pub(crate) folded: BTreeSet<String>,
    pub(crate) selected: Option<RowKey>,
    pub(crate) prompt: Option<Prompt>,
    /// The last news, and whether they are bad.
    pub(crate) message: Option<(String, bool)>,
    pub(crate) colours: bool,
    /// Whether the terminal shows more than ASCII.
    pub(crate) unicode: bool,
}

impl State {
    /// The span of time that is shown: seconds, words, seconds of a step.
    pub(crate) fn span(&self) -> (u64, &'static str, u32) {
        SPANS[self.zoom.min(SPANS.len() - 1)]
    }

    /// A virtual GPU by name.
    pub(crate) fn vgpu(&self, name: &str) -> Option<&VgpuInfo> {
        self.stats.vgpus.iter().find(|vgpu| vgpu.name == name)
    }

    /// The virtual GPU that is selected, or that the selected process is in.
    pub(crate) fn selected_vgpu(&self) -> Option<&VgpuInfo> {
        self.vgpu(self.selected.as_ref()?.vgpu())
    }

    pub(crate) fn rate(&self, vgpu: &str) -> Rate {
        self.rates.get(vgpu).copied().unwrap_or_default()
    }

    /// The measured points of a virtual GPU (all its containers) or a GPU.
    pub(crate) fn points(&self, subject: Subject, name: &str) -> impl Iterator<Item = &Point> {
        let lines = self.history.timelines.iter();
        let named = move |line: &&Timeline| match subject {
            Subject::Vgpu => line.subject == subject && line.name == name,
            Subject::Gpu => line.subject == subject && line.gpu.to_string() == name,
        };
        lines.filter(named).flat_map(|line| &line.points)
    }

    pub(crate) fn user(&self, uid: u32) -> String {
        self.users
            .get(&uid)
            .cloned()
            .unwrap_or_else(|| uid.to_string())
    }

    pub(crate) fn sort_next(&mut self) {
        self.sort = self.sort.next();
        self.reversed = false;
    }

    /// Sorts by this; a second time turns the order.
    pub(crate) fn sort_by(&mut self, sort: Sort) {
        self.reversed = self.sort == sort && !self.reversed;
        self.sort = sort;
    }

    /// Takes new answers of the daemon.
    pub(crate) fn take(&mut self, stats: Stats, seconds: f64) {
        let known = self.stats.daemon.pid;
        if matches!(self.link, Link::Down(..)) || (known != 0 && known != stats.daemon.pid) {
            let pid = stats.daemon.pid;
            let text = match known == pid {
                true => "the daemon answers again".to_owned(),
                false => format!("a new daemon answers (process {pid})"),
            };
            self.message = Some((text, false));
        }
        if known == stats.daemon.pid {
            self.rates = rates(&self.stats, &stats, seconds);
        }
        self.link = Link::Up;
        self.stats = stats;
    }
}

/// What happened between two answers.
fn rates(before: &Stats, after: &Stats, seconds: f64) -> BTreeMap<String, Rate> {
    let rate = |new: &VgpuInfo| {
        let old = before.vgpus.iter().find(|old| old.name == new.name)?;
        let waited = (new.throttled_seconds - old.throttled_seconds).max(0.0);
        let launches = new.launches_total.saturating_sub(old.launches_total);
        let rate = Rate {
            waiting_percent: waited / seconds * 100.0,
            launches_per_second: launches as f64 / seconds,
        };
        Some((new.name.clone(), rate))
    };
    match seconds > 0.0 {
        true => after.vgpus.iter().filter_map(rate).collect(),
        false => BTreeMap::new(),
    }
}
