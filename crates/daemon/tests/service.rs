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

#[test]
fn the_service_may_do_what_its_workers_confinement_needs() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/mica.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    let values = |key: &str| -> Vec<String> {
        let value = |line: &str| line.strip_prefix(key)?.strip_prefix('=').map(str::to_owned);
        let found: Vec<String> = unit.lines().filter_map(value).collect();
        found
            .iter()
            .flat_map(|v| v.split(' '))
            .map(str::to_owned)
            .collect()
    };
    for namespace in ["mnt", "pid", "net", "ipc"] {
        let allowed = values("RestrictNamespaces");
        assert!(
            allowed.iter().any(|n| n == namespace),
            "{namespace}: {allowed:?}"
        );
    }
    for capability in ["SETUID", "SETGID", "SETPCAP", "SYS_ADMIN", "KILL"] {
        let name = format!("CAP_{capability}");
        assert!(values("CapabilityBoundingSet").contains(&name), "{name}");
    }
    assert_eq!(values("Delegate"), ["yes"]);
    assert_eq!(values("DelegateSubgroup"), ["daemon"]);
}
