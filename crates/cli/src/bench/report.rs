//! Lines of a benchmark: what was asked, both sides, and whether it was reached.

use serde::Serialize;

use crate::table::{Paint, Table};

/// One measured promise.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    /// What was measured.
    pub(crate) what: String,
    /// The figure without Mica, as text with its unit.
    pub(crate) native: String,
    /// The figure with Mica.
    pub(crate) mica: String,
    /// What was promised.
    pub(crate) goal: String,
    /// Whether it was reached; `None` where nothing is promised.
    pub(crate) reached: Option<bool>,
}

/// Collects lines and shows each as it comes.
pub(crate) struct Report {
    json: bool,
    lines: Vec<Line>,
}

impl Report {
    pub(crate) fn new(json: bool) -> Self {
        Self {
            json,
            lines: Vec::new(),
        }
    }

    /// Adds a line; on a terminal it is shown at once, for runs are long.
    pub(crate) fn add(&mut self, line: Line) {
        if !self.json {
            let mark = Self::mark(line.reached);
            errln!(
                "{mark}  {}: {} | {} (goal {})",
                line.what,
                line.native,
                line.mica,
                line.goal
            );
        }
        self.lines.push(line);
    }

    /// Prints everything; `true` if every promise was kept.
    pub(crate) fn finish(self) -> anyhow::Result<bool> {
        if self.json {
            outln!("{}", serde_json::to_string_pretty(&self.lines)?);
        } else {
            let mut table = Table::new(&["WHAT", "NATIVE", "MICA", "GOAL", ""]);
            for line in &self.lines {
                table.row(vec![
                    line.what.clone(),
                    line.native.clone(),
                    line.mica.clone(),
                    line.goal.clone(),
                    Self::mark(line.reached),
                ]);
            }
            out!("{}", table.render());
        }
        Ok(self.lines.iter().all(|line| line.reached != Some(false)))
    }

    fn mark(reached: Option<bool>) -> String {
        let paint = Paint::stdout();
        match reached {
            Some(true) => paint.good("reached"),
            Some(false) => paint.bad("NOT REACHED"),
            None => String::new(),
        }
    }
}
