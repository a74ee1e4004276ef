//! Two network namespaces and the link between them, which delays every packet and loses some.
//!
//! Not every kernel has a queue that does so (netem), so each namespace has a TUN device here, and this process carries packets
//! from one to the other. The TCP connections over it meet real losses.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, SyncSender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use super::chaos::{Random, seed};
use super::podman::text;
use super::root_folders::which;

/// What a packet takes in each direction.
pub(super) const DELAY: Duration = Duration::from_micros(500);
/// One packet of so many is lost.
pub(super) const LOST_OF: u64 = 500;
/// Packets under way in one direction; more are lost, as in a router.
const MOST_PACKETS: usize = 4096;
/// Longest packet of a TUN device with the usual settings.
const PACKET_BYTES: usize = 1500;
const DEVICE: &str = "mica0";

/// One end of the link.
pub(super) struct Place {
    name: String,
    pub(super) address: &'static str,
}

impl Place {
    fn new(role: &str, address: &'static str) -> Self {
        let name = format!("mica-{}-{role}", std::process::id());
        Self { name, address }
    }

    /// The namespace's file.
    pub(super) fn file(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }

    fn ip(&self, words: &str) -> Result<()> {
        let mut command = Command::new("ip");
        command
            .args(["-n", &self.name])
            .args(words.split_whitespace());
        text(&mut command)
            .with_context(|| format!("ip {words}"))
            .map(drop)
    }

    /// Makes the namespace, with a device whose packets are this process's to carry.
    fn set_up(&self) -> Result<File> {
        text(Command::new("ip").args(["netns", "add", &self.name]))?;
        let namespace = File::open(self.file())?;
        // Only a thread in the namespace makes devices there; its file can be used from anywhere.
        let made = std::thread::spawn(move || make_device(&namespace)).join();
        let device = made.map_err(|_| anyhow!("the thread that makes a device died"))??;
        self.ip(&format!("addr add {}/24 dev {DEVICE}", self.address))?;
        self.ip(&format!("link set {DEVICE} up"))?;
        self.ip("link set lo up")?;
        Ok(device)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = text(Command::new("ip").args(["netns", "del", &self.name]));
    }
}

/// Makes a TUN device in a namespace, which becomes the calling thread's.
fn make_device(namespace: &File) -> Result<File> {
    // SAFETY: an open file; only this thread changes its namespace.
    let entered = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
    ensure!(entered == 0, "setns: {}", std::io::Error::last_os_error());
    let device = (OpenOptions::new().read(true).write(true))
        .open("/dev/net/tun")
        .context("/dev/net/tun")?;
    // SAFETY: a plain structure, for which all zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(DEVICE.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request outlives the call and has a terminated name.
    let made = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    ensure!(made == 0, "TUNSETIFF: {}", std::io::Error::last_os_error());
    Ok(device)
}

/// Two places and what is between them; it ends with the places.
pub(super) struct Link {
    pub(super) server: Place,
    pub(super) client: Place,
    /// Packets that did not arrive.
    pub(super) lost: Arc<AtomicU64>,
}

impl Link {
    /// Makes both places.
    pub(super) fn start() -> Result<Self> {
        which("ip").context("two network namespaces need the package iproute2")?;
        which("nsenter")?;
        let link = Self {
            server: Place::new("server", "10.97.31.1"),
            client: Place::new("client", "10.97.31.2"),
            lost: Arc::default(),
        };
        let (server, client) = (link.server.set_up()?, link.client.set_up()?);
        let seed = seed()?;
        for (from, to, seed) in [(&server, &client, seed), (&client, &server, !seed)] {
            let (from, to) = (from.try_clone()?, to.try_clone()?);
            let (sender, arrivals) = mpsc::sync_channel(MOST_PACKETS);
            let lost = Arc::clone(&link.lost);
            std::thread::spawn(move || take(from, &sender, Random::new(seed), &lost));
            std::thread::spawn(move || deliver(to, &arrivals));
        }
        Ok(link)
    }
}

/// A packet, and when it arrives.
type Packet = (Instant, Vec<u8>);

/// Takes the packets that a place sends, until its device is gone.
fn take(mut from: File, sender: &SyncSender<Packet>, mut random: Random, lost: &AtomicU64) {
    let mut buffer = [0; PACKET_BYTES];
    while let Ok(got @ 1..) = from.read(&mut buffer) {
        let packet = (Instant::now() + DELAY, buffer[..got].to_vec());
        if random.below(LOST_OF) == 0 || sender.try_send(packet).is_err() {
            lost.fetch_add(1, Relaxed);
        }
    }
}

/// Gives a place its packets, each in its time.
fn deliver(mut to: File, arrivals: &mpsc::Receiver<Packet>) {
    for (due, packet) in arrivals {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        // A place without its device has no programs any more.
        let _ = to.write_all(&packet);
    }
}
