//! What is told of programs: their start, their end, and what tests of the limits leave out.

mod support;

use mica_control::api::{
    Created, Event, LinkInfo, LinkReport, ProgramEnd, ProgramReport, Severity,
};
use mica_limits::{PageQuota, Quota};
use support::{MIB, Program, control, eventually, spec, start};

fn report(created: &Created, end: Option<ProgramEnd>) -> ProgramReport {
    ProgramReport {
        token: created.token.clone(),
        pid: 4711,
        command: "python3 train.py\x1b[2J".into(),
        end,
    }
}

#[test]
fn the_start_and_the_end_of_a_program_are_events_of_its_virtual_gpu() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    let created = control.create(&spec("a", 64)).unwrap();
    control.create(&spec("b", 64)).unwrap();
    for end in [
        None,
        Some(ProgramEnd::ExitCode(0)),
        Some(ProgramEnd::ExitCode(3)),
        Some(ProgramEnd::Signal(11)),
    ] {
        control.report("a", &report(&created, end)).unwrap();
    }
    let told = control.past_events_of(Some("a")).unwrap();
    let is_as = |event: &Event| (event.severity, event.kind.clone(), event.message.clone());
    let words: Vec<_> = told.iter().map(is_as).collect();
    let event = |severity, kind: &str, text: &str| {
        (
            severity,
            kind.to_owned(),
            format!("process 4711 {text}: python3 train.py\\u{{1b}}[2J"),
        )
    };
    assert_eq!(
        words[1..],
        [
            event(Severity::Info, "program_started", "started"),
            event(Severity::Info, "program_ended", "exited with code 0"),
            event(Severity::Warning, "program_ended", "exited with code 3"),
            event(Severity::Warning, "program_ended", "was ended by SIGSEGV"),
        ]
    );
    assert!(told.iter().all(|event| event.vgpu.as_deref() == Some("a")));
    assert_eq!(told[1].pid, Some(4711));
}

#[test]
fn a_report_for_a_virtual_gpu_that_was_removed_is_answered_so() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    let created = control.create(&spec("a", 64)).unwrap();
    control.remove("a", false).unwrap();
    let ended = report(&created, Some(ProgramEnd::Signal(9)));
    let gone = control.report("a", &ended).unwrap_err();
    assert_eq!(gone.reason(), Some("not_found"));
    // Another one of this name is not the one that the program was in.
    control.create(&spec("a", 64)).unwrap();
    let gone = control.report("a", &ended).unwrap_err();
    assert_eq!(gone.reason(), Some("not_found"));
    // What happened in the removed one can still be read.
    let told = control.past_events_of(Some("a")).unwrap();
    assert!(told.iter().any(|event| event.kind == "vgpu_removed"));
}

#[test]
fn the_link_of_a_virtual_gpu_is_what_its_own_server_told_last() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    let created = control.create(&spec("a", 64)).unwrap();
    assert_eq!(control.get("a").unwrap().link, None);
    let link = |round_trip_us| LinkInfo {
        peer: "laptop at 192.0.2.7:40312".into(),
        round_trip_us,
        bytes_per_second: 96 << 20,
        resumed_total: 1,
        saved_bytes_total: 1 << 28,
    };
    let report = |token: &str, round_trip_us| LinkReport {
        token: token.into(),
        link: link(round_trip_us),
    };
    for round_trip_us in [1240, 310] {
        let told = control.report_link("a", &report(&created.token, round_trip_us));
        told.unwrap();
        assert_eq!(control.get("a").unwrap().link, Some(link(round_trip_us)));
    }
    // Another virtual GPU had this name.
    let stale = control.report_link("a", &report(&"0".repeat(32), 9));
    assert!(stale.is_err());
    assert_eq!(control.get("a").unwrap().link, Some(link(310)));
}

#[test]
fn a_test_of_the_limits_leaves_no_event_and_no_refusal() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    control.create(&spec("a", 64)).unwrap();
    let joined = control.join_as_probe("a").unwrap();
    let ask_too_much = |created: &Created| {
        let program = Program::join(created);
        let quota = PageQuota::new(program.link.clone());
        assert!(quota.charge(65 * MIB).is_err());
    };
    ask_too_much(&joined);
    eventually("the probe is gone", || {
        control.get("a").unwrap().processes.is_empty()
    });
    let kinds = |name: &str| -> Vec<String> {
        let told = control.past_events_of(Some(name)).unwrap();
        told.into_iter().map(|event| event.kind).collect()
    };
    assert_eq!(kinds("a"), ["vgpu_created"]);
    assert_eq!(control.get("a").unwrap().alloc_denied_total, 0);
    // The same by a program is told.
    let program = control.create(&spec("b", 64)).unwrap();
    ask_too_much(&program);
    eventually("the program is gone", || {
        kinds("b").last().is_some_and(|kind| kind == "process_left")
    });
    let all = [
        "vgpu_created",
        "process_joined",
        "memory_denied",
        "process_left",
    ];
    assert_eq!(kinds("b"), all);
    assert_eq!(control.get("b").unwrap().alloc_denied_total, 1);
}

#[test]
fn kernels_that_a_driver_runs_cannot_be_cancelled_and_that_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    control.create(&spec("a", 64)).unwrap();
    let refused = control.cancel("a").unwrap_err();
    assert_eq!(
        refused.to_string(),
        "no kernel of a can be cancelled: the NVIDIA driver cannot cancel kernels"
    );
}

#[test]
fn shares_that_nobody_asked_for_are_not_reserved_and_parts_of_the_memory_are_exact() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    let mut third = spec("third", 64);
    (third.share_percent, third.memory_limit_percent) = ("33.3".parse().ok(), None);
    let made = control.create(&third).unwrap();
    assert!(made.share_reserved);
    assert_eq!(made.share_percent.to_string(), "33.3");
    let mut half = spec("half", 64);
    (half.memory_limit_bytes, half.memory_limit_percent) = (None, Some(50.into()));
    let made = control.create(&half).unwrap();
    assert!(!made.share_reserved);
    assert_eq!(made.share_percent.to_string(), "66.7");
    assert_eq!(made.memory_limit_bytes, 512 * MIB);
    half.memory_limit_bytes = Some(MIB);
    half.name = Some("both".into());
    assert_eq!(control.create(&half).unwrap_err().reason(), Some("invalid"));
    let metrics = control.metrics().unwrap();
    for (name, vgpu, value) in [
        ("mica_vgpu_share_reserved", "half", "0"),
        ("mica_vgpu_share_reserved", "third", "1"),
        ("mica_vgpu_share_ratio", "third", "0.333"),
    ] {
        let found = support::metric(&metrics, name, vgpu);
        assert_eq!(found, Some(value), "{name} of {vgpu} in\n{metrics}");
    }
}
