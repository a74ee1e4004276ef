//! What was measured stays, over restarts, and can be asked for.

mod support;

use std::time::{SystemTime, UNIX_EPOCH};

use mica_control::api::{AccountBy, Point, Subject, Timeline};
use mica_control::client::{ControlClient, Span};
use mica_limits::{PageQuota, Quota};
use support::{MIB, Program, control, eventually, spec, start};

fn hour() -> Span {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Span {
        since_seconds: now.as_secs() - 3600,
        ..Span::default()
    }
}

fn of(control: &ControlClient, name: &str) -> Option<Timeline> {
    let answer = control.timelines(&hour(), Some(name)).unwrap();
    let mut lines = answer.timelines.into_iter();
    lines.find(|line| line.subject == Subject::Vgpu)
}

#[test]
fn history_outlives_its_daemon_and_its_virtual_gpu() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let control = control(dir.path());
    let created = control.create(&spec("a", 300)).unwrap();
    let program = Program::join(&created);
    let quota = PageQuota::new(program.link.clone());
    quota.charge(100 * MIB).unwrap();
    assert!(quota.charge(250 * MIB).is_err());
    let full = |line: &Timeline| {
        let peak = |p: &Point| p.memory_peak_bytes >= 100 * MIB && p.processes == 1;
        line.points.iter().any(peak) && line.points.iter().any(|p| p.alloc_denied == 1)
    };
    eventually("a second is measured", || {
        of(&control, "a").is_some_and(|line| full(&line))
    });
    let seconds = control.history("a").unwrap().samples;
    assert!(
        seconds.iter().any(|s| s.memory_used_bytes == 100 * MIB),
        "{seconds:?}"
    );
    drop(program);
    // Not by force, which would end this process while the daemon counts it as a program of the virtual GPU.
    eventually("the program has left", || {
        control.remove("a", false).is_ok()
    });
    drop(daemon);
    let _daemon = start(dir.path());
    let line = of(&control, "a").unwrap();
    assert!(full(&line), "{line:?}");
    let unreserved = |p: &Point| p.share_unreserved_percent > 0.0;
    assert!(line.points.iter().all(unreserved), "{line:?}");
    assert_eq!(
        (line.gpu_uuid.as_str(), line.owner_uid),
        ("GPU-1", Some(mica_control::uid()))
    );
    let usage = control.usage(&hour(), AccountBy::Vgpu).unwrap();
    assert_eq!(
        (
            usage.accounts[0].key.as_str(),
            usage.accounts[0].alloc_denied
        ),
        ("a", 1)
    );
    assert!(usage.accounts[0].memory_gib_hours > 0.0);
    let all = control.timelines(&hour(), None).unwrap().timelines;
    assert!(
        all.iter()
            .any(|line| line.subject == Subject::Gpu && line.name == "GPU-1")
    );
    assert!(of(&control, "b").is_none());
}

#[test]
fn a_question_that_makes_no_sense_is_refused_with_what_would() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let control = control(dir.path());
    let refused = |span: Span| control.timelines(&span, None).unwrap_err();
    let second = Span {
        step_seconds: Some(1),
        ..hour()
    };
    let error = refused(second);
    assert_eq!(error.reason(), Some("invalid"));
    assert!(error.to_string().contains("too short"), "{error}");
    let backwards = Span {
        until_seconds: Some(5),
        ..hour()
    };
    assert!(refused(backwards).to_string().contains("empty"));
    let nothing = Span {
        step_seconds: Some(0),
        ..hour()
    };
    assert_eq!(refused(nothing).reason(), Some("invalid"));
}

#[test]
fn words_where_a_number_should_be_are_refused_as_json() {
    use std::io::{Read, Write};
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path());
    let socket = control(dir.path()).socket().to_owned();
    for (request, status, word) in [
        ("GET /v1/history?since=soon", 400, "since"),
        ("GET /v1/gpus/first/turns", 400, "first"),
        ("GET /v1/gpus/99999999999/turns", 400, "99999999999"),
        ("GET /v1/vgpus/%ff", 400, "name"),
        ("GET /v1/vgpus/", 400, "a name is missing in /v1/vgpus/"),
        ("POST /v1/vgpus//join", 400, "a name is missing"),
        ("DELETE /v1/regions//vgpus/", 400, "a name is missing"),
        ("PUT /v1/vgpus", 405, "method"),
        ("GET /v1/nothing", 404, "no such path"),
    ] {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        let head = "HTTP/1.1\r\nHost: mica\r\nConnection: close\r\nContent-Length: 0";
        stream
            .write_all(format!("{request} {head}\r\n\r\n").as_bytes())
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let first = format!("HTTP/1.1 {status}");
        assert!(answer.starts_with(&first), "{request}: {answer}");
        let reason = if status == 404 {
            "not_found"
        } else {
            "invalid"
        };
        let reason = format!("\"reason\":\"{reason}\"");
        assert!(answer.contains(&reason), "{request}: {answer}");
        assert!(answer.contains(word), "{request}: {answer}");
    }
}
