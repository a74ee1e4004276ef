//! The event log: kept for a while, and sent to every listener.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use mica_control::api::{Event, Severity};
use mica_wire::host::printable::printable;
use tokio::sync::broadcast;

use crate::event_limits::EventLimits;

/// Events that are remembered.
const REMEMBERED: usize = 2048;

/// The log.
#[derive(Debug)]
pub(crate) struct EventLog {
    past: Mutex<(u64, VecDeque<Event>)>,
    live: broadcast::Sender<Event>,
    floods: Mutex<EventLimits>,
    /// Events so far: information, warnings, errors.
    counts: [AtomicU64; 3],
}

impl Default for EventLog {
    fn default() -> Self {
        Self {
            past: Mutex::default(),
            live: broadcast::channel(1024).0,
            floods: Mutex::default(),
            counts: Default::default(),
        }
    }
}

impl EventLog {
    /// Adds an event, unless there were too many like it.
    pub(crate) fn add(
        &self,
        severity: Severity,
        kind: &str,
        vgpu: Option<&str>,
        pid: Option<u32>,
        message: String,
    ) {
        let _ = self.tell(severity, kind, vgpu, pid, message);
    }

    /// As `add`; returns the event.
    pub(crate) fn tell(
        &self,
        severity: Severity,
        kind: &str,
        vgpu: Option<&str>,
        pid: Option<u32>,
        message: String,
    ) -> Option<Event> {
        let floods = self.floods.lock();
        let mut floods = floods.unwrap_or_else(PoisonError::into_inner);
        let left_out = floods.admit(vgpu, kind, Instant::now())?;
        drop(floods);
        // Parts of it are words of programs, and it goes to logs and terminals.
        let mut message = printable(&message).into_owned();
        if left_out > 0 {
            message += &format!(" ({left_out} events like it were left out)");
        }
        self.counts[severity as usize].fetch_add(1, Relaxed);
        match severity {
            Severity::Info => tracing::info!(kind, vgpu, pid, "{message}"),
            Severity::Warning => tracing::warn!(kind, vgpu, pid, "{message}"),
            Severity::Error => tracing::error!(kind, vgpu, pid, "{message}"),
        }
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.0 += 1;
        let event = Event {
            sequence: past.0,
            time_seconds: now_seconds(),
            severity,
            kind: kind.into(),
            vgpu: vgpu.map(Into::into),
            pid,
            message,
        };
        if past.1.len() == REMEMBERED {
            past.1.pop_front();
        }
        past.1.push_back(event.clone());
        // Sent under the lock so that listeners see sequence numbers in order.
        let _ = self.live.send(event.clone());
        Some(event)
    }

    /// Events so far by severity.
    pub(crate) fn counts(&self) -> [(&'static str, u64); 3] {
        let names = ["info", "warning", "error"];
        std::array::from_fn(|index| (names[index], self.counts[index].load(Relaxed)))
    }

    /// What is remembered after a sequence number, oldest first.
    pub(crate) fn past(&self, after: u64) -> Vec<Event> {
        let past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.1
            .iter()
            .filter(|event| event.sequence > after)
            .cloned()
            .collect()
    }

    /// What is remembered, and a receiver of all that follows, without a gap between.
    pub(crate) fn follow(&self, after: u64) -> (Vec<Event>, broadcast::Receiver<Event>) {
        let past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        let receiver = self.live.subscribe();
        let old = past
            .1
            .iter()
            .filter(|event| event.sequence > after)
            .cloned()
            .collect();
        (old, receiver)
    }
}

/// Seconds since the epoch.
pub(crate) fn now_seconds() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |d| d.as_secs_f64())
}
