//! The contexts of a device: which there are, and whether their work is to hold still.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mica_gpu::{ContextId, Gpu, Result};

/// Contexts by number.
#[derive(Debug, Default)]
pub(crate) struct Contexts(Mutex<Inside>);

#[derive(Debug, Default)]
struct Inside {
    /// Whether somebody above asked for a suspension.
    asked: BTreeMap<u64, bool>,
    /// Whether all hold still because their memory moves.
    held: bool,
}

impl Contexts {
    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, context: ContextId) {
        self.inside().asked.insert(context.0, false);
    }

    pub(crate) fn remove(&self, context: ContextId) {
        self.inside().asked.remove(&context.0);
    }

    /// Any one of them.
    pub(crate) fn any(&self) -> Option<ContextId> {
        self.inside().asked.keys().next().copied().map(ContextId)
    }

    fn all(&self) -> Vec<ContextId> {
        self.inside().asked.keys().copied().map(ContextId).collect()
    }

    pub(crate) fn suspend(&self, gpu: &dyn Gpu, context: ContextId) -> Result<()> {
        if let Some(asked) = self.inside().asked.get_mut(&context.0) {
            *asked = true;
        }
        gpu.context_suspend(context)
    }

    pub(crate) fn resume(&self, gpu: &dyn Gpu, context: ContextId) -> Result<()> {
        let mut inside = self.inside();
        if let Some(asked) = inside.asked.get_mut(&context.0) {
            *asked = false;
        }
        match inside.held {
            true => Ok(()),
            false => gpu.context_resume(context),
        }
    }

    /// Has all work hold still: paused where the device can pause it, else waited for. Nothing is submitted meanwhile.
    pub(crate) fn hold(&self, gpu: &dyn Gpu) -> Result<()> {
        self.inside().held = true;
        for context in self.all() {
            let still = match gpu.has_driver() {
                true => gpu.context_synchronize(context),
                false => gpu.context_suspend(context),
            };
            match still {
                // A context that has faulted runs nothing.
                Err(error) if error.code.is_sticky() => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Lets work go on, but for contexts that somebody above suspended.
    pub(crate) fn release(&self, gpu: &dyn Gpu) {
        let mut inside = self.inside();
        inside.held = false;
        if gpu.has_driver() {
            return;
        }
        for (context, asked) in &inside.asked {
            if !asked && let Err(error) = gpu.context_resume(ContextId(*context)) {
                tracing::warn!(%error, context, "a context cannot be resumed");
            }
        }
    }
}
