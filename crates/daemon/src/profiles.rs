//! Profiles of virtual GPUs: what their workers tell of kernels, copies and waits.
//!
//! Owns the level, and sums that are bounded whatever workers tell: at most [`MOST_LINES`] names for each activity. What
//! a worker has told stays when it ends, until a profile begins anew.

use std::time::{Duration, Instant};

use mica_control::api::{
    ApiError, Mode, ProfileActivity, ProfileLevel, ProfileLine, SetProfile, VgpuProfile,
};
use mica_gpu::profile::{Activity, Sum, largest};
use mica_wire::host::message::{DaemonMessage, ProfileRow, Role};

use crate::daemon::Daemon;
use crate::placement::error;
use crate::registry::{Registry, Vgpu};

/// Names of each activity.
const MOST_LINES: usize = 64;
/// Lines of one report.
const MOST_ROWS: usize = (MOST_LINES + 1) * Activity::ALL.len();

/// What a worker told.
#[derive(Debug, Default)]
pub(crate) struct ToldProfile {
    /// The last whole report.
    sums: Vec<Sum>,
    /// The report that is on its way.
    coming: Vec<Sum>,
}

impl ToldProfile {
    fn take(&mut self, row: ProfileRow) {
        let activity = usize::try_from(row.activity).ok();
        let activity = activity.and_then(|number| Activity::ALL.get(number));
        if let Some(activity) = activity.filter(|_| self.coming.len() < MOST_ROWS) {
            self.coming.push(Sum {
                activity: *activity,
                name: row.name.into(),
                calls: row.calls,
                total_ns: row.total_ns,
                least_ns: 0,
                most_ns: row.most_ns,
                bytes: row.bytes,
            });
        }
        if row.rest == 0 {
            self.sums = std::mem::take(&mut self.coming);
        }
    }
}

/// The profile of one virtual GPU.
#[derive(Debug, Default)]
pub(crate) struct Profiled {
    level: ProfileLevel,
    began: Option<Instant>,
    ended: Option<Instant>,
    /// When it ends by itself.
    until: Option<Instant>,
    /// What workers told that have ended.
    past: Vec<Sum>,
}

impl Profiled {
    pub(crate) fn is_on(&self) -> bool {
        self.level != ProfileLevel::Off
    }

    /// What a worker must be told, if anything.
    pub(crate) fn order(&self) -> Option<DaemonMessage> {
        self.is_on().then(|| order(self.level))
    }

    /// Keeps what a worker told that has ended.
    pub(crate) fn worker_gone(&mut self, told: &ToldProfile) {
        merge(&mut self.past, &told.sums);
        if self.past.len() > MOST_ROWS {
            self.past = largest(&self.past, MOST_LINES);
        }
    }

    fn set(&mut self, level: ProfileLevel) {
        if !self.is_on() && level != ProfileLevel::Off {
            self.past.clear();
            (self.began, self.ended) = (Some(Instant::now()), None);
        } else if self.is_on() && level == ProfileLevel::Off {
            self.ended = Some(Instant::now());
        }
        self.level = level;
    }

    fn seconds(&self) -> f64 {
        let Some(began) = self.began else { return 0.0 };
        let ended = self.ended.unwrap_or_else(Instant::now);
        ended.saturating_duration_since(began).as_secs_f64()
    }
}

fn order(level: ProfileLevel) -> DaemonMessage {
    let level = match level {
        ProfileLevel::Off => 0,
        ProfileLevel::Sums => 1,
        ProfileLevel::Spans => 2,
    };
    DaemonMessage::Profile { level }
}

fn merge(into: &mut Vec<Sum>, more: &[Sum]) {
    for sum in more {
        let same = |known: &&mut Sum| known.activity == sum.activity && known.name == sum.name;
        match into.iter_mut().find(same) {
            Some(known) => known.add(sum),
            None => into.push(sum.clone()),
        }
    }
}

fn line(sum: Sum) -> ProfileLine {
    ProfileLine {
        activity: match sum.activity {
            Activity::Kernel => ProfileActivity::Kernel,
            Activity::Compile => ProfileActivity::Compile,
            Activity::Copy => ProfileActivity::Copy,
            Activity::Fill => ProfileActivity::Fill,
            Activity::Wait => ProfileActivity::Wait,
            Activity::Turn => ProfileActivity::Turn,
        },
        name: sum.name,
        calls: sum.calls,
        total_ns: sum.total_ns,
        most_ns: sum.most_ns,
        bytes: sum.bytes,
    }
}

impl Registry {
    /// The profile of a virtual GPU, as far as its workers have told it.
    pub(crate) fn profile(&self, vgpu: &Vgpu) -> VgpuProfile {
        let mut sums = vgpu.profiled.past.clone();
        let clients = vgpu.clients.iter().filter_map(|id| self.clients.get(id));
        for client in clients {
            merge(&mut sums, &client.told_profile.sums);
        }
        VgpuProfile {
            name: vgpu.name.clone(),
            level: vgpu.profiled.level,
            seconds: vgpu.profiled.seconds(),
            lines: largest(&sums, MOST_LINES).into_iter().map(line).collect(),
        }
    }

    /// Changes how much is recorded of a virtual GPU, and tells its workers.
    ///
    /// # Errors
    /// There is no such virtual GPU, or its programs have no workers.
    pub(crate) fn set_profile(&mut self, name: &str, change: &SetProfile) -> Result<(), ApiError> {
        let level = change.level;
        let seconds = match change.seconds {
            None => None,
            Some(seconds) => Some(Duration::try_from_secs_f64(seconds).map_err(|_| {
                let text = format!("a profile cannot take {seconds} seconds");
                error("invalid", text, None)
            })?),
        };
        let vgpu = self.vgpu(name)?;
        if self.mode(vgpu) == Mode::Direct {
            let text = format!("kernels of {name} cannot be profiled: it is direct");
            let hint =
                "isolated mode (`--mode isolated`) can; in direct mode NVIDIA's nsys and ncu work";
            return Err(error("state", text, Some(hint.into())));
        }
        let begins = !vgpu.profiled.is_on() && level != ProfileLevel::Off;
        let members = vgpu.clients.clone();
        for id in members {
            let Some(client) = self.clients.get_mut(&id) else {
                continue;
            };
            if client.role == Role::Worker {
                if begins {
                    client.told_profile = ToldProfile::default();
                }
                // A worker that does not read is cut off by its next message.
                let _ = client.socket.send(&order(level), &[]);
            }
        }
        let profiled = &mut self.vgpu_mut(name)?.profiled;
        profiled.set(level);
        profiled.until = seconds.and_then(|seconds| Instant::now().checked_add(seconds));
        Ok(())
    }

    /// Ends profiles whose time is over.
    pub(crate) fn end_profiles(&mut self) {
        let now = Instant::now();
        let is_over = |vgpu: &&Vgpu| {
            vgpu.profiled.is_on() && vgpu.profiled.until.is_some_and(|until| now >= until)
        };
        let over: Vec<String> = (self.vgpus.values().filter(is_over))
            .map(|vgpu| vgpu.name.clone())
            .collect();
        for name in over {
            let _ = self.set_profile(&name, &SetProfile::default());
        }
    }
}

impl Daemon {
    /// Takes a line that a worker told.
    pub(crate) fn worker_profiled(&self, client: u64, row: ProfileRow) {
        let mut registry = self.registry();
        if let Some(client) = registry.clients.get_mut(&client)
            && client.role == Role::Worker
        {
            client.told_profile.take(row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(rest: u64, name: &str, total_ns: u64) -> ProfileRow {
        ProfileRow {
            rest,
            activity: 0,
            calls: 1,
            total_ns,
            most_ns: total_ns,
            bytes: 0,
            name: name.into(),
        }
    }

    #[test]
    fn a_report_replaces_the_one_before_when_it_is_whole() {
        let mut told = ToldProfile::default();
        told.take(row(0, "a", 1));
        told.take(row(1, "a", 2));
        assert_eq!(told.sums[0].total_ns, 1);
        told.take(row(0, "b", 3));
        assert_eq!((told.sums.len(), told.sums[0].total_ns), (2, 2));
    }

    #[test]
    fn what_workers_tell_is_bounded() {
        let mut profiled = Profiled::default();
        for worker in 0..20 {
            let mut told = ToldProfile::default();
            for at in 0..10 * MOST_ROWS {
                told.take(row(1, &format!("{worker}/{at}"), 1));
            }
            told.take(ProfileRow {
                activity: 99,
                ..row(0, "of no activity", 1)
            });
            assert_eq!(told.sums.len(), MOST_ROWS);
            profiled.worker_gone(&told);
        }
        assert!(profiled.past.len() <= MOST_ROWS);
        let calls: u64 = profiled.past.iter().map(|sum| sum.calls).sum();
        assert_eq!(calls, 20 * MOST_ROWS as u64, "others are counted");
    }
}
