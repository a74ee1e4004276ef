//! Tracefiles of lcov: written for genhtml, Codecov and others, read to add results of other runs.
//!
//! Owns the records `SF`, `FN`, `FNDA`, `FNF`, `FNH`, `DA`, `LF`, `LH` and `end_of_record`. Other records that are read
//! (branches, checksums) are left out and counted.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::report::{FileReport, Report};

/// Most lines of code of a tracefile, and the longest path or name in it.
const MOST_LINES: usize = 16 << 20;
const LONGEST_NAME: usize = 16 << 10;

/// What a tracefile says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tracefile {
    /// By path.
    pub files: BTreeMap<String, FileReport>,
    /// Records of kinds that a report has no place for.
    pub left_out: usize,
}

/// Why a text is no tracefile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LcovError {
    /// A record that makes no sense.
    #[error("line {line} makes no sense in a tracefile of lcov: {text}")]
    Record {
        /// Its line.
        line: usize,
        /// Its beginning.
        text: String,
    },
    /// A section without an end.
    #[error("the tracefile ends before end_of_record")]
    Cut,
    /// More than is read.
    #[error("the tracefile has more than {MOST_LINES} lines of code")]
    TooLarge,
}

impl Tracefile {
    /// Reads a tracefile.
    ///
    /// # Errors
    /// See [`LcovError`].
    pub fn parse(text: &str) -> Result<Self, LcovError> {
        let mut all = Self::default();
        let mut section: Option<(String, FileReport)> = None;
        let mut lines = 0;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim_end();
            let refuse = || LcovError::Record {
                line: number + 1,
                text: line.chars().take(60).collect(),
            };
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if line.len() > LONGEST_NAME {
                return Err(refuse());
            }
            if line == "end_of_record" {
                let (path, file) = section.take().ok_or_else(refuse)?;
                all.add(path, file);
                continue;
            }
            let (kind, rest) = line.split_once(':').ok_or_else(refuse)?;
            if kind == "SF" {
                if section.is_some() || rest.is_empty() {
                    return Err(refuse());
                }
                section = Some((rest.to_owned(), FileReport::default()));
                continue;
            }
            if kind == "TN" {
                continue;
            }
            let (_, file) = section.as_mut().ok_or_else(refuse)?;
            lines += usize::from(kind == "DA");
            if lines > MOST_LINES {
                return Err(LcovError::TooLarge);
            }
            match file.read(kind, rest) {
                Some(true) => {}
                Some(false) => all.left_out += 1,
                None => return Err(refuse()),
            }
        }
        match section {
            None => Ok(all),
            Some(_) => Err(LcovError::Cut),
        }
    }

    /// A file can have several sections, one for each test.
    fn add(&mut self, path: String, file: FileReport) {
        let known = self.files.entry(path).or_default();
        for (line, count) in file.lines {
            let sum = known.lines.entry(line).or_default();
            *sum = sum.saturating_add(count);
        }
        for (name, function) in file.functions {
            let sum = known.functions.entry(name).or_default();
            sum.line = sum.line.max(function.line);
            sum.hits = sum.hits.saturating_add(function.hits);
        }
    }
}

impl FileReport {
    /// Reads one record; false if it is of a kind that is left out, nothing if it makes no sense.
    fn read(&mut self, kind: &str, rest: &str) -> Option<bool> {
        match kind {
            "DA" => {
                let mut parts = rest.split(',');
                let line = parts.next()?.parse().ok()?;
                let count = count(parts.next()?)?;
                let sum = self.lines.entry(line).or_default();
                *sum = sum.saturating_add(count);
            }
            "FN" => {
                let (line, name) = rest.split_once(',')?;
                // lcov 2 can put the last line of a function before its name.
                let name = match name.split_once(',') {
                    Some((end, name)) if end.parse::<u32>().is_ok() => name,
                    _ => name,
                };
                let function = self.functions.entry(name.to_owned()).or_default();
                function.line = line.parse().ok()?;
            }
            "FNDA" => {
                let (hits, name) = rest.split_once(',')?;
                let function = self.functions.entry(name.to_owned()).or_default();
                function.hits = function.hits.saturating_add(count(hits)?);
            }
            "LF" | "LH" | "FNF" | "FNH" => {}
            _ => return Some(false),
        }
        Some(true)
    }
}

/// Some tools write counts that are negative or have a fraction.
fn count(text: &str) -> Option<u64> {
    match text.parse::<u64>() {
        Ok(count) => Some(count),
        Err(_) => text.parse::<f64>().ok().map(|count| count.max(0.0) as u64),
    }
}

/// The report as a tracefile.
pub fn write(report: &Report) -> String {
    let mut out = String::from("TN:\n");
    for (path, file) in &report.files {
        let _ = write_file(&mut out, path, file);
    }
    match report.files.is_empty() {
        true => String::new(),
        false => out,
    }
}

fn write_file(out: &mut String, path: &str, file: &FileReport) -> std::fmt::Result {
    writeln!(out, "SF:{}", one_line(path))?;
    let mut functions: Vec<_> = file.functions.iter().collect();
    functions.sort_by_key(|(name, function)| (function.line, *name));
    for (name, function) in &functions {
        writeln!(out, "FN:{},{}", function.line, one_line(name))?;
    }
    for (name, function) in &functions {
        writeln!(out, "FNDA:{},{}", function.hits, one_line(name))?;
    }
    let hit = functions.iter().filter(|(_, f)| f.hits > 0).count();
    writeln!(out, "FNF:{}\nFNH:{hit}", functions.len())?;
    for (line, count) in &file.lines {
        writeln!(out, "DA:{line},{count}")?;
    }
    let (found, reached) = (file.lines.len(), file.reached());
    writeln!(out, "LF:{found}\nLH:{reached}\nend_of_record")
}

/// Paths and names come from the program: none may begin a record of its own.
fn one_line(text: &str) -> String {
    text.replace(|c: char| c.is_control(), "?")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::FunctionReport;

    const TEXT: &str = "TN:\nSF:/src/a.cu\nFN:3,void k<int, 4>(int*)\nFN:9,f(int)\n\
        FNDA:2,void k<int, 4>(int*)\nFNDA:0,f(int)\nFNF:2\nFNH:1\nDA:3,2\nDA:4,0\nDA:9,0\nLF:3\nLH:1\nend_of_record\n";

    #[test]
    fn a_report_is_written_as_it_is_read() {
        let mut report = Report::default();
        report.add(Tracefile::parse(TEXT).unwrap());
        assert_eq!(write(&report), TEXT);
        report.add(Tracefile::parse(TEXT).unwrap());
        assert!(write(&report).contains("DA:3,4\n"));
        assert!(write(&report).contains("FNDA:4,void k<int, 4>(int*)\n"));
    }

    #[test]
    fn records_of_other_tools_are_read_or_left_out() {
        let text = "TN:host\nSF:b.c\nVER:1\nFN:3,8,main\nFNDA:1,main\nDA:3,1,abcdef\nDA:4,-1\nBRDA:3,0,0,1\nBRF:1\n\
            end_of_record\nSF:b.c\nDA:3,1\nend_of_record\n";
        let read = Tracefile::parse(text).unwrap();
        assert_eq!(read.left_out, 3);
        let file = &read.files["b.c"];
        assert_eq!(
            file.lines.clone().into_iter().collect::<Vec<_>>(),
            [(3, 2), (4, 0)]
        );
        assert_eq!(file.functions["main"], FunctionReport { line: 3, hits: 1 });
    }

    #[test]
    fn what_is_no_tracefile_is_refused_with_its_line() {
        let refused = |text: &str| Tracefile::parse(text).unwrap_err().to_string();
        assert!(refused("SF:a\nDA:x,1\nend_of_record\n").starts_with("line 2 "));
        assert!(refused("{}").starts_with("line 1 "));
        assert!(refused("DA:1,1\n").starts_with("line 1 "));
        assert!(refused("SF:a\nDA:1,1\n").contains("end_of_record"));
        assert!(refused("SF:a\nSF:b\n").starts_with("line 2 "));
    }

    #[test]
    fn names_cannot_begin_a_record() {
        let mut report = Report::default();
        report.files.entry("a\nDA:1,1".into()).or_default();
        assert!(write(&report).contains("SF:a?DA:1,1\n"));
    }
}
