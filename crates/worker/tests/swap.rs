//! Swappable virtual GPUs, end to end: a real daemon and its workers on a software GPU that is too small for all of them.

mod common;
#[path = "../../daemon/tests/support/mod.rs"]
mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use mica_control::Paths;
use mica_control::api::{Created, Mode, ResidencyInfo, ResidencyState, VgpuSpec};
use mica_control::client::ControlClient;
use mica_daemon::devices::NoDevices;
use mica_daemon::{Options, Running};
use mica_limits::{Environment, open_session};
use mica_wire::session::client::SessionClient;
use mica_wire::session::*;
use mica_worker::WorkerConfig;
use support::{MIB, control, environment, eventually, spec};

/// The card, and what a tenant may have and takes of it: two of them do not fit together.
const CARD_MIB: u64 = 24;
const LIMIT_MIB: u64 = 16;
const PIECES: u64 = 6;
const PIECE_BYTES: u64 = 2 * MIB;
const WORDS: u64 = PIECE_BYTES / 4;

/// Adds a number to each word.
const PTX: &[u8] = b".version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 at, .param .u32 count, .param .u32 value)
{
    .reg .pred %p;
    .reg .b32 %r<8>;
    .reg .b64 %d<4>;
    ld.param.u64 %d0, [at];
    ld.param.u32 %r0, [count];
    ld.param.u32 %r1, [value];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p, %r5, %r0;
    @%p bra done;
    mul.wide.u32 %d1, %r5, 4;
    add.u64 %d2, %d0, %d1;
    ld.global.u32 %r6, [%d2];
    add.u32 %r7, %r6, %r1;
    st.global.u32 [%d2], %r7;
done:
    ret;
}
\0";

/// Not a test of its own: the worker that the daemon starts for the tests below.
#[test]
#[ignore = "no test: each test below starts a daemon, which runs this (--exact worker --ignored) as the worker of a virtual GPU"]
fn worker() {
    if Environment::read().is_some() {
        mica_worker::run(&WorkerConfig::from_environment().unwrap()).unwrap();
    }
}

fn start(dir: &Path) -> (Running, ControlClient) {
    let exe = std::env::current_exe().unwrap();
    let text = format!(
        "[software_gpu]\nmemory_bytes = {}\n[workers]\nconfine = false\n[daemon]\nworker_command = [{:?}, \"--exact\", \
         \"worker\", \"--ignored\"]\n[swap]\nturn_multiple = 1\nleast_turn_ms = 40\nidle_ms = 30\narena_bytes = {}\n",
        CARD_MIB * MIB,
        exe.display(),
        3 * LIMIT_MIB * MIB
    );
    let config = dir.join("mica.toml");
    std::fs::write(&config, text).unwrap();
    let running = Running::start(Options {
        paths: Paths::under(dir),
        config_file: Some(config),
        on_demand: false,
        devices: Box::new(NoDevices),
    });
    (running.unwrap(), control(dir))
}

/// Names the folder of a daemon in a process of its own.
const DIRECTORY: &str = "MICA_TEST_SWAP_DIRECTORY";

/// Not a test of its own: a daemon that can be killed.
#[test]
#[ignore = "no test: the test below that kills daemons runs this (--exact daemon --ignored)"]
fn daemon() {
    let Some(dir) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let _daemon = start(Path::new(&dir));
    loop {
        std::thread::park();
    }
}

/// A daemon in a process of its own; killed with this guard.
struct DaemonProcess(std::process::Child);

impl DaemonProcess {
    fn start(dir: &Path) -> Self {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "daemon", "--ignored"])
            .env(DIRECTORY, dir)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let control = control(dir);
        eventually("the daemon answers", || {
            control.stats().is_ok_and(|s| s.daemon.pid == child.id())
        });
        Self(child)
    }
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn swappable(name: &str) -> VgpuSpec {
    VgpuSpec {
        swap: Some(true),
        ..spec(name, LIMIT_MIB)
    }
}

fn residency(control: &ControlClient, name: &str) -> ResidencyInfo {
    control.get(name).unwrap().residency.unwrap()
}

/// A program whose memory holds what it should.
struct Program {
    client: Arc<SessionClient>,
    context: u64,
    stream: u64,
    module: u64,
    pieces: Vec<u64>,
    seed: u32,
    added: u32,
}

impl Program {
    fn begin(created: &Created, seed: u32) -> Result<Self, SessionError> {
        let socket =
            open_session(&environment(created)).map_err(|e| SessionError::Ended(e.to_string()))?;
        let client = Arc::new(SessionClient::connect(socket.1, "test")?);
        let new = client.call(&ContextCreate { flags: 0 })?;
        let module = client.module_load(new.context, PTX, false)?.module;
        let mut program = Self {
            client,
            context: new.context,
            stream: new.default_stream,
            module,
            pieces: Vec::new(),
            seed,
            added: 0,
        };
        for index in 0..PIECES {
            let (context, bytes) = (program.context, PIECE_BYTES);
            let at = program.client.call(&MemoryAlloc { context, bytes })?.value;
            program.pieces.push(at);
            let contents = program.expected(index);
            program.client.write(program.stream, at, &contents)?;
        }
        Ok(program)
    }

    fn expected(&self, piece: u64) -> Vec<u8> {
        let mut word =
            (self.seed.wrapping_mul(0x9e37_79b9) ^ piece as u32).wrapping_add(self.added);
        let mut bytes = vec![0; PIECE_BYTES as usize];
        for place in bytes.chunks_exact_mut(4) {
            place.copy_from_slice(&word.to_le_bytes());
            word = word.wrapping_add(1);
        }
        bytes
    }

    /// Adds one to every word of every piece.
    fn work(&mut self) -> Result<(), SessionError> {
        for at in &self.pieces {
            let launch = Launch {
                stream: self.stream,
                module: self.module,
                kernel: 0,
                grid: [(WORDS / 256) as u32, 1, 1],
                block: [256, 1, 1],
                dynamic_shared: 0,
                cooperative: false,
            };
            self.client
                .launch(&launch, &common::params(*at, WORDS as u32, 1))?;
        }
        let stream = self.stream;
        self.client.call(&StreamSynchronize { stream })?;
        self.added += 1;
        Ok(())
    }

    /// Whether one piece holds what it should, byte by byte.
    fn check(&self, piece: u64) -> Result<(), SessionError> {
        let mut seen = vec![0; PIECE_BYTES as usize];
        self.client
            .read(self.stream, self.pieces[piece as usize], &mut seen)?;
        assert!(
            seen == self.expected(piece),
            "piece {piece} of tenant {} after {}",
            self.seed,
            self.added
        );
        Ok(())
    }

    fn check_all(&self) -> Result<(), SessionError> {
        (0..PIECES).try_for_each(|piece| self.check(piece))
    }
}

/// Works until `stop`, counting rounds; begins anew when its worker was killed.
fn tenant(created: &Created, seed: u32, rounds: &AtomicU64, stop: &AtomicBool) {
    while !stop.load(SeqCst) {
        let lived = Program::begin(created, seed).and_then(|mut program| {
            while !stop.load(SeqCst) {
                program.work()?;
                program.check(u64::from(program.added) % PIECES)?;
                rounds.fetch_add(1, SeqCst);
            }
            program.check_all()
        });
        if let Err(error) = lived {
            assert!(!matches!(error, SessionError::Refused { .. }), "{error}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// What is on the card never exceeds it.
fn check_card(control: &ControlClient) {
    let all = control.list().unwrap();
    let resident: u64 = all
        .iter()
        .filter_map(|v| Some(v.residency?.resident_bytes))
        .sum();
    assert!(
        resident <= CARD_MIB * MIB,
        "{resident} bytes on the card: {all:#?}"
    );
    for vgpu in &all {
        assert!(vgpu.memory_used_bytes <= vgpu.memory_limit_bytes);
    }
}

/// Runs three tenants, and `meanwhile` beside them.
fn with_three(control: &ControlClient, meanwhile: impl FnOnce(&[AtomicU64; 3])) {
    let created = ["a", "b", "c"].map(|name| control.create(&swappable(name)).unwrap());
    let (stop, rounds) = (&AtomicBool::new(false), &[const { AtomicU64::new(0) }; 3]);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (created.iter().zip(rounds))
            .zip(1..)
            .map(|((created, rounds), seed)| {
                scope.spawn(move || tenant(created, seed, rounds, stop))
            })
            .collect();
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| meanwhile(rounds)));
        stop.store(true, SeqCst);
        for thread in threads {
            thread.join().unwrap();
        }
        if let Err(failed) = done {
            std::panic::resume_unwind(failed);
        }
    });
    // Nothing is left of them, on the card or off it.
    for name in ["a", "b", "c"] {
        eventually("an empty virtual GPU", || {
            let vgpu = control.get(name).unwrap();
            let residency = vgpu.residency.unwrap();
            vgpu.memory_used_bytes == 0
                && residency.resident_bytes == 0
                && residency.away_bytes == 0
        });
    }
}

#[test]
fn three_tenants_that_do_not_fit_together_all_go_on_and_no_byte_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start(dir.path());
    with_three(&control, |rounds| {
        eventually("turns for all", || {
            check_card(&control);
            let moved = |name| residency(&control, name).exchanges_total >= 2;
            ["a", "b", "c"].into_iter().all(moved) && rounds.iter().all(|r| r.load(SeqCst) >= 3)
        });
    });
    let events = control.past_events().unwrap();
    for kind in ["swapped_out", "swapped_in"] {
        assert!(events.iter().any(|event| event.kind == kind), "no {kind}");
    }
    let metrics = control.metrics().unwrap();
    assert!(
        metrics.contains("mica_vgpu_swap_exchanges_total{vgpu=\"a\""),
        "{metrics}"
    );
}

#[test]
fn workers_and_daemons_that_die_on_the_way_take_nothing_from_others() {
    let dir = tempfile::tempdir().unwrap();
    let mut daemon = Some(DaemonProcess::start(dir.path()));
    let control = control(dir.path());
    let mut state = u64::from(std::process::id()) | 1;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    with_three(&control, |rounds| {
        for round in 0..8 {
            let before = rounds.each_ref().map(|r| r.load(SeqCst));
            eventually("rounds of all", || {
                rounds
                    .iter()
                    .zip(before)
                    .all(|(r, before)| r.load(SeqCst) > before)
            });
            check_card(&control);
            std::thread::sleep(Duration::from_micros(random(30_000)));
            if round % 4 == 3 {
                // The next daemon knows nothing but what workers tell it.
                drop(daemon.take());
                daemon = Some(DaemonProcess::start(dir.path()));
                continue;
            }
            let name = ["a", "b", "c"][random(3) as usize];
            for process in control.get(name).unwrap().processes {
                if let Some(pid) = process
                    .worker()
                    .and_then(|pid| rustix::process::Pid::from_raw(pid as i32))
                {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
        }
    });
    drop(daemon);
}

#[test]
fn one_that_is_alone_stays_and_an_idle_one_gives_way_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start(dir.path());
    let created = control.create(&swappable("a")).unwrap();
    let mut first = Program::begin(&created, 1).unwrap();
    first.work().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let alone = residency(&control, "a");
    assert_eq!(
        (alone.state, alone.exchanges_total),
        (ResidencyState::Resident, 0)
    );
    // The idle one leaves when another one needs its room, and not before.
    let created = control.create(&swappable("b")).unwrap();
    let mut second = Program::begin(&created, 2).unwrap();
    second.work().unwrap();
    eventually("the first one to be away", || {
        let away = residency(&control, "a");
        away.state == ResidencyState::Away && away.away_bytes == PIECES * PIECE_BYTES
    });
    assert_eq!(residency(&control, "b").exchanges_total, 0);
    // It returns when it is used.
    first.check_all().unwrap();
    assert_eq!(residency(&control, "a").state, ResidencyState::Resident);
    second.check_all().unwrap();
    check_card(&control);
}

#[test]
fn a_suspension_that_frees_the_card_ends_with_everything_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start(dir.path());
    let fixed = control.create(&spec("fixed", 4)).unwrap();
    let text = control
        .suspend_and_free(&fixed.name)
        .unwrap_err()
        .to_string();
    assert!(text.contains("not swappable"), "{text}");
    let created = control.create(&swappable("a")).unwrap();
    let mut program = Program::begin(&created, 1).unwrap();
    program.work().unwrap();
    control.suspend_and_free("a").unwrap();
    eventually("an empty card", || {
        residency(&control, "a").state == ResidencyState::Away
    });
    // A call waits, and does not bring the memory back.
    std::thread::scope(|scope| {
        let check = scope.spawn(|| program.check_all());
        std::thread::sleep(Duration::from_millis(200));
        let away = residency(&control, "a");
        assert_eq!(
            (away.state, away.away_bytes),
            (ResidencyState::Away, PIECES * PIECE_BYTES)
        );
        assert!(!check.is_finished());
        control.resume("a").unwrap();
        check.join().unwrap().unwrap();
    });
    program.work().unwrap();
    program.check_all().unwrap();
}

#[test]
fn what_cannot_be_is_refused_before_it_begins() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, control) = start(dir.path());
    let refused = |spec: &VgpuSpec| control.create(spec).unwrap_err().to_string();
    let direct = VgpuSpec {
        mode: Some(Mode::Direct),
        ..swappable("direct")
    };
    assert!(
        refused(&direct).contains("cannot leave the GPU"),
        "{}",
        refused(&direct)
    );
    let large = VgpuSpec {
        memory_limit_bytes: Some((CARD_MIB + 1) * MIB),
        ..swappable("large")
    };
    assert!(
        refused(&large).contains("25 MiB asked"),
        "{}",
        refused(&large)
    );
    for name in ["a", "b", "c"] {
        control.create(&swappable(name)).unwrap();
    }
    // Host memory for a fourth is not there.
    let text = refused(&swappable("d"));
    assert!(text.contains("swap.arena_bytes"), "{text}");
    // One that never leaves gets what the largest of the others leaves.
    let text = refused(&spec("fixed", 9));
    assert!(text.contains("8 MiB of 24 MiB"), "{text}");
    control.create(&spec("fixed", 8)).unwrap();
    assert_eq!(control.get("fixed").unwrap().residency, None);
}
