//! Columns that line up, and colour only where a terminal shows it.

use std::io::IsTerminal;

use mica_wire::host::printable::{printable, printable_lines};

/// A table for the terminal.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column titles.
    pub(crate) fn new(titles: &[&str]) -> Self {
        Self {
            rows: vec![titles.iter().map(|title| (*title).to_owned()).collect()],
        }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        // Names and notes are chosen by programs.
        let safe = cells.iter().map(|cell| printable(cell).into_owned());
        self.rows.push(safe.collect());
    }

    /// Whether there is no row but the titles.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// The text, a line a row, columns padded to their widest cell.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows[0].len();
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|c| c.chars().count())
                .max()
        };
        let widths: Vec<usize> = (0..columns).map(|c| width(c).unwrap_or(0)).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(cell);
                let padding = width.saturating_sub(cell.chars().count()) + 2;
                line.push_str(&" ".repeat(padding));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Colours for words that matter, plain when the output is no terminal or `NO_COLOR` is set.
#[derive(Clone, Copy)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    /// For standard output.
    pub(crate) fn stdout() -> Self {
        Self {
            on: std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
        }
    }

    /// Good news.
    pub(crate) fn good(self, text: &str) -> String {
        self.wrap("32", text)
    }

    /// Bad news.
    pub(crate) fn bad(self, text: &str) -> String {
        self.wrap("31", text)
    }

    /// Worth a look.
    pub(crate) fn warn(self, text: &str) -> String {
        self.wrap("33", text)
    }

    /// Less important.
    pub(crate) fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        let text = printable_lines(text);
        if self.on {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.into_owned()
        }
    }
}
