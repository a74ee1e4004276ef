//! Instructions of a module, the lines they came from, and which of them were reached.

use std::collections::HashMap;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

use crate::record::{FileLines, MOST_LINES, Record};

/// No line.
const NONE: u32 = u32::MAX;
/// What is known of a line.
const NEW: u8 = 1;
const TOLD: u8 = 2;

/// A line: the index of a file of the map, and the line in it.
type Line = (u32, u32);

/// The lines of one module.
#[derive(Debug, Default)]
pub struct ModuleMap {
    files: Vec<String>,
    file_index: HashMap<String, u32>,
    functions: Vec<FunctionMap>,
    /// Functions that can be launched, by name.
    kernels: HashMap<String, u32>,
    /// Whether the log holds it.
    pub(crate) queued: AtomicBool,
}

#[derive(Debug)]
struct FunctionMap {
    name: String,
    is_kernel: bool,
    start: Option<Line>,
    /// Lines that have code, ascending, each once.
    lines: Vec<Line>,
    /// For each instruction, two places in `lines`: its own line, and that of the call it was inlined at.
    instructions: Vec<[u32; 2]>,
    reached: Vec<AtomicU8>,
    launches: AtomicU64,
    described: AtomicBool,
    changed: AtomicBool,
}

impl ModuleMap {
    /// The number of a file.
    pub fn file(&mut self, name: &str) -> u32 {
        if let Some(known) = self.file_index.get(name) {
            return *known;
        }
        let number = self.files.len() as u32;
        self.files.push(name.to_owned());
        self.file_index.insert(name.to_owned(), number);
        number
    }

    /// Adds the next function of the text. Each instruction has its own line, and perhaps that of the call that it was
    /// inlined at; a function without any lines is not reported.
    pub fn add_function(
        &mut self,
        name: &str,
        is_kernel: bool,
        code: impl Iterator<Item = [Option<(u32, u32)>; 2]> + Clone,
    ) {
        let mut lines: Vec<Line> = code.clone().flatten().flatten().collect();
        lines.sort_unstable();
        lines.dedup();
        let place = |line: Option<Line>| {
            let found = line.and_then(|line| lines.binary_search(&line).ok());
            found.map_or(NONE, |at| at as u32)
        };
        // Code of the function itself, where there is some: what was inlined may come first.
        let own = |[line, call]: [Option<Line>; 2]| line.filter(|_| call.is_none());
        let start = code.clone().find_map(own).or_else(|| {
            let any = code.clone().flatten().flatten();
            any.into_iter().next()
        });
        if is_kernel {
            let index = self.functions.len() as u32;
            self.kernels.insert(name.to_owned(), index);
        }
        self.functions.push(FunctionMap {
            name: name.to_owned(),
            is_kernel,
            start,
            instructions: code.map(|both| both.map(place)).collect(),
            reached: lines.iter().map(|_| AtomicU8::new(0)).collect(),
            lines,
            launches: AtomicU64::new(0),
            described: AtomicBool::new(false),
            changed: AtomicBool::new(false),
        });
    }

    /// Host bytes that it takes.
    pub fn bytes(&self) -> u64 {
        let files = self.files.iter().map(|f| 2 * f.len() + 128);
        let of = |f: &FunctionMap| {
            8 * f.instructions.len() + 16 * f.lines.len() + 2 * f.name.len() + 256
        };
        let all = files.sum::<usize>() + self.functions.iter().map(of).sum::<usize>();
        all as u64
    }

    /// An instruction was reached, by the index of its function and its own in the function's body.
    pub fn reach(&self, function: u32, instruction: u32) {
        let Some(function) = self.functions.get(function as usize) else {
            return;
        };
        let Some(places) = function.instructions.get(instruction as usize) else {
            return;
        };
        for place in places {
            if let Some(line) = function.reached.get(*place as usize)
                && line.load(Relaxed) == 0
            {
                line.store(NEW, Relaxed);
                function.changed.store(true, SeqCst);
            }
        }
    }

    /// A launch of a kernel ended.
    pub fn launched(&self, kernel: &str) {
        let function = self.kernels.get(kernel);
        if let Some(function) = function.and_then(|at| self.functions.get(*at as usize)) {
            function.launches.fetch_add(1, Relaxed);
            function.changed.store(true, SeqCst);
        }
    }

    /// Writes records of what changed since the last time; false if it stopped because `most` bytes were written.
    pub(crate) fn write_changes(&self, out: &mut Vec<u8>, most: usize) -> bool {
        for function in &self.functions {
            if out.len() >= most {
                return false;
            }
            if !function.described.swap(true, Relaxed) {
                self.describe(function, out);
            }
            if function.changed.swap(false, SeqCst) {
                self.tell(function, out);
            }
        }
        true
    }

    fn describe(&self, function: &FunctionMap, out: &mut Vec<u8>) {
        if function.lines.is_empty() {
            return;
        }
        let start = function.start.map(|(file, line)| (self.name(file), line));
        for part in function.lines.chunks(MOST_LINES) {
            write(
                out,
                &Record::Function {
                    name: function.name.clone(),
                    kernel: function.is_kernel,
                    start: start.clone(),
                    lines: self.by_file(part.iter().copied()),
                },
            );
        }
    }

    fn tell(&self, function: &FunctionMap, out: &mut Vec<u8>) {
        let new = |at: &usize| {
            let line = &function.reached[*at];
            line.load(Relaxed) == NEW && line.swap(TOLD, Relaxed) == NEW
        };
        let lines: Vec<Line> = (0..function.lines.len())
            .filter(new)
            .map(|at| function.lines[at])
            .collect();
        let mut launches = function.launches.swap(0, Relaxed);
        let mut parts = lines.chunks(MOST_LINES);
        loop {
            let part = parts.next();
            if part.is_none() && launches == 0 {
                return;
            }
            write(
                out,
                &Record::Reached {
                    name: function.name.clone(),
                    launches: std::mem::take(&mut launches),
                    lines: self.by_file(part.into_iter().flatten().copied()),
                },
            );
        }
    }

    fn name(&self, file: u32) -> String {
        let name = self.files.get(file as usize);
        name.map_or("", String::as_str).to_owned()
    }

    fn by_file(&self, lines: impl Iterator<Item = Line>) -> Vec<FileLines> {
        let mut all: Vec<(u32, FileLines)> = Vec::new();
        for (file, line) in lines {
            match all.last_mut() {
                Some((last, (_, lines))) if *last == file => lines.push(line),
                _ => all.push((file, (self.name(file), vec![line]))),
            }
        }
        all.into_iter().map(|(_, lines)| lines).collect()
    }
}

fn write(out: &mut Vec<u8>, record: &Record) {
    if serde_json::to_writer(&mut *out, record).is_ok() {
        out.push(b'\n');
    }
}
