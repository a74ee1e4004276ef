//! What the daemon says about the virtual GPU this process is in.
//!
//! One connection, opened when it is needed and again when the daemon was replaced. Answers are kept
//! for a moment: tools ask dozens of questions in a row, and all should see one picture. Waiting is
//! bounded, so a daemon that hangs makes a tool slow and never stuck.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mica_control::api::{GpuKind, ProcessInfo, VgpuInfo};
use mica_limits::Environment;
use mica_wire::host::frame::Packet;
use mica_wire::host::message::{ClientMessage, DaemonMessage, Role};
use mica_wire::host::socket::HostSocket;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

/// How long a picture is used.
const FRESH: Duration = Duration::from_millis(100);
/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// More than any description has.
const MOST_BYTES: usize = 1 << 20;

/// A process in the virtual GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct VgpuProcess {
    /// Its number.
    pub(crate) pid: u32,
    /// Its memory.
    pub(crate) memory_used_bytes: u64,
    /// Percent of the GPU's time.
    pub(crate) utilization_percent: f64,
    /// Its command.
    pub(crate) name: String,
}

/// The virtual GPU at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Picture {
    /// Its name.
    pub(crate) name: String,
    /// Whether it is a part of the software GPU.
    pub(crate) software: bool,
    /// Index of its physical GPU.
    pub(crate) gpu: u32,
    /// UUID of its physical GPU, where the daemon tells.
    pub(crate) gpu_uuid: Option<String>,
    /// Its memory.
    pub(crate) memory_limit_bytes: u64,
    /// What of it is in use.
    pub(crate) memory_used_bytes: u64,
    /// Percent of the GPU's time it had.
    pub(crate) utilization_percent: f64,
    /// Its processes.
    pub(crate) processes: Vec<VgpuProcess>,
}

impl Picture {
    /// Reads the daemon's description; `None` for what is none. The bytes are foreign: `serde_json` bounds their
    /// depth and panics on nothing.
    fn from_json(text: &str) -> Option<Self> {
        let info: VgpuInfo = serde_json::from_str(text).ok()?;
        if info.name.is_empty() {
            return None;
        }
        // Programs served by a worker are listed beside it; its memory is theirs.
        let shown = info.processes.into_iter().filter(|p| p.role != "monitor");
        Some(Self {
            name: info.name,
            software: info.gpu_kind == GpuKind::Software,
            gpu: info.gpu,
            gpu_uuid: Some(info.gpu_uuid).filter(|uuid| !uuid.is_empty()),
            memory_limit_bytes: info.memory_limit_bytes,
            memory_used_bytes: info.memory_used_bytes,
            utilization_percent: info.share_measured_percent.clamp(0.0, 100.0),
            processes: shown.map(VgpuProcess::from).collect(),
        })
    }
}

impl From<ProcessInfo> for VgpuProcess {
    fn from(info: ProcessInfo) -> Self {
        Self {
            pid: info.pid,
            memory_used_bytes: info.memory_used_bytes,
            utilization_percent: info.utilization_percent.clamp(0.0, 100.0),
            name: info.name,
        }
    }
}

/// The way to the daemon.
#[derive(Debug)]
pub(crate) struct Vgpu {
    environment: Environment,
    link: Mutex<Link>,
}

#[derive(Debug, Default)]
struct Link {
    /// The process that opened it: a child after a fork opens its own.
    pid: u32,
    socket: Option<HostSocket>,
    picture: Option<(Instant, Picture)>,
}

impl Vgpu {
    pub(crate) fn new(environment: Environment) -> Self {
        Self {
            environment,
            link: Mutex::default(),
        }
    }

    /// The virtual GPU now; as it was last seen while the daemon is away; `None` if never seen.
    pub(crate) fn picture(&self) -> Option<Picture> {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if link.pid != std::process::id() {
            *link = Link {
                pid: std::process::id(),
                picture: link.picture.take(),
                socket: None,
            };
        }
        if let Some((taken, picture)) = &link.picture
            && taken.elapsed() < FRESH
        {
            return Some(picture.clone());
        }
        // A kept connection may have died with the last daemon: try once more with a new one.
        let had_socket = link.socket.is_some();
        let mut asked = self.ask(&mut link);
        if asked.is_none() && had_socket {
            asked = self.ask(&mut link);
        }
        if let Some(picture) = asked {
            link.picture = Some((Instant::now(), picture));
        }
        link.picture.as_ref().map(|(_, picture)| picture.clone())
    }

    fn ask(&self, link: &mut Link) -> Option<Picture> {
        if link.socket.is_none() {
            link.socket = self.connect();
        }
        let text = link.socket.as_ref().and_then(describe);
        if text.is_none() {
            link.socket = None;
        }
        Picture::from_json(&text?)
    }

    fn connect(&self) -> Option<HostSocket> {
        let socket = HostSocket::connect(&self.environment.socket).ok()?;
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, direction, Some(PATIENCE)).ok()?;
        }
        let hello = ClientMessage::hello(Role::Monitor, self.environment.token);
        socket.send(&hello, &[]).ok()?;
        let (answer, _fds) = socket.receive().ok()?;
        let welcomed = matches!(answer.read(), Ok(DaemonMessage::Welcome { .. }));
        welcomed.then_some(socket)
    }
}

/// Asks for the description and puts its pieces together.
fn describe(socket: &HostSocket) -> Option<String> {
    let question = ClientMessage::AskStats {}.frame(1);
    socket.send_frame(&question, &[]).ok()?;
    let mut bytes = Vec::new();
    loop {
        let (frame, _fds) = socket.receive().ok()?;
        let (piece, rest_bytes) = match frame.read().ok()? {
            DaemonMessage::Stats { piece, rest_bytes } => (piece, rest_bytes),
            // A daemon may push news to everybody; it is not for a tool that only looks.
            _ if frame.id() == 0 => continue,
            _ => return None,
        };
        bytes.extend(piece);
        if rest_bytes == 0 {
            return String::from_utf8(bytes).ok();
        }
        if bytes.len() > MOST_BYTES {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_becomes_a_picture() {
        let text = r#"{"name":"blue","gpu":1,"gpu_kind":"nvidia","memory_limit_bytes":1000,
            "memory_used_bytes":300,"share_measured_percent":29.6,"processes":[
            {"pid":7,"name":"python","role":"direct","memory_used_bytes":300,"utilization_percent":29}]}"#;
        let picture = Picture::from_json(text).expect("it is a description");
        assert!(!picture.software);
        assert_eq!((picture.gpu, picture.memory_limit_bytes), (1, 1000));
        assert_eq!(picture.utilization_percent, 29.6);
        assert_eq!(picture.processes[0].pid, 7);
        assert_eq!(picture.processes[0].utilization_percent, 29.0);
    }

    #[test]
    fn what_is_no_description_is_no_picture() {
        let whole = r#"{"name":"blue","processes":[{"pid":7}]}"#;
        assert!(Picture::from_json(whole).is_some());
        for cut in 0..whole.len() {
            assert_eq!(Picture::from_json(&whole[..cut]), None);
        }
        for text in ["null", "{}", "[]", r#"{"name":7}"#, &"[".repeat(100_000)] {
            assert_eq!(Picture::from_json(text), None);
        }
    }
}
