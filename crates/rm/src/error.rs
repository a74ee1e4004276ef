//! What can go wrong with a control.

/// Why a control was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RmError {
    /// The library has no slot for `ioctl`: it makes its system calls in another way.
    #[error("the driver library imports no `ioctl`, so its channel groups cannot be learnt")]
    NoIoctlSlot,
    /// The library's headers could not be read.
    #[error("the driver library's dynamic section cannot be used: {0}")]
    Library(&'static str),
    /// [`observe`](crate::observe) has not been called, or this is a child after a fork.
    #[error("the driver library of this process is not observed")]
    NotObserved,
    /// No compute channel group is known: there is no context yet, or MPS owns it.
    #[error("this process has no compute channel group")]
    NoGroup,
    /// The group's device has no subdevice object, which the control needs.
    #[error("no subdevice object is known for the device of the channel group")]
    NoSubdevice,
    /// The resource manager said no.
    #[error("the resource manager refused {control}: status {status:#x}{}", status_name(*status))]
    Refused {
        /// The control's name.
        control: &'static str,
        /// The manager's own status (`NV_ERR_*`).
        status: u32,
    },
    /// A system call failed.
    #[error("{operation} failed: {}", std::io::Error::from_raw_os_error(*errno))]
    System {
        /// What was tried.
        operation: &'static str,
        /// The system's reason.
        errno: i32,
    },
}

impl RmError {
    /// Whether a context made later may change the answer.
    pub fn should_retry(&self) -> bool {
        matches!(self, Self::NoGroup | Self::NoSubdevice)
    }

    /// As one number for the page shared with the daemon: the manager's status, or `-errno`, or
    /// `i32::MIN` for everything that never reached the kernel.
    pub fn code(&self) -> i32 {
        match self {
            Self::Refused { status, .. } => *status as i32,
            Self::System { errno, .. } => -errno,
            Self::NoIoctlSlot
            | Self::Library(_)
            | Self::NotObserved
            | Self::NoGroup
            | Self::NoSubdevice => i32::MIN,
        }
    }
}

fn status_name(status: u32) -> &'static str {
    match status {
        0x1B => " (insufficient permissions)",
        0x1F => " (invalid argument)",
        0x40 => " (invalid state)",
        0x56 => " (not supported)",
        0x57 => " (object not found)",
        0x65 => " (timeout)",
        _ => "",
    }
}
