//! A context with the suite's kernels, and short words for what cases do.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::{
    ContextId, Copy3d, DevicePtr, EventFlags, EventId, Fill2d, Gpu, HostSpan, Launch, ModuleId,
    ModuleOptions, Place, Result, StreamFlags, StreamId,
};

use super::{Check, Fixture, Problem};

/// What a case works with.
pub struct Session<'a> {
    /// The device.
    pub gpu: &'a dyn Gpu,
    /// Its images.
    pub fixture: &'a dyn Fixture,
    /// The case's context.
    pub context: ContextId,
    /// Its default stream.
    pub stream: StreamId,
    /// The suite's kernels.
    pub module: ModuleId,
    kernels: Vec<String>,
}

/// A packed parameter block.
#[derive(Clone, Debug, Default)]
pub(super) struct Args(pub(super) Vec<u8>);

impl Args {
    pub(super) fn u64(mut self, value: u64) -> Self {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
    pub(super) fn ptr(self, value: DevicePtr) -> Self {
        self.u64(value.0)
    }
    pub(super) fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
    pub(super) fn f32(self, value: f32) -> Self {
        self.u32(value.to_bits())
    }
}

/// Holds a stream until dropped, so that a failing case cannot hang the suite.
pub(super) struct Hold {
    _release: mpsc::Sender<()>,
}

impl<'a> Session<'a> {
    /// A context and the kernels.
    pub(super) fn new(gpu: &'a dyn Gpu, fixture: &'a dyn Fixture) -> Result<Self> {
        let context = gpu.context_create()?;
        Self::in_context(gpu, fixture, context).inspect_err(|_| {
            let _already_gone = gpu.context_destroy(context);
        })
    }

    fn in_context(gpu: &'a dyn Gpu, fixture: &'a dyn Fixture, context: ContextId) -> Result<Self> {
        let stream = gpu.default_stream(context)?;
        let image = fixture.kernels();
        let module = gpu.module_load(context, &image, &ModuleOptions::default())?;
        let info = gpu.module_info(module)?;
        Ok(Self {
            gpu,
            fixture,
            context,
            stream,
            module,
            kernels: info.kernels.into_iter().map(|k| k.name).collect(),
        })
    }

    /// Ends the context; a case may have ended it already.
    pub(super) fn close(self) {
        let _already_gone = self.gpu.context_destroy(self.context);
    }

    /// A second session on the same device.
    pub(super) fn another(&self) -> Result<Session<'a>> {
        Session::new(self.gpu, self.fixture)
    }

    pub(super) fn kernel(&self, name: &str) -> std::result::Result<u32, Problem> {
        let found = self.kernels.iter().position(|kernel| kernel == name);
        let index = found.ok_or_else(|| Problem::Wrong(format!("no kernel {name}")))?;
        Ok(index as u32)
    }

    pub(super) fn alloc(&self, bytes: u64) -> Result<DevicePtr> {
        self.gpu.memory_alloc(self.context, bytes)
    }

    /// `words` zeroed words.
    pub(super) fn zeros(&self, words: u64) -> Result<DevicePtr> {
        let at = self.alloc(words * 4)?;
        let own = self.own_stream()?;
        let fill = Fill2d {
            dst: at,
            pitch: words * 4,
            value: 0,
            element_bytes: 4,
            width: words,
            height: 1,
        };
        self.gpu.fill(own, &fill)?;
        self.gpu.stream_synchronize(own)?;
        self.gpu.stream_destroy(own)?;
        Ok(at)
    }

    /// A stream ordered against nothing else.
    pub(super) fn own_stream(&self) -> Result<StreamId> {
        let flags = StreamFlags { non_blocking: true };
        self.gpu.stream_create(self.context, flags, 0)
    }

    /// A stream ordered against the default stream.
    pub(super) fn blocking_stream(&self) -> Result<StreamId> {
        self.gpu
            .stream_create(self.context, StreamFlags::default(), 0)
    }

    pub(super) fn event(&self) -> Result<EventId> {
        self.gpu.event_create(self.context, EventFlags::default())
    }

    pub(super) fn launch_on(
        &self,
        stream: StreamId,
        name: &str,
        grid: u32,
        block: u32,
        args: &Args,
    ) -> Check {
        Ok(self.try_launch(stream, name, [grid, 1, 1], [block, 1, 1], |_| {}, args)??)
    }

    /// A launch whose refusal is the case's business.
    pub(super) fn try_launch(
        &self,
        stream: StreamId,
        name: &str,
        grid: [u32; 3],
        block: [u32; 3],
        change: impl FnOnce(&mut Launch<'_>),
        args: &Args,
    ) -> std::result::Result<Result<()>, Problem> {
        let mut launch = Launch {
            module: self.module,
            kernel: self.kernel(name)?,
            grid,
            block,
            dynamic_shared: 0,
            cooperative: false,
            params: &args.0,
        };
        change(&mut launch);
        Ok(self.gpu.launch(stream, &launch))
    }

    /// Copies words to the device and waits, on a stream of its own.
    pub(super) fn write(&self, at: DevicePtr, words: &[u32]) -> Result<()> {
        let own = self.own_stream()?;
        self.gpu.copy(own, &to_device(at, words))?;
        self.gpu.stream_synchronize(own)?;
        self.gpu.stream_destroy(own)
    }

    /// Copies words from the device on a stream of its own: sees what has happened so far.
    pub(super) fn peek(&self, at: DevicePtr, words: usize) -> Result<Vec<u32>> {
        let own = self.own_stream()?;
        let read = self.read_on(own, at, words)?;
        self.gpu.stream_destroy(own)?;
        Ok(read)
    }

    /// Copies words from the device after the stream's earlier work.
    pub(super) fn read_on(
        &self,
        stream: StreamId,
        at: DevicePtr,
        words: usize,
    ) -> Result<Vec<u32>> {
        let mut out = vec![0; words];
        self.gpu.copy(stream, &to_host(&mut out, at))?;
        self.gpu.stream_synchronize(stream)?;
        Ok(out)
    }

    /// As [`Session::read_on`] the default stream.
    pub(super) fn read(&self, at: DevicePtr, words: usize) -> Result<Vec<u32>> {
        self.read_on(self.stream, at, words)
    }

    /// Stops a stream until the returned value is dropped.
    pub(super) fn hold(&self, stream: StreamId) -> Result<Hold> {
        let (release, held) = mpsc::channel::<()>();
        let wait = move || {
            // Ends when the sender is dropped.
            let _released = held.recv();
        };
        self.gpu.stream_callback(stream, Box::new(wait))?;
        Ok(Hold { _release: release })
    }

    /// Waits until a word of device memory satisfies `test`.
    pub(super) fn wait_for_word(&self, at: DevicePtr, test: impl Fn(u32) -> bool) -> Check {
        let end = Instant::now() + Duration::from_secs(120);
        while !test(self.peek(at, 1)?[0]) {
            if Instant::now() > end {
                return Err(Problem::Wrong("a kernel makes no progress".to_owned()));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }
}

/// A plain copy of words to the device. The caller keeps them until the stream is synchronized.
pub(super) fn to_device(at: DevicePtr, words: &[u32]) -> Copy3d {
    Copy3d::linear(Place::Device(at), Place::Host(span(words)), bytes(words))
}

/// A plain copy of words from the device, into memory kept until the stream is synchronized.
pub(super) fn to_host(words: &mut [u32], at: DevicePtr) -> Copy3d {
    let len = bytes(words);
    // SAFETY: valid for reads and writes of its length; the cases wait before it goes.
    let span = unsafe { HostSpan::new(words.as_mut_ptr().cast(), len) };
    Copy3d::linear(Place::Host(span), Place::Device(at), len)
}

/// Words that are only read, and kept until the stream is synchronized.
pub(super) fn span(words: &[u32]) -> HostSpan {
    // SAFETY: valid for reads of its length; used as a source only; the cases wait before it goes.
    unsafe { HostSpan::new(words.as_ptr().cast_mut().cast(), bytes(words)) }
}

fn bytes(words: &[u32]) -> u64 {
    words.len() as u64 * 4
}
