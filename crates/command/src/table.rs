//! Columns that line up, and colour only where a terminal shows it.

use std::borrow::Cow;

use mica_wire::host::printable::{printable, printable_lines};

use crate::output::{shows_colours, terminal_columns};

/// A table for the terminal.
pub struct Table {
    rows: Vec<Vec<String>>,
    /// The column that is cut where a terminal is too narrow.
    cut: usize,
}

/// The narrowest that a column is cut to.
const NARROWEST: usize = 12;

impl Table {
    /// A table with these column titles.
    pub fn new(titles: &[&str]) -> Self {
        Self {
            rows: vec![titles.iter().map(|title| (*title).to_owned()).collect()],
            cut: 0,
        }
    }

    /// Cuts this column where a terminal is too narrow, instead of the first.
    pub fn cut(mut self, column: usize) -> Self {
        self.cut = column;
        self
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        // Names and notes are chosen by programs.
        let safe = cells.iter().map(|cell| printable(cell).into_owned());
        self.rows.push(safe.collect());
    }

    /// Whether the table has only its titles.
    pub fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// The text, a line a row, columns padded to their widest cell.
    pub fn render(&self) -> String {
        self.render_within(terminal_columns())
    }

    fn render_within(&self, room: Option<usize>) -> String {
        let columns = self.rows[0].len();
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|c| c.chars().count())
                .max()
        };
        let mut widths: Vec<usize> = (0..columns).map(|c| width(c).unwrap_or(0)).collect();
        let needed = widths.iter().sum::<usize>() + 2 * columns.saturating_sub(1);
        let missing = needed.saturating_sub(room.unwrap_or(usize::MAX));
        if let Some(width) = widths.get_mut(self.cut) {
            *width = width.saturating_sub(missing).max(NARROWEST.min(*width));
        }
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(&cut(cell, *width));
                let padding = width.saturating_sub(cell.chars().count()) + 2;
                line.push_str(&" ".repeat(padding));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// A text with its end replaced by `…` where it has more than so many characters.
pub fn cut(text: &str, columns: usize) -> Cow<'_, str> {
    if text.chars().count() <= columns {
        return Cow::Borrowed(text);
    }
    let kept = text.chars().take(columns.saturating_sub(1));
    Cow::Owned(kept.chain(['…']).collect())
}

/// Colours for words that matter; plain if the output is not a terminal or `NO_COLOR` is set.
#[derive(Clone, Copy)]
pub struct Paint {
    on: bool,
}

impl Paint {
    /// For standard output.
    pub fn stdout() -> Self {
        Self {
            on: shows_colours(),
        }
    }

    /// Good news.
    pub fn good(self, text: &str) -> String {
        self.wrap("32", text)
    }

    /// Bad news.
    pub fn bad(self, text: &str) -> String {
        self.wrap("31", text)
    }

    /// Worth a look.
    pub fn warn(self, text: &str) -> String {
        self.wrap("33", text)
    }

    /// Less important.
    pub fn dim(self, text: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_cut_to_a_terminal_and_nowhere_else() {
        let mut table = Table::new(&["NAME", "STATE"]);
        table.row(vec![
            "a-very-long-name-of-a-virtual-gpu".into(),
            "ready".into(),
        ]);
        let whole =
            "NAME                               STATE\na-very-long-name-of-a-virtual-gpu  ready\n";
        assert_eq!(table.render_within(None), whole);
        assert_eq!(table.render_within(Some(80)), whole);
        let cut = "NAME           STATE\na-very-long-…  ready\n";
        assert_eq!(table.render_within(Some(20)), cut);
    }
}
