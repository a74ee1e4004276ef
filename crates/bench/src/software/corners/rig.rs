//! A device of its own, on which one operation is timed at a time.
//!
//! Textures have no place in the Rust API, so the device is asked directly.

use std::time::Instant;

use anyhow::{Context, Result};
use mica_backend_software::{Config, SoftwareGpu};
use mica_gpu::{
    ContextId, Copy3d, DevicePtr, Gpu, HostSpan, Launch, ModuleId, ModuleOptions, Place, StreamId,
    TextureDescriptor, TextureResource,
};

const KERNELS: &str = include_str!("../../../kernels/corners.ptx");
/// Texels in a row of the texture, and rows.
const SIDE: u32 = 512;
/// Elements of the one-dimensional stencil.
pub(crate) const JACOBI: u32 = 4096;
const WORDS: u64 = 1 << 20;
/// Rounds of an operation; the least counts.
const ROUNDS: usize = 7;

pub(crate) struct Rig {
    gpu: SoftwareGpu,
    context: ContextId,
    stream: StreamId,
    module: ModuleId,
    names: Vec<String>,
    out: DevicePtr,
    scratch: DevicePtr,
    /// With a point filter, with a linear one.
    textures: [u64; 2],
}

impl Rig {
    /// A device of so many threads.
    pub(crate) fn new(workers: Option<usize>) -> Result<Self> {
        let config = Config {
            workers,
            ..Config::default()
        };
        let gpu = SoftwareGpu::new(config)?;
        let context = gpu.context_create()?;
        let stream = gpu.default_stream(context)?;
        let module = gpu.module_load(context, KERNELS.as_bytes(), &ModuleOptions::default())?;
        let names = gpu.module_info(module)?.kernels;
        let names = names.into_iter().map(|k| k.name).collect();
        let out = gpu.memory_alloc(context, 4 * WORDS)?;
        let scratch = gpu.memory_alloc(context, 4 * WORDS)?;
        let texels = gpu.memory_alloc(context, 4 * u64::from(SIDE * SIDE))?;
        let mut rig = Self {
            gpu,
            context,
            stream,
            module,
            names,
            out,
            scratch,
            textures: [0; 2],
        };
        let values = (0..SIDE * SIDE).map(|i| (i * 37 % 101) as f32);
        rig.upload(texels, &values.collect::<Vec<_>>())?;
        for filter in [0, 1] {
            let side = u64::from(SIDE);
            let descriptor = TextureDescriptor {
                resource: TextureResource::Pitched(texels, side, side, 4 * side),
                format: 32,
                channels: 1,
                address_mode: [1; 3],
                filter,
                normalized_coords: false,
                read_as_integer: false,
                border: [0.0; 4],
            };
            rig.textures[filter as usize] = rig.gpu.texture_create(rig.context, &descriptor)?;
        }
        Ok(rig)
    }

    fn upload(&self, to: DevicePtr, values: &[f32]) -> Result<()> {
        let mut bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        self.copy(to, &mut bytes, true)
    }

    fn copy(&self, device: DevicePtr, bytes: &mut [u8], upload: bool) -> Result<()> {
        // SAFETY: the bytes live until after the synchronization.
        let host = Place::Host(unsafe { HostSpan::new(bytes.as_mut_ptr(), bytes.len() as u64) });
        let (to, from) = match upload {
            true => (Place::Device(device), host),
            false => (host, Place::Device(device)),
        };
        let copy = Copy3d::linear(to, from, bytes.len() as u64);
        self.gpu.copy(self.stream, &copy)?;
        Ok(self.gpu.stream_synchronize(self.stream)?)
    }

    fn launch(&self, name: &str, blocks: u32, params: &[u8]) -> Result<()> {
        let kernel = self.names.iter().position(|n| n == name);
        let launch = Launch {
            module: self.module,
            kernel: kernel.context("no such kernel")? as u32,
            grid: [blocks, 1, 1],
            block: [256, 1, 1],
            dynamic_shared: 0,
            cooperative: false,
            params,
        };
        Ok(self.gpu.launch(self.stream, &launch)?)
    }

    /// Processor time of a kernel in nanoseconds. `texture`: the filter of the texture that it is given.
    pub(crate) fn time(&self, name: &str, blocks: u32, texture: Option<usize>) -> Result<f64> {
        let mut params = self.out.0.to_ne_bytes().to_vec();
        params.extend(texture.iter().flat_map(|t| self.textures[*t].to_ne_bytes()));
        let mut least = f64::INFINITY;
        for _ in 0..=ROUNDS {
            let began = self.gpu.busy_time_ns();
            self.launch(name, blocks, &params)?;
            self.gpu.stream_synchronize(self.stream)?;
            least = least.min((self.gpu.busy_time_ns() - began) as f64);
        }
        Ok(least)
    }

    /// Runs the one-dimensional stencil: nanoseconds by the clock, and the sum of the elements.
    pub(crate) fn jacobi(&self, steps: u32) -> Result<(f64, f64)> {
        let values: Vec<f32> = (0..JACOBI).map(|i| (i * 7 % 101) as f32 / 50.0).collect();
        self.upload(self.out, &values)?;
        let pointers = [self.out.0, self.scratch.0].map(u64::to_ne_bytes).concat();
        let params = [&pointers[..], &JACOBI.to_ne_bytes()].concat();
        let began = Instant::now();
        for _ in 0..steps {
            self.launch("jacobi_step", JACOBI / 256, &params)?;
            self.launch("jacobi_copy", JACOBI / 256, &params)?;
        }
        self.gpu.stream_synchronize(self.stream)?;
        let ns = began.elapsed().as_nanos() as f64;
        let mut bytes = vec![0; 4 * JACOBI as usize];
        self.copy(self.out, &mut bytes, false)?;
        let words = bytes.chunks_exact(4).map(|word| {
            let word = [word[0], word[1], word[2], word[3]];
            f64::from(f32::from_ne_bytes(word)).abs()
        });
        Ok((ns, words.sum()))
    }
}
