//! The web page's listener: who gets in, and what is refused.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use mica_daemon::Running;
use serde_json::Value;
use support::{control, spec, start_with};

/// An answer: status, head and body.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let mut lines = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
        lines.next().map(|(_, value)| value)
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{}", self.body))
    }
}

/// The page of one daemon.
struct Page {
    _dir: tempfile::TempDir,
    _daemon: Running,
    address: String,
    ticket: String,
}

impl Page {
    fn start(more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let daemon = start_with(dir.path(), more);
        let (address, ticket) = ticket(dir.path());
        Self {
            _dir: dir,
            _daemon: daemon,
            address,
            ticket,
        }
    }

    fn dir(&self) -> &Path {
        self._dir.path()
    }

    /// Sends a request as it is written, with what is always there.
    fn send(&self, line: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let mut request = format!("{line} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            request += &format!("Host: {}\r\n", self.address);
        }
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            request += "Content-Type: application/json\r\n";
        }
        request += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(request.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        Answer {
            status: head
                .split(' ')
                .nth(1)
                .and_then(|s| s.parse().ok())
                .unwrap_or(0),
            head: head.into(),
            body: body.into(),
        }
    }

    fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Signs in; the session's two halves.
    fn sign_in(&self, credentials: &Value) -> Result<(String, String), Answer> {
        let origin = self.origin();
        let answer = self.send(
            "POST /v1/session",
            &[("Origin", &origin)],
            &credentials.to_string(),
        );
        if answer.status != 200 {
            return Err(answer);
        }
        let cookie = answer.header("set-cookie").unwrap();
        assert!(cookie.contains("HttpOnly; SameSite=Strict"), "{cookie}");
        let cookie = cookie.split(';').next().unwrap().to_owned();
        let key = answer.json()["page_key"].as_str().unwrap().to_owned();
        Ok((cookie, key))
    }

    fn sign_in_by_ticket(&self) -> (String, String) {
        let ticket = serde_json::json!({ "ticket": self.ticket });
        self.sign_in(&ticket)
            .unwrap_or_else(|answer| panic!("{}", answer.body))
    }
}

/// The page's address and a ticket, as `mica dashboard` gets them.
fn ticket(dir: &Path) -> (String, String) {
    let dashboard = control(dir).dashboard().unwrap();
    let (page, ticket) = dashboard.url.split_once("#ticket=").unwrap();
    let address = page.strip_prefix("http://").unwrap().trim_end_matches('/');
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    (address.into(), ticket.into())
}

#[test]
fn the_page_is_served_to_all_and_the_api_to_those_who_signed_in() {
    let page = Page::start("");
    let index = page.send("GET /", &[], "");
    assert_eq!(index.status, 200);
    let policy = index.header("content-security-policy").unwrap();
    assert!(
        policy.contains("script-src 'self'") && !policy.contains("unsafe"),
        "{policy}"
    );
    assert_eq!(index.header("x-content-type-options"), Some("nosniff"));
    for path in [
        "/v1/stats",
        "/v1/vgpus",
        "/metrics",
        "/v1/live",
        "/openapi.json",
        "/v1/session",
    ] {
        assert_eq!(
            page.send(&format!("GET {path}"), &[], "").status,
            401,
            "{path}"
        );
    }
    let (cookie, key) = page.sign_in_by_ticket();
    let halves = [("Cookie", cookie.as_str()), ("X-Mica-Page", key.as_str())];
    assert_eq!(page.send("GET /v1/stats", &halves, "").status, 200);
    // The cookie reaches other ports of the host, the key does not: neither is enough.
    assert_eq!(page.send("GET /v1/stats", &halves[..1], "").status, 401);
    assert_eq!(page.send("GET /v1/stats", &halves[1..], "").status, 401);
    let who = page.send("GET /v1/session", &halves, "").json();
    assert_eq!(who["uid"], mica_control::uid());
    assert_eq!(who["admin"], true);
}

#[test]
fn a_session_that_was_signed_out_of_is_over_for_whoever_copied_it() {
    let page = Page::start("");
    let (cookie, key) = page.sign_in_by_ticket();
    let origin = page.origin();
    let headers = [
        ("Cookie", cookie.as_str()),
        ("X-Mica-Page", key.as_str()),
        ("Origin", origin.as_str()),
    ];
    assert_eq!(page.send("GET /v1/stats", &headers, "").status, 200);
    assert_eq!(page.send("DELETE /v1/session", &headers, "").status, 200);
    assert_eq!(page.send("GET /v1/stats", &headers, "").status, 401);
    assert_eq!(page.send("GET /v1/live", &headers, "").status, 401);
}

#[test]
fn a_ticket_is_good_once_and_a_wrong_one_never() {
    let page = Page::start("");
    page.sign_in_by_ticket();
    for ticket in [page.ticket.as_str(), "00", ""] {
        let refused = page.sign_in(&serde_json::json!({ "ticket": ticket }));
        assert_eq!(
            refused.err().map(|answer| answer.status),
            Some(401),
            "{ticket}"
        );
    }
}

#[test]
fn names_of_others_and_requests_of_other_sites_are_refused() {
    let page = Page::start("[dashboard]\nnames = [\"gpu.example\"]\n");
    let (cookie, key) = page.sign_in_by_ticket();
    let halves = [("Cookie", cookie.as_str()), ("X-Mica-Page", key.as_str())];
    let ask = |line: &str, more: &[(&str, &str)]| {
        let headers = [&halves[..], more].concat();
        page.send(line, &headers, "").status
    };
    // DNS rebinding: the browser believes to talk to the attacker's host.
    for (host, status) in [
        ("evil.example", 421),
        ("evil.example:7411", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
        ("localhost:1", 200),
        ("gpu.example", 200),
        ("[::1]:7411", 200),
    ] {
        assert_eq!(ask("GET /v1/stats", &[("Host", host)]), status, "{host}");
    }
    control(page.dir()).create(&spec("a", 64)).unwrap();
    let own = page.origin();
    let suspend = "POST /v1/vgpus/a/suspend";
    for (origin, status) in [
        (None, 403),
        (Some("null"), 403),
        (Some("http://evil.example"), 403),
        (Some("http://127.0.0.1:1"), 403),
        (Some("https://127.0.0.1"), 403),
        (Some(own.as_str()), 200),
    ] {
        let headers: Vec<_> = origin
            .map(|origin| ("Origin", origin))
            .into_iter()
            .collect();
        assert_eq!(ask(suspend, &headers), status, "{origin:?}");
    }
    let cross = [("Origin", own.as_str()), ("Sec-Fetch-Site", "cross-site")];
    assert_eq!(ask(suspend, &cross), 403);
    assert_eq!(
        ask("GET /v1/stats", &[("Sec-Fetch-Site", "same-site")]),
        403
    );
}

#[test]
fn no_path_leads_out_of_the_page() {
    let page = Page::start("");
    for path in [
        "/../etc/passwd",
        "/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/js/../../src/lib.rs",
        "/js/",
        "/index.html",
        "/js/app.js/",
        "/js/app.js%00",
    ] {
        let answer = page.send(&format!("GET {path}"), &[], "");
        assert!(
            matches!(answer.status, 400 | 401 | 404),
            "{path}: {}",
            answer.status
        );
    }
    let large = format!("GET /{}", "x".repeat(64 << 10));
    assert!(matches!(
        page.send(&large, &[], "").status,
        0 | 400 | 414 | 431
    ));
    let body = format!("{{\"ticket\": \"{}\"}}", "x".repeat(128 << 10));
    let answer = page.send("POST /v1/session", &[("Origin", &page.origin())], &body);
    assert_eq!(answer.status, 400, "{}", answer.body);
}

#[test]
fn a_configured_user_sees_and_touches_only_their_own() {
    let token = "f00d";
    let digest = sha256(token);
    let users = format!("users = [{{ name = \"ann\", uid = 54321, token_sha256 = \"{digest}\" }}]");
    let page = Page::start(&format!("[dashboard]\n{users}\n"));
    control(page.dir()).create(&spec("roots", 64)).unwrap();
    let wrong = page.sign_in(&serde_json::json!({ "name": "ann", "token": "beef" }));
    assert_eq!(wrong.err().map(|answer| answer.status), Some(401));
    let right = serde_json::json!({ "name": "ann", "token": token });
    let (cookie, key) = page
        .sign_in(&right)
        .unwrap_or_else(|answer| panic!("{}", answer.body));
    let origin = page.origin();
    let headers = [
        ("Cookie", cookie.as_str()),
        ("X-Mica-Page", key.as_str()),
        ("Origin", origin.as_str()),
    ];
    assert_eq!(page.send("GET /v1/vgpus", &headers, "").body, "[]");
    assert_eq!(page.send("GET /v1/vgpus/roots", &headers, "").status, 404);
    assert_eq!(
        page.send("POST /v1/vgpus/roots/suspend", &headers, "")
            .status,
        404
    );
    assert_eq!(
        page.send("DELETE /v1/vgpus/roots?force=true", &headers, "")
            .status,
        404
    );
    assert_eq!(page.send("POST /v1/shutdown", &headers, "").status, 403);
    let own = r#"{ "name": "own", "memory_limit_bytes": 67108864 }"#;
    assert_eq!(page.send("POST /v1/vgpus", &headers, own).status, 200);
    let listed = page.send("GET /v1/vgpus", &headers, "").json();
    assert_eq!(listed[0]["owner_uid"], 54321);
    assert_eq!(listed.as_array().map(Vec::len), Some(1));
    // Scripts send the token itself, and need no origin.
    let bearer = format!("Bearer {token}");
    let answer = page.send("GET /v1/vgpus", &[("Authorization", &bearer)], "");
    assert_eq!(answer.json().as_array().map(Vec::len), Some(1));
    assert_eq!(
        page.send("GET /v1/vgpus", &[("Authorization", "Bearer beef")], "")
            .status,
        401
    );
}

/// The stream of what an open page is told; `headers` are further ones of the request.
fn open_live(page: &Page, cookie: &str, key: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(&page.address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let request = format!(
        "GET /v1/live HTTP/1.1\r\nHost: {}\r\nCookie: {cookie}\r\nX-Mica-Page: {key}\r\n{headers}\r\n",
        page.address
    );
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

#[test]
fn an_open_page_is_told_figures_and_turns() {
    let page = Page::start("");
    let (cookie, key) = page.sign_in_by_ticket();
    let mut stream = open_live(&page, &cookie, &key, "");
    let mut seen = String::new();
    let mut bytes = [0; 4096];
    let whole = |seen: &str| {
        [
            "event: turns",
            "event: stats",
            "event: event",
            "later was created",
        ]
        .iter()
        .all(|words| seen.contains(words))
    };
    let begun = std::time::Instant::now();
    let mut is_created = false;
    while !whole(&seen) {
        let count = stream.read(&mut bytes).unwrap();
        assert!(count > 0 && begun.elapsed().as_secs() < 120, "{seen}");
        seen += &String::from_utf8_lossy(&bytes[..count]);
        // A page is told of what happens after it was opened.
        if !is_created && seen.contains("event: stats") {
            is_created = true;
            control(page.dir()).create(&spec("later", 64)).unwrap();
        }
    }
}

#[test]
fn an_open_page_is_told_nothing_after_it_was_signed_out_of() {
    let page = Page::start("");
    let (cookie, key) = page.sign_in_by_ticket();
    let mut stream = open_live(&page, &cookie, &key, "Connection: close\r\n");
    let mut bytes = [0; 4096];
    assert!(stream.read(&mut bytes).unwrap() > 0);
    let origin = page.origin();
    let headers = [
        ("Cookie", cookie.as_str()),
        ("X-Mica-Page", key.as_str()),
        ("Origin", origin.as_str()),
    ];
    assert_eq!(page.send("DELETE /v1/session", &headers, "").status, 200);
    let begun = std::time::Instant::now();
    while stream.read(&mut bytes).unwrap() > 0 {
        assert!(begun.elapsed().as_secs() < 60, "the stream goes on");
    }
}

/// The status of the answer that a stream begins with.
fn status(stream: &mut TcpStream) -> u16 {
    let mut bytes = [0; 64];
    let count = stream.read(&mut bytes).unwrap_or(0);
    let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
    text.split(' ')
        .nth(1)
        .and_then(|s| s.parse().ok())
        .unwrap_or(0)
}

#[test]
fn a_user_with_many_connections_leaves_places_to_others() {
    let token = "connections-0123456789";
    let page = Page::start(&format!(
        "[dashboard]\nusers = [{{ name = \"ann\", uid = 4242, token_sha256 = \"{}\" }}]\n",
        sha256(token)
    ));
    let ann = format!("Authorization: Bearer {token}\r\n");
    let mut open: Vec<TcpStream> = (0..64).map(|_| open_live(&page, "", "", &ann)).collect();
    for stream in &mut open {
        assert_eq!(status(stream), 200);
    }
    assert_eq!(status(&mut open_live(&page, "", "", &ann)), 429);
    let (cookie, key) = page.sign_in_by_ticket();
    assert_eq!(status(&mut open_live(&page, &cookie, &key, "")), 200);
    drop(open.pop());
    let begun = std::time::Instant::now();
    while status(&mut open_live(&page, "", "", &ann)) != 200 {
        assert!(begun.elapsed().as_secs() < 60, "a place is not given back");
    }
}

#[test]
fn connections_that_say_nothing_keep_nobody_out() {
    let page = Page::start("");
    let (cookie, key) = page.sign_in_by_ticket();
    let mut live = open_live(&page, &cookie, &key, "");
    assert_eq!(status(&mut live), 200);
    let silent: Vec<_> = (0..300)
        .filter_map(|_| TcpStream::connect(&page.address).ok())
        .collect();
    assert_eq!(silent.len(), 300);
    assert_eq!(page.send("GET /", &[], "").status, 200);
    // The page that was open before still is.
    let mut bytes = [0; 4096];
    assert!(live.read(&mut bytes).unwrap() > 0);
}

#[test]
fn metrics_are_served_to_whoever_has_the_token() {
    let port = free_port();
    let digest = sha256("s3cret");
    let more = format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\ntoken_sha256 = [\"{digest}\"]\n");
    let mut page = Page::start(&more);
    page.address = format!("127.0.0.1:{port}");
    control(page.dir()).create(&spec("a", 64)).unwrap();
    assert_eq!(page.send("GET /metrics", &[], "").status, 401);
    let wrong = [("Authorization", "Bearer wrong")];
    assert_eq!(page.send("GET /metrics", &wrong, "").status, 401);
    let right = [("Authorization", "Bearer s3cret")];
    let older = page.send("GET /metrics", &right, "");
    assert_eq!(older.status, 200);
    assert!(
        older
            .body
            .contains("mica_vgpu_memory_limit_bytes{vgpu=\"a\""),
        "{}",
        older.body
    );
    assert!(!older.body.contains("# EOF"));
    // A start that seemed to move would look like a restart.
    let start = |answer: &Answer| {
        let mut lines = answer.body.lines().map(str::to_owned);
        lines.find(|line| line.starts_with("mica_daemon_start_time_seconds "))
    };
    assert!(start(&older).is_some());
    assert_eq!(start(&older), start(&page.send("GET /metrics", &right, "")));
    let accept = [
        right[0],
        ("Accept", "application/openmetrics-text;version=1.0.0"),
    ];
    let open = page.send("GET /metrics", &accept, "");
    assert!(
        open.header("content-type")
            .unwrap()
            .starts_with("application/openmetrics-text")
    );
    assert!(open.body.contains("# EOF"));
    // Nothing else is behind this door.
    assert_eq!(page.send("GET /v1/stats", &right, "").status, 404);
}

#[test]
fn a_page_that_is_off_is_refused_with_the_key_to_change() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start_with(dir.path(), "[dashboard]\nlisten = \"off\"\n");
    let refused = control(dir.path()).dashboard().unwrap_err();
    assert_eq!(refused.reason(), Some("config"));
    assert!(
        refused.to_string().contains("[dashboard] listen"),
        "{refused}"
    );
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn sha256(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
