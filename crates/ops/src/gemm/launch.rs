//! Kernels for products, and how each is launched.

use mica::{ByValue, Grid};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::check::{Product, matrix};
use super::hopper;
use super::panels;
use super::spec::Gemm;
use crate::pack::{MOST_BLOCKS, Matrix, wide};
use crate::{DType, Error, Ops, Result, Tensor};

/// As `Factors` in `kernels/ops.cuh`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Factors {
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) a_row: i64,
    pub(crate) a_batch: i64,
    pub(crate) b_row: i64,
    pub(crate) b_batch: i64,
    pub(crate) m: i32,
    pub(crate) n: i32,
    pub(crate) k: i32,
    pub(crate) k_step: i32,
}

/// As `Epilogue` in `kernels/ops.cuh`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Epilogue {
    c: u64,
    bias: u64,
    residual: u64,
    pub(super) d: u64,
    c_strides: [i64; 3],
    r_strides: [i64; 3],
    pub(super) d_strides: [i64; 3],
    alpha: f32,
    beta: f32,
    scale: f32,
    activation: i32,
    dtype: i32,
    reserved: i32,
}

/// A kernel that can compute a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Variant {
    /// Parts that a function of the software GPU multiplies.
    Panels,
    /// A thread for so many rows of a column: the software GPU.
    Rows(u32),
    /// Blocks of 128 × 128 without tensor cores: cards.
    Tile,
    /// Blocks of so many rows and columns with tensor cores.
    Mma(u32, u32),
    /// Blocks of so many rows and columns with instructions of tensor cores for 4-bit integers.
    Mma4(u32, u32),
    /// Two blocks of 128 rows and so many columns with the tensor cores and the copy unit of Hopper.
    Wgmma(u32),
    /// Two blocks of 64 or 128 rows and 128 columns each with the same, and the sums along k divided into so many parts.
    Thin(u32, u32),
    /// The algorithm of this number, from 1, that the user's cuBLASLt proposes.
    Library(u32),
}

impl Variant {
    /// Kernels for 4-bit integers alone.
    pub(crate) const INT4: [Self; 4] = [
        Self::Mma4(128, 256),
        Self::Mma4(128, 128),
        Self::Mma4(64, 64),
        Self::Mma4(16, 128),
    ];

    /// Every kernel for other types.
    pub(crate) const ALL: [Self; 18] = [
        Self::Panels,
        Self::Rows(8),
        Self::Rows(12),
        Self::Tile,
        Self::Wgmma(256),
        Self::Wgmma(128),
        Self::Thin(128, 1),
        Self::Thin(128, 2),
        Self::Thin(128, 4),
        Self::Thin(128, 8),
        Self::Thin(64, 1),
        Self::Thin(64, 2),
        Self::Thin(64, 4),
        Self::Thin(64, 8),
        Self::Mma(128, 256),
        Self::Mma(128, 128),
        Self::Mma(64, 64),
        Self::Mma(16, 128),
    ];

    /// The file that has the kernel for factors of a type.
    pub(crate) fn file(self, dtype: DType) -> String {
        match self {
            Self::Mma(..) | Self::Mma4(..) => format!("gemm_mma.{dtype}"),
            Self::Wgmma(_) | Self::Thin(..) => format!("gemm_wgmma.{dtype}"),
            Self::Panels => panels::FILE.into(),
            _ => format!("gemm.{dtype}"),
        }
    }

    /// What distinguishes the kernel from others, for people and for files.
    pub(crate) fn label(self) -> String {
        match self {
            Self::Mma(rows, cols) => format!("mma_{rows}x{cols}"),
            Self::Mma4(rows, cols) => format!("mma4_{rows}x{cols}"),
            Self::Wgmma(cols) => format!("wgmma_{cols}"),
            Self::Thin(rows, parts) => format!("wgmma_thin{rows}_in_{parts}"),
            Self::Library(number) => format!("cublaslt_{number}"),
            other => other.name(true),
        }
    }

    /// The kernel's name; `is_turned` says whether the second factor is `[k][n]`.
    fn name(self, is_turned: bool) -> String {
        match (self, is_turned) {
            (Self::Panels, _) => "gemm_panels".into(),
            (Self::Rows(rows), _) => format!("gemm_rows{rows}"),
            (Self::Tile, _) => "gemm_tile128".into(),
            (Self::Mma(rows, cols), true) => format!("mma_{rows}x{cols}_kn"),
            (Self::Mma(rows, cols), false) | (Self::Mma4(rows, cols), _) => {
                format!("mma_{rows}x{cols}_nk")
            }
            (Self::Wgmma(cols), true) => format!("wgmma_{cols}_kn"),
            (Self::Wgmma(cols), false) => format!("wgmma_{cols}_nk"),
            (Self::Thin(rows, _), true) => format!("wgmma_thin{rows}_kn"),
            (Self::Thin(rows, _), false) => format!("wgmma_thin{rows}_nk"),
            (Self::Library(_), _) => String::new(),
        }
    }

    /// Parts that sums are divided into.
    pub(crate) fn parts(self) -> usize {
        match self {
            Self::Thin(_, parts) => parts as usize,
            _ => 1,
        }
    }

    /// Rows and columns of a block, or of a cluster of two.
    pub(crate) fn block(self) -> (usize, usize) {
        match self {
            Self::Panels => (panels::ROWS, panels::COLS),
            Self::Rows(rows) => (rows as usize, 32),
            Self::Tile => (128, 128),
            Self::Mma(rows, cols) | Self::Mma4(rows, cols) => (rows as usize, cols as usize),
            Self::Wgmma(cols) => (256, cols as usize),
            Self::Thin(rows, _) => (rows as usize, 256),
            Self::Library(_) => (1, 1),
        }
    }

    /// Whether it reads factors as tensor cores do: rows at multiples of 16 bytes.
    fn has_tensor_cores(self) -> bool {
        matches!(self, Self::Mma(..) | Self::Wgmma(_) | Self::Thin(..))
    }

    /// Columns that one launch computes at most: `Rows` has them along the second axis of its grid.
    fn most_cols(self) -> usize {
        match self {
            Self::Rows(_) => MOST_BLOCKS * self.block().1,
            _ => usize::MAX,
        }
    }

    /// The grid for one stack of products; a kernel for Hopper has a grid of its own.
    fn grid(self, m: usize, n: usize, batches: usize) -> Grid {
        let (rows, cols) = self.block();
        let (m, n) = (m.div_ceil(rows) as u32, n.div_ceil(cols) as u32);
        let batches = batches as u32;
        match self {
            // A block goes through eight panels of rows.
            Self::Rows(_) => Grid::of([m.div_ceil(8), n, batches], [32, 1, 1]),
            Self::Panels | Self::Tile | Self::Wgmma(_) | Self::Thin(..) | Self::Library(_) => {
                Grid::of([m * n, 1, batches], [256, 1, 1])
            }
            Self::Mma(rows, cols) | Self::Mma4(rows, cols) => {
                let (threads, stages) = match rows {
                    128 => (256, 3),
                    _ => (128, 4),
                };
                // 128 bytes of k of each row and column in each stage.
                let shared = (rows + cols) * 128 * stages;
                Grid::of([m * n, 1, batches], [threads, 1, 1]).shared(shared)
            }
        }
    }
}

/// Factors as a kernel reads them, and the memory of those that were packed.
struct Prepared {
    a: Matrix,
    b: Matrix,
    /// Elements of each sum; bytes of two where these are what the kernel reads.
    k: usize,
    /// Whether `b` is `[k][n]`.
    is_turned: bool,
    _packed: [Option<Tensor>; 2],
}

impl Prepared {
    /// The factors of a part of the product, which begins at a matrix of the stack and a column, and has so many rows and
    /// columns.
    fn part(&self, first: usize, col: usize, [m, n]: [usize; 2]) -> Factors {
        let (a, b, k) = (&self.a, &self.b, self.k);
        // Panels of `Rows` are `[n / 32][k][32]`; `col` is 0 for the others.
        let b_column = (col * k * b.dtype.size_bytes()) as u64;
        Factors {
            a: a.address_of(first),
            b: b.address_of(first) + b_column,
            a_row: a.row as i64,
            a_batch: a.batch as i64,
            b_row: b.row as i64,
            b_batch: b.batch as i64,
            m: m as i32,
            n: n as i32,
            k: k as i32,
            k_step: 0,
        }
    }
}

fn strides(tensor: &Tensor) -> [i64; 3] {
    let view = matrix(tensor);
    [view.row as i64, view.col as i64, view.batch as i64]
}

impl Epilogue {
    pub(crate) fn new(spec: &Gemm, d: &Tensor) -> Self {
        let mut epilogue = Self {
            d: d.address(),
            d_strides: strides(d),
            alpha: spec.alpha,
            beta: spec.beta,
            scale: spec.scale,
            activation: spec.activation as i32,
            dtype: d.dtype() as i32,
            ..Self::default()
        };
        // A factor of 0 leaves c out, so that a NaN in it does not matter.
        if let Some(c) = spec.c.filter(|_| spec.beta != 0.0) {
            (epilogue.c, epilogue.c_strides) = (c.address(), strides(c));
        }
        if let Some(residual) = spec.residual {
            epilogue.residual = residual.address();
            epilogue.r_strides = strides(residual);
        }
        epilogue.bias = spec.bias.map_or(0, Tensor::address);
        epilogue
    }

    /// Whether sums of the type are stored as they are, columns beside each other.
    pub(super) fn only_stores(&self, sums: DType) -> bool {
        let parts = self.c == 0 && self.bias == 0 && self.residual == 0 && self.activation == 0;
        let factors = self.alpha == 1.0 && self.scale == 1.0;
        parts && factors && self.dtype == sums as i32 && self.d_strides[1] == 1
    }

    /// The same for columns from `column` on, where [`Epilogue::only_stores`].
    fn at_column(mut self, column: usize, size: usize) -> Self {
        self.d += (column * size) as u64;
        self
    }

    /// Sums that are stored as they are, `[batch][m][n]`.
    pub(crate) fn sums(sums: &Tensor) -> Self {
        Self::new(&Gemm::default(), sums)
    }

    /// The same for matrices from `first` on.
    fn from(mut self, first: usize, size: usize) -> Self {
        let step = |strides: [i64; 3]| first as u64 * strides[2] as u64 * size as u64;
        self.d += step(self.d_strides);
        self.c += step(self.c_strides);
        self.residual += step(self.r_strides);
        self
    }
}

/// Whether a kernel that reads 16 bytes at once can read the rows of a factor.
fn is_aligned(factor: &Matrix) -> bool {
    let elements = 16 / factor.dtype.size_bytes();
    factor.address.is_multiple_of(16)
        && factor.row.is_multiple_of(elements)
        && factor.batch.is_multiple_of(elements)
}

impl Ops {
    /// Packs a factor; one that all products of a stack share is packed once.
    pub(super) fn pack_factor(
        &self,
        factor: &Matrix,
        batches: usize,
        to: DType,
    ) -> Result<(Option<Tensor>, Matrix)> {
        let count = if factor.batch == 0 { 1 } else { batches };
        let (memory, mut packed) = self.pack(factor, count, to, 16 / to.size_bytes())?;
        if factor.batch == 0 {
            packed.batch = 0;
        }
        Ok((Some(memory), packed))
    }

    /// A factor as a kernel without tensor cores reads it: wide elements in contiguous rows.
    pub(super) fn wide_factor(
        &self,
        factor: &Matrix,
        batches: usize,
    ) -> Result<(Option<Tensor>, Matrix)> {
        let to = wide(factor.dtype);
        let contiguous = factor.col == 1 || factor.cols == 1;
        if factor.dtype == to && contiguous && (self.is_software || is_aligned(factor)) {
            return Ok((None, *factor));
        }
        self.pack_factor(factor, batches, to)
    }

    /// A factor as a kernel with tensor cores reads it: contiguous rows at multiples of 16 bytes.
    pub(super) fn aligned_factor(
        &self,
        factor: &Matrix,
        batches: usize,
    ) -> Result<(Option<Tensor>, Matrix)> {
        if (factor.col == 1 || factor.cols == 1) && is_aligned(factor) {
            return Ok((None, *factor));
        }
        self.pack_factor(factor, batches, factor.dtype)
    }

    /// Factors in panels of so many rows of the first, and of 32 columns of the second.
    fn prepare_panels(&self, product: &Product, rows: usize) -> Result<Prepared> {
        // The kernel counts the elements of a panel in 32 bits.
        let (k, most) = (product.a.cols, i32::MAX as usize / 32);
        if k > most {
            let message = format!("a has {k} columns; the software GPU takes at most {most}");
            return Err(Error::argument("gemm", message));
        }
        let panels = |factor: &Matrix, width: usize| -> Result<(Tensor, Matrix)> {
            let (memory, _, batch) = self.panels(factor, product.batches, width)?;
            let packed = Matrix {
                address: memory.address(),
                dtype: memory.dtype(),
                batch,
                ..*factor
            };
            Ok((memory, packed))
        };
        let (a_memory, a) = panels(&product.a.turned(), rows)?;
        let (b_memory, b) = panels(&product.b, 32)?;
        Ok(Prepared {
            a,
            b,
            k,
            is_turned: true,
            _packed: [Some(a_memory), Some(b_memory)],
        })
    }

    fn prepare(&self, product: &Product, variant: Variant) -> Result<Prepared> {
        let batches = product.batches;
        if let Variant::Rows(rows) = variant {
            return self.prepare_panels(product, rows as usize);
        }
        let k = product.a.cols;
        if let Variant::Mma4(..) = variant {
            let (a_memory, a) = self.pairs_of_factor(&product.a, batches)?;
            let (b_memory, b) = self.pairs_of_factor(&product.b.turned(), batches)?;
            return Ok(Prepared {
                a,
                b,
                k: k.div_ceil(2),
                is_turned: false,
                _packed: [a_memory, b_memory],
            });
        }
        if !variant.has_tensor_cores() {
            let (a_memory, a) = self.wide_factor(&product.a, batches)?;
            let (b_memory, b) = self.wide_factor(&product.b, batches)?;
            return Ok(Prepared {
                a,
                b,
                k,
                is_turned: true,
                _packed: [a_memory, b_memory],
            });
        }
        let (a_memory, a) = self.aligned_factor(&product.a, batches)?;
        let b = &product.b;
        // Only 16-bit elements can be turned on their way from shared memory.
        let is_turned = b.dtype.size_bytes() == 2 && b.col == 1;
        let by_columns = b.turned();
        let (b_memory, b) =
            self.aligned_factor(if is_turned { b } else { &by_columns }, batches)?;
        Ok(Prepared {
            a,
            b,
            k,
            is_turned,
            _packed: [a_memory, b_memory],
        })
    }

    /// Queues a product with a chosen kernel.
    pub(crate) fn launch_product(
        &self,
        product: &Product,
        spec: &Gemm,
        d: &Tensor,
        variant: Variant,
    ) -> Result<()> {
        if product.a.dtype == DType::I4 && !matches!(variant, Variant::Mma4(..)) {
            let (a_memory, a) = self.unpack_factor(&product.a, product.batches)?;
            let (b_memory, b) = self.unpack_factor(&product.b, product.batches)?;
            let bytes = Product {
                a,
                b,
                ..product.clone()
            };
            let launched = self.launch_product(&bytes, spec, d, variant);
            drop((a_memory, b_memory));
            return launched;
        }
        if let Variant::Library(number) = variant {
            return self.launch_by_library(product, spec, d, number);
        }
        if variant == Variant::Panels {
            return self.launch_panels(product, spec, d);
        }
        let prepared = self.prepare(product, variant)?;
        let is_turned = prepared.is_turned;
        let (m, n) = (product.a.rows, product.b.cols);
        let file = variant.file(product.a.dtype);
        let kernel = self.kernels.get(&file, &variant.name(is_turned))?;
        let (epilogue, sums) = match variant {
            Variant::Rows(_) => self.plain_sums(product, wide(product.a.dtype), spec, d)?,
            _ => (Epilogue::new(spec, d), None),
        };
        let size = sums.as_ref().unwrap_or(d).dtype().size_bytes();
        let (stacks, cols) = (MOST_BLOCKS, variant.most_cols());
        let firsts = (0..product.batches).step_by(stacks);
        let parts = firsts.flat_map(|first| (0..n).step_by(cols).map(move |col| (first, col)));
        for (first, col) in parts {
            let (count, n) = ((product.batches - first).min(stacks), (n - col).min(cols));
            let factors = prepared.part(first, col, [m, n]);
            let epilogue = epilogue.from(first, size).at_column(col, size);
            if let Some(shape) = hopper::BlockShape::of(variant) {
                let launch = hopper::Launch {
                    factors,
                    epilogue,
                    dtype: product.a.dtype,
                    is_turned,
                    shape,
                    batches: count,
                };
                match variant.parts() {
                    1 => self.launch_wgmma(&kernel, &launch)?,
                    parts => self.launch_in_parts(&kernel, &launch, parts)?,
                }
                continue;
            }
            let grid = variant.grid(m, n, count);
            let params = (ByValue(factors), ByValue(epilogue));
            self.stream.launch(&kernel, grid, params)?;
        }
        match sums {
            Some(sums) => self.finish_sums(&file, &sums, Epilogue::new(spec, d), d),
            None => Ok(()),
        }
    }

    /// Where a kernel stores that can only store sums: the result if that is all there is to do, else a tensor of sums for
    /// [`Ops::finish_sums`].
    pub(super) fn plain_sums(
        &self,
        product: &Product,
        dtype: DType,
        spec: &Gemm,
        d: &Tensor,
    ) -> Result<(Epilogue, Option<Tensor>)> {
        let epilogue = Epilogue::new(spec, d);
        if epilogue.only_stores(dtype) {
            return Ok((epilogue, None));
        }
        let shape = [product.batches, product.a.rows, product.b.cols];
        let sums = self.unset(&shape, dtype)?;
        Ok((Epilogue::sums(&sums), Some(sums)))
    }

    /// Applies an epilogue to sums `[batch, m, n]`.
    pub(super) fn finish_sums(
        &self,
        file: &str,
        sums: &Tensor,
        epilogue: Epilogue,
        d: &Tensor,
    ) -> Result<()> {
        let kernel = self.kernels.get(file, "gemm_epilogue")?;
        let (batches, m, n) = (sums.shape()[0], sums.shape()[1], sums.shape()[2]);
        for first in (0..batches).step_by(MOST_BLOCKS) {
            let count = (batches - first).min(MOST_BLOCKS) as u32;
            let epilogue = epilogue.from(first, d.dtype().size_bytes());
            let from = sums.address() + (first * m * n * sums.dtype().size_bytes()) as u64;
            let rows = m.min(MOST_BLOCKS) as u32;
            let grid = Grid::of([n.div_ceil(128) as u32, rows, count], [128, 1, 1]);
            let params = (ByValue(epilogue), from, m as i32, n as i32);
            self.stream.launch(&kernel, grid, params)?;
        }
        Ok(())
    }
}
