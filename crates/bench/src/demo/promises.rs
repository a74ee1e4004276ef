//! The acts of the demo: each does what a tenant should fear, measures, and judges.

use std::time::{Duration, Instant};

use anyhow::Result;
use mica_control::api::{Percent, Resize};
use serde_json::json;

use super::private_daemon::pause;
use super::screen::thousands;
use super::tenant::Ask;
use super::{Demo, MIB, Promise, Stretch};
use mica_command::refusal::explain;
use mica_command::size::show_bytes;

const ADA: usize = 0;
const BEN: usize = 1;
const CLEO: usize = 2;
/// Points that a share may be off; more where other programs take this processor from the GPU.
const POINTS: f64 = 1.0;
const POINTS_BESIDE_OTHERS: f64 = 4.0;
/// Points more for finished work: steps are not equally long, and some are under way at either end.
const WORK_POINTS: f64 = 2.0;
/// Percent of the processor from which on others count.
const BESIDE_OTHERS: f64 = 10.0;
const OUT_OF_MEMORY: u32 = 2;
const ILLEGAL_ADDRESS: u32 = 700;
/// Longest that a dead tenant's memory may be away.
const BACK_WITHIN_MS: f64 = 100.0;

impl Demo {
    pub(super) fn shares_hold(&mut self) -> Result<()> {
        self.screen
            .now("all three want the whole GPU; watch who gets how much");
        self.watch(Duration::from_millis(1500))?;
        let stretch = self.measure(Duration::from_secs(7))?;
        let promise = self.judge_shares("shares", "Shares hold", &stretch);
        self.settle(promise);
        Ok(())
    }

    fn judge_shares(&self, name: &'static str, title: &'static str, stretch: &Stretch) -> Promise {
        let Stretch {
            got,
            seconds,
            others_percent,
        } = stretch;
        let asked: Vec<f64> = self.members.iter().map(|m| f64::from(m.share)).collect();
        let time = percent(got.iter().map(|got| got.gpu_time_ns));
        let work = percent(got.iter().map(|got| got.steps));
        let steps: u64 = got.iter().map(|got| got.steps).sum();
        let (error, work_error) = (off(&asked, &time), off(&asked, &work));
        let disturbed = *others_percent >= BESIDE_OTHERS;
        let allowed = if disturbed {
            POINTS_BESIDE_OTHERS
        } else {
            POINTS
        };
        let mut evidence = vec![
            format!(
                "asked {}, got {} % of GPU time over {seconds:.1} s: {error:.1} points off",
                ratio(&asked, 0),
                ratio(&time, 1)
            ),
            format!(
                "and with it {} % of the {} steps finished meanwhile",
                ratio(&work, 1),
                thousands(steps)
            ),
        ];
        if disturbed {
            evidence.push(format!(
                "(other programs used {others_percent:.0} % of this processor meanwhile: {allowed:.0} points allowed)"
            ));
        }
        Promise {
            name,
            title,
            kept: error <= allowed && work_error <= allowed + WORK_POINTS,
            evidence,
            measured: json!({
                "share_percent": asked,
                "gpu_time_percent": time,
                "finished_work_percent": work,
                "gpu_seconds": got.iter().map(|g| g.gpu_time_ns as f64 / 1e9).collect::<Vec<_>>(),
                "steps": got.iter().map(|g| g.steps).collect::<Vec<_>>(),
                "error_points": error,
                "finished_work_error_points": work_error,
                "allowed_error_points": allowed,
                "other_programs_percent": others_percent,
                "seconds": seconds,
            }),
        }
    }

    pub(super) fn quota_holds(&mut self) -> Result<()> {
        self.screen
            .now("cleo takes all the memory she may have, then one byte more");
        let answer = self.members[CLEO].question(Ask::Fill)?;
        let limit = self.members[CLEO].limit_bytes;
        self.watch(Duration::from_millis(1000))?;
        self.settle(Promise {
            name: "quota",
            title: "A memory limit holds to the byte",
            kept: answer.code == OUT_OF_MEMORY && answer.limit_bytes == limit,
            evidence: vec![format!(
                "cleo got the last {} bytes of her {}; one byte more was {}",
                thousands(answer.granted_bytes),
                show_bytes(limit),
                match answer.code {
                    OUT_OF_MEMORY => "refused: out of memory".to_owned(),
                    0 => "granted".to_owned(),
                    code => format!("answered with CUDA error {code}"),
                }
            )],
            measured: json!({
                "memory_limit_bytes": answer.limit_bytes,
                "granted_bytes": answer.granted_bytes,
                "refused_bytes": u64::from(answer.code != 0),
                "cuda_error": answer.code,
                "refusal": answer.refusal,
            }),
        });
        Ok(())
    }

    pub(super) fn fault_is_contained(&mut self) -> Result<()> {
        self.screen.now("cleo writes through a wild pointer");
        let answer = self.members[CLEO].question(Ask::Wild)?;
        self.members[CLEO].note = Some("her context is broken (CUDA error 700)");
        let Stretch { got, seconds, .. } = self.measure(Duration::from_millis(1500))?;
        let others = [ADA, BEN];
        let mut difference = 0.0_f64;
        for index in others {
            let checked = self.members[index].question(Ask::Check)?;
            difference = difference.max(checked.difference);
        }
        self.screen.now("cleo begins anew");
        let data_bytes = self.members[CLEO].data_bytes;
        let recovered = self.members[CLEO].question(Ask::Recover { data_bytes });
        let recovered = match recovered {
            Ok(_) => {
                self.members[CLEO].note = None;
                self.members[CLEO].seen.clear();
                true
            }
            Err(error) => return Err(error),
        };
        let steps: u64 = others.iter().map(|i| got[*i].steps).sum();
        let went_on = others.iter().all(|i| got[*i].steps > 0);
        self.settle(Promise {
            name: "fault",
            title: "A wild pointer hurts only its owner",
            kept: answer.code == ILLEGAL_ADDRESS && went_on && recovered,
            evidence: vec![
                format!(
                    "cleo's kernel wrote where nothing is: CUDA error {}, her context ended",
                    answer.code
                ),
                format!(
                    "ada and ben finished {} steps in the {seconds:.1} s after it, results still right; cleo is back",
                    thousands(steps)
                ),
            ],
            measured: json!({
                "cuda_error": answer.code,
                "fault": answer.refusal,
                "others_steps": steps,
                "others_seconds": seconds,
                "others_largest_relative_difference": difference,
                "recovered": recovered,
            }),
        });
        Ok(())
    }

    pub(super) fn death_returns_memory(&mut self) -> Result<()> {
        self.screen
            .now("ben's process is killed in the middle of his work");
        self.watch(Duration::from_millis(500))?;
        let name = self.members[BEN].name;
        let used = self
            .private_daemon
            .client
            .get(name)
            .map_err(explain)?
            .memory_used_bytes;
        let Some(process) = self.members[BEN].process.take() else {
            anyhow::bail!("{name} does not run");
        };
        self.members[BEN].note = Some("killed (SIGKILL)");
        let killed = process.kill();
        let mut left = used;
        while left > 0 && killed.elapsed() < Duration::from_secs(3) {
            left = self
                .private_daemon
                .client
                .get(name)
                .map_err(explain)?
                .memory_used_bytes;
            if left > 0 {
                pause(Duration::from_millis(1))?;
            }
        }
        let back_ms = killed.elapsed().as_secs_f64() * 1e3;
        self.watch(Duration::from_millis(1200))?;
        self.screen.now("ben starts again in the same virtual GPU");
        let started = Instant::now();
        let again = self.start(BEN)?;
        let again_ms = started.elapsed().as_secs_f64() * 1e3;
        self.settle(Promise {
            name: "death",
            title: "Death leaves nothing behind",
            kept: used > 0 && left == 0 && back_ms <= BACK_WITHIN_MS,
            evidence: vec![format!(
                "ben was killed holding {}; all of it was back {back_ms:.0} ms later; he works again",
                show_bytes(used)
            )],
            measured: json!({
                "memory_used_bytes": used,
                "memory_left_bytes": left,
                "back_ms": back_ms,
                "allowed_back_ms": BACK_WITHIN_MS,
                "working_again_ms": again_ms,
                "largest_relative_difference": again.difference,
            }),
        });
        Ok(())
    }

    pub(super) fn resize_takes_effect(&mut self) -> Result<()> {
        self.screen
            .now("under full load ada and cleo swap shares, and cleo gets more memory");
        let old_limit = self.members[CLEO].limit_bytes;
        let new_limit = old_limit + 64 * MIB;
        // More than is left of the old limit, and less than the new one leaves.
        let bytes = old_limit - self.members[CLEO].data_bytes + MIB;
        let before = self.members[CLEO].question(Ask::Allocate { bytes })?;
        let mut asked = Instant::now();
        for (index, share, memory) in [(ADA, 20, None), (CLEO, 50, Some(new_limit))] {
            let change = Resize {
                memory_limit_bytes: memory,
                share_percent: Some(Percent::from(share)),
                ..Resize::default()
            };
            let member = &mut self.members[index];
            asked = Instant::now();
            self.private_daemon
                .client
                .resize(member.name, &change)
                .map_err(explain)?;
            member.share = share;
            member.limit_bytes = memory.unwrap_or(member.limit_bytes);
        }
        let after = self.members[CLEO].question(Ask::Allocate { bytes })?;
        let memory_ms = asked.elapsed().as_secs_f64() * 1e3;
        self.watch(Duration::from_millis(1000))?;
        let stretch = self.measure(Duration::from_secs(6))?;
        let mut promise = self.judge_shares("resize", "Limits change under load", &stretch);
        let memory_kept = before.code == OUT_OF_MEMORY && after.granted_bytes == bytes;
        promise.kept &= memory_kept;
        promise.evidence.insert(
            0,
            format!(
                "cleo's limit went from {} to {}: {} refused before, {} {memory_ms:.0} ms later",
                show_bytes(old_limit),
                show_bytes(new_limit),
                show_bytes(bytes),
                if after.code == 0 {
                    "granted"
                } else {
                    "still refused"
                },
            ),
        );
        if let Some(numbers) = promise.measured.as_object_mut() {
            numbers.insert("allocation_bytes".into(), json!(bytes));
            numbers.insert("before_cuda_error".into(), json!(before.code));
            numbers.insert("after_cuda_error".into(), json!(after.code));
            numbers.insert("memory_effect_ms".into(), json!(memory_ms));
        }
        self.settle(promise);
        Ok(())
    }
}

fn percent(values: impl Iterator<Item = u64> + Clone) -> Vec<f64> {
    let sum: u64 = values.clone().sum();
    values
        .map(|value| 100.0 * value as f64 / sum.max(1) as f64)
        .collect()
}

/// Largest difference in points.
fn off(asked: &[f64], got: &[f64]) -> f64 {
    let differences = asked
        .iter()
        .zip(got)
        .map(|(asked, got)| (asked - got).abs());
    differences.fold(0.0, f64::max)
}

fn ratio(values: &[f64], digits: usize) -> String {
    let parts: Vec<String> = values
        .iter()
        .map(|value| format!("{value:.digits$}"))
        .collect();
    parts.join(" : ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_parts_of_their_sum() {
        let got = percent([5_u64, 3, 2].into_iter());
        assert_eq!(got, [50.0, 30.0, 20.0]);
        assert!((off(&[50.0, 30.0, 20.0], &[52.0, 29.0, 19.0]) - 2.0).abs() < 1e-9);
        assert_eq!(ratio(&got, 1), "50.0 : 30.0 : 20.0");
    }
}
