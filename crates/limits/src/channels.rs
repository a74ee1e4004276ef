//! What must be possible with a process's GPU channels, so that the daemon's commands can be carried out.

/// Why a control of channels failed.
pub trait ChannelError: std::error::Error {
    /// As one number for the page shared with the daemon, never 0.
    fn code(&self) -> i32;

    /// Whether the process has no channels that could be controlled.
    fn is_without_channels(&self) -> bool;
}

/// The GPU channels of this process.
pub trait Channels {
    /// Why a control failed.
    type Error: ChannelError;

    /// Changes when channels were made.
    fn generation(&self) -> u64;

    /// Whether the driver has set a slice of its own since the last call.
    fn take_overwritten(&self) -> bool;

    /// Has channels that are made later start with this slice, or with the driver's.
    fn pin_slice_us(&self, slice_us: Option<u64>);

    /// Sets the slice of all channels.
    ///
    /// # Errors
    /// The driver refuses, or the process has no channels.
    fn set_slice_us(&self, slice_us: u64) -> Result<(), Self::Error>;

    /// Gives all channels the driver's own slice again.
    ///
    /// # Errors
    /// As [`Channels::set_slice_us`].
    fn restore_slice(&self) -> Result<(), Self::Error>;

    /// Reads the slice in force.
    ///
    /// # Errors
    /// As [`Channels::set_slice_us`].
    fn slice_us(&self) -> Result<u64, Self::Error>;

    /// Stops all channels.
    ///
    /// # Errors
    /// As [`Channels::set_slice_us`]; some may have been stopped.
    fn stop(&self) -> Result<(), Self::Error>;

    /// Starts all channels.
    ///
    /// # Errors
    /// As [`Channels::set_slice_us`]; some may still be stopped.
    fn start(&self) -> Result<(), Self::Error>;
}
