//! Kills at every step of an exchange: programs, workers and daemons, at random, round after round.
//!
//! CI runs a few rounds; `cargo xtask chaos --swap` runs many.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use mica_control::api::{Created, ResidencyState, VgpuInfo};
use mica_control::client::ControlClient;
use mica_limits::Environment;

use crate::program::tenant;
use crate::support::{control, eventually};
use crate::{fits_card, start, swappable};

/// Names the folder of a daemon in a process of its own.
const DIRECTORY: &str = "MICA_TEST_SWAP_DIRECTORY";
/// Names the number of a program in a process of its own.
const SEED: &str = "MICA_TEST_SWAP_SEED";
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Rounds, unless `MICA_CHAOS_ROUNDS` says otherwise.
const ROUNDS: u64 = 20;
/// Steps of an exchange at which something is killed.
const STEPS: [ResidencyState; 4] = [
    ResidencyState::Leaving,
    ResidencyState::Returning,
    ResidencyState::Away,
    ResidencyState::Resident,
];
/// How long it may take until everything is as before, however slow and busy the machine is.
const RECOVERY: Duration = Duration::from_secs(120);
/// How long a step is waited for: a move may be over before it is seen.
const LOOK: Duration = Duration::from_secs(2);

/// Not a test of its own: a daemon that can be killed.
#[test]
#[ignore = "no test: the test below that kills daemons runs this (--exact chaos::daemon --ignored)"]
fn daemon() {
    let Some(dir) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let _daemon = start(Path::new(&dir));
    loop {
        std::thread::park();
    }
}

/// Not a test of its own: a program that can be killed. It works until nobody holds its standard input.
#[test]
#[ignore = "no test: the test below that kills programs runs this (--exact chaos::program --ignored)"]
fn program() {
    let (Some(Ok(environment)), Ok(seed)) = (Environment::read(), std::env::var(SEED)) else {
        return;
    };
    let stop = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&stop);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        ended.store(true, SeqCst);
    });
    let seed = seed.parse().unwrap();
    tenant(&environment, seed, &stop, || println!("round"));
    println!("all right");
}

/// A process of this executable that runs one of the tests above; killed with this guard.
struct Process(Child);

impl Process {
    fn start(entry: &str, variables: &[(&str, &str)]) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", entry, "--ignored", "--nocapture"])
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn daemon(dir: &Path) -> Self {
        let daemon = Self::start("chaos::daemon", &[(DIRECTORY, dir.to_str().unwrap())]);
        let control = control(dir);
        let pid = daemon.0.id();
        eventually("the daemon answers", || {
            control.stats().is_ok_and(|stats| stats.daemon.pid == pid)
        });
        daemon
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One tenant: its virtual GPU, its program, and what the program said.
struct Tenant {
    created: Created,
    seed: u32,
    rounds: Arc<AtomicU64>,
    all_right: Arc<AtomicBool>,
    process: Process,
}

impl Tenant {
    fn new(created: Created, seed: u32) -> Self {
        let (rounds, all_right) = (Arc::default(), Arc::default());
        let process = Self::begin(&created, seed, &rounds, &all_right);
        Self {
            created,
            seed,
            rounds,
            all_right,
            process,
        }
    }

    fn begin(
        created: &Created,
        seed: u32,
        rounds: &Arc<AtomicU64>,
        all_right: &Arc<AtomicBool>,
    ) -> Process {
        let variables = [
            (Environment::SOCKET, created.host_socket.as_str()),
            (Environment::TOKEN, created.token.as_str()),
            (SEED, &seed.to_string()),
        ];
        let mut process = Process::start("chaos::program", &variables);
        let output = process.0.stdout.take().unwrap();
        let (rounds, all_right) = (Arc::clone(rounds), Arc::clone(all_right));
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // The first line may stand behind words of the test harness.
                match line.as_str() {
                    line if line.ends_with("round") => {
                        rounds.fetch_add(1, SeqCst);
                    }
                    line if line.ends_with("all right") => all_right.store(true, SeqCst),
                    _ => {}
                }
            }
        });
        process
    }

    fn kill_program(&mut self) {
        self.process = Self::begin(&self.created, self.seed, &self.rounds, &self.all_right);
    }

    /// Fails if the program has found a wrong byte, or was refused something.
    fn check(&mut self) {
        let ended = self.process.0.try_wait().unwrap();
        assert_eq!(ended, None, "program {} ended by itself", self.created.name);
    }

    /// Has the program compare everything and end.
    fn finish(&mut self) {
        drop(self.process.0.stdin.take());
        let status = self.process.0.wait().unwrap();
        assert!(status.success(), "program {}", self.created.name);
        let all_right = &self.all_right;
        eventually("the program's last word", || all_right.load(SeqCst));
    }
}

/// A virtual GPU that is at this step now, if one is soon.
fn at_step(control: &ControlClient, step: ResidencyState) -> Option<VgpuInfo> {
    let began = Instant::now();
    while began.elapsed() < LOOK {
        let all = control.list().unwrap();
        let is_there = |v: &VgpuInfo| v.residency.is_some_and(|r| r.state == step);
        if let Some(found) = all.into_iter().find(is_there) {
            return Some(found);
        }
    }
    None
}

fn kill_worker(vgpu: &VgpuInfo) {
    let workers = vgpu.processes.iter().filter_map(|process| process.worker());
    for pid in workers.filter_map(|pid| rustix::process::Pid::from_raw(pid as i32)) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Waits until every tenant has finished a round more, and the ledger is what it was before anybody was killed.
fn recovered(control: &ControlClient, tenants: &mut [Tenant], used_bytes: u64) {
    let before: Vec<u64> = tenants.iter().map(|t| t.rounds.load(SeqCst)).collect();
    let began = Instant::now();
    loop {
        tenants.iter_mut().for_each(Tenant::check);
        let all = control.list().unwrap();
        let is_exact = all.iter().all(|vgpu| vgpu.memory_used_bytes == used_bytes);
        let went_on = |(t, before): (&Tenant, &u64)| t.rounds.load(SeqCst) > *before;
        // A new daemon takes all memory for resident until its workers have told it otherwise.
        if is_exact && fits_card(&all) && tenants.iter().zip(&before).all(went_on) {
            return;
        }
        if began.elapsed() > RECOVERY {
            let used: Vec<u64> = all.iter().map(|v| v.memory_used_bytes).collect();
            let rounds: Vec<u64> = tenants.iter().map(|t| t.rounds.load(SeqCst)).collect();
            for event in control.past_events().unwrap() {
                println!("{} {}", event.kind, event.message);
            }
            let places: Vec<_> = all.iter().map(|v| (&v.name, v.residency)).collect();
            panic!(
                "not recovered: {before:?} rounds, then {rounds:?}; {used_bytes} used before, {used:?} now, {places:?}"
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn kills_at_every_step_of_an_exchange_take_nothing_from_anybody_else() {
    let (rounds, seed) = (
        number("MICA_CHAOS_ROUNDS").unwrap_or(ROUNDS),
        number("MICA_CHAOS_SEED").unwrap_or_else(|| u64::from(std::process::id())),
    );
    println!("seed {seed}");
    let dir = tempfile::tempdir().unwrap();
    let mut daemon = Some(Process::daemon(dir.path()));
    let control = control(dir.path());
    let mut tenants: Vec<Tenant> = (NAMES.into_iter().zip(1..))
        .map(|(name, seed)| Tenant::new(control.create(&swappable(name)).unwrap(), seed))
        .collect();
    eventually("first rounds", || {
        tenants.iter().all(|t| t.rounds.load(SeqCst) > 0)
    });
    let used_bytes = control.get("a").unwrap().memory_used_bytes;
    assert!(used_bytes > 0);
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut killed = [[0_u64; 3]; STEPS.len()];
    for round in 0..rounds {
        let step = (round % STEPS.len() as u64) as usize;
        let victim = random(3) as usize;
        let Some(vgpu) = at_step(&control, STEPS[step]) else {
            continue;
        };
        // Anywhere in the step, not only where it begins.
        std::thread::sleep(Duration::from_micros(random(3000)));
        match victim {
            0 => {
                let its = tenants.iter_mut().find(|t| t.created.name == vgpu.name);
                its.unwrap().kill_program();
            }
            1 => kill_worker(&vgpu),
            _ => {
                // The next daemon knows nothing but what workers tell it.
                drop(daemon.take());
                daemon = Some(Process::daemon(dir.path()));
            }
        }
        killed[step][victim] += 1;
        println!(
            "round {round}: {} of {} at {:?}",
            ["program", "worker", "daemon"][victim],
            vgpu.name,
            STEPS[step]
        );
        recovered(&control, &mut tenants, used_bytes);
    }
    for (step, [programs, workers, daemons]) in STEPS.iter().zip(killed) {
        println!("{step:?}: {programs} programs, {workers} workers, {daemons} daemons killed");
    }
    let all: u64 = killed.iter().flatten().sum();
    assert!(
        all * 2 >= rounds,
        "only {all} of {rounds} rounds found their step"
    );
    tenants.iter_mut().for_each(Tenant::finish);
    // Nothing is left of them, on the card or off it.
    eventually("empty virtual GPUs", || {
        control.list().unwrap().iter().all(|vgpu| {
            let residency = vgpu.residency.unwrap();
            vgpu.memory_used_bytes + residency.resident_bytes + residency.away_bytes == 0
        })
    });
    drop(daemon);
}
