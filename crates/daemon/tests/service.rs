//! The unit file of the service.

use std::path::Path;
use std::process::Command;

#[test]
fn the_service_is_exposed_no_more_than_it_needs() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/mica.service");
    let output = Command::new("systemd-analyze")
        .args(["security", "--offline=yes", "--threshold=30"])
        .arg(unit)
        .output();
    let Ok(output) = output else {
        eprintln!("skipped: systemd-analyze is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let why = String::from_utf8_lossy(&output.stderr);
    if why.contains("offline") {
        eprintln!("skipped: this systemd-analyze cannot look at a file: {why}");
        return;
    }
    let overall = text.lines().last().unwrap_or_default();
    // At most 3.0, which the tool itself compares.
    assert!(output.status.success(), "{overall} {why}");
}
