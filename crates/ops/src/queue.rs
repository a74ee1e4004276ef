//! The stream that operations are queued in; or nothing, where only the memory that they would take is counted.

use std::sync::Arc;

use mica::{DeviceBuffer, Grid, Kernel, KernelParams, Stream};

use crate::timing::Recorder;

/// A stream, or what stands in for it while memory is counted.
#[derive(Clone)]
pub(crate) struct Queue {
    stream: Stream,
    is_counting: bool,
    recorder: Option<Arc<Recorder>>,
}

impl Queue {
    pub(crate) fn of(stream: &Stream) -> Self {
        Self {
            stream: stream.clone(),
            is_counting: false,
            recorder: None,
        }
    }

    /// One that queues nothing.
    pub(crate) fn counting(&self) -> Self {
        Self {
            is_counting: true,
            recorder: None,
            ..self.clone()
        }
    }

    /// The same; what is launched is recorded.
    pub(crate) fn recording(&self, recorder: &Arc<Recorder>) -> Self {
        Self {
            recorder: Some(Arc::clone(recorder)),
            ..self.clone()
        }
    }

    pub(crate) fn is_counting(&self) -> bool {
        self.is_counting
    }

    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_deref()
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Queues work that is no kernel of this crate; it is named where launches are recorded.
    pub(crate) fn queue<E: From<mica::Error>>(
        &self,
        provider: Option<&'static str>,
        name: impl FnOnce() -> String,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        match (&self.recorder, self.is_counting) {
            (_, true) => Ok(()),
            (None, _) => work(),
            (Some(recorder), _) => recorder.around(&self.stream, provider, name, work),
        }
    }

    pub(crate) fn launch(
        &self,
        kernel: &Kernel,
        grid: Grid,
        params: impl KernelParams,
    ) -> mica::Result<()> {
        let launch = || self.stream.launch(kernel, grid, params);
        self.queue(None, || kernel.name().to_owned(), launch)
    }

    pub(crate) fn fill_bytes(&self, buffer: &DeviceBuffer<u8>, value: u8) -> mica::Result<()> {
        let fill = || self.stream.fill_bytes(buffer, value);
        self.queue(None, || "fill".to_owned(), fill)
    }
}
