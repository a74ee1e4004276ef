//! Refusals of the daemon as people read them.

use anyhow::anyhow;
use mica_control::client::ControlError;

/// An error that carries the daemon's hint on a line of its own.
pub fn explain(error: ControlError) -> anyhow::Error {
    match error {
        ControlError::Refused(refusal) => match refusal.hint {
            Some(hint) => anyhow!("{}\n  hint: {hint}", refusal.error),
            None => anyhow!("{}", refusal.error),
        },
        other => anyhow::Error::new(other),
    }
}
