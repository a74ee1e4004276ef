//! Kills and cuts at random moments: everything comes back within the stated time, nothing hangs, no result is wrong.
//!
//! A round in which the program had ended before it was harmed does not count.

use std::process::{Child, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::cable::Cable;
use super::tls::{Machine, Serving, names, pair};
use super::{Options, Rows};
use crate::bounded::{self, Scratch};

/// Moments at which a program is harmed: up to so long after its virtual GPU was made. It takes about a second.
pub(super) const LATEST_HARM: Duration = Duration::from_millis(700);
/// Longest that a program may take, undisturbed or resumed.
const PROGRAM_WITHIN: Duration = Duration::from_secs(60);
/// A virtual GPU is back so long after the program, its command or the server's process was killed.
pub(super) const KILLED_WITHIN: Duration = Duration::from_secs(4);
/// A virtual GPU is back so long after a cable was cut: 4 s of silence, 5 s in which it could have come back, and one ping.
const CUT_WITHIN: Duration = Duration::from_secs(12);
/// What a busy machine may take more.
const BUSY: Duration = Duration::from_secs(3);

/// What is done to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    KillProgram,
    KillCommand,
    KillServerProcesses,
    CutForGood,
    /// Shorter than what the server waits; the old connections live again.
    CutAndMend,
    /// Shorter than what the server waits; the old connections stay silent.
    ChangeNetwork,
    CloseConnections,
}

impl Harm {
    /// Whether the program must end as if nothing had happened.
    fn is_survived(self) -> bool {
        use Harm::{ChangeNetwork, CloseConnections, CutAndMend};
        matches!(self, CutAndMend | ChangeNetwork | CloseConnections)
    }

    /// Whether the program cannot end well, however late it was harmed.
    fn ends_the_program(self) -> bool {
        matches!(self, Self::KillProgram | Self::KillCommand)
    }

    fn freed_within(self) -> Duration {
        match self {
            Self::CutForGood => CUT_WITHIN,
            _ => KILLED_WITHIN,
        }
    }
}

/// Numbers that differ from run to run; the seed is printed.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u32) -> Self {
        Self(u64::from(seed) | 1 << 40)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    /// A duration up to the longest.
    pub(super) fn within(&mut self, longest: Duration) -> Duration {
        Duration::from_micros(self.below(longest.as_micros() as u64))
    }
}

/// All rounds as one check.
pub(super) fn run(rows: &mut Rows, options: Options) -> Result<()> {
    let scratch = Scratch::new("chaos")?;
    let (server, laptop) = (
        Machine::new(options, scratch.0.join("server")),
        Machine::new(options, scratch.0.join("laptop")),
    );
    let serving = Serving::start(&server)?;
    let cable = Cable::to(&serving.address)?;
    pair(&serving, &laptop, &cable.address)?;
    let seed = seed()?;
    let count = options.rounds;
    rows.check(&format!("chaos: {count} kills and cuts over TLS"), || {
        let link = Link {
            serving: &serving,
            laptop: &laptop,
            cable: &cable,
        };
        rounds(count, &link, seed).with_context(|| format!("with seed {seed}"))
    });
    Ok(())
}

/// A number that differs from run to run.
pub(super) fn seed() -> Result<u32> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    Ok(now.subsec_nanos())
}

/// A server, a client, and what is between them.
struct Link<'a> {
    serving: &'a Serving<'a>,
    laptop: &'a Machine,
    cable: &'a Cable,
}

fn rounds(count: u32, link: &Link, seed: u32) -> Result<String> {
    let mut random = Random::new(seed);
    // A long cut takes longest, so there are fewer of those.
    let harms = [
        Harm::KillProgram,
        Harm::KillCommand,
        Harm::CutAndMend,
        Harm::ChangeNetwork,
        Harm::KillServerProcesses,
        Harm::CloseConnections,
        Harm::CloseConnections,
        Harm::ChangeNetwork,
        Harm::KillCommand,
        Harm::CutForGood,
    ];
    let (mut slowest_kill, mut slowest_cut, mut survived) = (0.0, 0.0, 0);
    let (mut round, mut in_vain) = (0, 0);
    while round < count {
        ensure!(!bounded::interrupted(), "interrupted");
        let harm = harms[round as usize % harms.len()];
        let freed = one(link, harm, &mut random);
        let Some(freed) = freed.with_context(|| format!("round {round}, {harm:?}"))? else {
            in_vain += 1;
            ensure!(in_vain <= 2 * count, "programs end before they are harmed");
            continue;
        };
        round += 1;
        let freed = freed.as_secs_f64();
        match harm {
            _ if harm.is_survived() => survived += 1,
            Harm::CutForGood => slowest_cut = freed.max(slowest_cut),
            _ => slowest_kill = freed.max(slowest_kill),
        }
    }
    let after = ended(start(link)?).context("a program after all of them")?;
    ensure!(after.starts_with("exit status: 0"), "{after}");
    let came_back = link.serving.came_back.load(Relaxed);
    Ok(format!(
        "{survived} breaks without a lost call, {came_back} connections replaced; freed {slowest_kill:.1} s after a kill and {slowest_cut:.1} s after a cut at the latest"
    ))
}

/// Starts a program whose result tells whether each of its calls was carried out once.
fn start(link: &Link) -> Result<Child> {
    let mut command = link.laptop.plain(&[
        "run", "--on", "box", "-m", "128MiB", "--gpu", "software", "--",
    ]);
    command
        .arg(&link.laptop.mica)
        .args(["shim-load", "--train"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    Ok(command.spawn()?)
}

/// One round: how long after the harm everything was back; `None` if the program had ended before.
fn one(link: &Link, harm: Harm, random: &mut Random) -> Result<Option<Duration>> {
    let serving = link.serving;
    let mut program = start(link)?;
    until_made(serving.machine, &mut program)?;
    std::thread::sleep(random.within(LATEST_HARM));
    if program.try_wait()?.is_some() {
        let said = ended(program)?;
        ensure!(said.starts_with("exit status: 0"), "unharmed: {said}");
        until_none(serving.machine, Instant::now(), KILLED_WITHIN)?;
        return Ok(None);
    }
    let came_back = serving.came_back.load(Relaxed);
    let harmed = Instant::now();
    let is_harmed = do_harm(serving, link.cable, &mut program, harm, random)?;
    if harm == Harm::CutForGood {
        // The server's side must not need the other.
        let freed = until_none(serving.machine, harmed, harm.freed_within())?;
        let said = ended(program)?;
        link.cable.mend(false);
        ensure!(
            said.contains("exit status") && !said.contains("exit status: 0"),
            "the program noticed nothing: {said}"
        );
        return Ok(Some(freed));
    }
    let said = ended(program)?;
    if harm.is_survived() {
        ensure!(said.starts_with("exit status: 0"), "{said}");
    } else {
        ensure!(
            !said.starts_with("exit status: 0") || !is_harmed || !harm.ends_the_program(),
            "{said}"
        );
    }
    until_none(
        serving.machine,
        harmed.max(Instant::now()),
        harm.freed_within(),
    )?;
    let is_replaced = serving.came_back.load(Relaxed) > came_back;
    // The program may have ended within the moment in which its connections were closed.
    match !is_harmed || harm == Harm::CloseConnections && !is_replaced {
        true => Ok(None),
        false => Ok(Some(harmed.elapsed())),
    }
}

/// Harms a session; whether there was something to harm.
fn do_harm(
    serving: &Serving,
    cable: &Cable,
    program: &mut Child,
    harm: Harm,
    random: &mut Random,
) -> Result<bool> {
    let away = Duration::from_millis(200 + random.below(2500));
    match harm {
        Harm::KillProgram => {
            // The child of the command; it may not have started yet.
            return super::tls::signal_children(program.id(), "-KILL");
        }
        Harm::KillCommand => program.kill()?,
        Harm::KillServerProcesses => {
            return super::tls::signal_children(serving.child.id(), "-KILL");
        }
        Harm::CutForGood => cable.cut(),
        Harm::CutAndMend | Harm::ChangeNetwork => {
            cable.cut();
            std::thread::sleep(away);
            cable.mend(harm == Harm::CutAndMend);
        }
        Harm::CloseConnections => cable.close_all(),
    }
    Ok(true)
}

/// Waits until a program has its virtual GPU.
pub(super) fn until_made(machine: &Machine, program: &mut Child) -> Result<()> {
    let began = Instant::now();
    while names(machine)?.is_empty() {
        ensure!(began.elapsed() < PROGRAM_WITHIN, "no virtual GPU was made");
        ensure!(program.try_wait()?.is_none(), "the program ended at once");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Waits for a program's end: its status and what it said.
pub(super) fn ended(mut program: Child) -> Result<String> {
    let began = Instant::now();
    while program.try_wait()?.is_none() {
        if began.elapsed() > PROGRAM_WITHIN {
            let _ = program.kill();
            bail!("the program hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = program.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    Ok(format!("{}; {}", output.status, said.trim()))
}

/// Waits until a machine has no virtual GPU.
pub(super) fn until_none(machine: &Machine, since: Instant, within: Duration) -> Result<Duration> {
    loop {
        let left = names(machine)?;
        if left.is_empty() {
            return Ok(since.elapsed());
        }
        ensure!(
            since.elapsed() < within + BUSY,
            "{} still there after {:?}",
            left.join(", "),
            since.elapsed()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}
