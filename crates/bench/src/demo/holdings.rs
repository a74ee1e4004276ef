//! Memory that a tenant works on, with every word known.

use std::time::{Duration, Instant};

use anyhow::Result;
use mica::{DeviceBuffer, Grid, Kernel, Stream, Vgpu};

const KERNELS: &str = include_str!("../../kernels/memory.ptx");
/// Allocations are at most so large, as those of a program are.
const PIECE_BYTES: u64 = 128 << 20;
const GRID: (u32, u32) = (1024, 256);

/// Pieces of memory whose words are a number, a seed and the rounds that went over them.
pub(crate) struct Holdings {
    stream: Stream,
    add: Kernel,
    compare: Kernel,
    pieces: Vec<DeviceBuffer<u32>>,
    wrong: DeviceBuffer<u32>,
    rounds: u32,
}

fn seed(piece: usize) -> u32 {
    (piece as u32 + 1).wrapping_mul(0x9e37_79b9)
}

fn grid() -> Grid {
    Grid::new(GRID.0, GRID.1)
}

impl Holdings {
    /// Takes and fills so many bytes.
    pub(crate) fn new(vgpu: &Vgpu, bytes: u64) -> Result<Self> {
        let module = vgpu.load_ptx(KERNELS)?;
        let stream = vgpu.default_stream();
        let fill = module.kernel("fill")?;
        let mut pieces = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let part = left.min(PIECE_BYTES);
            let mut piece = vgpu.alloc::<u32>((part / 4) as usize)?;
            let count = piece.len() as u64;
            stream.launch(&fill, grid(), (&mut piece, count, seed(pieces.len())))?;
            pieces.push(piece);
            left -= part;
        }
        stream.synchronize()?;
        Ok(Self {
            add: module.kernel("add")?,
            compare: module.kernel("compare")?,
            wrong: vgpu.alloc(1)?,
            stream,
            pieces,
            rounds: 0,
        })
    }

    /// Adds one to every word.
    fn round(&mut self) -> Result<()> {
        for piece in &mut self.pieces {
            let count = piece.len() as u64;
            self.stream
                .launch(&self.add, grid(), (piece, count, 1_u32))?;
        }
        self.stream.synchronize()?;
        self.rounds += 1;
        Ok(())
    }

    /// Works for so long, at least one round; nanoseconds of each round.
    pub(crate) fn work(&mut self, time: Duration) -> Result<Vec<f64>> {
        let began = Instant::now();
        let mut times_ns = Vec::new();
        while times_ns.is_empty() || began.elapsed() < time {
            let round = Instant::now();
            self.round()?;
            times_ns.push(round.elapsed().as_nanos() as f64);
        }
        Ok(times_ns)
    }

    /// Words that are not what they should be.
    pub(crate) fn wrong_words(&mut self) -> Result<u64> {
        self.stream.fill(&mut self.wrong, 0)?;
        for (index, piece) in self.pieces.iter().enumerate() {
            let count = piece.len() as u64;
            let expected = seed(index).wrapping_add(self.rounds);
            let params = (piece, count, expected, &mut self.wrong);
            self.stream.launch(&self.compare, grid(), params)?;
        }
        self.stream.synchronize()?;
        Ok(u64::from(self.wrong.to_vec()?[0]))
    }
}

/// Allocates and frees so often; nanoseconds of each pair.
pub(crate) fn time_allocations(vgpu: &Vgpu, bytes: u64, pairs: u32) -> Result<Vec<f64>> {
    let one = || {
        let began = Instant::now();
        drop(vgpu.alloc::<u8>(bytes as usize)?);
        Ok(began.elapsed().as_nanos() as f64)
    };
    (0..pairs).map(|_| one()).collect()
}
