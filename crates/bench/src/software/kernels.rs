//! More kernels against gcc: each takes two inputs, one output and a size, in one launch or several.

use std::time::Instant;

use anyhow::{Context, Result};
use mica::Grid;

use super::device::{Bench, weighted};
use super::rival::Run;

/// The modules of the kernels.
pub(super) const PTX: [&str; 2] = [
    include_str!("../../kernels/more.ptx"),
    include_str!("../../kernels/larger.ptx"),
];
const SMALL: usize = 0;
const LARGE: usize = 1;

/// A kernel, or several in a row with the same arguments.
pub(super) struct More {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    /// Which of [`PTX`].
    module: usize,
    launches: &'static [Launch],
    n: u32,
    check: Check,
}

/// How results are compared.
enum Check {
    /// The sum of so many floats.
    Floats(usize),
    /// The sum over so many pairs of a key and its count, which lie in any order.
    Pairs(usize),
    /// The sum over so many words, each times a number that its place has.
    Words(usize),
}
use Check::{Floats, Pairs, Words};

const IMAGE: usize = 1 << 22;

/// A kernel with its grid and its blocks.
type Launch = (&'static str, [u32; 2], [u32; 2]);
const SPMV: Launch = ("spmv", [1 << 13, 1], [256, 1]);

/// The kernels, with the sizes of `more_gcc.h` and `larger_gcc.h`.
pub(super) const MORE: [More; 14] = [
    More {
        name: "softmax",
        what: "4096 rows of 1024",
        module: SMALL,
        launches: &[("softmax", [4096, 1], [256, 1])],
        n: 1024,
        check: Floats(IMAGE),
    },
    More {
        name: "layer_norm",
        what: "4096 rows of 1024",
        module: SMALL,
        launches: &[("layer_norm", [4096, 1], [256, 1])],
        n: 1024,
        check: Floats(IMAGE),
    },
    More {
        name: "convolution",
        what: "2048², 9 + 9 weights",
        module: SMALL,
        launches: &[("convolution", [64, 64], [32, 8])],
        n: 2048,
        check: Floats(IMAGE),
    },
    More {
        name: "scan",
        what: "4 Mi floats, three launches",
        module: SMALL,
        launches: &[
            ("scan_blocks", [4096, 1], [256, 1]),
            ("scan_sums", [1, 1], [1024, 1]),
            ("scan_add", [4096, 1], [256, 1]),
        ],
        n: 1 << 22,
        check: Floats(IMAGE),
    },
    More {
        name: "compaction",
        what: "4 Mi floats, half kept",
        module: SMALL,
        launches: &[("compaction", [1 << 14, 1], [256, 1])],
        n: 1 << 22,
        check: Floats(IMAGE),
    },
    More {
        name: "hash_table",
        what: "1 Mi keys counted",
        module: SMALL,
        launches: &[("hash_table", [1 << 12, 1], [256, 1])],
        n: 1 << 20,
        check: Pairs(2 << 20),
    },
    More {
        name: "ray_tracer",
        what: "512², 64 spheres",
        module: SMALL,
        launches: &[("ray_tracer", [16, 64], [32, 8])],
        n: 512,
        check: Floats(512 * 512),
    },
    More {
        name: "attention",
        what: "4 heads of 512 × 64",
        module: SMALL,
        launches: &[("attention", [4, 4], [128, 1])],
        n: 512,
        check: Floats(4 * 512 * 64),
    },
    More {
        name: "sgemm",
        what: "1024², warps' tiles, gcc's loop blocked",
        module: LARGE,
        launches: &[("sgemm", [8, 8], [256, 1])],
        n: 1024,
        check: Floats(1 << 20),
    },
    More {
        name: "hgemm",
        what: "512² halves on tensor cores",
        module: LARGE,
        launches: &[
            ("hgemm_round", [1024, 1], [256, 1]),
            ("hgemm", [8, 8], [256, 1]),
        ],
        n: 512,
        check: Floats(512 * 512),
    },
    More {
        name: "radix_sort",
        what: "1 Mi keys, 13 launches",
        module: LARGE,
        launches: &[
            ("sort_keys", [4096, 1], [256, 1]),
            ("sort_count0", [256, 1], [256, 1]),
            ("sort_sums", [1, 1], [1024, 1]),
            ("sort_move0", [256, 1], [256, 1]),
            ("sort_count1", [256, 1], [256, 1]),
            ("sort_sums", [1, 1], [1024, 1]),
            ("sort_move1", [256, 1], [256, 1]),
            ("sort_count2", [256, 1], [256, 1]),
            ("sort_sums", [1, 1], [1024, 1]),
            ("sort_move2", [256, 1], [256, 1]),
            ("sort_count3", [256, 1], [256, 1]),
            ("sort_sums", [1, 1], [1024, 1]),
            ("sort_move3", [256, 1], [256, 1]),
        ],
        n: 1 << 20,
        check: Words(1 << 20),
    },
    More {
        name: "spmv",
        what: "64 Ki rows of 8 to 39, eight times",
        module: LARGE,
        launches: &[
            ("spmv_fill", [256, 1], [256, 1]),
            SPMV,
            SPMV,
            SPMV,
            SPMV,
            SPMV,
            SPMV,
            SPMV,
            SPMV,
        ],
        n: 1 << 16,
        check: Floats(1 << 16),
    },
    More {
        name: "fft",
        what: "4096 times 1024 complex numbers",
        module: LARGE,
        launches: &[
            ("fft_powers", [4, 1], [256, 1]),
            ("fft", [4096, 1], [256, 1]),
        ],
        n: 1 << 22,
        check: Floats(1 << 23),
    },
    More {
        name: "pipeline",
        what: "4 Mi floats, producers and consumers by cuda::barrier",
        module: LARGE,
        launches: &[("pipeline", [64, 1], [256, 1])],
        n: 1 << 22,
        check: Floats(IMAGE),
    },
];

impl Bench {
    /// Runs one of the further kernels, timed from the first launch to the end of the synchronization.
    pub(super) fn run_more(&mut self, more: &More) -> Result<Run> {
        let kernels = more.launches.iter().map(|launch| {
            let [x, y] = launch.1;
            let [width, height] = launch.2;
            let grid = Grid::of([x, y, 1], [width, height, 1]);
            Ok((self.more[more.module].kernel(launch.0)?, grid))
        });
        let kernels = kernels.collect::<Result<Vec<_>>>()?;
        self.stream.fill_bytes(&self.c, 0)?;
        self.stream.synchronize()?;
        let began = Instant::now();
        for (kernel, grid) in &kernels {
            let arguments = (&self.a, &self.b, &mut self.c, more.n);
            self.stream.launch(kernel, *grid, arguments)?;
        }
        self.stream.synchronize()?;
        let ns = began.elapsed().as_nanos() as f64;
        let words = self.c.to_vec()?;
        let part = |count: usize| words.get(..count).context("too few results");
        let checksum = match more.check {
            Floats(count) => part(count)?
                .iter()
                .map(|word| f64::from(f32::from_bits(*word)).abs())
                .sum(),
            Pairs(count) => part(2 * count)?
                .chunks_exact(2)
                .map(|pair| f64::from(pair[0]) * f64::from(pair[1]))
                .sum(),
            Words(count) => weighted(part(count)?),
        };
        Ok(Run { ns, checksum })
    }
}
