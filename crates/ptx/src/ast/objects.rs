//! Shapes of matrices, and geometries of textures and surfaces.
#![allow(
    missing_docs,
    reason = "variants carry their PTX names; what differs is documented"
)]

/// A matrix shape: `m16n8k16` is `(16, 8, 16)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    pub m: u16,
    pub n: u16,
    pub k: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    Row,
    Col,
}

/// Which matrix a `wmma.load` loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WmmaMatrix {
    A,
    B,
    C,
}

/// How `mma` combines elements: multiply, or the bit operations of `b1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MmaOp {
    MulAdd,
    XorPopc,
    AndPopc,
}

/// `.m8n8`, `.m16n16` … of `ldmatrix` and `stmatrix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixTile {
    M8n8,
    M16n8,
    M16n16,
    M8n16,
}

/// Geometry of a texture or surface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Geometry {
    D1,
    D2,
    D3,
    A1,
    A2,
    Cube,
    ACube,
    D2Ms,
    A2Ms,
}

impl Geometry {
    /// Coordinates of a texel (without array index, sample or padding).
    pub fn coords(self) -> usize {
        match self {
            Geometry::D1 | Geometry::A1 => 1,
            Geometry::D2 | Geometry::A2 | Geometry::D2Ms | Geometry::A2Ms => 2,
            Geometry::D3 | Geometry::Cube | Geometry::ACube => 3,
        }
    }

    /// Whether an array index (layer, `u32`) comes first.
    pub fn is_array(self) -> bool {
        matches!(
            self,
            Geometry::A1 | Geometry::A2 | Geometry::ACube | Geometry::A2Ms
        )
    }
}

/// What a surface access does out of bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Clamp {
    Trap,
    Clamp,
    Zero,
}

/// What `txq`, `suq` and `istypep` may ask about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TexQuery {
    Width,
    Height,
    Depth,
    ChannelDataType,
    ChannelOrder,
    NormalizedCoords,
    ArraySize,
    NumMipmapLevels,
    NumSamples,
    MemoryLayout,
    ForceUnnormalizedCoords,
    FilterMode,
    AddrMode0,
    AddrMode1,
    AddrMode2,
}
