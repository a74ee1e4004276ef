//! The short way of a plain launch from the ring to the device.
//!
//! A program that launches in batches is as fast as the thread that reads its ring, and the driver takes three
//! microseconds a launch: every look-up beside it counts. So a launch that may go at once is not made into a call of the
//! table, placed and dispatched, but carried out as it is read. All else about it is the same, and a launch that may not
//! go takes the long way.
//!
//! Several launches use the session's tables together. While more of them are known to wait in the ring they are collected,
//! and given to the device together, which a driver does several times as fast as one by one. Nothing waits for a launch
//! that has not come: what was collected goes before the ring is looked at again, and before any other call.

use mica_gpu::ModuleId;
use mica_vgpu::{LaunchRun, VgpuError};
use mica_wire::session::{Field, Launch, Reader, RecordHeader, Request, Violation};

use super::threads::SessionThreads;
use crate::dispatch::Failure;

/// Launches that use the tables together. Another thread that ends what is in them waits for so many at most.
const MOST_IN_A_RUN: u32 = 32;
/// Bytes of parameters of a launch that may be one of a row: others are few.
const MOST_ROW_BYTES: usize = 1024;

/// Launches one by one before others are given to the device together: it has work while those are collected, which takes
/// up to 40 µs if each is of another kernel.
const ALONE_FIRST: u32 = 16;

/// Where a record is in the ring.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Its end.
    pub(super) position: u64,
    /// Whether another one is known to be behind it.
    pub(super) has_next: bool,
}

/// What is known from the launches just before. It ends with the first record of another kind, which may end a stream.
#[derive(Default)]
pub(super) struct LaunchPath<'a> {
    /// Launches in a row, where the device has that.
    run: Option<LaunchRun<'a>>,
    /// Launches left of it.
    left: u32,
    /// A stream and its context.
    known: Option<(u64, u64)>,
    /// Launches given to the device one by one since the ring was empty, or a call waited.
    alone: u32,
    row: Row,
}

/// Launches for one stream that have not been given to the device: it takes several at once, if as many wait in the ring.
#[derive(Default)]
struct Row {
    /// How many it takes.
    length: usize,
    /// Each with the end of its parameters.
    launches: Vec<(Launch, usize)>,
    params: Vec<u8>,
    /// Where in the ring the last one ends.
    position: u64,
}

impl<'a> LaunchPath<'a> {
    /// Carries out what is left and forgets what is known.
    #[inline]
    pub(super) fn end(&mut self, threads: &'a SessionThreads) {
        if !self.row.launches.is_empty() {
            self.launch_row(threads);
        }
        (self.run, self.left, self.known) = (None, 0, None);
    }

    /// As [`LaunchPath::end`], where the device may soon have nothing to do.
    pub(super) fn rest(&mut self, threads: &'a SessionThreads) {
        self.end(threads);
        self.alone = 0;
    }

    /// Begins launches in a row, or goes on with them, for one with so many bytes of parameters.
    #[inline]
    fn go_on(&mut self, threads: &'a SessionThreads, bytes: usize) {
        if self.left == 0 {
            // First, so that a thread that waits for the tables gets them.
            self.run = None;
            self.run = threads.dispatcher.session.launch_run();
            self.left = MOST_IN_A_RUN;
            self.row.length = self.run.as_ref().map_or(0, LaunchRun::row_length);
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

    /// Whether a launch is to wait for the next one, which is for the same stream as far as is known.
    #[inline]
    fn may_row(&self, launch: &Launch, bytes: usize, has_next: bool) -> bool {
        let fits = !launch.cooperative && bytes <= MOST_ROW_BYTES && self.run.is_some();
        let has_work = self.alone >= ALONE_FIRST && self.row.length > 0;
        has_work && fits && (has_next || !self.row.launches.is_empty())
    }

    /// Gives the device the launches that wait: at once if they are as many as it takes so, else one by one.
    fn launch_row(&mut self, threads: &'a SessionThreads) {
        let row = std::mem::take(&mut self.row);
        let mut from = 0;
        let each = row.launches.iter().map(|(launch, to)| {
            let params = &row.params[from..*to];
            from = *to;
            (launch, params)
        });
        let is_whole = row.launches.len() == row.length;
        let stream = row.launches[0].0.stream;
        let known = |(launch, params)| (launch_module(launch), device_launch(launch, params));
        let launched = match &mut self.run {
            Some(run) if is_whole => run.launch_row(stream, each.map(known)),
            _ => false,
        };
        if !launched {
            let mut from = 0;
            for (launch, to) in &row.launches {
                self.launch(threads, launch, &row.params[from..*to]);
                from = *to;
            }
        }
        threads.dispatcher.output.show_lines();
        threads.dispatcher.port.carried_out(row.position);
        self.row = row;
        self.row.launches.clear();
        self.row.params.clear();
    }

    /// Gives the device one launch.
    #[inline]
    fn launch(&mut self, threads: &'a SessionThreads, launch: &Launch, params: &[u8]) {
        self.alone = self.alone.saturating_add(1);
        let launched = match &mut self.run {
            Some(run) => run.launch(launch.stream, launch.module, &device_launch(launch, params)),
            None => match threads.dispatcher.launch(launch.clone(), params) {
                Err(Failure::Refused(error)) => Err(error),
                _ => Ok(()),
            },
        };
        if let Err(error) = launched {
            self.refused(threads, launch.stream, &error);
        }
    }

    #[cold]
    fn refused(&mut self, threads: &'a SessionThreads, stream: u64, error: &VgpuError) {
        let context = self.context_of(threads, stream);
        threads.note_refused_launch(context, error);
    }
}

impl SessionThreads {
    /// Carries a record out if it is a launch that may go at once; whether it did, or will with the next.
    #[inline]
    pub(super) fn launched<'a>(
        &'a self,
        path: &mut LaunchPath<'a>,
        header: RecordHeader,
        body: &[u8],
        place: Place,
    ) -> Result<bool, Violation> {
        if header.call != Launch::NUMBER || header.reply_slot().is_some() {
            return Ok(false);
        }
        let mut reader = Reader::new(body);
        let launch = Launch::take(&mut reader).map_err(|source| {
            let number = header.call;
            Violation::Body { number, source }
        })?;
        let params = reader.rest();
        if (path.row.launches.first()).is_some_and(|(first, _)| first.stream != launch.stream) {
            path.launch_row(self);
        }
        path.go_on(self, params.len());
        if let Some(gated) = &self.gated {
            let context = path.context_of(self, launch.stream);
            if !gated.launch_goes(&self.dispatcher, launch.stream, context) {
                return Ok(false);
            }
        }
        if path.may_row(&launch, params.len(), place.has_next) {
            let row = &mut path.row;
            row.params.extend_from_slice(params);
            row.launches.push((launch, row.params.len()));
            row.position = place.position;
            if !place.has_next || row.launches.len() >= row.length {
                path.launch_row(self);
            }
            return Ok(true);
        }
        if !path.row.launches.is_empty() {
            path.launch_row(self);
        }
        path.launch(self, &launch, params);
        self.dispatcher.output.show_lines();
        self.dispatcher.port.carried_out(place.position);
        Ok(true)
    }
}

fn launch_module(launch: &Launch) -> u64 {
    launch.module
}

/// A launch as the device has it, but for its module.
#[inline]
fn device_launch<'p>(call: &Launch, params: &'p [u8]) -> mica_gpu::Launch<'p> {
    mica_gpu::Launch {
        // Whoever launches puts the device's own in its place.
        module: ModuleId(0),
        kernel: call.kernel,
        grid: call.grid,
        block: call.block,
        dynamic_shared: call.dynamic_shared,
        cooperative: call.cooperative,
        params,
    }
}
