//! The report as JSON.

use serde_json::{Value, json};

use crate::report::{Report, percent};

fn lines(found: usize, reached: usize) -> Value {
    let percent = (percent(found, reached) * 100.0).round() / 100.0;
    json!({ "found": found, "reached": reached, "percent": percent })
}

/// The report: totals, files with the count of each line, kernels.
pub fn json(report: &Report) -> Value {
    let (found, reached) = report.totals();
    let files = report.files.iter().map(|(path, file)| {
        let counts: Vec<(u32, u64)> = file.lines.iter().map(|(line, n)| (*line, *n)).collect();
        let functions = file
            .functions
            .iter()
            .map(|(name, f)| json!({ "name": name, "line": f.line, "hits": f.hits }));
        json!({
            "file": path,
            "lines": lines(file.lines.len(), file.reached()),
            "counts": counts,
            "functions": functions.collect::<Vec<_>>(),
        })
    });
    let kernels = report.kernels.iter().map(|(name, kernel)| {
        json!({
            "kernel": name,
            "launches": kernel.launches,
            "lines": lines(kernel.lines.len(), kernel.reached()),
        })
    });
    json!({
        "lines": lines(found, reached),
        "processes": report.processes(),
        "lost": report.lost,
        "files": files.collect::<Vec<_>>(),
        "kernels": kernels.collect::<Vec<_>>(),
    })
}
