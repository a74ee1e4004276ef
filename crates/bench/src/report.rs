//! Lines of a benchmark: what was asked, both sides, and whether it was reached.

use serde::Serialize;

use mica_command::progress::Progress;
use mica_command::table::{Paint, Table};

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

/// The numbers of a line that compares isolated mode, for programs that read the JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Numbers {
    /// Unit of all but the ratio.
    pub(crate) unit: &'static str,
    /// On the bare driver; `None` on the software GPU.
    pub(crate) native: Option<f64>,
    /// In isolated mode.
    pub(crate) isolated: f64,
    /// In direct mode; `None` on the software GPU.
    pub(crate) direct: Option<f64>,
    /// Isolated over native.
    pub(crate) ratio: Option<f64>,
}

/// A line as JSON has it.
#[derive(Serialize)]
struct Entry {
    #[serde(flatten)]
    line: Line,
    #[serde(skip_serializing_if = "Option::is_none")]
    numbers: Option<serde_json::Value>,
}

/// Says since when the next line is being measured.
fn measuring() -> Progress {
    Progress::of("measuring the next line", None)
}

/// Collects lines and shows each as it comes.
pub(crate) struct Report {
    json: bool,
    progress: Progress,
    entries: Vec<Entry>,
}

impl Report {
    pub(crate) fn new(json: bool) -> Self {
        Self {
            json,
            progress: measuring(),
            entries: Vec::new(),
        }
    }

    /// Adds a line; on a terminal it is shown at once, for runs are long.
    pub(crate) fn add(&mut self, line: Line) {
        self.push(line, None);
    }

    /// Adds a line from its parts.
    pub(crate) fn row(
        &mut self,
        what: &str,
        native: String,
        mica: String,
        goal: &str,
        reached: Option<bool>,
    ) {
        self.add(Line {
            what: what.into(),
            native,
            mica,
            goal: goal.into(),
            reached,
        });
    }

    /// Adds a line for each copy: its rate and the rate of `memcpy` in GiB/s.
    pub(crate) fn copies<const N: usize>(&mut self, copies: [(&str, f64, f64); N]) {
        for (what, rate, memcpy) in copies {
            let part = 100.0 * rate / memcpy;
            self.row(
                what,
                format!("{memcpy:.1} GiB/s memcpy"),
                format!("{rate:.1} GiB/s ({part:.0} %)"),
                "≥ 80 %",
                Some(part >= 80.0),
            );
        }
    }

    /// Adds a line and its numbers, which only JSON shows.
    pub(crate) fn add_with(&mut self, line: Line, numbers: impl Serialize) {
        self.push(line, serde_json::to_value(numbers).ok());
    }

    fn push(&mut self, line: Line, numbers: Option<serde_json::Value>) {
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
        self.entries.push(Entry { line, numbers });
        self.progress = measuring();
    }

    /// Prints everything; `true` if every promise was kept.
    pub(crate) fn finish(self) -> anyhow::Result<bool> {
        drop(self.progress);
        if self.json {
            outln!("{}", serde_json::to_string_pretty(&self.entries)?);
        } else {
            let mut table = Table::new(&["WHAT", "NATIVE", "MICA", "GOAL", ""]);
            for Entry { line, .. } in &self.entries {
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
        Ok((self.entries.iter()).all(|entry| entry.line.reached != Some(false)))
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
