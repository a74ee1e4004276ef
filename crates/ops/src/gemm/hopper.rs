//! Launches of the kernels for Hopper (compute capability 9.0), whose factors come through tensor maps.

use mica::{ByValue, Grid, Kernel};

use super::launch::{Epilogue, Factors, Variant};
use crate::tensor_maps::Boxes;
use crate::{DType, Ops, Result};

/// Bytes of k in a stage, and of a row in shared memory.
const STAGE_BYTES: u32 = 128;
/// Rows that a warpgroup multiplies.
const GROUP_ROWS: u32 = 64;

/// A block, as `Tile` in `kernels/gemm_wgmma.cu`.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockShape {
    rows: u32,
    cols: u32,
    stages: u32,
    /// Whether the two blocks of a cluster share rows and not columns.
    is_thin: bool,
}

impl BlockShape {
    /// The block of a variant, if it is one for Hopper.
    pub(super) fn of(variant: Variant) -> Option<Self> {
        let (rows, cols, stages, is_thin) = match variant {
            Variant::Wgmma(256) => (128, 256, 4, false),
            Variant::Wgmma(cols) => (128, cols, 5, false),
            Variant::Thin(128, _) => (128, 128, 5, true),
            Variant::Thin(rows, _) => (rows, 128, 6, true),
            Variant::Panels
            | Variant::Rows(_)
            | Variant::Tile
            | Variant::Mma(..)
            | Variant::Mma4(..)
            | Variant::Library(_) => {
                return None;
            }
        };
        Some(Self {
            rows,
            cols,
            stages,
            is_thin,
        })
    }

    /// Rows and columns of a cluster.
    fn cluster(self) -> (usize, usize) {
        let (rows, cols) = (self.rows as usize, self.cols as usize);
        match self.is_thin {
            true => (rows, 2 * cols),
            false => (2 * rows, cols),
        }
    }

    fn shared_bytes(self) -> u32 {
        let sums = 64 * (64 + 4) * 4;
        let stage = (self.rows + self.cols) * STAGE_BYTES;
        self.stages * stage + self.rows / GROUP_ROWS * sums + self.stages * 16
    }

    /// One warpgroup fetches, the others multiply.
    fn threads(self) -> u32 {
        128 * (1 + self.rows / GROUP_ROWS)
    }
}

/// What a kernel for Hopper is launched with.
pub(super) struct Launch {
    pub(super) factors: Factors,
    pub(super) epilogue: Epilogue,
    /// Type of the factors.
    pub(super) dtype: DType,
    /// Whether the second factor is `[k][n]`.
    pub(super) is_turned: bool,
    pub(super) shape: BlockShape,
    pub(super) batches: usize,
}

impl Launch {
    /// The boxes of a factor: `sizes` are its contiguous elements and its rows.
    fn boxes(&self, address: u64, sizes: [i32; 2], strides: [i64; 2], tile: [u32; 2]) -> Boxes {
        let [row, matrix] = strides.map(|stride| stride as u64);
        let [x, y] = sizes.map(|size| size as u64);
        // One matrix that all products share has no distance to a next one.
        let is_shared = matrix == 0;
        Boxes {
            dtype: self.dtype,
            address,
            sizes: [x, y, if is_shared { 1 } else { self.batches as u64 }, 1],
            strides: [row, if is_shared { row * y } else { matrix }, 0],
            rank: 3,
            tile: [tile[0], tile[1], 1],
        }
    }

    fn first(&self) -> Boxes {
        let f = &self.factors;
        // Blocks that share rows copy one half of them each.
        let rows = self.shape.rows / if self.shape.is_thin { 2 } else { 1 };
        let tile = [STAGE_BYTES / self.dtype.size_bytes() as u32, rows];
        self.boxes(f.a, [f.k, f.m], [f.a_row, f.a_batch], tile)
    }

    fn second(&self) -> Boxes {
        let f = &self.factors;
        let stage = STAGE_BYTES / self.dtype.size_bytes() as u32;
        let (sizes, tile) = match self.is_turned {
            true => ([f.n, f.k], [stage, stage]),
            false if self.shape.is_thin => ([f.k, f.n], [stage, self.shape.cols]),
            // Blocks that share columns copy one half of them each.
            false => ([f.k, f.n], [stage, self.shape.cols / 2]),
        };
        self.boxes(f.b, sizes, [f.b_row, f.b_batch], tile)
    }

    /// Clusters that together compute so many stacks of products; each goes on to the next tile.
    fn grid(&self, stacks: usize, multiprocessors: u32) -> Grid {
        let (rows, cols) = self.shape.cluster();
        let (m, n) = (self.factors.m as usize, self.factors.n as usize);
        let tiles = m.div_ceil(rows) * n.div_ceil(cols) * stacks;
        let clusters = tiles.min(multiprocessors as usize / 2).max(1);
        Grid::new(2 * clusters as u32, self.shape.threads()).shared(self.shape.shared_bytes())
    }
}

impl Ops {
    pub(super) fn launch_wgmma(&self, kernel: &Kernel, launch: &Launch) -> Result<()> {
        self.launch_stacks(
            kernel,
            launch,
            launch.factors,
            launch.epilogue,
            launch.batches,
        )
    }

    /// One product whose sums are divided along k: the parts fill the card where rows and columns are too few for that.
    pub(super) fn launch_in_parts(
        &self,
        kernel: &Kernel,
        launch: &Launch,
        parts: usize,
    ) -> Result<()> {
        let f = &launch.factors;
        let (m, n) = (f.m as usize, f.n as usize);
        let dtype = if launch.dtype == DType::I8 {
            DType::I32
        } else {
            DType::F32
        };
        let sums = self.unset(&[parts, m, n], dtype)?;
        let k = f.k / parts as i32;
        let part = Factors { k, k_step: k, ..*f };
        self.launch_stacks(kernel, launch, part, Epilogue::sums(&sums), parts)?;
        let file = Variant::Wgmma(256).file(launch.dtype);
        let params = (
            ByValue(launch.epilogue),
            sums.address(),
            f.m,
            f.n,
            parts as i32,
        );
        let grid = Grid::covering(m * n, 256);
        let kernel = self.kernels.get(&file, "gemm_parts")?;
        Ok(self.stream.launch(&kernel, grid, params)?)
    }

    fn launch_stacks(
        &self,
        kernel: &Kernel,
        launch: &Launch,
        factors: Factors,
        epilogue: Epilogue,
        stacks: usize,
    ) -> Result<()> {
        let a = self.tensor_map(launch.first().request())?;
        let b = self.tensor_map(launch.second().request())?;
        let params = (
            ByValue(a),
            ByValue(b),
            ByValue(factors),
            ByValue(epilogue),
            stacks as i32,
        );
        let grid = launch.grid(stacks, self.vgpu.info().multiprocessors);
        Ok(self.stream.launch(kernel, grid, params)?)
    }
}
