//! `mica demo`: three tenants on one GPU, and each promise proven before the reader's eyes.
//!
//! ```text
//!   mica demo ──► private daemon ──► a worker per virtual GPU ──► software GPU
//!       └──────► ada, ben, cleo (processes of their own) ──┘
//! ```
//! Owns the order of the promises; `private_daemon` the daemon and the processes, `tenant` what they run, `screen` the view.

mod crowd;
mod holdings;
pub(crate) mod private_daemon;
pub(crate) mod processor;
mod promises;
mod screen;
pub(crate) mod tenant;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mica_control::api::Created;
use serde::Serialize;

use self::private_daemon::{PrivateDaemon, TenantProcess, pause};
use self::processor::Processor;
use self::screen::{Row, Screen};
use self::tenant::{Answer, Ask};

const MIB: u64 = 1 << 20;
/// Memory of the demo's GPU.
const GPU_BYTES: u64 = 512 * MIB;
/// How often tenants are asked how far they are.
const EVERY: Duration = Duration::from_millis(100);
/// What the moving bars average over.
const WINDOW: Duration = Duration::from_millis(1500);

/// One promise, kept or not, with its proof.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Promise {
    /// For programs.
    pub(crate) name: &'static str,
    /// For people.
    #[serde(rename = "promise")]
    pub(crate) title: &'static str,
    /// Whether it was kept.
    pub(crate) kept: bool,
    /// The proof in words.
    pub(crate) evidence: Vec<String>,
    /// The proof in numbers; keys carry units.
    pub(crate) measured: serde_json::Value,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Record {
    gpu: String,
    gpu_memory_bytes: u64,
    tenants: Vec<TenantRecord>,
    seconds: f64,
    kept: bool,
    promises: Vec<Promise>,
}

#[derive(Debug, Serialize)]
struct TenantRecord {
    name: &'static str,
    share_percent: u32,
    memory_limit_bytes: u64,
}

/// Runs one tenant of the demo, which obeys its standard input.
///
/// # Errors
/// The virtual GPU cannot be used, or the parent has ended.
pub fn serve_tenant() -> Result<()> {
    tenant::serve()
}

/// Runs the demo; `false` if a promise was not kept.
///
/// # Errors
/// The daemon or a tenant cannot be started, or ends.
pub fn run(json: bool) -> Result<bool> {
    private_daemon::catch_interrupts();
    let began = Instant::now();
    let mut show = match Demo::open(json) {
        Err(_) if private_daemon::interrupted() => std::process::exit(130),
        other => other?,
    };
    let played = show.play();
    show.screen.close();
    if let Err(error) = played {
        let interrupted = private_daemon::interrupted();
        drop(show);
        if interrupted {
            std::process::exit(130);
        }
        return Err(error);
    }
    let kept = show.promises.iter().all(|promise| promise.kept);
    let seconds = began.elapsed().as_secs_f64();
    let record = show.record(seconds, kept);
    let count = (
        show.promises.iter().filter(|p| p.kept).count(),
        show.promises.len(),
    );
    let words = show.last_words(kept, count, seconds);
    // Everything is gone before the last line says so.
    drop(show);
    match json {
        true => screen::put(&(serde_json::to_string_pretty(&record)? + "\n")),
        false => screen::put(&words),
    }
    Ok(kept)
}

/// A tenant and what it was promised.
struct Member {
    name: &'static str,
    share: u32,
    limit_bytes: u64,
    data_bytes: u64,
    created: Created,
    process: Option<TenantProcess>,
    note: Option<&'static str>,
    seen: VecDeque<(Instant, Answer)>,
}

impl Member {
    fn process(&mut self) -> Result<&mut TenantProcess> {
        self.process
            .as_mut()
            .with_context(|| format!("{} does not run", self.name))
    }

    fn question(&mut self, ask: Ask) -> Result<Answer> {
        let name = self.name;
        let process = self.process()?;
        process
            .ask(ask)
            .and_then(|()| process.answer())
            .with_context(|| name.to_owned())
    }

    /// GPU time a second over the last moments.
    fn speed(&self) -> f64 {
        match (self.seen.front(), self.seen.back()) {
            (Some((first, a)), Some((last, b))) if last > first => {
                b.gpu_time_ns.saturating_sub(a.gpu_time_ns) as f64
                    / last.duration_since(*first).as_nanos() as f64
            }
            _ => 0.0,
        }
    }
}

/// What the tenants got in a stretch of time.
#[derive(Clone, Debug, Default)]
struct Stretch {
    got: Vec<Got>,
    seconds: f64,
    /// Percent of the processor that programs beside the demo used.
    others_percent: f64,
}

/// What a tenant got in a stretch of time.
#[derive(Clone, Copy, Debug, Default)]
struct Got {
    gpu_time_ns: u64,
    steps: u64,
}

struct Demo {
    // Fields go in this order: tenants before the daemon that serves them.
    members: Vec<Member>,
    private_daemon: PrivateDaemon,
    screen: Screen,
    promises: Vec<Promise>,
}

impl Demo {
    fn open(json: bool) -> Result<Self> {
        let mut screen = Screen::new(json);
        screen.say("\n");
        screen.now("starting a private daemon with a software GPU");
        let private_daemon = PrivateDaemon::set_up_with(GPU_BYTES, crowd::SWAP_SECTION)?;
        let mut members = Vec::new();
        for (name, share, limit, data) in [
            ("ada", 50, 192, 96),
            ("ben", 30, 128, 72),
            ("cleo", 20, 96, 88),
        ] {
            members.push(Member {
                name,
                share,
                limit_bytes: limit * MIB,
                data_bytes: data * MIB,
                created: private_daemon.vgpu(name, limit * MIB, share)?,
                process: None,
                note: Some("starting"),
                seen: VecDeque::new(),
            });
        }
        Ok(Self {
            members,
            private_daemon,
            screen,
            promises: Vec::new(),
        })
    }

    fn play(&mut self) -> Result<()> {
        self.introduce()?;
        self.shares_hold()?;
        self.quota_holds()?;
        self.fault_is_contained()?;
        self.death_returns_memory()?;
        self.resize_takes_effect()?;
        self.memory_is_shared_in_turns()
    }

    fn introduce(&mut self) -> Result<()> {
        let title = self.screen.paint("1", "Mica: one GPU, three tenants");
        let gpu = format!(
            "{} with {} MiB; kernels compiled from PTX for this processor",
            self.private_daemon.gpu.name,
            GPU_BYTES / MIB
        );
        let mut text = format!("{title}\n{}\n", self.screen.paint("2", &gpu));
        if let Some(other) = &self.private_daemon.other_gpu {
            let note = format!("this host has a {other} too: see `mica bench gpu` for its numbers");
            text.push_str(&self.screen.paint("2", &note));
            text.push('\n');
        }
        text.push('\n');
        for member in &self.members {
            text.push_str(&format!(
                "{:<6}{:>3} % of the GPU's time, {:>3} MiB of its memory\n",
                member.name,
                member.share,
                member.limit_bytes / MIB
            ));
        }
        text.push('\n');
        self.screen.say(&text);
        self.screen
            .now("three programs start, each in a virtual GPU of its own");
        for index in 0..self.members.len() {
            self.start(index)?;
        }
        Ok(())
    }

    /// Starts a tenant's program; its first results are compared with this processor's.
    fn start(&mut self, index: usize) -> Result<Answer> {
        let member = &mut self.members[index];
        member.process = Some(TenantProcess::start(&member.created)?);
        member.seen.clear();
        let data_bytes = member.data_bytes;
        let answer = member.question(Ask::Work { data_bytes })?;
        member.note = None;
        self.draw();
        Ok(answer)
    }

    /// Asks every tenant that works how far it is, all at the same moment.
    fn sample(&mut self) -> Result<Vec<Answer>> {
        let now = Instant::now();
        for member in self.working() {
            member.process()?.ask(Ask::Sample)?;
        }
        let mut answers = vec![Answer::default(); self.members.len()];
        for (member, slot) in self.members.iter_mut().zip(&mut answers) {
            if member.note.is_some() {
                continue;
            }
            let name = member.name;
            *slot = member
                .process()?
                .answer()
                .with_context(|| name.to_owned())?;
            member.seen.push_back((now, slot.clone()));
            while member
                .seen
                .front()
                .is_some_and(|(then, _)| now.duration_since(*then) > WINDOW)
            {
                member.seen.pop_front();
            }
        }
        self.draw();
        Ok(answers)
    }

    fn working(&mut self) -> impl Iterator<Item = &mut Member> {
        self.members
            .iter_mut()
            .filter(|member| member.note.is_none())
    }

    fn draw(&mut self) {
        let speeds: Vec<f64> = self.members.iter().map(Member::speed).collect();
        let sum: f64 = speeds.iter().sum();
        let rows = self.members.iter().zip(speeds).map(|(member, speed)| {
            let last = member.seen.back().map(|(_, answer)| answer);
            Row {
                name: member.name,
                asked_percent: member.share,
                got_percent: 100.0 * speed / sum.max(f64::MIN_POSITIVE),
                used_bytes: last.map_or(0, |answer| answer.used_bytes),
                limit_bytes: member.limit_bytes,
                steps: last.map_or(0, |answer| answer.steps),
                note: member.note,
            }
        });
        self.screen.draw(rows.collect());
    }

    /// Lets the tenants work and shows how they do.
    fn watch(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.sample()?;
            pause(EVERY.min(end.saturating_duration_since(Instant::now())))?;
        }
        Ok(())
    }

    /// Watches, and tells what each got meanwhile.
    fn measure(&mut self, time: Duration) -> Result<Stretch> {
        let before = self.sample()?;
        let (began, processor) = (Instant::now(), self.processor());
        self.watch(time)?;
        let seconds = began.elapsed().as_secs_f64();
        let others_percent = self.processor().others_percent_since(&processor);
        let after = self.sample()?;
        let got = before.iter().zip(&after).map(|(before, after)| Got {
            gpu_time_ns: after.gpu_time_ns.saturating_sub(before.gpu_time_ns),
            steps: after.steps.saturating_sub(before.steps),
        });
        Ok(Stretch {
            got: got.collect(),
            seconds,
            others_percent,
        })
    }

    fn processor(&self) -> Processor {
        Processor::now(&self.private_daemon.processes())
    }

    fn settle(&mut self, promise: Promise) {
        self.screen.promise(&promise);
        self.promises.push(promise);
    }

    fn record(&self, seconds: f64, kept: bool) -> Record {
        let tenant = |member: &Member| TenantRecord {
            name: member.name,
            share_percent: member.share,
            memory_limit_bytes: member.limit_bytes,
        };
        Record {
            gpu: self.private_daemon.gpu.name.clone(),
            gpu_memory_bytes: GPU_BYTES,
            tenants: self.members.iter().map(tenant).collect(),
            seconds,
            kept,
            promises: self.promises.clone(),
        }
    }

    fn last_words(&self, kept: bool, (good, all): (usize, usize), seconds: f64) -> String {
        let verdict = match kept {
            true => self.screen.paint("32", &format!("All {all} promises kept")),
            false => self
                .screen
                .paint("31", &format!("{good} of {all} promises kept")),
        };
        format!(
            "\n  {verdict} in {seconds:.0} s. Nothing is left behind.\n\n  \
             Next: mica run --memory 1GiB --share 30 -- ./your-cuda-program\n        \
             mica --help\n\n"
        )
    }
}
