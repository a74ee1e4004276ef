//! The short way of a plain launch from the ring to the device.
//!
//! A program that launches in batches is as fast as the thread that reads its ring, and the driver takes three
//! microseconds a launch: every look-up beside it counts. So a launch that may go at once is not made into a call of the
//! table, placed and dispatched, but carried out as it is read. All else about it is the same, and a launch that may not
//! go takes the long way.

use mica_wire::session::{Field, Launch, Reader, RecordHeader, Request, Violation};

use super::threads::SessionThreads;
use crate::dispatch::Failure;

/// What is known from the launch just before; forgotten with the first record of another kind, which may end a stream.
#[derive(Default)]
pub(super) struct LaunchPath {
    /// A stream and its context.
    known: Option<(u64, u64)>,
}

impl SessionThreads {
    /// Carries a record out if it is a launch that may go at once; whether it did.
    #[inline]
    pub(super) fn launched(
        &self,
        path: &mut LaunchPath,
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
        if let Some(gated) = &self.gated {
            let context = match path.known {
                Some((stream, context)) if stream == launch.stream => context,
                _ => (dispatcher.session.context_of_stream(launch.stream)).unwrap_or(0),
            };
            path.known = Some((launch.stream, context));
            if !gated.launch_goes(dispatcher, launch.stream, context) {
                return Ok(false);
            }
        }
        let stream = launch.stream;
        let launched = dispatcher.launch(launch, reader.rest());
        dispatcher.output.show_lines();
        dispatcher.port.carried_out(position);
        if let Err(Failure::Refused(error)) = launched {
            let context = dispatcher.session.context_of_stream(stream).unwrap_or(0);
            self.note_refused_launch(context, &error);
        }
        Ok(true)
    }
}
