//! Whole programs: what swappable memory costs one that is alone, how soon one that was away goes on, and two in turns
//! whose memory does not fit together.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use mica_command::refusal::explain;
use mica_command::size::show_bytes;
use mica_control::api::{GpuInfo, GpuKind, Mode, ResidencyInfo, VgpuSpec};

use super::{MIB, Measured, Scale};
use crate::args::BenchGpuArg;
use crate::demo::private_daemon::{PrivateDaemon, TenantProcess};
use crate::demo::tenant::{Answer, Ask};
use crate::report::{Line, Report};
use crate::software::median;

/// Percent of the GPU that the memory of each tenant is.
const PERCENT: u64 = 60;
/// Kept by the daemon for requests that cannot wait, and on a card for the driver.
const KEPT_BYTES: u64 = 64 * MIB;
const DRIVER_BYTES: u64 = 1024 * MIB;
/// Longer than a tenant must do nothing to count as idle.
const IDLE: Duration = Duration::from_millis(500);
/// Times that each of two idle tenants is woken.
const WAKES: usize = 5;
/// Longest that anything may take, beside what it was asked to take.
const PATIENCE: Duration = Duration::from_secs(300);
/// Allocations that are timed.
const PAIRS: u32 = 2000;

/// A daemon whose GPU has room for one tenant and a part of another.
struct Stage {
    daemon: PrivateDaemon,
    gpu: u32,
    scale: Scale,
}

struct Holder {
    process: TenantProcess,
    name: &'static str,
}

impl Holder {
    fn ask(&mut self, ask: Ask) -> Result<Answer> {
        self.process.ask(ask)?;
        self.answer()
    }

    fn answer(&mut self) -> Result<Answer> {
        let answer = self.process.answer_within(PATIENCE);
        answer.with_context(|| format!("tenant {}", self.name))
    }

    fn rounds(&mut self, seconds: f64) -> Result<Answer> {
        self.ask(Ask::Rounds { seconds })
    }

    /// Fails unless every word is right.
    fn check(&mut self) -> Result<()> {
        let wrong = self.ask(Ask::Compare)?.wrong_words;
        ensure!(
            wrong == 0,
            "{wrong} words of tenant {} are wrong",
            self.name
        );
        Ok(())
    }
}

impl Stage {
    fn set_up(scale: &Scale) -> Result<Self> {
        let room_bytes = scale.data_bytes * 100 / PERCENT;
        let arena_bytes = 2 * (scale.data_bytes + scale.overhead_bytes);
        let sections = format!("[swap]\narena_bytes = {arena_bytes}\n");
        let daemon = PrivateDaemon::set_up_with(room_bytes, &sections)?;
        let kind = match scale.gpu {
            BenchGpuArg::Nvidia => GpuKind::Nvidia,
            BenchGpuArg::Software => GpuKind::Software,
        };
        let gpus = daemon.client.gpus().map_err(explain)?;
        let gpu = gpus.into_iter().find(|gpu| gpu.kind == kind);
        let gpu = gpu.context("the daemon offers no such GPU")?;
        let stage = Self {
            gpu: gpu.index,
            daemon,
            scale: *scale,
        };
        if kind == GpuKind::Nvidia {
            stage.fill_up(&gpu, room_bytes)?;
        }
        Ok(stage)
    }

    /// Reserves the rest of a card for a virtual GPU that nobody uses.
    fn fill_up(&self, gpu: &GpuInfo, room_bytes: u64) -> Result<()> {
        let kept = room_bytes + KEPT_BYTES + DRIVER_BYTES;
        let rest = gpu.memory_total_bytes.checked_sub(kept).with_context(|| {
            format!(
                "{} are too little for two tenants",
                show_bytes(gpu.memory_total_bytes)
            )
        })?;
        let spec = VgpuSpec {
            name: Some("filler".into()),
            memory_limit_bytes: Some(rest),
            gpu: Some(self.gpu),
            ..VgpuSpec::default()
        };
        self.daemon.client.create(&spec).map_err(explain)?;
        Ok(())
    }

    /// Starts a tenant that holds its memory.
    fn tenant(&self, name: &'static str, swap: bool) -> Result<Holder> {
        let spec = VgpuSpec {
            name: Some(name.into()),
            memory_limit_bytes: Some(self.scale.data_bytes + self.scale.overhead_bytes),
            gpu: Some(self.gpu),
            mode: Some(Mode::Isolated),
            swap: Some(swap),
            ..VgpuSpec::default()
        };
        let created = self.daemon.client.create(&spec).map_err(explain)?;
        let process = TenantProcess::start(&created)?;
        let mut holder = Holder { process, name };
        let bytes = self.scale.data_bytes;
        holder.ask(Ask::Hold { bytes })?;
        Ok(holder)
    }

    fn residency(&self, name: &str) -> Result<ResidencyInfo> {
        let info = self.daemon.client.get(name).map_err(explain)?;
        info.residency
            .with_context(|| format!("{name} is not swappable"))
    }
}

/// Rounds that ended within so many seconds of the question.
fn rounds_within(answer: &Answer, seconds: f64) -> f64 {
    let mut end_ns = 0.0;
    let in_time = |took_ns: &&f64| {
        end_ns += **took_ns;
        end_ns <= seconds * 1e9
    };
    answer.times_ns.iter().take_while(in_time).count() as f64
}

/// Rounds a second of a tenant that is alone, and microseconds of an allocation and a free.
struct Alone {
    rate: f64,
    round_ms: f64,
    alloc_us: f64,
}

fn alone(holder: &mut Holder, seconds: f64) -> Result<Alone> {
    holder.rounds(1.0)?;
    let answer = holder.rounds(seconds)?;
    let bytes = 4096;
    let pairs = holder.ask(Ask::AllocateOften {
        bytes,
        pairs: PAIRS,
    })?;
    Ok(Alone {
        rate: rounds_within(&answer, seconds) / seconds,
        round_ms: median(answer.times_ns) / 1e6,
        alloc_us: median(pairs.times_ns) / 1e3,
    })
}

pub(super) fn run(scale: &Scale, report: &mut Report) -> Result<()> {
    let stage = Stage::set_up(scale)?;
    let window = (scale.seconds / 4.0).max(4.0);
    let mut plain = stage.tenant("plain", false)?;
    let stays = alone(&mut plain, window)?;
    plain.check()?;
    drop(plain);
    stage.daemon.client.remove("plain", true).map_err(explain)?;
    let mut a = stage.tenant("a", true)?;
    let moves = alone(&mut a, window)?;
    let unmoved = stage.residency("a")?;
    ensure!(
        unmoved.exchanges_total == 0,
        "a tenant that was alone has moved: {unmoved:?}"
    );
    compare_alone(scale, report, &stays, &moves);
    let mut b = stage.tenant("b", true)?;
    woken(&stage, report, &mut a, &mut b, &moves)?;
    in_turns(&stage, report, &mut a, &mut b, &moves)?;
    a.check()?;
    b.check()
}

fn compare_alone(scale: &Scale, report: &mut Report, stays: &Alone, moves: &Alone) {
    let size = scale.size();
    for (what, unit, native, mica, most) in [
        (
            format!("round over {size}, a tenant alone"),
            "ms",
            stays.round_ms,
            moves.round_ms,
            None,
        ),
        (
            "cuMemAlloc + cuMemFree of 4 KiB, at the program".into(),
            "µs",
            stays.alloc_us,
            moves.alloc_us,
            None,
        ),
    ] {
        let native_words = "not swappable";
        let measured = Measured {
            what,
            unit,
            native,
            native_words,
            mica,
            most,
        };
        measured.add_to(report);
    }
}

/// Two tenants that are idle by turns: how long the first call of one takes whose memory was away.
fn woken(
    stage: &Stage,
    report: &mut Report,
    a: &mut Holder,
    b: &mut Holder,
    alone: &Alone,
) -> Result<()> {
    let mut times = Vec::new();
    for _ in 0..WAKES {
        for holder in [&mut *a, &mut *b] {
            std::thread::sleep(IDLE);
            let first = holder.rounds(0.0)?.times_ns.first().copied();
            times.push(first.context("no round")? / 1e6);
        }
    }
    let exchanges = stage.residency("a")?.exchanges_total;
    ensure!(
        exchanges >= WAKES as u64,
        "the tenants have not changed places: {exchanges}"
    );
    let measured = Measured {
        what: format!(
            "first round of a tenant of {} that was away",
            stage.scale.size()
        ),
        unit: "ms",
        native: alone.round_ms,
        native_words: "a round that was not",
        mica: median(times),
        most: None,
    };
    measured.add_to(report);
    Ok(())
}

/// Two tenants that want the GPU all the time.
fn in_turns(
    stage: &Stage,
    report: &mut Report,
    a: &mut Holder,
    b: &mut Holder,
    alone: &Alone,
) -> Result<()> {
    let seconds = stage.scale.seconds;
    let before = stage.residency("a")?;
    for holder in [&mut *a, &mut *b] {
        holder.process.ask(Ask::Rounds { seconds })?;
    }
    let [first, second] = [a.answer()?, b.answer()?].map(|answer| rounds_within(&answer, seconds));
    let after = stage.residency("a")?;
    let turns = after.exchanges_total - before.exchanges_total;
    let percent = 100.0 * (first + second) / seconds / alone.rate;
    let split = 100.0 * first / (first + second);
    let most = stage.scale.most(95.0);
    report.add(Line {
        what: format!("two tenants of {PERCENT} % of the GPU, together"),
        native: format!("{:.1} rounds a second alone", alone.rate),
        mica: format!(
            "{percent:.1} % of that, {split:.1} : {:.1}, {turns} turns in {seconds:.0} s",
            100.0 - split
        ),
        goal: most.map_or("-".into(), |least| format!("≥ {least} %")),
        reached: most.map(|least| percent >= least),
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_that_end_too_late_do_not_count() {
        let times_ns = vec![0.5e9, 0.4e9, 0.2e9, 0.1e9];
        let answer = Answer {
            times_ns,
            ..Answer::default()
        };
        assert_eq!(rounds_within(&answer, 1.0), 2.0);
        assert_eq!(rounds_within(&answer, 2.0), 4.0);
    }
}
