//! The stream that operations are queued in; or nothing, where only the memory that they would take is counted.

use mica::{DeviceBuffer, Grid, Kernel, KernelParams, Stream};

/// A stream, or what stands in for it while memory is counted.
#[derive(Clone)]
pub(crate) struct Queue {
    stream: Stream,
    is_counting: bool,
}

impl Queue {
    pub(crate) fn of(stream: &Stream) -> Self {
        Self {
            stream: stream.clone(),
            is_counting: false,
        }
    }

    /// One that queues nothing.
    pub(crate) fn counting(&self) -> Self {
        Self {
            stream: self.stream.clone(),
            is_counting: true,
        }
    }

    pub(crate) fn is_counting(&self) -> bool {
        self.is_counting
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(crate) fn launch(
        &self,
        kernel: &Kernel,
        grid: Grid,
        params: impl KernelParams,
    ) -> mica::Result<()> {
        match self.is_counting {
            true => Ok(()),
            false => self.stream.launch(kernel, grid, params),
        }
    }

    pub(crate) fn fill_bytes(&self, buffer: &DeviceBuffer<u8>, value: u8) -> mica::Result<()> {
        match self.is_counting {
            true => Ok(()),
            false => self.stream.fill_bytes(buffer, value),
        }
    }
}
