//! What a device did and when: sums for each kernel, and single spans while somebody takes them.
//!
//! A [`Recorder`] belongs to whoever profiles. Devices get it once ([`crate::Gpu::attach_recorder`]) and tell it of
//! every kernel and copy that has ended. It is off at first; then telling costs one load. Its memory is bounded:
//! names beyond [`MOST_NAMES`] count as [`OTHERS`], spans beyond [`MOST_SPANS`] that nobody takes are counted and lost,
//! while sums stay exact.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Names that a recorder tells apart.
pub const MOST_NAMES: usize = 1024;
/// Bytes of a name that are kept.
pub const NAME_BYTES: usize = 256;
/// Spans that wait to be taken.
pub const MOST_SPANS: usize = 1 << 17;
/// What names beyond the last are counted as.
pub const OTHERS: &str = "(others)";

/// How much is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum RecordLevel {
    /// Nothing.
    #[default]
    Off = 0,
    /// Sums for each name.
    Sums = 1,
    /// Sums, and every single span.
    Spans = 2,
}

impl RecordLevel {
    /// The level of a number; the highest for numbers that are none.
    pub fn from_number(number: u64) -> Self {
        match number {
            0 => Self::Off,
            1 => Self::Sums,
            _ => Self::Spans,
        }
    }
}

/// What a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Activity {
    /// A kernel: from its first block's begin to its last block's end.
    Kernel,
    /// A kernel was compiled for this device.
    Compile,
    /// Bytes were copied.
    Copy,
    /// Bytes were set.
    Fill,
    /// The program waited for the device.
    Wait,
    /// Work waited for its turn.
    Turn,
}

impl Activity {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Kernel,
        Self::Compile,
        Self::Copy,
        Self::Fill,
        Self::Wait,
        Self::Turn,
    ];

    /// Its word in reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Compile => "compile",
            Self::Copy => "copy",
            Self::Fill => "fill",
            Self::Wait => "wait",
            Self::Turn => "turn",
        }
    }
}

/// Something that has ended. Times are those of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What it was.
    pub activity: Activity,
    /// The number of its name.
    pub name: u32,
    /// Its stream; 0 where it has none.
    pub stream: u64,
    /// When it was submitted; the begin where that is not known.
    pub queued_ns: u64,
    /// When it began.
    pub begin_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// Bytes that it moved; 0 where that is not known.
    pub bytes: u64,
}

/// All spans of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    /// What they were.
    pub activity: Activity,
    /// Their name.
    pub name: String,
    /// How many.
    pub calls: u64,
    /// Nanoseconds from begin to end, of all together.
    pub total_ns: u64,
    /// The shortest.
    pub least_ns: u64,
    /// The longest.
    pub most_ns: u64,
    /// Bytes that they moved.
    pub bytes: u64,
}

impl Sum {
    fn new(activity: Activity, name: &str) -> Self {
        let mut end = name.len().min(NAME_BYTES);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        Self {
            activity,
            name: name[..end].to_owned(),
            calls: 0,
            total_ns: 0,
            least_ns: u64::MAX,
            most_ns: 0,
            bytes: 0,
        }
    }

    /// Counts what another sum has counted.
    pub fn add(&mut self, other: &Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.least_ns = self.least_ns.min(other.least_ns);
        self.most_ns = self.most_ns.max(other.most_ns);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// What was taken from a recorder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Names that were not told before, and their numbers.
    pub names: Vec<(u32, String)>,
    /// Spans, in the order of their ends.
    pub spans: Vec<Span>,
    /// Spans that were lost so far.
    pub lost: u64,
}

#[derive(Default)]
struct Inner {
    numbers: HashMap<Activity, HashMap<String, u32>>,
    sums: Vec<Sum>,
    /// Names that were told.
    told: usize,
    spans: Vec<Span>,
    lost: u64,
    /// Changes with every span.
    version: u64,
}

/// Where devices tell what they did.
#[derive(Default)]
pub struct Recorder {
    /// What a name is told as.
    readable: Option<fn(&str) -> String>,
    level: AtomicU8,
    waiting: AtomicUsize,
    inner: Mutex<Inner>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recorder({:?})", self.level())
    }
}

impl Recorder {
    /// A recorder that tells names as `readable` has them.
    pub fn new(readable: fn(&str) -> String) -> Self {
        Self {
            readable: Some(readable),
            ..Self::default()
        }
    }

    /// How much is recorded.
    pub fn level(&self) -> RecordLevel {
        RecordLevel::from_number(u64::from(self.level.load(Relaxed)))
    }

    /// Whether anything is recorded: one load.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.level.load(Relaxed) != 0
    }

    /// Records so much from now on. A recorder that was off begins anew.
    pub fn set_level(&self, level: RecordLevel) {
        let mut inner = self.inner();
        if !self.is_on() && level != RecordLevel::Off {
            *inner = Inner::default();
            self.waiting.store(0, Relaxed);
        }
        if level != RecordLevel::Spans {
            inner.spans = Vec::new();
            self.waiting.store(0, Relaxed);
        }
        self.level.store(level as u8, Relaxed);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has ended; `span.name` is set from the name.
    pub fn record(&self, name: &str, span: Span) {
        let level = self.level();
        if level == RecordLevel::Off {
            return;
        }
        let mut inner = self.inner();
        let number = inner.number(span.activity, name, self.readable);
        let took_ns = span.end_ns.saturating_sub(span.begin_ns);
        if let Some(sum) = inner.sums.get_mut(number as usize) {
            sum.calls += 1;
            sum.total_ns = sum.total_ns.saturating_add(took_ns);
            sum.least_ns = sum.least_ns.min(took_ns);
            sum.most_ns = sum.most_ns.max(took_ns);
            sum.bytes = sum.bytes.saturating_add(span.bytes);
        }
        inner.version += 1;
        if level != RecordLevel::Spans {
            return;
        }
        if inner.spans.len() < MOST_SPANS {
            inner.spans.push(Span {
                name: number,
                ..span
            });
            self.waiting.store(inner.spans.len(), Relaxed);
        } else {
            inner.lost += 1;
        }
    }

    /// Spans that wait to be taken: one load.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Takes the oldest spans, so many at most.
    pub fn take(&self, most: usize) -> Taken {
        let mut inner = self.inner();
        let count = inner.spans.len().min(most);
        let spans = inner.spans.drain(..count).collect();
        self.waiting.store(inner.spans.len(), Relaxed);
        let first = inner.told;
        let named = |(at, sum): (usize, &Sum)| ((first + at) as u32, sum.name.clone());
        let names = inner.sums[first..].iter().enumerate().map(named).collect();
        inner.told = inner.sums.len();
        Taken {
            names,
            spans,
            lost: inner.lost,
        }
    }

    /// The sums of most time, so many of each activity at most, and one for all others of the activity; with a
    /// number that changes when they do.
    pub fn sums(&self, most: usize) -> (u64, Vec<Sum>) {
        let inner = self.inner();
        (inner.version, largest(&inner.sums, most))
    }
}

impl Inner {
    fn number(
        &mut self,
        activity: Activity,
        name: &str,
        readable: Option<fn(&str) -> String>,
    ) -> u32 {
        let numbers = self.numbers.entry(activity).or_default();
        if let Some(number) = numbers.get(name) {
            return *number;
        }
        // The last places are kept for the others of each activity.
        let is_full = self.sums.len() + Activity::ALL.len() > MOST_NAMES;
        let name = if is_full { OTHERS } else { name };
        if is_full && let Some(number) = numbers.get(name) {
            return *number;
        }
        let number = self.sums.len() as u32;
        numbers.insert(name.to_owned(), number);
        self.sums.push(match readable {
            Some(readable) => Sum::new(activity, &readable(name)),
            None => Sum::new(activity, name),
        });
        number
    }
}

/// The sums of most time, so many of each activity at most, and one for the others of it.
pub fn largest(sums: &[Sum], most: usize) -> Vec<Sum> {
    let mut found = Vec::new();
    for activity in Activity::ALL {
        let mut own: Vec<&Sum> = sums
            .iter()
            .filter(|sum| sum.activity == activity && sum.calls > 0)
            .collect();
        own.sort_by_key(|sum| (sum.name == OTHERS, std::cmp::Reverse(sum.total_ns)));
        let is_split = own.len() > most || own.last().is_some_and(|sum| sum.name == OTHERS);
        let kept = own.len().min(most) - usize::from(is_split && own.len() <= most);
        found.extend(own[..kept].iter().copied().cloned());
        if let Some(rest) = own.get(kept..).filter(|rest| !rest.is_empty()) {
            let mut others = Sum::new(activity, OTHERS);
            rest.iter().for_each(|sum| others.add(sum));
            found.push(others);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(activity: Activity, begin_ns: u64, end_ns: u64) -> Span {
        Span {
            activity,
            name: 0,
            stream: 1,
            queued_ns: begin_ns,
            begin_ns,
            end_ns,
            bytes: 10,
        }
    }

    #[test]
    fn nothing_is_kept_while_it_is_off_and_it_begins_anew() {
        let recorder = Recorder::default();
        recorder.record("k", span(Activity::Kernel, 0, 5));
        assert_eq!(recorder.sums(8).1, []);
        recorder.set_level(RecordLevel::Sums);
        recorder.record("k", span(Activity::Kernel, 0, 5));
        recorder.record("k", span(Activity::Kernel, 5, 8));
        let (_, sums) = recorder.sums(8);
        assert_eq!((sums[0].calls, sums[0].total_ns, sums[0].bytes), (2, 8, 20));
        assert_eq!((sums[0].least_ns, sums[0].most_ns), (3, 5));
        assert_eq!(recorder.waiting(), 0, "no spans at this level");
        recorder.set_level(RecordLevel::Off);
        recorder.set_level(RecordLevel::Sums);
        assert_eq!(recorder.sums(8).1, []);
    }

    #[test]
    fn spans_are_taken_once_and_names_are_told_once() {
        let recorder = Recorder::default();
        recorder.set_level(RecordLevel::Spans);
        for at in 0..3 {
            recorder.record("k", span(Activity::Kernel, at, at + 1));
        }
        recorder.record("k", span(Activity::Copy, 3, 4));
        let first = recorder.take(2);
        assert_eq!(first.names, [(0, "k".to_owned()), (1, "k".to_owned())]);
        assert_eq!(first.spans.len(), 2);
        let rest = recorder.take(10);
        assert_eq!((rest.names.len(), rest.spans.len()), (0, 2));
        assert_eq!(rest.spans[1].activity, Activity::Copy);
        assert_eq!(recorder.waiting(), 0);
    }

    #[test]
    fn names_and_spans_are_bounded_and_sums_stay_exact() {
        let recorder = Recorder::default();
        recorder.set_level(RecordLevel::Spans);
        let total = MOST_SPANS as u64 + 50;
        for at in 0..total {
            let name = format!("kernel{}", at % (2 * MOST_NAMES as u64));
            recorder.record(&name, span(Activity::Kernel, 0, 1));
        }
        let taken = recorder.take(usize::MAX);
        assert_eq!((taken.spans.len(), taken.lost), (MOST_SPANS, 50));
        assert!(taken.names.len() <= MOST_NAMES);
        let (_, sums) = recorder.sums(64);
        assert_eq!(sums.len(), 65);
        assert_eq!(sums[64].name, OTHERS);
        assert_eq!(sums.iter().map(|sum| sum.calls).sum::<u64>(), total);
    }

    #[test]
    fn others_come_last_and_are_never_cut_off() {
        let sum = |name: &str, total_ns| Sum {
            calls: 1,
            total_ns,
            ..Sum::new(Activity::Kernel, name)
        };
        let names = |sums: &[Sum], most| {
            let found = largest(sums, most);
            let all: Vec<String> = found.into_iter().map(|sum| sum.name).collect();
            all.join(" ")
        };
        let sums = [sum("a", 1), sum(OTHERS, 9), sum("b", 5)];
        assert_eq!(names(&sums, 3), "b a (others)");
        assert_eq!(names(&sums, 2), "b a (others)");
        assert_eq!(names(&sums, 1), "b (others)");
        assert_eq!(names(&sums[..1], 1), "a");
        assert_eq!(names(&[], 1), "");
    }
}
