//! Stopping the preparation of a kernel that nobody waits for any more.

use std::fmt;

/// Asked now and then by [`crate::Executable::prepare`], on the thread that called it.
#[derive(Clone, Copy, Default)]
pub struct Interrupt<'a>(Option<&'a dyn Fn() -> bool>);

impl<'a> Interrupt<'a> {
    /// Stops the preparation soon after `check` has said yes. `check` must return at once.
    pub fn new(check: &'a dyn Fn() -> bool) -> Self {
        Self(Some(check))
    }

    /// What to ask; `None` where nothing stops the preparation.
    pub fn check(self) -> Option<&'a dyn Fn() -> bool> {
        self.0
    }
}

impl fmt::Debug for Interrupt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.0.is_some() { "check" } else { "none" };
        f.debug_tuple("Interrupt").field(&kind).finish()
    }
}

/// Why a kernel is not ready.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrepareError {
    /// The kernel cannot run; the sentence says why.
    #[error("{0}")]
    Refused(String),
    /// [`Interrupt`] said so. Nothing is remembered: the next launch prepares the kernel anew.
    #[error("its preparation was cancelled")]
    Cancelled,
}

impl From<String> for PrepareError {
    fn from(reason: String) -> Self {
        Self::Refused(reason)
    }
}
