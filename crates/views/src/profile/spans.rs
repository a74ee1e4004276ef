//! The lines of a profile, as programs and their workers write them (`worker/src/profile.rs` has the format).
//!
//! The file is open to the program, so a line may be anything: what makes no sense is counted. Memory is bounded by
//! [`MOST_SPANS`]; what comes after counts in the sums alone.

use std::collections::{BTreeMap, HashMap};

use mica_control::api::{ProfileActivity, ProfileLine};
use serde_json::Value;

/// Spans that are kept for gaps and traces.
pub const MOST_SPANS: usize = 1_000_000;
/// Names that are kept, of all processes together, and bytes of each.
const MOST_NAMES: usize = 16 << 10;
const NAME_BYTES: usize = 256;

/// Something that happened, on the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What it was.
    pub activity: ProfileActivity,
    /// Number of its name in [`Recorded::names`].
    pub name: u32,
    /// Number of its process in [`Recorded::processes`].
    pub process: u16,
    /// Its stream; 0 where it has none.
    pub stream: u64,
    /// When it was submitted.
    pub queued_ns: u64,
    /// When it began.
    pub begin_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// Bytes moved; 0 where that is not known.
    pub bytes: u64,
}

/// All that was written.
#[derive(Debug, Default)]
pub struct Recorded {
    /// Names, by number.
    pub names: Vec<String>,
    /// Process numbers.
    pub processes: Vec<u32>,
    /// Spans, in the order in which they were told.
    pub spans: Vec<Span>,
    /// Spans that were told and not kept.
    pub not_kept: u64,
    /// Lines that make no sense.
    pub unreadable: u64,
    numbers: HashMap<String, u32>,
    /// What a worker's number of a name stands for, by process.
    told: HashMap<(u16, u64), u32>,
    sums: BTreeMap<(u16, ProfileActivity, u32), ProfileLine>,
    /// What workers counted themselves, of processes that lost spans.
    exact: BTreeMap<(u16, ProfileActivity, u32), ProfileLine>,
    lost: BTreeMap<u16, u64>,
    process: u16,
}

impl Recorded {
    /// Takes one line.
    pub fn take(&mut self, line: &[u8]) {
        if self.parse(line).is_none() {
            self.unreadable += 1;
        }
    }

    fn parse(&mut self, line: &[u8]) -> Option<()> {
        let parts: Vec<Value> = serde_json::from_slice(line).ok()?;
        let number = |at: usize| parts.get(at).and_then(Value::as_u64);
        match parts.first()?.as_str()? {
            "process" => {
                let pid = u32::try_from(number(1)?).ok()?;
                self.process = self.process_number(pid)?;
            }
            "n" => {
                let name = self.name_number(parts.get(2)?.as_str()?);
                if self.told.len() < MOST_NAMES {
                    self.told.insert((self.process, number(1)?), name);
                }
            }
            "lost" => {
                self.lost.insert(self.process, number(1)?);
            }
            "sum" => {
                let activity = activity(parts.get(1)?.as_str()?)?;
                let name = self.name_number(parts.get(2)?.as_str()?);
                let line = ProfileLine {
                    activity,
                    name: self.names.get(name as usize)?.clone(),
                    calls: number(3)?,
                    total_ns: number(4)?,
                    most_ns: number(5)?,
                    bytes: number(6)?,
                };
                self.exact.insert((self.process, activity, name), line);
            }
            word => {
                let activity = activity(word)?;
                let name = match parts.get(1)? {
                    Value::String(name) => self.name_number(name),
                    known => *self.told.get(&(self.process, known.as_u64()?))?,
                };
                let span = Span {
                    activity,
                    name,
                    process: self.process,
                    stream: number(2)?,
                    queued_ns: number(3)?,
                    begin_ns: number(4)?,
                    end_ns: number(5)?.max(number(4)?),
                    bytes: number(6)?,
                };
                self.count(&span)?;
            }
        }
        Some(())
    }

    fn count(&mut self, span: &Span) -> Option<()> {
        let key = (span.process, span.activity, span.name);
        let name = self.names.get(span.name as usize)?;
        let sum = self.sums.entry(key).or_insert_with(|| ProfileLine {
            activity: span.activity,
            name: name.clone(),
            ..ProfileLine::default()
        });
        let took_ns = span.end_ns - span.begin_ns;
        sum.calls += 1;
        sum.total_ns = sum.total_ns.saturating_add(took_ns);
        sum.most_ns = sum.most_ns.max(took_ns);
        sum.bytes = sum.bytes.saturating_add(span.bytes);
        match self.spans.len() < MOST_SPANS {
            true => self.spans.push(*span),
            false => self.not_kept += 1,
        }
        Some(())
    }

    fn process_number(&mut self, pid: u32) -> Option<u16> {
        let known = self.processes.iter().position(|known| *known == pid);
        if known.is_none() && self.processes.len() > usize::from(u16::MAX) {
            return None;
        }
        let number = known.unwrap_or_else(|| {
            self.processes.push(pid);
            self.processes.len() - 1
        });
        u16::try_from(number).ok()
    }

    fn name_number(&mut self, name: &str) -> u32 {
        let name = &name[..name.floor_char_boundary(NAME_BYTES)];
        let name = match self.names.len() < MOST_NAMES || self.numbers.contains_key(name) {
            true => name,
            false => "(others)",
        };
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }

    /// Spans that were lost on the way, because nobody took them in time.
    pub fn lost(&self) -> u64 {
        self.lost.values().copied().fold(0, u64::saturating_add)
    }

    /// Sums over all processes, by activity and then by time. Those of a process that lost spans are its worker's own,
    /// except for copies, which the program makes itself too.
    pub fn lines(&self) -> Vec<ProfileLine> {
        let mut all: BTreeMap<(ProfileActivity, &str), ProfileLine> = BTreeMap::new();
        let mut keys: Vec<_> = self.sums.keys().chain(self.exact.keys()).collect();
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            let (counted, exact) = (self.sums.get(key), self.exact.get(key));
            let more = |line: &&ProfileLine| counted.is_none_or(|own| own.calls < line.calls);
            let Some(line) = exact.filter(more).or(counted) else {
                continue;
            };
            let sum = all
                .entry((line.activity, line.name.as_str()))
                .or_insert_with(|| ProfileLine {
                    activity: line.activity,
                    name: line.name.clone(),
                    ..ProfileLine::default()
                });
            sum.calls = sum.calls.saturating_add(line.calls);
            sum.total_ns = sum.total_ns.saturating_add(line.total_ns);
            sum.most_ns = sum.most_ns.max(line.most_ns);
            sum.bytes = sum.bytes.saturating_add(line.bytes);
        }
        let mut lines: Vec<ProfileLine> = all.into_values().collect();
        lines.sort_by_key(|line| (line.activity, std::cmp::Reverse(line.total_ns)));
        lines
    }
}

fn activity(word: &str) -> Option<ProfileActivity> {
    Some(match word {
        "kernel" => ProfileActivity::Kernel,
        "compile" => ProfileActivity::Compile,
        "copy" => ProfileActivity::Copy,
        "fill" => ProfileActivity::Fill,
        "wait" => ProfileActivity::Wait,
        "turn" => ProfileActivity::Turn,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(lines: &[&str]) -> Recorded {
        let mut recorded = Recorded::default();
        lines.iter().for_each(|line| recorded.take(line.as_bytes()));
        recorded
    }

    #[test]
    fn names_of_two_processes_are_kept_apart_and_sums_added() {
        let told = recorded(&[
            r#"["process",10]"#,
            r#"["n",0,"saxpy"]"#,
            r#"["process",11]"#,
            r#"["n",0,"scan"]"#,
            r#"["kernel",0,1,5,10,30,0]"#,
            r#"["process",10]"#,
            r#"["kernel",0,1,5,10,15,0]"#,
            r#"["copy","host to device",0,1,1,3,64]"#,
        ]);
        let lines = told.lines();
        let shown: Vec<_> = lines
            .iter()
            .map(|line| (line.name.as_str(), line.total_ns, line.bytes))
            .collect();
        assert_eq!(
            shown,
            [("scan", 20, 0), ("saxpy", 5, 0), ("host to device", 2, 64)]
        );
        assert_eq!((told.processes.len(), told.unreadable), (2, 0));
    }

    #[test]
    fn what_makes_no_sense_is_counted_and_harms_nothing() {
        let told = recorded(&[
            "",
            "nonsense",
            "{}",
            "[]",
            r#"["kernel",7,1,5,10,30,0]"#,
            r#"["kernel","k",1,5,10]"#,
            r#"["dance","k",1,5,10,11,0]"#,
            r#"["kernel","k",1,5,-10,11,0]"#,
        ]);
        assert_eq!((told.unreadable, told.spans.len()), (8, 0));
        let backwards = recorded(&[r#"["kernel","k",1,5,10,4,0]"#]);
        assert_eq!(backwards.lines()[0].total_ns, 0);
    }

    #[test]
    fn where_spans_were_lost_the_workers_own_sums_count() {
        let told = recorded(&[
            r#"["process",1]"#,
            r#"["kernel","k",1,0,0,10,0]"#,
            r#"["lost",5]"#,
            r#"["sum","kernel","k",6,60,10,0]"#,
            r#"["copy","host to device",0,0,0,4,8]"#,
        ]);
        assert_eq!(told.lost(), 5);
        let lines = told.lines();
        assert_eq!((lines[0].calls, lines[0].total_ns), (6, 60));
        assert_eq!((lines[1].calls, lines[1].total_ns), (1, 4));
    }
}
