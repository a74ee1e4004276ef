//! The control API: documents, events, configuration, quotas.

mod support;

use std::path::Path;

use mica_control::api::{Percent, Resize, Severity, VgpuSpec};
use mica_wire::host::message;
use support::{MIB, Program, control, eventually, spec, start, start_with};

#[test]
fn the_openapi_document_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let now = mica_daemon::openapi_document() + "\n";
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == now,
        "docs/openapi.json is not current; run with BLESS=1 to rewrite it"
    );
}

#[test]
fn events_are_remembered_and_followed_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    let created = control.create(&spec("a", 64)).unwrap();
    let past = control.past_events().unwrap();
    assert_eq!(past.last().unwrap().kind, "vgpu_created");
    let mut stream = control.events(Some(0)).unwrap();
    let program = Program::join(&created);
    program
        .link
        .note(message::Severity::Warning, "something odd");
    drop(program);
    eventually("it has left", || {
        control.get("a").unwrap().processes.is_empty()
    });
    control.remove("a", false).unwrap();
    let mut seen = Vec::new();
    let mut last = 0;
    while seen.last().map(String::as_str) != Some("vgpu_removed") {
        let event = stream.next().unwrap().unwrap();
        assert!(event.sequence > last);
        last = event.sequence;
        if event.kind == "note" {
            assert_eq!(
                (event.severity, event.message.as_str()),
                (Severity::Warning, "something odd")
            );
        }
        seen.push(event.kind);
    }
    for kind in ["vgpu_created", "process_joined", "note"] {
        assert!(seen.iter().any(|k| k == kind), "{seen:?}");
    }
}

#[test]
fn a_wrong_configuration_is_refused_and_the_old_one_stays() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    let file = dir.path().join("mica.toml");
    std::fs::write(&file, "[quota.default]\nvgpus = 1\n").unwrap();
    control.reload().unwrap();
    control.create(&spec("a", 1)).unwrap();
    assert_eq!(
        control.create(&spec("b", 1)).unwrap_err().reason(),
        Some("quota")
    );
    std::fs::write(&file, "[quota.default]\nvgpus = 5\nvgpsu = 1\n").unwrap();
    let refused = control.reload().unwrap_err();
    assert!(refused.to_string().contains("line 3"), "{refused}");
    assert_eq!(
        control.create(&spec("b", 1)).unwrap_err().reason(),
        Some("quota")
    );
}

#[test]
fn quotas_bound_memory_and_shares_of_a_user() {
    let dir = tempfile::tempdir().unwrap();
    let quota = format!(
        "[quota.default]\nmemory_bytes = {}\nshare_percent = 50\n",
        100 * MIB
    );
    let _daemon = start_with(dir.path(), &quota);
    let control = control(dir.path());
    let with = |name: &str, mib, share| VgpuSpec {
        share_percent: Some(Percent::from(share)),
        ..spec(name, mib)
    };
    control.create(&with("a", 60, 30)).unwrap();
    let memory = control.create(&with("b", 41, 10)).unwrap_err();
    assert!(memory.to_string().contains("100 MiB"), "{memory}");
    let share = control.create(&with("b", 10, 21)).unwrap_err();
    assert!(share.to_string().contains("50 %"), "{share}");
    control.create(&with("b", 40, 20)).unwrap();
    // Nor by a resize.
    let grow = |memory_mib: u64, share: u32| Resize {
        memory_limit_bytes: Some(memory_mib * MIB),
        share_percent: Some(Percent::from(share)),
        ..Resize::default()
    };
    for change in [grow(41, 20), grow(40, 21)] {
        let refused = control.resize("b", &change).unwrap_err();
        assert_eq!(refused.reason(), Some("quota"), "{refused}");
    }
    control.resize("a", &grow(50, 30)).unwrap();
    control.resize("b", &grow(50, 20)).unwrap();
}

#[test]
fn shares_can_be_changed_within_what_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    for (name, share) in [("a", 60), ("b", 30)] {
        let mut spec = spec(name, 10);
        spec.share_percent = Some(Percent::from(share));
        control.create(&spec).unwrap();
    }
    control.create(&spec("rest", 10)).unwrap();
    assert_eq!(control.get("rest").unwrap().share_percent, 10);
    let share = |share| Resize {
        share_percent: Some(Percent::from(share)),
        ..Resize::default()
    };
    assert_eq!(
        control.resize("b", &share(41)).unwrap_err().reason(),
        Some("no_share")
    );
    assert_eq!(control.resize("b", &share(20)).unwrap().share_percent, 20);
    assert_eq!(control.get("rest").unwrap().share_percent, 20);
}

#[test]
fn metrics_show_idle_tenants_as_zeros_and_removed_ones_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    control.create(&spec("a", 64)).unwrap();
    let text = control.metrics().unwrap();
    let limit_bytes = (64 * MIB).to_string();
    for (name, value) in [
        ("mica_vgpu_memory_used_bytes", "0"),
        ("mica_vgpu_gpu_seconds_total", "0.0"),
        ("mica_vgpu_processes", "0"),
        ("mica_vgpu_memory_limit_bytes", &limit_bytes),
    ] {
        assert_eq!(support::metric(&text, name, "a"), Some(value), "{text}");
    }
    control.remove("a", false).unwrap();
    assert!(!control.metrics().unwrap().contains("vgpu=\"a\""));
}

#[test]
fn history_grows_and_the_doctor_finds_nothing_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    control.create(&spec("a", 64)).unwrap();
    eventually("a sample", || {
        !control.history("a").unwrap().samples.is_empty()
    });
    let doctor = control.doctor(Some("a")).unwrap();
    assert!(doctor.healthy, "{doctor:?}");
    assert!(doctor.checks.iter().any(|c| c.what == "memory limit"));
    assert_eq!(
        control.doctor(Some("none")).unwrap_err().reason(),
        Some("not_found")
    );
}
