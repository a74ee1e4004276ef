//! The short way of a plain launch from the ring to the device.
//!
//! A program that launches in batches is as fast as the thread that reads its ring, and the driver takes three
//! microseconds a launch: every look-up beside it counts. So a launch that may go at once is not made into a call of the
//! table, placed and dispatched, but carried out as it is read. All else about it is the same, and a launch that may not
//! go takes the long way.
//!
//! Instructions that lock memory count most. The driver ends a launch with a write to the GPU, and the next locked
//! instruction waits until that has left the processor; what comes before it costs nothing meanwhile. So several
//! launches use the session's tables together, and are counted together.

use mica_gpu::ModuleId;
use mica_vgpu::{LaunchRun, VgpuError};
use mica_wire::session::{Field, Launch, Reader, RecordHeader, Request, Violation};

use super::threads::SessionThreads;
use crate::dispatch::Failure;

/// Launches that use the tables together. Another thread that ends what is in them waits for so many at most.
const MOST_IN_A_RUN: u32 = 32;

/// What is known from the launch just before; forgotten with the first record of another kind, which may end a stream.
#[derive(Default)]
pub(super) struct LaunchPath<'a> {
    /// Launches in a row, where the device has that.
    run: Option<LaunchRun<'a>>,
    /// Launches left of it.
    left: u32,
    /// A stream and its context.
    known: Option<(u64, u64)>,
}

impl<'a> LaunchPath<'a> {
    /// Begins launches in a row, or goes on with them, for one with so many bytes of parameters.
    #[inline]
    fn go_on(&mut self, threads: &'a SessionThreads, bytes: usize) {
        if self.left == 0 {
            // First, so that a thread that waits for the tables gets them.
            self.run = None;
            self.run = threads.dispatcher.session.launch_run();
            self.left = MOST_IN_A_RUN;
        }
        self.left -= 1;
        let must_wait = |run: &LaunchRun<'_>| !run.has_room(bytes as u64);
        if self.run.as_ref().is_some_and(must_wait) {
            (self.run, self.left) = (None, 0);
        }
    }

    /// The context of a stream; 0 if there is no such stream.
    #[inline]
    fn context_of(&mut self, threads: &'a SessionThreads, stream: u64) -> u64 {
        if let Some((known, context)) = self.known
            && known == stream
        {
            return context;
        }
        let context = match &self.run {
            Some(run) => run.context_of_stream(stream),
            None => threads.dispatcher.session.context_of_stream(stream),
        };
        let context = context.unwrap_or(0);
        self.known = Some((stream, context));
        context
    }
}

impl SessionThreads {
    /// Carries a record out if it is a launch that may go at once; whether it did.
    #[inline]
    pub(super) fn launched<'a>(
        &'a self,
        path: &mut LaunchPath<'a>,
        header: RecordHeader,
        body: &[u8],
        position: u64,
    ) -> Result<bool, Violation> {
        if header.call != Launch::NUMBER || header.reply_slot().is_some() {
            return Ok(false);
        }
        let mut reader = Reader::new(body);
        let launch = Launch::take(&mut reader).map_err(|source| {
            let number = header.call;
            Violation::Body { number, source }
        })?;
        let dispatcher = &self.dispatcher;
        let stream = launch.stream;
        let params = reader.rest();
        path.go_on(self, params.len());
        if let Some(gated) = &self.gated {
            let context = path.context_of(self, stream);
            if !gated.launch_goes(dispatcher, stream, context) {
                return Ok(false);
            }
        }
        let launched = match &mut path.run {
            Some(run) => launch_in(run, &launch, params),
            None => match dispatcher.launch(launch, params) {
                Err(Failure::Refused(error)) => Err(error),
                _ => Ok(()),
            },
        };
        dispatcher.output.show_lines();
        dispatcher.port.carried_out(position);
        if let Err(error) = launched {
            let context = path.context_of(self, stream);
            self.note_refused_launch(context, &error);
        }
        Ok(true)
    }
}

#[inline]
fn launch_in(run: &mut LaunchRun<'_>, call: &Launch, params: &[u8]) -> Result<(), VgpuError> {
    let launch = mica_gpu::Launch {
        // The run puts the device's own in its place.
        module: ModuleId(0),
        kernel: call.kernel,
        grid: call.grid,
        block: call.block,
        dynamic_shared: call.dynamic_shared,
        cooperative: call.cooperative,
        params,
    };
    run.launch(call.stream, call.module, &launch)
}
