//! What the demo shows: bars that move on a terminal, plain lines elsewhere, nothing for `--json`.
//!
//! On a terminal the last lines are redrawn in place; what is settled stays above them.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};

use super::Promise;
use mica_command::output::{shows_colours, terminal_columns, wrap};
use mica_command::size::show_bytes;

/// One tenant's bars.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) asked_percent: u32,
    pub(crate) got_percent: f64,
    pub(crate) used_bytes: u64,
    pub(crate) limit_bytes: u64,
    pub(crate) steps: u64,
    /// Instead of the bars, when it has none to show.
    pub(crate) note: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Live,
    Lines,
    Silent,
}

/// The terminal, or what stands for it.
pub(crate) struct Screen {
    kind: Kind,
    colour: bool,
    /// Lines that the next drawing replaces.
    drawn: usize,
    rows: Vec<Row>,
    now: String,
}

/// One colour per tenant.
const COLOURS: [&str; 3] = ["36", "35", "33"];

impl Screen {
    pub(crate) fn new(json: bool) -> Self {
        let terminal = std::io::stdout().is_terminal()
            && std::env::var_os("TERM").is_some_and(|term| term != "dumb");
        let kind = match (json, terminal) {
            (true, _) => Kind::Silent,
            (false, true) => Kind::Live,
            (false, false) => Kind::Lines,
        };
        if kind == Kind::Live {
            // The cursor would dance.
            put("\x1b[?25l");
        }
        Self {
            kind,
            colour: shows_colours(),
            drawn: 0,
            rows: Vec::new(),
            now: String::new(),
        }
    }

    /// Text that stays.
    pub(crate) fn say(&mut self, text: &str) {
        if self.kind == Kind::Silent {
            return;
        }
        let mut out = self.lift();
        for line in text.lines() {
            let _ = writeln!(out, "{}{line}", if line.is_empty() { "" } else { "  " });
        }
        out.push_str(&self.foot());
        put(&out);
    }

    /// What happens at the moment.
    pub(crate) fn now(&mut self, text: &str) {
        self.now = text.to_owned();
        match self.kind {
            Kind::Live => self.redraw(),
            Kind::Lines => put(&format!("  … {text}\n")),
            Kind::Silent => {}
        }
    }

    /// New bars.
    pub(crate) fn draw(&mut self, rows: Vec<Row>) {
        self.rows = rows;
        if self.kind == Kind::Live {
            self.redraw();
        }
    }

    /// A promise and its proof.
    pub(crate) fn promise(&mut self, promise: &Promise) {
        let mark = match promise.kept {
            true => self.paint("32", "✓"),
            false => self.paint("31", "✗"),
        };
        let word = match promise.kept {
            true => String::new(),
            false => self.paint("31", "  NOT KEPT"),
        };
        let mut text = format!("{mark} {}{word}\n", self.paint("1", promise.title));
        // `say` and the indentation take six columns.
        let room = match self.kind {
            Kind::Live => columns().saturating_sub(6).max(20),
            _ => 100,
        };
        for line in promise.evidence.iter().flat_map(|line| wrap(line, room)) {
            let _ = writeln!(text, "    {line}");
        }
        self.say(&text);
    }

    /// Takes the bars away.
    pub(crate) fn close(&mut self) {
        if self.kind == Kind::Live {
            self.now.clear();
            self.rows.clear();
            let out = self.lift();
            put(&format!("{out}\x1b[?25h"));
            self.kind = Kind::Lines;
        }
    }

    /// Colours a word where colours show.
    pub(crate) fn paint(&self, code: &str, text: &str) -> String {
        match self.colour {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }

    fn redraw(&mut self) {
        let mut out = self.lift();
        out.push_str(&self.foot());
        put(&out);
    }

    /// Moves up over what was drawn and clears it.
    fn lift(&mut self) -> String {
        match std::mem::take(&mut self.drawn) {
            0 => String::new(),
            lines => format!("\x1b[{lines}A\r\x1b[J"),
        }
    }

    /// The lines that are redrawn.
    fn foot(&mut self) -> String {
        if self.kind != Kind::Live {
            return String::new();
        }
        let columns = columns();
        let mut lines = vec![String::new()];
        for (row, colour) in self.rows.iter().zip(COLOURS) {
            lines.push(self.bars(row, colour, columns));
        }
        if !self.now.is_empty() {
            lines.push(String::new());
            let room = columns.saturating_sub(6).max(10);
            let now: String = self.now.chars().take(room).collect();
            lines.push(format!("  {} {now}", self.paint("34", "▸")));
        }
        self.drawn = lines.len();
        lines.join("\n") + "\n"
    }

    fn bars(&self, row: &Row, colour: &str, columns: usize) -> String {
        let name = self.paint(colour, &format!("{:<6}", row.name));
        if let Some(note) = row.note {
            return format!("  {name}{}", self.paint("2", note));
        }
        // A line that wraps would be counted as one when it is lifted: 98 columns without the steps,
        // 114 with them.
        let wide = columns >= 114;
        let (share_cells, memory_cells) = match columns {
            100.. => (32, 12),
            88.. => (24, 8),
            _ => (14, 0),
        };
        let share = self.bar(
            row.got_percent / 100.0,
            Some(f64::from(row.asked_percent) / 100.0),
            share_cells,
            colour,
        );
        let mut line = format!(
            "  {name}{} {share} {:>5.1} %",
            self.paint("2", &format!("asked {:>2} %", row.asked_percent)),
            row.got_percent
        );
        let part = row.used_bytes as f64 / row.limit_bytes.max(1) as f64;
        if memory_cells > 0 {
            let memory = self.bar(part, None, memory_cells, colour);
            let _ = write!(line, "   {} {memory}", self.paint("2", "memory"));
        }
        let _ = write!(
            line,
            " {:>4.0} of {}",
            row.used_bytes as f64 / f64::from(1 << 20),
            show_bytes(row.limit_bytes)
        );
        if wide {
            let steps = format!("{:>7} steps", thousands(row.steps));
            let _ = write!(line, "  {}", self.paint("2", &steps));
        }
        line
    }

    /// A bar in eighths of a cell, with a tick where it should end.
    fn bar(&self, part: f64, tick: Option<f64>, cells: usize, colour: &str) -> String {
        const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
        let eighths = (part.clamp(0.0, 1.0) * cells as f64 * 8.0).round() as usize;
        let (full, rest) = (eighths / 8, EIGHTHS[eighths % 8]);
        let mut filled = "█".repeat(full);
        filled.push_str(rest);
        let used = full + usize::from(!rest.is_empty());
        let tick = tick.map(|tick| (tick * cells as f64).round() as usize);
        let empty: String = (used..cells)
            .map(|cell| if Some(cell) == tick { '┊' } else { '·' })
            .collect();
        format!("{}{}", self.paint(colour, &filled), self.paint("2", &empty))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.close();
    }
}

/// Prints; a reader that has gone ends the demo in order.
pub(crate) fn put(text: &str) {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    if written.is_err() {
        super::private_daemon::interrupt_now();
    }
}

/// Columns of the terminal.
fn columns() -> usize {
    terminal_columns().unwrap_or(80)
}

/// 12,345.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(thousands(7), "7");
        assert_eq!(thousands(1234), "1,234");
        assert_eq!(thousands(12_345_678), "12,345,678");
    }

    #[test]
    fn bars_are_as_long_as_they_should_be() {
        let screen = Screen {
            kind: Kind::Lines,
            colour: false,
            drawn: 0,
            rows: Vec::new(),
            now: String::new(),
        };
        for part in [0.0, 0.01, 0.33, 0.5, 0.999, 1.0, 7.0] {
            let bar = screen.bar(part, Some(0.5), 20, "36");
            assert_eq!(bar.chars().count(), 20, "{part}: {bar}");
        }
        assert_eq!(screen.bar(0.25, Some(0.5), 8, "36"), "██··┊···");
    }
}
