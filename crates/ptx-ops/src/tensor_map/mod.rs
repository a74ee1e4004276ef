//! Tensor maps: how `cp.async.bulk.tensor` finds the boxes of a tensor.
//!
//! Owns the 128 bytes that stand for a map on this device, in a format of its own, and the way from coordinates to the
//! rows of a box (`rows`). Bytes are foreign: a kernel may hand over any, so a map that is read passes the rules
//! that a map which is made passes. Addresses are not looked at here; each row is checked where it is copied.

mod rows;

pub use rows::{Row, Rows};

use mica_ptx::ast::ScalarType;

/// Bytes of a map.
pub const BYTES: usize = 128;
/// Alignment of a map in memory.
pub const ALIGN: u32 = 64;
/// Most dimensions.
pub const MOST_RANK: usize = 5;
/// What is swizzled or copied as one.
pub const PIECE: u64 = 16;

/// The first bytes of every map.
const MAGIC: [u8; 8] = *b"mica-tma";
const MOST_STRIDE: u64 = 1 << 40;
const MOST_BOX: u32 = 256;
const MOST_ELEMENT_STRIDE: u32 = 8;
const MOST_PIXELS: u32 = 1024;

/// What one copy moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Elements of a box in each dimension.
    Tiled([u32; MOST_RANK]),
    /// Windows of images: from the first pixel to the first window's and from the last pixel to the last window's, both
    /// without channels and images; channels of a pixel; pixels.
    Im2col([i32; 3], [i32; 3], u32, u32),
}

/// A tensor map whose numbers are legal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// What one copy moves.
    pub shape: Shape,
    /// `CUtensorMapDataType`.
    pub data_type: u8,
    /// Dimensions.
    pub rank: u8,
    /// `CUtensorMapSwizzle`.
    pub swizzle: u8,
    /// Whether floats outside of the tensor are NaN instead of 0.
    pub fills_nan: bool,
    /// Where the tensor begins.
    pub address: u64,
    /// Elements in each dimension.
    pub dims: [u64; MOST_RANK],
    /// Bytes between elements of each dimension but the first.
    pub strides: [u64; MOST_RANK - 1],
    /// Elements between those that are copied.
    pub element_strides: [u32; MOST_RANK],
}

impl TensorMap {
    /// Whether all numbers are legal.
    ///
    /// # Errors
    /// A sentence about the first number that is not.
    pub fn check(&self) -> Result<(), String> {
        let rank = usize::from(self.rank);
        if !(1..=MOST_RANK).contains(&rank) {
            return Err(format!("a tensor map has 1 to 5 dimensions, not {rank}"));
        }
        if self.element().is_none() {
            return Err(format!(
                "data type {} has no tensor map here",
                self.data_type
            ));
        }
        if self.swizzle > 3 {
            return Err(format!("swizzle {} has no tensor map here", self.swizzle));
        }
        if self.fills_nan && !self.element().is_some_and(|ty| ty.is_float()) {
            return Err("only floats outside of a tensor can be NaN".into());
        }
        if !self.address.is_multiple_of(PIECE) {
            return Err(format!(
                "the tensor at {:#x} is not aligned to 16 bytes",
                self.address
            ));
        }
        let dims = &self.dims[..rank];
        if let Some(bad) = dims.iter().find(|dim| !(1..=1 << 32).contains(*dim)) {
            return Err(format!("a dimension has 1 to 2^32 elements, not {bad}"));
        }
        let strides = &self.strides[..rank - 1];
        if let Some(bad) = (strides.iter()).find(|s| !s.is_multiple_of(PIECE) || **s >= MOST_STRIDE)
        {
            return Err(format!(
                "a stride is a multiple of 16 bytes below 2^40, not {bad}"
            ));
        }
        let steps = &self.element_strides[..rank];
        if let Some(bad) = (steps.iter()).find(|s| !(1..=MOST_ELEMENT_STRIDE).contains(*s)) {
            return Err(format!("an element stride is 1 to 8, not {bad}"));
        }
        self.check_shape(rank)
    }

    fn check_shape(&self, rank: usize) -> Result<(), String> {
        match self.shape {
            Shape::Tiled(sizes) => {
                let bad = sizes[..rank].iter().find(|s| !(1..=MOST_BOX).contains(*s));
                if let Some(bad) = bad {
                    return Err(format!(
                        "a box has 1 to 256 elements in a dimension, not {bad}"
                    ));
                }
            }
            Shape::Im2col(lower, upper, channels, pixels) => {
                if rank < 3 {
                    return Err(format!("images have 3 to 5 dimensions, not {rank}"));
                }
                if !(1..=MOST_BOX).contains(&channels) || !(1..=MOST_PIXELS).contains(&pixels) {
                    return Err(format!(
                        "{channels} channels of {pixels} pixels are not 1 to 256 of 1 to 1024"
                    ));
                }
                let most = [1 << 15, 1 << 7, 1 << 4][rank - 3];
                let corners = lower.iter().chain(&upper);
                if let Some(bad) = corners.copied().find(|c| !(-most..most).contains(c)) {
                    return Err(format!("a corner is -{most} to {}, not {bad}", most - 1));
                }
            }
        }
        let (row, span) = (self.row_bytes(), self.span());
        if !row.is_multiple_of(PIECE) || (span > PIECE && row > span) {
            return Err(format!(
                "a row of {row} bytes is not a multiple of 16 that fits a swizzle of {span} bytes"
            ));
        }
        Ok(())
    }

    /// The type of an element.
    pub fn element(&self) -> Option<ScalarType> {
        use ScalarType::*;
        const TYPES: [ScalarType; 13] = [
            U8, U16, U32, S32, U64, S64, F16, F32, F64, Bf16, F32, F32, F32,
        ];
        TYPES.get(usize::from(self.data_type)).copied()
    }

    /// Bytes of an element.
    pub fn element_bytes(&self) -> u64 {
        self.element().map_or(1, |ty| u64::from(ty.bytes()))
    }

    /// Bytes of a contiguous row of what is copied.
    pub fn row_bytes(&self) -> u64 {
        let count = match self.shape {
            Shape::Tiled(sizes) => sizes[0],
            Shape::Im2col(_, _, channels, _) => channels,
        };
        u64::from(count) * self.element_bytes()
    }

    /// Rows of what is copied.
    fn row_count(&self) -> u64 {
        match self.shape {
            Shape::Tiled(_) => (1..usize::from(self.rank)).map(|i| self.steps(i)).product(),
            Shape::Im2col(_, _, _, pixels) => u64::from(pixels),
        }
    }

    /// How many elements of a box are copied in a dimension.
    fn steps(&self, dim: usize) -> u64 {
        match self.shape {
            Shape::Tiled(sizes) => u64::from(sizes[dim].div_ceil(self.element_strides[dim].max(1))),
            Shape::Im2col(..) => 1,
        }
    }

    /// Bytes that one copy moves, whether inside of the tensor or not.
    pub fn bytes(&self) -> u64 {
        self.row_bytes() * self.row_count()
    }

    /// Bytes of shared memory within which pieces are exchanged; [`PIECE`] where they are not.
    pub fn span(&self) -> u64 {
        PIECE << self.swizzle
    }

    /// Where the piece at an offset in shared memory lies.
    pub fn swizzled(&self, at: u64) -> u64 {
        at ^ (at >> 7 & (self.span() / PIECE - 1)) << 4
    }

    /// Where a byte of a box that begins at an offset in shared memory lies: how far from there.
    pub fn place(&self, start: u64, byte: u64) -> u64 {
        let (at, within) = (start + byte, (start + byte) % PIECE);
        self.swizzled(at - within) + within - start
    }

    /// The bits that stand for an element outside of the tensor.
    pub fn fill(&self) -> u64 {
        match self.element().filter(|_| self.fills_nan) {
            Some(ScalarType::F16 | ScalarType::Bf16) => 0x7fff_7fff_7fff_7fff,
            Some(ScalarType::F32) => 0x7fff_ffff_7fff_ffff,
            Some(_) => 0x7fff_ffff_ffff_ffff,
            None => 0,
        }
    }

    /// The bytes that stand for the map.
    pub fn encode(&self) -> [u8; BYTES] {
        let mut writer = Writer::default();
        writer.put(&MAGIC);
        let kind = u8::from(matches!(self.shape, Shape::Im2col(..)));
        let fills = u8::from(self.fills_nan);
        writer.put(&[
            kind,
            self.rank,
            self.data_type,
            self.swizzle,
            fills,
            0,
            0,
            0,
        ]);
        writer.put(&self.address.to_le_bytes());
        for (dim, step) in self.dims.iter().zip(self.element_strides) {
            writer.put(&(dim.wrapping_sub(1) as u32).to_le_bytes());
            writer.put(&[step as u8]);
        }
        self.strides
            .iter()
            .for_each(|s| writer.put(&s.to_le_bytes()));
        match self.shape {
            Shape::Tiled(sizes) => {
                (sizes.iter()).for_each(|s| writer.put(&(*s as u16).to_le_bytes()))
            }
            Shape::Im2col(lower, upper, channels, pixels) => {
                let corners = lower.iter().chain(&upper);
                corners.for_each(|c| writer.put(&(*c as i16).to_le_bytes()));
                writer.put(&(channels as u16).to_le_bytes());
                writer.put(&(pixels as u16).to_le_bytes());
            }
        }
        writer.bytes
    }

    /// The map that these bytes stand for; `None` when they stand for none.
    pub fn decode(bytes: &[u8; BYTES]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.take::<8>() != MAGIC {
            return None;
        }
        let [kind, rank, data_type, swizzle, fills, ..] = reader.take::<8>();
        let address = u64::from_le_bytes(reader.take());
        let (mut dims, mut element_strides) = ([0; MOST_RANK], [0; MOST_RANK]);
        for (dim, step) in dims.iter_mut().zip(&mut element_strides) {
            *dim = u64::from(u32::from_le_bytes(reader.take())) + 1;
            *step = u32::from(reader.take::<1>()[0]);
        }
        let strides = std::array::from_fn(|_| u64::from_le_bytes(reader.take()));
        let mut small = || u16::from_le_bytes(reader.take());
        let shape = match kind {
            0 => Shape::Tiled(std::array::from_fn(|_| u32::from(small()))),
            1 => {
                let mut corner = || std::array::from_fn(|_| i32::from(small() as i16));
                let (lower, upper) = (corner(), corner());
                Shape::Im2col(lower, upper, u32::from(small()), u32::from(small()))
            }
            _ => return None,
        };
        let map = Self {
            shape,
            data_type,
            rank,
            swizzle,
            fills_nan: fills != 0,
            address,
            dims,
            strides,
            element_strides,
        };
        map.check().is_ok().then_some(map)
    }
}

struct Writer {
    bytes: [u8; BYTES],
    at: usize,
}

impl Default for Writer {
    fn default() -> Self {
        Self {
            bytes: [0; BYTES],
            at: 0,
        }
    }
}

impl Writer {
    fn put(&mut self, bytes: &[u8]) {
        let end = (self.at + bytes.len()).min(BYTES);
        self.bytes[self.at..end].copy_from_slice(&bytes[..end - self.at]);
        self.at = end;
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let (head, rest) = self.0.split_at(N.min(self.0.len()));
        out[..head.len()].copy_from_slice(head);
        self.0 = rest;
        out
    }
}

#[cfg(test)]
mod tests;
