//! The report on the terminal.

use std::path::Path;

use mica_command::table::Table;
use mica_coverage::{Report, percent};

/// Ranges of lines that were not reached which are shown for a file.
const MOST_RANGES: usize = 8;

/// Prints the report: files, and kernels where a program ran.
pub(super) fn tell(report: &Report, ran: bool) {
    let here = std::env::current_dir().unwrap_or_default();
    let (found, reached) = report.totals();
    errln!("mica: cov: {}", summary(report, ran));
    if found == 0 {
        return;
    }
    let mut files = Table::new(&["FILE", "LINES", "REACHED", "", "NOT REACHED"]);
    for (path, file) in report
        .files
        .iter()
        .filter(|(_, file)| !file.lines.is_empty())
    {
        let shown = Path::new(path)
            .strip_prefix(&here)
            .unwrap_or(Path::new(path));
        let missed = ranges(file.missed());
        files.row(row(
            shown.display().to_string(),
            file.lines.len(),
            file.reached(),
            missed,
        ));
    }
    if report.files.len() > 1 {
        files.row(row("all files".into(), found, reached, String::new()));
    }
    errln!("{}", files.render().trim_end());
    if report.kernels.is_empty() {
        return;
    }
    let mut kernels = Table::new(&["KERNEL", "LINES", "REACHED", "", "LAUNCHES"]);
    for (name, kernel) in &report.kernels {
        let launches = match kernel.launches {
            0 => "never launched".to_owned(),
            n => n.to_string(),
        };
        kernels.row(row(
            name.clone(),
            kernel.lines.len(),
            kernel.reached(),
            launches,
        ));
    }
    errln!("\n{}", kernels.render().trim_end());
}

fn summary(report: &Report, ran: bool) -> String {
    let (found, reached) = report.totals();
    if found == 0 {
        return "no line of device code is known".into();
    }
    let part = percent(found, reached);
    let lines = format!("{reached} of {found} lines were reached, {part:.1} %");
    if !ran {
        return lines;
    }
    let launched = report.kernels.values().filter(|k| k.launches > 0).count();
    let processes = match report.processes() {
        1 => "1 process".to_owned(),
        n => format!("{n} processes"),
    };
    let kernels = report.kernels.len();
    format!("{lines}; {launched} of {kernels} kernels were launched by {processes}")
}

fn row(name: String, found: usize, reached: usize, last: String) -> Vec<String> {
    let part = format!("{:.1} %", percent(found, reached));
    vec![name, found.to_string(), reached.to_string(), part, last]
}

/// Lines as ranges: `7-9,12`.
fn ranges(lines: impl Iterator<Item = u32>) -> String {
    let mut all: Vec<(u32, u32)> = Vec::new();
    for line in lines {
        match all.last_mut() {
            Some((_, end)) if *end + 1 == line => *end = line,
            _ => all.push((line, line)),
        }
    }
    let shown = all
        .iter()
        .take(MOST_RANGES)
        .map(|(from, to)| match from == to {
            true => from.to_string(),
            false => format!("{from}-{to}"),
        });
    let mut text = shown.collect::<Vec<_>>().join(",");
    if all.len() > MOST_RANGES {
        text.push_str(",...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_follow_each_other_are_one_range() {
        assert_eq!(ranges([7, 8, 9, 12].into_iter()), "7-9,12");
        assert_eq!(ranges([].into_iter()), "");
        assert!(ranges((1..100).step_by(2)).ends_with("15,..."));
    }
}
