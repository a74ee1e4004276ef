//! The kernels on the software GPU, with the same data as the comparisons.

use std::time::Instant;

use anyhow::{Context, Result};
use mica::{Device, DeviceBuffer, Grid, Kernel, Module, SoftwareOptions, Stream, Vgpu};
use mica_ptx_jit::bounds_cost::KERNELS;

use super::rival::Run;

// As in bench_common.h.
const N: usize = 1 << 24;
const BODIES: u32 = 16384;
const ORDER: u32 = 1024;
const SIDE: u32 = 4096;
const IMAGE: u32 = 512;
const LIMIT: u32 = 500;
const SOFTENING: f32 = 0.01;

/// A software GPU with the benchmark's data on it.
pub(super) struct Bench {
    vgpu: Vgpu,
    pub(super) stream: Stream,
    module: Module,
    /// The kernels of `kernels.rs`.
    pub(super) more: [Module; 2],
    pub(super) a: DeviceBuffer<f32>,
    pub(super) b: DeviceBuffer<f32>,
    pub(super) c: DeviceBuffer<u32>,
    bytes: DeviceBuffer<u8>,
}

/// A virtual GPU on a device of so many threads.
pub(super) fn vgpu(workers: Option<usize>) -> Result<Vgpu> {
    let options = SoftwareOptions {
        workers,
        ..SoftwareOptions::default()
    };
    let device = Device::software_with(options)?;
    Ok(Vgpu::builder().memory(512 << 20).build(&device)?)
}

/// The kernels of `kernels.rs`.
fn further(vgpu: &Vgpu) -> Result<[Module; 2]> {
    let [more, larger] = super::kernels::PTX;
    Ok([vgpu.load_ptx(more)?, vgpu.load_ptx(larger)?])
}

/// The sum of words, each times a number that its place has.
pub(super) fn weighted(words: &[u32]) -> f64 {
    let products = words.iter().enumerate();
    products
        .map(|(i, word)| f64::from(*word) * (i % 97 + 1) as f64)
        .sum()
}

impl Bench {
    pub(super) fn new(workers: Option<usize>) -> Result<Self> {
        let vgpu = vgpu(workers)?;
        let value = |i: usize, factor: usize, modulus: usize| (i * factor % modulus) as f32 / 50.0;
        let a: Vec<f32> = (0..N).map(|i| value(i, 7, 101)).collect();
        let b: Vec<f32> = (0..N).map(|i| value(i, 13, 103) - 1.0).collect();
        let bytes: Vec<u8> = (0..N as u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        Ok(Self {
            stream: vgpu.default_stream(),
            module: vgpu.load_ptx(KERNELS)?,
            more: further(&vgpu)?,
            a: vgpu.upload(&a)?,
            b: vgpu.upload(&b)?,
            c: vgpu.alloc(N)?,
            bytes: vgpu.upload(&bytes)?,
            vgpu,
        })
    }

    /// A device that has loaded and launched nothing but an empty kernel, so that its threads run.
    pub(super) fn fresh() -> Result<Self> {
        let vgpu = vgpu(None)?;
        let fresh = Self {
            stream: vgpu.default_stream(),
            module: vgpu.load_ptx(KERNELS)?,
            more: further(&vgpu)?,
            a: vgpu.alloc(1)?,
            b: vgpu.alloc(1)?,
            c: vgpu.alloc(64)?,
            bytes: vgpu.alloc(1)?,
            vgpu,
        };
        fresh.empty_launches(3)?;
        Ok(fresh)
    }

    fn kernel(&self, name: &str) -> Result<Kernel> {
        Ok(self.module.kernel(name)?)
    }

    /// Runs a kernel, timed from the launch to the end of the synchronization.
    pub(super) fn run(&mut self, name: &str) -> Result<Run> {
        let kernel = self.kernel(name)?;
        let tiles = |side: u32, x: u32, y: u32| {
            Grid::of([side.div_ceil(x), side.div_ceil(y), 1], [x, y, 1])
        };
        match name {
            "reduction" => self.stream.fill_bytes(&self.c, 0)?,
            "histogram" | "stencil" => self.stream.fill_bytes(&self.c, 0)?,
            _ => {}
        }
        self.stream.synchronize()?;
        let (stream, a, b, c) = (&self.stream, &self.a, &self.b, &mut self.c);
        let n = N as u32;
        let began = Instant::now();
        match name {
            "vadd" => stream.launch(&kernel, Grid::covering(N, 256), (a, b, c, n)),
            "nbody" => {
                let grid = Grid::covering(BODIES as usize, 256);
                stream.launch(&kernel, grid, (a, c, BODIES, SOFTENING))
            }
            "matmul" => stream.launch(&kernel, tiles(ORDER, 32, 32), (a, b, c, ORDER)),
            "mandelbrot" => stream.launch(&kernel, tiles(IMAGE, 32, 8), (c, IMAGE, IMAGE, LIMIT)),
            "reduction" => stream.launch(&kernel, Grid::new(64, 256), (a, c, n)),
            "histogram" => stream.launch(&kernel, Grid::new(64, 256), (&self.bytes, c, n)),
            "stencil" => stream.launch(&kernel, tiles(SIDE, 32, 8), (a, c, SIDE)),
            other => anyhow::bail!("no kernel {other}"),
        }?;
        stream.synchronize()?;
        let ns = began.elapsed().as_nanos() as f64;
        let checksum = self.checksum(name)?;
        Ok(Run { ns, checksum })
    }

    fn checksum(&self, name: &str) -> Result<f64> {
        let words = self.c.to_vec()?;
        let count = match name {
            "nbody" => 4 * BODIES as usize,
            "matmul" => (ORDER * ORDER) as usize,
            "mandelbrot" => (IMAGE * IMAGE) as usize,
            "reduction" => 1,
            "histogram" => 256,
            _ => N,
        };
        let words = words.get(..count).context("too few results")?;
        let step = if count == N { 997 } else { 1 };
        Ok(match name {
            "mandelbrot" | "histogram" => weighted(words),
            _ => words
                .iter()
                .step_by(step)
                .map(|word| f64::from(f32::from_bits(*word)).abs())
                .sum(),
        })
    }

    /// Launch and synchronization of a kernel that does nothing: nanoseconds of each.
    pub(super) fn empty_launches(&self, count: usize) -> Result<Vec<f64>> {
        let kernel = self.kernel("nothing")?;
        let mut samples = Vec::with_capacity(count);
        for _ in 0..count {
            let began = Instant::now();
            self.stream
                .launch(&kernel, Grid::new(1, 1), (self.c.address(),))?;
            self.stream.synchronize()?;
            samples.push(began.elapsed().as_nanos() as f64);
        }
        Ok(samples)
    }

    /// From a module nobody has seen to its first kernel's end: nanoseconds; then the same again, from
    /// the cache in memory.
    pub(super) fn first_launch(&self, number: u32) -> Result<[f64; 2]> {
        // Other content every time, so that no cache knows it.
        let unique = std::process::id();
        let text = format!(
            ".version 7.0\n.target sm_75\n.address_size 64\n\
             .visible .entry first{number}_{unique}(.param .u64 data)\n{{\n\
             .reg .b64 %d<4>;\n.reg .b32 %r<4>;\n\
             ld.param.u64 %d1, [data];\n mov.u32 %r1, %tid.x;\n mul.wide.u32 %d2, %r1, 4;\n\
             add.u64 %d3, %d1, %d2;\n st.global.u32 [%d3], {number};\n ret;\n}}\n"
        );
        let mut times = [0.0; 2];
        for time in &mut times {
            let began = Instant::now();
            let kernel = self
                .vgpu
                .load_ptx(&text)?
                .kernel(&format!("first{number}_{unique}"))?;
            self.stream
                .launch(&kernel, Grid::new(1, 32), (self.c.address(),))?;
            self.stream.synchronize()?;
            *time = began.elapsed().as_nanos() as f64;
        }
        Ok(times)
    }
}
