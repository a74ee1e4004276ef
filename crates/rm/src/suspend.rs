//! Stopping and starting this process's channels.
//!
//! At the end of the process everything runs again: libcuda waits for its channels then.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use crate::RmError;
use crate::abi::{self, DISABLE_MAX, DisableChannels};
use crate::control::{GroupId, compute_groups, control, remember};
use crate::observer;

static SUSPENDED: AtomicBool = AtomicBool::new(false);
/// Held while channels are stopped or started, so that the end of the process can have the last word.
static SWITCHING: Mutex<()> = Mutex::new(());
static ENDING: AtomicBool = AtomicBool::new(false);
static AT_EXIT: Once = Once::new();

/// How [`suspend_with`] stops channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuspendHow {
    /// Also takes running kernels off the GPU before the call returns.
    Preempt,
    /// Only keeps the channels from being scheduled again: what runs now runs to the end of its
    /// slice.
    FromNextSlice,
}

/// Whether the channels are stopped by us.
pub(crate) fn suspended() -> bool {
    SUSPENDED.load(Relaxed)
}

/// Stops all kernels of this process: running ones are taken off the GPU. Work submitted meanwhile
/// waits. Channels made later are not covered; watch [`generation`](crate::generation).
///
/// # Errors
/// [`RmError::NoGroup`] before there is a context; the manager's refusal otherwise.
pub fn suspend() -> Result<(), RmError> {
    suspend_with(SuspendHow::Preempt)
}

/// As [`suspend`], saying how.
///
/// # Errors
/// As [`suspend`].
pub fn suspend_with(how: SuspendHow) -> Result<(), RmError> {
    suspend_where(how, |_| true)
}

/// Undoes [`suspend`].
///
/// # Errors
/// As [`suspend`].
pub fn resume() -> Result<(), RmError> {
    resume_where(|_| true)
}

fn switching() -> MutexGuard<'static, ()> {
    SWITCHING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn suspend_where(how: SuspendHow, wanted: impl Fn(&GroupId) -> bool) -> Result<(), RmError> {
    // libcuda waits for its channels when the process ends, so stopped ones must run by then.
    AT_EXIT.call_once(|| {
        // SAFETY: registers a function that lives as long as the process.
        unsafe { libc::atexit(resume_at_exit) };
    });
    let _only_one = switching();
    if ENDING.load(Relaxed) {
        return Err(RmError::NotObserved);
    }
    let only_scheduling = how == SuspendHow::FromNextSlice;
    let result = switch_channels(true, only_scheduling, wanted);
    // Even a refusal may have come after some of the groups were stopped.
    if !matches!(result, Err(RmError::NoGroup | RmError::NotObserved)) {
        SUSPENDED.store(true, Relaxed);
    }
    remember("DISABLE_CHANNELS", result)
}

fn resume_where(wanted: impl Fn(&GroupId) -> bool) -> Result<(), RmError> {
    let _only_one = switching();
    let result = switch_channels(false, false, wanted);
    if result.is_ok() {
        SUSPENDED.store(false, Relaxed);
    }
    remember("ENABLE_CHANNELS", result)
}

extern "C" fn resume_at_exit() {
    // A child after a fork shares nothing with the channels, and the lock may be held for ever.
    if !observer::observed() {
        return;
    }
    let _only_one = switching();
    ENDING.store(true, Relaxed);
    // Starting what runs already does nothing.
    let _ = switch_channels(false, false, |_| true);
}

/// As [`suspend_with`], for some groups only.
///
/// # Errors
/// As [`suspend`].
pub fn suspend_groups(groups: &[GroupId], how: SuspendHow) -> Result<(), RmError> {
    suspend_where(how, |id| groups.contains(id))
}

/// Undoes [`suspend_groups`].
///
/// # Errors
/// As [`suspend`].
pub fn resume_groups(groups: &[GroupId]) -> Result<(), RmError> {
    resume_where(|id| groups.contains(id))
}

fn switch_channels(
    disable: bool,
    only_scheduling: bool,
    wanted: impl Fn(&GroupId) -> bool,
) -> Result<(), RmError> {
    let mut tries = 0;
    loop {
        let generation = observer::generation();
        match switch_once(disable, only_scheduling, &wanted) {
            // A channel was freed under our feet: the list is old, not the control refused.
            Err(RmError::Refused { .. }) if tries < 3 && observer::generation() != generation => {
                tries += 1;
            }
            result => return result,
        }
    }
}

fn switch_once(
    disable: bool,
    only_scheduling: bool,
    wanted: impl Fn(&GroupId) -> bool,
) -> Result<(), RmError> {
    let mut groups = compute_groups(None)?;
    groups.retain(|group| wanted(&GroupId::of(group)));
    if groups.iter().all(|group| group.channels.is_empty()) {
        return Err(RmError::NoGroup);
    }
    for group in groups {
        let subdevice = group.subdevice.ok_or(RmError::NoSubdevice)?;
        for channels in group.channels.chunks(DISABLE_MAX) {
            let mut params = DisableChannels {
                disable: disable.into(),
                count: channels.len() as u32,
                only_scheduling: only_scheduling.into(),
                rewind: 0,
                preempt_event: 0,
                clients: [0; DISABLE_MAX],
                channels: [0; DISABLE_MAX],
            };
            params.clients[..channels.len()].fill(group.object.client);
            params.channels[..channels.len()].copy_from_slice(channels);
            let name = match disable {
                true => "DISABLE_CHANNELS",
                false => "ENABLE_CHANNELS",
            };
            control(
                &group,
                subdevice,
                abi::CTRL_DISABLE_CHANNELS,
                name,
                &mut params,
            )?;
        }
    }
    Ok(())
}
