//! A device with memory that stays and memory that can leave, in one context.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use mica_backend_cuda::{CudaDriver, CudaGpu};
use mica_backend_software::{Config, SoftwareGpu};
use mica_gpu::{
    ContextId, Copy3d, DevicePtr, Gpu, HostSpan, Launch, ModuleId, ModuleOptions, Place, StreamId,
};
use mica_swap::{SwapGpu, Swapper};

use super::MIB;
use crate::args::BenchGpuArg;

const KERNELS: &[u8] = concat!(include_str!("../../kernels/memory.ptx"), "\0").as_bytes();
/// Allocations are at most so large, as those of a program are.
const PIECE_BYTES: u64 = 256 * MIB;
const SEED: u32 = 0x9e37_79b9;

/// Pieces of memory: address and bytes.
pub(super) type Pieces = Vec<(DevicePtr, u64)>;

/// One context of a device.
pub(super) struct Subject {
    pub(super) plain: Arc<dyn Gpu>,
    pub(super) swapper: Arc<Swapper>,
    pub(super) swappable: Arc<SwapGpu>,
    pub(super) context: ContextId,
    stream: StreamId,
    module: ModuleId,
    kernels: Vec<String>,
}

impl Drop for Subject {
    fn drop(&mut self) {
        // The context goes before the host memory that is pinned in the context.
        let _ = self.swappable.context_destroy(self.context);
    }
}

impl Subject {
    /// A device with a context; a software GPU has so much memory.
    pub(super) fn open(gpu: BenchGpuArg, memory_bytes: u64) -> Result<Self> {
        let plain: Arc<dyn Gpu> = match gpu {
            BenchGpuArg::Nvidia => Arc::new(CudaGpu::open(CudaDriver::load()?, 0)?),
            BenchGpuArg::Software => Arc::new(SoftwareGpu::new(Config {
                memory_bytes: Some(memory_bytes),
                ..Config::default()
            })?),
        };
        let swapper = Swapper::new(|| {});
        let swappable = swapper.wrap(Arc::clone(&plain));
        let context = swappable.context_create()?;
        let stream = plain.default_stream(context)?;
        let module = plain.module_load(context, KERNELS, &ModuleOptions::default())?;
        let kernels = plain.module_info(module)?.kernels;
        Ok(Self {
            kernels: kernels.into_iter().map(|kernel| kernel.name).collect(),
            plain,
            swapper,
            swappable,
            context,
            stream,
            module,
        })
    }

    /// Allocates from one of the two sides, and writes every word.
    pub(super) fn take(&self, side: &dyn Gpu, bytes: u64) -> Result<Pieces> {
        let mut pieces = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let part = left.min(PIECE_BYTES);
            let at = side.memory_alloc(self.context, part)?;
            pieces.push((at, part));
            self.launch(side, "fill", at, part, SEED, None)?;
            left -= part;
        }
        self.wait()?;
        Ok(pieces)
    }

    pub(super) fn give(&self, side: &dyn Gpu, pieces: Pieces) -> Result<()> {
        for (at, _) in pieces {
            side.memory_free(self.context, at)?;
        }
        Ok(())
    }

    /// Adds `value` to every word.
    pub(super) fn add(&self, side: &dyn Gpu, pieces: &Pieces, value: u32) -> Result<()> {
        for (at, bytes) in pieces {
            self.launch(side, "add", *at, *bytes, value, None)?;
        }
        Ok(())
    }

    /// Fails unless every word is what `take` wrote, plus `added`.
    pub(super) fn check(&self, side: &dyn Gpu, pieces: &Pieces, added: u32) -> Result<()> {
        let wrong = self.plain.memory_alloc(self.context, 256)?;
        let mut count = [0_u8; 4];
        self.copy(wrong, &mut count, true)?;
        for (at, bytes) in pieces {
            let seed = SEED.wrapping_add(added);
            self.launch(side, "compare", *at, *bytes, seed, Some(wrong))?;
        }
        self.copy(wrong, &mut count, false)?;
        self.plain.memory_free(self.context, wrong)?;
        let count = u32::from_le_bytes(count);
        ensure!(
            count == 0,
            "{count} words are wrong after their memory has moved"
        );
        Ok(())
    }

    fn launch(
        &self,
        side: &dyn Gpu,
        name: &str,
        at: DevicePtr,
        bytes: u64,
        value: u32,
        wrong: Option<DevicePtr>,
    ) -> Result<()> {
        let kernel = self.kernels.iter().position(|kernel| kernel == name);
        let mut params = Vec::new();
        params.extend(at.0.to_le_bytes());
        params.extend((bytes / 4).to_le_bytes());
        params.extend(value.to_le_bytes());
        if let Some(wrong) = wrong {
            params.extend([0; 4]);
            params.extend(wrong.0.to_le_bytes());
        }
        let launch = Launch {
            module: self.module,
            kernel: kernel.context("a kernel is missing")? as u32,
            grid: [1024, 1, 1],
            block: [256, 1, 1],
            dynamic_shared: 0,
            cooperative: false,
            params: &params,
        };
        Ok(side.launch(self.stream, &launch)?)
    }

    pub(super) fn wait(&self) -> Result<()> {
        Ok(self.plain.stream_synchronize(self.stream)?)
    }

    /// Copies between device and host memory, and waits.
    pub(super) fn copy(&self, at: DevicePtr, host: &mut [u8], to_device: bool) -> Result<()> {
        // SAFETY: the bytes are this function's until the copy has ended below.
        let span = unsafe { HostSpan::new(host.as_mut_ptr(), host.len() as u64) };
        let (device, host) = (Place::Device(at), Place::Host(span));
        let copy = match to_device {
            true => Copy3d::linear(device, host, span.len()),
            false => Copy3d::linear(host, device, span.len()),
        };
        self.plain.copy(self.stream, &copy)?;
        self.wait()
    }

    pub(super) fn leave(&self) -> Result<()> {
        Ok(self.swapper.leave(|_| {})?)
    }

    /// Brings everything back.
    pub(super) fn come_back(&self) {
        self.swapper.allow(0);
        self.returns();
    }

    /// Brings back what is allowed, until everything is here.
    pub(super) fn returns(&self) {
        let trouble = |text: &str| errln!("memory cannot return yet: {text}");
        self.swapper.come_back(|_| {}, trouble, || false);
    }
}

/// Host memory that a device copies from and to at full speed.
pub(super) struct HostBuffer(Vec<u8>);

impl HostBuffer {
    pub(super) fn new(subject: &Subject, bytes: u64) -> Result<Self> {
        let mut buffer = vec![1; bytes as usize];
        // SAFETY: the buffer is dropped after the context, see the fields of whoever holds both.
        unsafe {
            let span = HostSpan::new(buffer.as_mut_ptr(), bytes);
            subject.plain.pin(subject.context, span)?;
        }
        Ok(Self(buffer))
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
