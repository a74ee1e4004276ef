//! The channels of this process, as the enforcement core controls them.

use mica_limits::{ChannelError, Channels};

use crate::RmError;

/// All channel groups that this process's driver has made.
#[derive(Clone, Copy, Debug)]
pub struct OwnChannels;

impl ChannelError for RmError {
    fn code(&self) -> i32 {
        self.code()
    }

    fn is_without_channels(&self) -> bool {
        matches!(self, Self::NoGroup | Self::NotObserved)
    }
}

impl Channels for OwnChannels {
    type Error = RmError;

    fn generation(&self) -> u64 {
        crate::generation()
    }

    fn take_overwritten(&self) -> bool {
        crate::take_overwritten()
    }

    fn pin_slice_us(&self, slice_us: Option<u64>) {
        crate::pin_timeslice_us(slice_us);
    }

    fn set_slice_us(&self, slice_us: u64) -> Result<(), RmError> {
        crate::set_timeslice_us(slice_us).map(|_groups| ())
    }

    fn restore_slice(&self) -> Result<(), RmError> {
        crate::restore_timeslice().map(|_groups| ())
    }

    fn slice_us(&self) -> Result<u64, RmError> {
        crate::get_timeslice_us()
    }

    fn stop(&self) -> Result<(), RmError> {
        crate::suspend()
    }

    fn start(&self) -> Result<(), RmError> {
        crate::resume()
    }
}
