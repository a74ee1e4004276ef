//! `mica doctor`: what is in force, what the daemon knows of it and what was tried.

use anyhow::Result;
use mica_control::api::{Check, Doctor, Verdict};
use mica_wire::host::printable::printable;

use super::print_json;
use crate::args::DoctorArgs;
use crate::control::connect;
use mica_command::output::{hanging, terminal_columns};
use mica_command::refusal::explain;
use mica_command::table::Paint;

/// Returns whether everything that was checked is in force.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<bool> {
    let client = connect()?;
    let report = client.doctor(args.name.as_deref()).map_err(explain)?;
    let mut checks = vec![crate::examine::libraries()];
    checks.extend(report.checks);
    for vgpu in client.list().map_err(explain)? {
        if args.name.as_ref().is_none_or(|name| *name == vgpu.name) {
            checks.push(crate::examine::limit(&client, &vgpu));
            if args.probe {
                checks.push(crate::examine::limit_on_gpu(&vgpu));
            }
        }
    }
    let report = Doctor::of(checks);
    if args.json {
        print_json(&report)?;
        return Ok(report.healthy);
    }
    for check in &report.checks {
        print_check(check);
    }
    let paint = Paint::stdout();
    if report.healthy {
        outln!(
            "{}",
            paint.good("every limit that can be checked now is in force")
        );
    } else {
        outln!("{}", paint.bad("something is not in force"));
    }
    Ok(report.healthy)
}

/// Columns before the evidence.
const INDENT: usize = 9;

fn print_check(check: &Check) {
    let paint = Paint::stdout();
    let verdict = match check.verdict {
        Verdict::Ok => paint.good("ok     "),
        Verdict::Unknown => paint.dim("unknown"),
        Verdict::Warning => paint.warn("warning"),
        Verdict::Failed => paint.bad("FAILED "),
    };
    let subject = check
        .vgpu
        .as_deref()
        .map(|vgpu| format!("{vgpu}: "))
        .unwrap_or_default();
    let evidence = hanging(&printable(&check.evidence), INDENT, terminal_columns());
    outln!(
        "{verdict}  {}{}\n{:INDENT$}{}",
        printable(&subject),
        printable(&check.what),
        "",
        paint.dim(&evidence)
    );
}
