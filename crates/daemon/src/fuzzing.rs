//! Entry points for fuzzing: a daemon that answers any bytes, without its sockets.
//!
//! Everything behind the sockets is the real thing; only what would leave the process (workers) is
//! not configured.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use mica_control::Paths;
use mica_control::api::{GpuKind, Mode, OnFull, VgpuSpec};
use mica_limits::SharedPage;
use mica_wire::host::frame::{FRAME_BYTES, Frame};
use mica_wire::host::socket::HostSocket;
use rustix::net::{SendFlags, send};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::config::Config;
use crate::containers::{container_in, name_in, words_of_monitor};
use crate::daemon::Daemon;
use crate::devices::{DeviceFacts, DeviceReading, Devices, ProcessReading};
use crate::history::History;
use crate::host::{HostServer, PeerSocket, session_pair};
use crate::http;
use crate::journal::Journal;
use crate::registry::{Registry, WorkerSlot};
use crate::running::start_gpus;

const LIMIT_BYTES: u64 = 256 << 20;

/// Reads any bytes as a record of the kernel's log, and compares the place of the GPU in it with any other.
pub fn kernel_log_record(record: &[u8]) {
    let bus_id = String::from_utf8_lossy(record);
    if let Some(fault) = crate::kernel_log::parse(record) {
        assert!(fault.pci.len() <= 16);
        crate::kernel_log::is_at(&fault.pci, &bus_id);
    }
    crate::kernel_log::is_at(&bus_id, &bus_id);
}

/// Process number of the fuzzer's connections, which no process has.
pub(crate) const NOBODY: u32 = i32::MAX as u32;

/// A card, so that virtual GPUs can have either mode.
struct Card;

impl Devices for Card {
    fn list(&mut self) -> Vec<DeviceFacts> {
        vec![DeviceFacts {
            kind: GpuKind::Nvidia,
            name: "card".into(),
            uuid: "GPU-1".into(),
            software_number: 0,
            memory_total_bytes: 64 << 30,
            driver: None,
        }]
    }

    fn read(&mut self, _: usize) -> Option<DeviceReading> {
        None
    }

    fn processes(&mut self, _: usize) -> Vec<ProcessReading> {
        Vec::new()
    }
}

/// Opens a history one of whose files has these bytes (the first byte says which), adds to it, and asks it. After `p`:
/// records without the checks of a file.
pub fn history(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else {
        return;
    };
    if *which == b'p' {
        return crate::history::fuzz_packed(bytes);
    }
    let name = ["fine", "coarse", "series"][usize::from(which % 3)];
    let dir = std::env::temp_dir().join(format!("mica-fuzz-history-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let files = dir.join("history");
    let made = mica_control::files::make_directory(&files, 0o700);
    if made.is_err() || std::fs::write(files.join(name), bytes).is_err() {
        return;
    }
    let (history, _) = History::open(&dir);
    history.fuzz();
    let _ = std::fs::remove_dir_all(&dir);
}

/// Any bytes as what tells of containers. What is found is short and of plain characters.
pub fn containers(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(found) = container_in(&text, "0::/") {
        let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        assert!(found.id.chars().all(good), "{found:?}");
    }
    let _ = words_of_monitor(bytes);
    let _ = name_in(bytes);
}

/// What opens a virtual GPU.
struct Tokens {
    token: [u8; 16],
    worker_token: [u8; 16],
}

/// First byte of a frame with a hello, and where its token is.
const HELLO: u8 = 1;
const TOKEN: std::ops::Range<usize> = 40..56;

/// Bit of a message's first byte: any bytes of any length are sent, not a frame.
const RAW: u8 = 0x40;
/// Bit of a message's first byte: a new connection is a worker's, not a program's.
const WORKER: u8 = 0x80;

/// The server of connections, and who is connected.
struct Fed<'a> {
    server: &'a mut HostServer,
    peers: [Option<(u64, HostSocket)>; 4],
    tokens: [Option<[u8; 16]>; 4],
}

impl Fed<'_> {
    /// Sends one message, and has the server read it. Whether there was a connection for it.
    fn message(&mut self, choice: u8, body: &[u8]) -> bool {
        let mut frame = [0; FRAME_BYTES];
        let whole = body.len().min(FRAME_BYTES);
        frame[..whole].copy_from_slice(&body[..whole]);
        if let (Some(token), HELLO) = (self.tokens[usize::from(choice >> 2 & 3)], frame[0]) {
            frame[TOKEN].copy_from_slice(&token);
        }
        let peer = &mut self.peers[usize::from(choice & 3)];
        if peer.is_none() {
            let door = match choice & WORKER {
                0 => PeerSocket::Programs,
                _ => PeerSocket::Workers,
            };
            *peer = self.server.adopt_pair(door);
        }
        let Some((number, socket)) = peer else {
            return false;
        };
        let sent = match choice & RAW {
            0 => send_with(socket, &Frame::from_bytes(frame), choice >> 4 & 3),
            _ => send(socket, body, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok(),
        };
        if sent {
            self.server.readable(*number);
        }
        if !self.server.has(*number) {
            *peer = None;
        }
        true
    }
}

/// A daemon to be fed.
pub struct Target {
    daemon: Arc<Daemon>,
    runtime: tokio::runtime::Runtime,
    folder: std::path::PathBuf,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target").finish_non_exhaustive()
    }
}

impl Target {
    /// A daemon with a card and its state in a folder of its own.
    ///
    /// # Errors
    /// If the system refuses a folder or a thread.
    pub fn new() -> std::io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let name = format!("mica-fuzz-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(folder.join("state"))?;
        std::fs::create_dir_all(folder.join("run"))?;
        let mut config = Config::default();
        config.daemon.worker_command = vec!["/nonexistent/worker".into()];
        let gpus = start_gpus(&mut Card, &config);
        let gpus = gpus.map_err(std::io::Error::other)?;
        let paths = Paths::under(&folder);
        let (journal, _) = Journal::open(&paths.journal_file())?;
        let registry = Registry::new(Arc::new(config), gpus, Arc::new(journal));
        let daemon = Daemon::new(paths, None, false, registry, History::default())?;
        Ok(Self {
            daemon: Arc::new(daemon),
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?,
            folder,
        })
    }

    /// Any bytes as what a client of the control API sends; the first one chooses the user.
    pub fn control(&self, bytes: &[u8]) {
        let Some((user, bytes)) = bytes.split_first() else {
            return;
        };
        let uid = match user % 2 {
            0 => mica_control::uid(),
            _ => 65_534,
        };
        self.runtime.block_on(async {
            let (client, server) = tokio::io::duplex(1 << 20);
            let served = http::serve_one(self.daemon.clone(), server, uid);
            tokio::join!(served, ask(client, bytes));
        });
        self.clear();
    }

    /// Any bytes as what a browser sends to the web page.
    pub fn web(&self, bytes: &[u8]) {
        self.runtime.block_on(async {
            let (client, server) = tokio::io::duplex(1 << 20);
            let served = crate::web::serve_one(self.daemon.clone(), server);
            let asked = async {
                let answer = ask(client, bytes).await;
                // Nobody can have signed in.
                let text = String::from_utf8_lossy(&answer);
                assert!(!text.to_ascii_lowercase().contains("set-cookie"), "{text}");
            };
            tokio::join!(served, asked);
        });
        assert!(self.daemon.registry().vgpus.is_empty(), "made by nobody");
    }

    /// Any bytes as messages of programs and workers. Each message is preceded by a byte that chooses
    /// its connection, its token, its descriptor and its length.
    pub fn host(&self, bytes: &[u8]) {
        let (Ok((listener, _listened)), Ok((workers, _workers))) = (session_pair(), session_pair())
        else {
            return;
        };
        let (Some(direct), Some(isolated)) = (self.make(Mode::Direct), self.make(Mode::Isolated))
        else {
            return;
        };
        let Ok(mut server) = HostServer::new(self.daemon.clone(), listener, workers) else {
            return;
        };
        let mut fed = Fed {
            server: &mut server,
            peers: Default::default(),
            tokens: [
                None,
                Some(direct.token),
                Some(isolated.worker_token),
                Some(isolated.token),
            ],
        };
        let mut rest = bytes;
        while let Some((choice, after)) = rest.split_first() {
            let length = after.len().min(match choice & RAW {
                0 => FRAME_BYTES,
                _ => usize::from(after.first().copied().unwrap_or(0)) + 1,
            });
            let (body, after) = after.split_at(length);
            rest = after;
            if !fed.message(*choice, body) {
                return;
            }
            self.check();
        }
        drop(fed);
        server.close_all();
        self.check_nothing_is_held();
        self.clear();
    }

    fn check_nothing_is_held(&self) {
        let registry = self.daemon.registry();
        for vgpu in registry.vgpus.values() {
            for ledger in [&vgpu.ledger, &vgpu.host_ledger] {
                assert_eq!(ledger.used_bytes(), 0, "the dead hold nothing");
                assert_eq!(ledger.granted_bytes(), 0);
            }
        }
        assert!(registry.clients.is_empty());
    }

    /// A virtual GPU, whose worker is taken to be the process of the fuzzer's connections.
    fn make(&self, mode: Mode) -> Option<Tokens> {
        let mut registry = self.daemon.registry();
        let spec = VgpuSpec {
            mode: Some(mode),
            memory_limit_bytes: Some(LIMIT_BYTES),
            share_percent: Some(50.into()),
            allow_degraded: true,
            on_full: OnFull::Wait { timeout_ms: 1 },
            ..VgpuSpec::default()
        };
        let made = registry.create(spec, mica_control::uid(), None).ok()?;
        let name = made.name.clone();
        let vgpu = registry.vgpu_mut(&name).ok()?;
        let mut slot = WorkerSlot::of(None);
        slot.pid = Some(NOBODY);
        vgpu.workers.insert(0, slot);
        Some(Tokens {
            token: vgpu.token,
            worker_token: vgpu.worker_token,
        })
    }

    fn check(&self) {
        for vgpu in self.daemon.registry().vgpus.values() {
            for ledger in [&vgpu.ledger, &vgpu.host_ledger] {
                assert!(ledger.granted_bytes() <= ledger.limit_bytes());
            }
        }
    }

    fn clear(&self) {
        let mut registry = self.daemon.registry();
        let names: Vec<String> = registry.vgpus.keys().cloned().collect();
        for name in names {
            let _ = registry.remove(&name, true);
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Sends with no descriptor, a page, a file that is not a page, or both.
fn send_with(socket: &HostSocket, frame: &Frame, what: u8) -> bool {
    let page = SharedPage::create().ok();
    let file: Option<OwnedFd> = std::fs::File::open("/dev/null").ok().map(OwnedFd::from);
    let (Some(page), Some(file)) = (page, file) else {
        return false;
    };
    let all = [page.fd(), file.as_fd()];
    let fds = match what {
        0 => &all[..0],
        1 => &all[..1],
        2 => &all[1..],
        _ => &all[..],
    };
    socket.send_frame(frame, fds).is_ok()
}

/// The seeds, damaged a bounded number of times: what CI can do without a fuzzer.
/// Sends bytes to a server and reads one answer, which is empty or HTTP.
async fn ask(mut client: tokio::io::DuplexStream, bytes: &[u8]) -> Vec<u8> {
    let _ = client.write_all(bytes).await;
    let _ = client.shutdown().await;
    let mut answer = Vec::new();
    // A stream of events ends when nobody reads it; one answer is enough.
    let read = client.read_to_end(&mut answer);
    let _ = tokio::time::timeout(Duration::from_millis(20), read).await;
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."));
    answer
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Instant;

    use super::*;

    /// Damages the seeds of a target and feeds them, for about a second or as long as is asked for.
    fn damage(target: &str, mut feed: impl FnMut(&[u8])) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
        let files = std::fs::read_dir(folder.join(target)).unwrap();
        let seeds: Vec<Vec<u8>> = files
            .map(|file| std::fs::read(file.unwrap().path()).unwrap())
            .collect();
        assert!(!seeds.is_empty());
        let seconds = std::env::var("MICA_FUZZ_SECONDS").map_or(1, |text| text.parse().unwrap());
        let mut state = 0x2545_f491_4f6c_dd1d_u64 ^ seconds;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below.max(1) as u64) as usize
        };
        seeds.iter().for_each(|seed| feed(seed));
        let (began, mut fed) = (Instant::now(), 0_u64);
        while began.elapsed().as_secs() < seconds {
            let mut bytes = seeds[random(seeds.len())].clone();
            for _ in 0..=random(6) {
                let at = random(bytes.len());
                match random(5) {
                    0 => bytes.truncate(at),
                    1 => bytes.insert(at, random(256) as u8),
                    2 => {
                        let other = &seeds[random(seeds.len())];
                        let from = random(other.len());
                        bytes.splice(at.., other[from..].iter().copied());
                    }
                    3 if !bytes.is_empty() => bytes[at] = random(256) as u8,
                    _ if !bytes.is_empty() => bytes[at] ^= 1 << random(8),
                    _ => {}
                }
            }
            feed(&bytes);
            fed += 1;
        }
        println!("{target}: {fed} inputs");
    }

    #[test]
    fn damaged_requests_are_answered() {
        let target = Target::new().unwrap();
        damage("control", |bytes| target.control(bytes));
    }

    #[test]
    fn damaged_requests_to_the_page_are_answered_and_sign_nobody_in() {
        let target = Target::new().unwrap();
        damage("web", |bytes| target.web(bytes));
    }

    #[test]
    fn damaged_messages_are_answered() {
        let target = Target::new().unwrap();
        damage("host", |bytes| target.host(bytes));
    }

    #[test]
    fn damaged_histories_are_read_as_far_as_they_are_sound() {
        damage("history", super::history);
    }

    #[test]
    fn damaged_texts_about_containers_are_read() {
        damage("containers", containers);
    }

    #[test]
    fn damaged_configurations_are_refused() {
        damage("config", |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let _ = Config::parse(&text, Path::new("mica.toml"));
        });
    }
}
