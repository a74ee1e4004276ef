//! What the monitor does with what it has measured: keeps it, and warns.

use crate::daemon::Daemon;
use crate::events::now_seconds;
use crate::history::Observer;
use crate::warnings::Warnings;
use crate::webhook::{Target, Webhook};

/// Keeps and warns, once a second.
#[derive(Debug)]
pub(crate) struct Recorder {
    observer: Observer,
    warnings: Warnings,
    webhook: Webhook,
}

impl Recorder {
    /// Begins now.
    pub(crate) fn new() -> Self {
        Self {
            observer: Observer::new(now_seconds() as u64),
            warnings: Warnings::default(),
            webhook: Webhook::new(),
        }
    }

    /// Takes what was measured in the last seconds. Files are written without the lock.
    pub(crate) fn record(&mut self, daemon: &Daemon, seconds: f64) {
        let now = now_seconds() as u64;
        let (measured, limits) = {
            let registry = daemon.registry();
            let limits = registry.config.warnings.clone();
            (self.observer.observe(&registry, now, seconds), limits)
        };
        for (severity, kind, vgpu, text) in self.warnings.watch(&limits, &measured) {
            let event = daemon
                .events
                .tell(severity, kind, vgpu.as_deref(), None, text);
            // The address was checked when the configuration was read.
            let target = Target::parse(&limits.webhook).ok();
            if let (Some(event), Some(target)) = (event, target) {
                self.webhook.send(target, event);
            }
        }
        if let Some(failure) = daemon.history.add(now, measured) {
            daemon.history_failed(failure);
        }
    }
}
