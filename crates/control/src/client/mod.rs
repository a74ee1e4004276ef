//! A blocking client of the control API, for the command line and tests.
//!
//! Plain HTTP/1.1 on a unix socket, one connection per request: the daemon is on this host, and a tool
//! that asks one question should not carry an HTTP stack.

mod answer;
mod regions;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::{
    AccountBy, ApiError, Cancelled, ContainerSocket, ContainerSocketSpec, Created, Dashboard,
    Doctor, Done, Event, GpuInfo, History, LinkReport, MemoryMap, Migration, ProgramReport, Resize,
    SetProfile, SnapshotFile, Stats, Timelines, Turns, UsageReport, VgpuInfo, VgpuProfile,
    VgpuSpec,
};
use answer::{ANSWER_LIMIT, Body, read_answer};

/// Why a question got no answer.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No daemon listens.
    #[error("no Mica daemon answers at {path}")]
    Unreachable {
        /// Its socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Somebody else listens where a daemon should.
    #[error(
        "user {uid} listens at {path}, neither root nor this user: it is not taken for a Mica daemon"
    )]
    Stranger {
        /// The socket.
        path: PathBuf,
        /// Who listens.
        uid: u32,
    },
    /// The connection broke.
    #[error("the connection to the Mica daemon broke")]
    Broken(#[source] std::io::Error),
    /// The answer made no sense.
    #[error("the Mica daemon's answer cannot be understood: {0}")]
    Malformed(String),
    /// The daemon said no.
    #[error("{}", .0.error)]
    Refused(ApiError),
}

impl ControlError {
    /// Whether no daemon is there, so that one may be started.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }

    /// The daemon's word for its refusal.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Refused(refusal) => Some(&refusal.reason),
            _ => None,
        }
    }
}

/// Talks to one daemon.
#[derive(Clone, Debug)]
pub struct ControlClient {
    socket: PathBuf,
    timeout: Duration,
}

impl ControlClient {
    /// A client of the daemon at this socket; nothing is connected yet.
    pub fn new(control_socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: control_socket.into(),
            timeout: Duration::from_secs(30),
        }
    }

    /// The same with another longest wait for an answer.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The socket it talks to.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Makes a virtual GPU.
    pub fn create(&self, spec: &VgpuSpec) -> Result<Created, ControlError> {
        self.json("POST", "/v1/vgpus", Some(spec))
    }

    /// All virtual GPUs the caller may see.
    pub fn list(&self) -> Result<Vec<VgpuInfo>, ControlError> {
        self.json("GET", "/v1/vgpus", NOTHING)
    }

    /// One virtual GPU.
    pub fn get(&self, name: &str) -> Result<VgpuInfo, ControlError> {
        self.json("GET", &vgpu_path(name, ""), NOTHING)
    }

    /// The last ten minutes of one virtual GPU.
    pub fn history(&self, name: &str) -> Result<History, ControlError> {
        self.json("GET", &vgpu_path(name, "/history"), NOTHING)
    }

    /// What was measured in a span of time, of one virtual GPU and all GPUs, or of all.
    pub fn timelines(&self, span: &Span, name: Option<&str>) -> Result<Timelines, ControlError> {
        let path = format!("/v1/history?{}{}", span.query(), of_vgpu(name));
        self.json("GET", &path, NOTHING)
    }

    /// What was used in a span of time, by account.
    pub fn usage(&self, span: &Span, by: AccountBy) -> Result<UsageReport, ControlError> {
        let by = match by {
            AccountBy::User => "user",
            AccountBy::Vgpu => "vgpu",
            AccountBy::Container => "container",
        };
        let path = format!("/v1/usage?{}&by={by}", span.query());
        self.json("GET", &path, NOTHING)
    }

    /// What a program needs to join.
    pub fn join(&self, name: &str) -> Result<Created, ControlError> {
        self.json("POST", &vgpu_path(name, "/join"), NOTHING)
    }

    /// As `join`, for a tool that tests the limits: its failures are not events of the tenant.
    pub fn join_as_probe(&self, name: &str) -> Result<Created, ControlError> {
        self.json("POST", &vgpu_path(name, "/join?probe=true"), NOTHING)
    }

    /// Tells of the start or the end of a program in it.
    pub fn report(&self, name: &str, report: &ProgramReport) -> Result<Done, ControlError> {
        self.json("POST", &vgpu_path(name, "/programs"), Some(report))
    }

    /// Tells what the way to its programs is like.
    pub fn report_link(&self, name: &str, report: &LinkReport) -> Result<Done, ControlError> {
        self.json("POST", &vgpu_path(name, "/link"), Some(report))
    }

    /// Changes limits while it runs.
    pub fn resize(&self, name: &str, change: &Resize) -> Result<VgpuInfo, ControlError> {
        self.json("PATCH", &vgpu_path(name, ""), Some(change))
    }

    /// Removes it; with `force`, ends what runs in it.
    pub fn remove(&self, name: &str, force: bool) -> Result<Done, ControlError> {
        let query = if force { "?force=true" } else { "" };
        self.json("DELETE", &vgpu_path(name, query), NOTHING)
    }

    /// Holds its processes.
    pub fn suspend(&self, name: &str) -> Result<VgpuInfo, ControlError> {
        self.json("POST", &vgpu_path(name, "/suspend"), NOTHING)
    }

    /// Holds its processes and has its memory leave the GPU, if it is swappable.
    pub fn suspend_and_free(&self, name: &str) -> Result<VgpuInfo, ControlError> {
        self.json("POST", &vgpu_path(name, "/suspend?free=true"), NOTHING)
    }

    /// Lets its processes run again.
    pub fn resume(&self, name: &str) -> Result<VgpuInfo, ControlError> {
        self.json("POST", &vgpu_path(name, "/resume"), NOTHING)
    }

    /// Saves it to a file that was lent to the daemon under this name; its program waits from then on.
    pub fn snapshot(&self, name: &str, file: &SnapshotFile) -> Result<VgpuInfo, ControlError> {
        self.json("POST", &vgpu_path(name, "/snapshot"), Some(file))
    }

    /// Moves it to another GPU; its program waits meanwhile. One that waits since an earlier move goes on.
    pub fn migrate(&self, name: &str, gpu: u32) -> Result<VgpuInfo, ControlError> {
        let migration = Migration { gpu };
        self.json("POST", &vgpu_path(name, "/migrate"), Some(&migration))
    }

    /// Restores it from a file that was lent to the daemon under this name; its program goes on.
    pub fn restore(&self, name: &str, file: &SnapshotFile) -> Result<VgpuInfo, ControlError> {
        self.json("POST", &vgpu_path(name, "/restore"), Some(file))
    }

    /// Where its memory is, piece by piece.
    pub fn memory(&self, name: &str) -> Result<MemoryMap, ControlError> {
        self.json("GET", &vgpu_path(name, "/memory"), NOTHING)
    }

    /// What ran in it for how long, since its profile began.
    pub fn profile(&self, name: &str) -> Result<VgpuProfile, ControlError> {
        self.json("GET", &vgpu_path(name, "/profile"), NOTHING)
    }

    /// Begins or ends its profile.
    pub fn set_profile(
        &self,
        name: &str,
        change: &SetProfile,
    ) -> Result<VgpuProfile, ControlError> {
        self.json("POST", &vgpu_path(name, "/profile"), Some(change))
    }

    /// Gives back memory that its workers keep for later; where its memory is afterwards.
    pub fn compact(&self, name: &str) -> Result<MemoryMap, ControlError> {
        self.json("POST", &vgpu_path(name, "/memory/compact"), NOTHING)
    }

    /// Ends its running and queued kernels.
    pub fn cancel(&self, name: &str) -> Result<Cancelled, ControlError> {
        self.json("POST", &vgpu_path(name, "/cancel"), NOTHING)
    }

    /// Makes a socket for containers, or finds the one there is.
    pub fn container_socket(
        &self,
        spec: &ContainerSocketSpec,
    ) -> Result<ContainerSocket, ControlError> {
        self.json("POST", "/v1/container-sockets", Some(spec))
    }

    /// The caller's sockets for containers; all of them for an administrator.
    pub fn container_sockets(&self) -> Result<Vec<ContainerSocket>, ControlError> {
        self.json("GET", "/v1/container-sockets", NOTHING)
    }

    /// Removes a socket for containers; those that use it keep what they have until they end.
    pub fn remove_container_socket(
        &self,
        name: &str,
        makes_new: bool,
    ) -> Result<Done, ControlError> {
        let path = format!(
            "/v1/container-sockets/{}?makes_new={makes_new}",
            escape(name)
        );
        self.json("DELETE", &path, NOTHING)
    }

    /// The host's GPUs.
    pub fn gpus(&self) -> Result<Vec<GpuInfo>, ControlError> {
        self.json("GET", "/v1/gpus", NOTHING)
    }

    /// Everything in one answer.
    pub fn stats(&self) -> Result<Stats, ControlError> {
        self.json("GET", "/v1/stats", NOTHING)
    }

    /// What is in force and how that is known; for one virtual GPU or all.
    pub fn doctor(&self, name: Option<&str>) -> Result<Doctor, ControlError> {
        match name {
            Some(name) => self.json("GET", &format!("/v1/doctor?vgpu={}", escape(name)), NOTHING),
            None => self.json("GET", "/v1/doctor", NOTHING),
        }
    }

    /// The turns of a GPU that changed after the `next` of an earlier answer; 0 for all that are remembered.
    pub fn turns(&self, gpu: u32, after: u64) -> Result<Turns, ControlError> {
        self.json(
            "GET",
            &format!("/v1/gpus/{gpu}/turns?after={after}"),
            NOTHING,
        )
    }

    /// The address of the web page, with a ticket for the caller; starts serving the page if needed.
    pub fn dashboard(&self) -> Result<Dashboard, ControlError> {
        self.json("POST", "/v1/dashboard", NOTHING)
    }

    /// Ends the daemon; programs run on.
    pub fn shutdown(&self) -> Result<Done, ControlError> {
        self.json("POST", "/v1/shutdown", NOTHING)
    }

    /// Reads the configuration again.
    pub fn reload(&self) -> Result<Done, ControlError> {
        self.json("POST", "/v1/reload", NOTHING)
    }

    /// The metrics as OpenMetrics text, which Prometheus reads.
    pub fn metrics(&self) -> Result<String, ControlError> {
        let mut body = String::new();
        let mut reader = self.request("GET", "/metrics", None, Some(self.timeout))?;
        reader
            .read_to_string(&mut body)
            .map_err(ControlError::Broken)?;
        Ok(body)
    }

    /// Events that have happened and are still remembered, oldest first.
    pub fn past_events(&self) -> Result<Vec<Event>, ControlError> {
        self.past_events_of(None)
    }

    /// The same, of one virtual GPU or of all.
    pub fn past_events_of(&self, name: Option<&str>) -> Result<Vec<Event>, ControlError> {
        let path = format!("/v1/events?follow=false{}", of_vgpu(name));
        self.json("GET", &path, NOTHING)
    }

    /// Events from the one after `after` on, as they happen; ends with the daemon.
    pub fn events(&self, after: Option<u64>) -> Result<Events, ControlError> {
        self.events_of(after, None)
    }

    /// The same, of one virtual GPU or of all.
    pub fn events_of(
        &self,
        after: Option<u64>,
        name: Option<&str>,
    ) -> Result<Events, ControlError> {
        let after = after.map_or_else(String::new, |after| format!("&after={after}"));
        let path = format!("/v1/events?follow=true{after}{}", of_vgpu(name));
        let reader = self.request("GET", &path, None, None)?;
        Ok(Events(BufReader::new(reader)))
    }

    fn json<Q: Serialize, A: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        question: Option<&Q>,
    ) -> Result<A, ControlError> {
        let body = match question {
            Some(question) => Some(
                serde_json::to_vec(question)
                    .map_err(|error| ControlError::Malformed(error.to_string()))?,
            ),
            None => None,
        };
        let reader = self.request(method, path, body.as_deref(), Some(self.timeout))?;
        let mut answer = Vec::new();
        reader
            .take(ANSWER_LIMIT)
            .read_to_end(&mut answer)
            .map_err(ControlError::Broken)?;
        serde_json::from_slice(&answer).map_err(|error| ControlError::Malformed(error.to_string()))
    }

    /// Sends a request; the reader is the body of a successful answer.
    fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
        timeout: Option<Duration>,
    ) -> Result<Body, ControlError> {
        let mut stream =
            UnixStream::connect(&self.socket).map_err(|source| ControlError::Unreachable {
                path: self.socket.clone(),
                source,
            })?;
        if let Some(uid) = crate::start::stranger(&stream, &self.socket) {
            let path = self.socket.clone();
            return Err(ControlError::Stranger { path, uid });
        }
        stream
            .set_read_timeout(timeout)
            .map_err(ControlError::Broken)?;
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nHost: mica\r\nConnection: close\r\nAccept: */*\r\n"
        );
        if let Some(body) = body {
            head.push_str(&format!(
                "Content-Type: application/json\r\nContent-Length: {}\r\n",
                body.len()
            ));
        } else if method != "GET" {
            head.push_str("Content-Length: 0\r\n");
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body.unwrap_or_default());
        stream.write_all(&bytes).map_err(ControlError::Broken)?;
        read_answer(stream)
    }
}

const NOTHING: Option<&()> = None;

/// A span of time in the history of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Begin, in seconds since the epoch.
    pub since_seconds: u64,
    /// End, in seconds since the epoch; now where there is none.
    pub until_seconds: Option<u64>,
    /// Distance of two points; chosen by the daemon where there is none.
    pub step_seconds: Option<u32>,
}

impl Span {
    fn query(&self) -> String {
        let mut query = format!("since={}", self.since_seconds);
        if let Some(until) = self.until_seconds {
            query += &format!("&until={until}");
        }
        if let Some(step) = self.step_seconds {
            query += &format!("&step={step}");
        }
        query
    }
}

/// The part of a query that names a virtual GPU.
fn of_vgpu(name: Option<&str>) -> String {
    name.map_or_else(String::new, |name| format!("&vgpu={}", escape(name)))
}

fn vgpu_path(name: &str, rest: &str) -> String {
    format!("/v1/vgpus/{}{rest}", escape(name))
}

/// Percent-encodes what may not stand in a path or query.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// A stream of events.
#[derive(Debug)]
pub struct Events(BufReader<Body>);

impl Iterator for Events {
    type Item = Result<Event, ControlError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut line = String::new();
        loop {
            line.clear();
            match self.0.read_line(&mut line) {
                Ok(0) => return None,
                Ok(_) => {
                    if let Some(data) = line.trim_end().strip_prefix("data:") {
                        return Some(
                            serde_json::from_str(data.trim_start())
                                .map_err(|error| ControlError::Malformed(error.to_string())),
                        );
                    }
                }
                // A daemon that ends takes its streams with it.
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return None,
                Err(error) => return Some(Err(ControlError::Broken(error))),
            }
        }
    }
}
