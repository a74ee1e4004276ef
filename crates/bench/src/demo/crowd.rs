//! The last act: tenants whose memory does not fit together.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use mica_command::refusal::explain;
use mica_command::size::show_bytes;
use mica_control::api::{Mode, ResidencyInfo, ResidencyState, VgpuSpec};
use serde_json::json;

use super::private_daemon::{TenantProcess, pause};
use super::screen::thousands;
use super::tenant::Ask;
use super::{Demo, EVERY, GPU_BYTES, MIB, Member, Promise};

/// What each tenant holds: two of them fit on the GPU, three do not.
const DATA_BYTES: u64 = 192 * MIB;
/// Its limit: besides the data there are variables and code.
const LIMIT_BYTES: u64 = DATA_BYTES + 16 * MIB;
/// How long each of them works.
const SECONDS: f64 = 6.0;
/// Longest that a tenant may take to finish afterwards.
const PATIENCE: Duration = Duration::from_secs(60);

/// Turns that are short enough for a demo: by default a turn is 20 times what the exchange takes.
pub(super) const SWAP_SECTION: &str = "[swap]\nturn_multiple = 4\nleast_turn_ms = 400\n";

fn note(state: ResidencyState) -> &'static str {
    match state {
        ResidencyState::Resident => "on the GPU",
        ResidencyState::Leaving => "leaving the GPU",
        ResidencyState::Away => "in host memory, waiting for its turn",
        ResidencyState::Returning => "returning to the GPU",
    }
}

impl Demo {
    pub(super) fn memory_is_shared_in_turns(&mut self) -> Result<()> {
        let size = show_bytes(DATA_BYTES);
        let now = format!("all three want {size} now, which is more than the GPU has");
        self.screen.now(&now);
        for index in 0..self.members.len() {
            self.begin_anew(index)?;
        }
        let began = Instant::now();
        for member in &mut self.members {
            member.process()?.ask(Ask::Rounds { seconds: SECONDS })?;
        }
        while began.elapsed().as_secs_f64() < SECONDS {
            self.show_places()?;
            pause(EVERY)?;
        }
        self.screen.now("they finish, and compare every word");
        let (mut rounds, mut wrong, mut places) = (Vec::new(), 0, Vec::new());
        for member in &mut self.members {
            let name = member.name;
            let answer = member.process()?.answer_within(PATIENCE);
            rounds.push(answer.with_context(|| name.to_owned())?.times_ns.len());
        }
        for member in &mut self.members {
            let process = member.process()?;
            process.ask(Ask::Compare)?;
            wrong += process.answer_within(PATIENCE)?.wrong_words;
        }
        for member in &self.members {
            places.push(self.residency(member)?);
        }
        let promise = judge(&rounds, wrong, &places, began.elapsed().as_secs_f64());
        self.settle(promise);
        Ok(())
    }

    /// Ends a tenant, and starts it in a swappable virtual GPU of the same name.
    fn begin_anew(&mut self, index: usize) -> Result<()> {
        let member = &mut self.members[index];
        member.process = None;
        member.note = Some("starting");
        member.seen.clear();
        let client = &self.private_daemon.client;
        client.remove(member.name, true).map_err(explain)?;
        let spec = VgpuSpec {
            name: Some(member.name.into()),
            memory_limit_bytes: Some(LIMIT_BYTES),
            gpu: Some(self.private_daemon.gpu.index),
            mode: Some(Mode::Isolated),
            swap: Some(true),
            ..VgpuSpec::default()
        };
        member.created = client.create(&spec).map_err(explain)?;
        let mut process = TenantProcess::start(&member.created)?;
        process.ask(Ask::Hold { bytes: DATA_BYTES })?;
        let held = process.answer_within(PATIENCE);
        held.with_context(|| member.name.to_owned())?;
        member.process = Some(process);
        self.show_places()
    }

    fn residency(&self, member: &Member) -> Result<Option<ResidencyInfo>> {
        let info = self.private_daemon.client.get(member.name);
        Ok(info.map_err(explain)?.residency)
    }

    fn show_places(&mut self) -> Result<()> {
        for index in 0..self.members.len() {
            if let Some(place) = self.residency(&self.members[index])? {
                self.members[index].note = Some(note(place.state));
            }
        }
        self.draw();
        Ok(())
    }
}

fn judge(rounds: &[usize], wrong: u64, places: &[Option<ResidencyInfo>], seconds: f64) -> Promise {
    let sum =
        |figure: fn(&ResidencyInfo) -> u64| -> u64 { places.iter().flatten().map(figure).sum() };
    let moved = sum(|place| place.moved_bytes_total);
    let exchanges = sum(|place| place.exchanges_total);
    let all_moved = places
        .iter()
        .all(|place| place.is_some_and(|p| p.exchanges_total > 0));
    let finished: usize = rounds.iter().sum();
    Promise {
        name: "swap",
        title: "Memory that does not fit together is shared in turns",
        kept: wrong == 0 && all_moved && rounds.iter().all(|rounds| *rounds > 0),
        evidence: vec![
            format!(
                "three times {} on a GPU of {}: all three finished, {} rounds in {seconds:.1} s",
                show_bytes(DATA_BYTES),
                show_bytes(GPU_BYTES),
                thousands(finished as u64),
            ),
            format!(
                "they left the GPU {exchanges} times, {} moved, {} of their words are wrong",
                show_bytes(moved),
                match wrong {
                    0 => "none".to_owned(),
                    some => thousands(some),
                }
            ),
        ],
        measured: json!({
            "data_bytes": DATA_BYTES,
            "gpu_memory_bytes": GPU_BYTES,
            "rounds": rounds,
            "seconds": seconds,
            "exchanges": exchanges,
            "moved_bytes": moved,
            "wrong_words": wrong,
        }),
    }
}
