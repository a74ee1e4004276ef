//! The metrics reach a collector, and one that hangs holds up nobody.
#![cfg(feature = "otel")]

mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{control, spec, start_with};

/// Reads one request: its head and its body.
fn request(stream: &TcpStream) -> (String, Value) {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{head}");
    }
    let length = head.split("Content-Length: ").nth(1).unwrap();
    let length: usize = length.lines().next().unwrap().parse().unwrap();
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (head, serde_json::from_slice(&body).unwrap())
}

/// Takes requests for ever; never answers the first, and answers all others.
fn collect(listener: &TcpListener, taken: &Sender<(String, Value)>) {
    let mut unanswered = Vec::new();
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let request = request(&stream);
        if unanswered.is_empty() {
            unanswered.push(stream);
        } else {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
        }
        if taken.send(request).is_err() {
            return;
        }
    }
}

#[test]
fn otel_metrics_are_those_of_prometheus_and_a_hung_collector_holds_up_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (taken, requests) = channel();
    std::thread::spawn(move || collect(&listener, &taken));
    let dir = tempfile::tempdir().unwrap();
    let more = format!("[otel]\nendpoint = \"http://127.0.0.1:{port}\"\ninterval_seconds = 1\n");
    let _daemon = start_with(dir.path(), &more);
    let control = control(dir.path());
    control.create(&spec("a", 300)).unwrap();

    let wait = Duration::from_secs(60);
    let (head, _) = requests.recv_timeout(wait).unwrap();
    assert!(head.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{head}");
    assert!(
        head.contains("\r\nContent-Type: application/json\r\n"),
        "{head}"
    );
    // The collector holds this request and says nothing; the daemon answers and measures on.
    let began = Instant::now();
    let first = control.history("a").unwrap().samples.len();
    while control.history("a").unwrap().samples.len() < first + 2 {
        assert!(began.elapsed() < wait, "the daemon measures nothing");
        std::thread::sleep(Duration::from_millis(50));
    }

    let has = |body: &Value| {
        let text = body.to_string();
        text.contains("mica_vgpu_memory_limit_bytes").then_some(())
    };
    let body = loop {
        let (_, body) = requests.recv_timeout(wait).expect("pushed again");
        if has(&body).is_some() {
            break body;
        }
    };
    let resource = &body["resourceMetrics"][0];
    let service = &resource["resource"]["attributes"][0];
    assert_eq!(service["value"]["stringValue"], "mica", "{service}");
    let metrics = resource["scopeMetrics"][0]["metrics"].as_array().unwrap();
    let pushed: BTreeSet<&str> = metrics.iter().filter_map(|m| m["name"].as_str()).collect();
    let text = control.metrics().unwrap();
    let scraped: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    assert_eq!(pushed, scraped);
    let limit = metrics
        .iter()
        .find(|m| m["name"] == "mica_vgpu_memory_limit_bytes");
    let limit = &limit.unwrap()["gauge"]["dataPoints"][0];
    assert_eq!(limit["asInt"], (300_u64 << 20).to_string(), "{limit}");
    assert_eq!(
        limit["attributes"][0]["value"]["stringValue"], "a",
        "{limit}"
    );
}
