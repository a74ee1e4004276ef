//! What was reached, over all processes of a run and all tracefiles that are added to it.

use std::collections::{BTreeMap, BTreeSet};

use crate::lcov::Tracefile;
use crate::record::{FileLines, Record};

/// Most lines and functions of a report: a program can write records of its own without end.
const MOST_LINES: usize = 4 << 20;
const MOST_FUNCTIONS: usize = 1 << 20;

/// A function of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionReport {
    /// Where it begins.
    pub line: u32,
    /// Launches of a kernel; for other functions, processes that reached it.
    pub hits: u64,
}

/// Lines and functions of one source file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileReport {
    /// Lines that have code, and how many processes reached each.
    pub lines: BTreeMap<u32, u64>,
    /// Functions that begin in the file, by readable name.
    pub functions: BTreeMap<String, FunctionReport>,
}

impl FileReport {
    /// How many lines were reached.
    pub fn reached(&self) -> usize {
        self.lines.values().filter(|count| **count > 0).count()
    }

    /// Lines that were not reached.
    pub fn missed(&self) -> impl Iterator<Item = u32> {
        let missed = self.lines.iter().filter(|(_, count)| **count == 0);
        missed.map(|(line, _)| *line)
    }
}

/// A kernel, and the lines that have code of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelReport {
    /// Launches that ended.
    pub launches: u64,
    /// Lines that have code of it, in all files, and whether the kernel reached them.
    pub lines: BTreeMap<(String, u32), bool>,
}

impl KernelReport {
    /// How many lines were reached.
    pub fn reached(&self) -> usize {
        self.lines.values().filter(|reached| **reached).count()
    }
}

/// Where a function begins.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Start {
    shown: String,
    file: String,
    is_kernel: bool,
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// By path, as the compiler wrote it.
    pub files: BTreeMap<String, FileReport>,
    /// Kernels of the run, by readable name; those that were never launched too. Tracefiles add none.
    pub kernels: BTreeMap<String, KernelReport>,
    /// Modules of which nothing is known, and records that are left out because the report is full.
    pub lost: u64,
    /// Lines that are no records: the program can write into the file too.
    pub unreadable: u64,
    processes: BTreeSet<u32>,
    /// Which process reached a line, or a function that is no kernel.
    reached_by: BTreeMap<String, BTreeMap<u32, BTreeSet<u32>>>,
    entered_by: BTreeMap<String, BTreeSet<u32>>,
    /// What was said of each function, by its name in the PTX text.
    starts: BTreeMap<String, Start>,
    lines: usize,
}

impl Report {
    /// Takes one record that a process told. `readable` makes names of the PTX text readable.
    pub fn take(&mut self, process: u32, record: Record, readable: impl Fn(&str) -> String) {
        self.processes.insert(process);
        match record {
            Record::Function {
                name,
                kernel,
                start,
                lines,
            } => {
                let shown = readable(&name);
                self.describe(name, shown, kernel, start, lines);
            }
            Record::Reached {
                name,
                launches,
                lines,
            } => self.reach(process, &name, launches, lines),
            Record::Lost { modules } => self.lost = self.lost.saturating_add(modules),
        }
    }

    /// How many processes told anything.
    pub fn processes(&self) -> usize {
        self.processes.len()
    }

    fn describe(
        &mut self,
        name: String,
        shown: String,
        is_kernel: bool,
        start: Option<(String, u32)>,
        lines: Vec<FileLines>,
    ) {
        if self.starts.len() >= MOST_FUNCTIONS {
            self.lost += 1;
            return;
        }
        for (file, lines) in &lines {
            for line in lines {
                self.line(file, *line);
            }
        }
        if is_kernel {
            let kernel = self.kernels.entry(shown.clone()).or_default();
            for (file, lines) in lines {
                let all = lines.into_iter().map(|line| (file.clone(), line));
                all.for_each(|line| {
                    kernel.lines.entry(line).or_default();
                });
            }
        }
        if let Some((file, line)) = start {
            let of_file = self.files.entry(file.clone()).or_default();
            let function = of_file.functions.entry(shown.clone()).or_default();
            function.line = line;
            self.starts.insert(
                name,
                Start {
                    shown,
                    file,
                    is_kernel,
                },
            );
        }
    }

    fn reach(&mut self, process: u32, name: &str, launches: u64, lines: Vec<FileLines>) {
        let Some(start) = self.starts.get(name) else {
            self.unreadable += 1;
            return;
        };
        let hits = match start.is_kernel {
            true => launches,
            false => {
                let by = self.entered_by.entry(name.to_owned()).or_default();
                u64::from(by.insert(process))
            }
        };
        if let Some(of_file) = self.files.get_mut(&start.file)
            && let Some(function) = of_file.functions.get_mut(&start.shown)
        {
            function.hits = function.hits.saturating_add(hits);
        }
        let mut kernel = match start.is_kernel {
            true => self.kernels.get_mut(&start.shown),
            false => None,
        };
        if let Some(kernel) = &mut kernel {
            kernel.launches = kernel.launches.saturating_add(launches);
        }
        for (file, lines) in lines {
            for line in lines {
                // A line that no function has was made up.
                let known = self.files.get_mut(&file);
                let Some(count) = known.and_then(|f| f.lines.get_mut(&line)) else {
                    self.unreadable += 1;
                    continue;
                };
                let by = self.reached_by.entry(file.clone()).or_default();
                if by.entry(line).or_default().insert(process) {
                    *count += 1;
                }
                if let Some(kernel) = &mut kernel
                    && let Some(reached) = kernel.lines.get_mut(&(file.clone(), line))
                {
                    *reached = true;
                }
            }
        }
    }

    /// The count of a line that has code.
    fn line(&mut self, file: &str, line: u32) {
        if self.lines >= MOST_LINES {
            self.lost += 1;
            return;
        }
        if !self.files.contains_key(file) {
            self.files.insert(file.to_owned(), FileReport::default());
        }
        if let Some(of_file) = self.files.get_mut(file)
            && let std::collections::btree_map::Entry::Vacant(new) = of_file.lines.entry(line)
        {
            new.insert(0);
            self.lines += 1;
        }
    }

    /// Adds what a tracefile says: counts are summed.
    pub fn add(&mut self, tracefile: Tracefile) {
        for (file, other) in tracefile.files {
            let of_file = self.files.entry(file).or_default();
            for (line, count) in other.lines {
                let sum = of_file.lines.entry(line).or_default();
                *sum = sum.saturating_add(count);
            }
            for (name, function) in other.functions {
                let known = of_file.functions.entry(name).or_default();
                known.line = function.line;
                known.hits = known.hits.saturating_add(function.hits);
            }
        }
    }

    /// Lines that have code, and those that were reached.
    pub fn totals(&self) -> (usize, usize) {
        let found = self.files.values().map(|f| f.lines.len()).sum();
        let reached = self.files.values().map(FileReport::reached).sum();
        (found, reached)
    }

    /// Leaves out files whose path `keep` does not want.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.files.retain(|path, _| keep(path));
        for kernel in self.kernels.values_mut() {
            kernel.lines.retain(|(path, _), _| keep(path));
        }
    }
}

/// Percent of lines that were reached; nothing to reach is 0.
pub fn percent(found: usize, reached: usize) -> f64 {
    match found {
        0 => 0.0,
        found => 100.0 * reached as f64 / found as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, kernel: bool, lines: &[u32]) -> Record {
        Record::Function {
            name: name.into(),
            kernel,
            start: Some(("a.cu".into(), lines[0])),
            lines: vec![("a.cu".into(), lines.to_vec())],
        }
    }

    fn reached(name: &str, launches: u64, lines: &[u32]) -> Record {
        Record::Reached {
            name: name.into(),
            launches,
            lines: vec![("a.cu".into(), lines.to_vec())],
        }
    }

    #[test]
    fn a_line_is_reached_if_any_copy_is_and_counts_processes() {
        let mut report = Report::default();
        let same = |name: &str| name.to_owned();
        for process in [7, 8] {
            report.take(process, function("k<int>", true, &[3, 4, 5]), same);
            report.take(process, function("k<float>", true, &[3, 4, 5]), same);
            report.take(process, function("f", false, &[9]), same);
        }
        report.take(7, reached("k<int>", 2, &[3, 4]), same);
        report.take(7, reached("k<float>", 1, &[3]), same);
        report.take(8, reached("k<int>", 1, &[3]), same);
        report.take(8, reached("f", 0, &[9]), same);
        report.take(8, reached("f", 0, &[9, 77]), same);
        let file = &report.files["a.cu"];
        let counts: Vec<_> = file.lines.clone().into_iter().collect();
        assert_eq!(counts, [(3, 2), (4, 1), (5, 0), (9, 1)]);
        assert_eq!(file.functions["k<int>"].hits, 3);
        assert_eq!(file.functions["f"].hits, 1);
        assert_eq!(report.kernels["k<float>"].reached(), 1);
        assert_eq!(report.kernels["k<int>"].reached(), 2);
        assert_eq!((report.totals(), report.unreadable), ((4, 3), 1));
        assert_eq!(report.processes(), 2);
    }
}
