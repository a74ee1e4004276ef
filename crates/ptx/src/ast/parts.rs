//! The larger instructions' fields, boxed in [`super::Op`].
#![allow(
    missing_docs,
    reason = "fields follow the conventions of `Op`; the rest is documented"
)]

use super::*;

/// See [`Op::CacheControl`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheControl {
    Prefetch,
    PrefetchUniform,
    PrefetchTensorMap,
    Discard,
    ApplyPriority,
}

/// The predicate part of `lop3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lop3Pred {
    /// `And` or `Or`.
    pub op: BoolOp,
    pub dst: RegId,
    pub src: PredSrc,
}

/// See [`Op::Atom`].
#[derive(Clone, Debug, PartialEq)]
pub struct Atom {
    pub space: Space,
    pub op: AtomOp,
    pub ty: ScalarType,
    pub sem: Sem,
    pub scope: Scope,
    /// `.noftz` (f16 and bf16 additions).
    pub noftz: bool,
    pub cache: CacheHints,
    /// Empty for `red`; else as long as `src`.
    pub dst: Vec<Option<RegId>>,
    pub addr: Address,
    /// 1, 2, 4 or 8 elements.
    pub src: Vec<Operand>,
    /// The new value of `Cas`.
    pub src2: Option<Operand>,
    /// `red.async`: completes bytes on this mbarrier.
    pub mbar: Option<Address>,
}

/// See [`Op::CpAsyncBulk`].
#[derive(Clone, Debug, PartialEq)]
pub struct CpAsyncBulk {
    pub dst_space: Space,
    pub src_space: Space,
    pub dst: Address,
    pub src: Address,
    pub size: Operand,
    pub completion: Completion,
    /// `.multicast::cluster`: a mask of blocks.
    pub multicast: Option<Operand>,
    /// `.cp_mask`: which bytes of each 16 to write.
    pub byte_mask: Option<Operand>,
    pub policy: Option<Operand>,
}

/// See [`Op::CpReduceAsyncBulk`].
#[derive(Clone, Debug, PartialEq)]
pub struct CpReduceAsyncBulk {
    pub op: BulkReduceOp,
    pub ty: ScalarType,
    pub dst_space: Space,
    pub src_space: Space,
    pub dst: Address,
    pub src: Address,
    pub size: Operand,
    pub completion: Completion,
    pub noftz: bool,
    pub policy: Option<Operand>,
}

/// See [`Op::CpAsyncBulkTensor`].
#[derive(Clone, Debug, PartialEq)]
pub struct CpAsyncBulkTensor {
    /// 1 to 5.
    pub dim: u8,
    /// Shared to global.
    pub store: bool,
    /// `cp.reduce`.
    pub reduce: Option<BulkReduceOp>,
    /// `.im2col` and variants (else `.tile`).
    pub im2col: bool,
    pub tensor_map: Address,
    pub coords: Vec<Operand>,
    pub im2col_offsets: Vec<Operand>,
    pub shared: Address,
    pub completion: Completion,
    pub multicast: Option<Operand>,
    pub policy: Option<Operand>,
}

/// What an `mbarrier` instruction does.
#[derive(Clone, Debug, PartialEq)]
pub enum MbarrierOp {
    Init {
        count: Operand,
    },
    Inval,
    /// `arrive`, `arrive_drop`, with `.noComplete` and `.expect_tx`. `count` defaults to 1.
    Arrive {
        drop: bool,
        no_complete: bool,
        /// The bytes to expect before arriving.
        expect_tx: Option<Operand>,
        sem: Sem,
        scope: Scope,
        /// The state before arriving.
        dst: Option<RegId>,
        count: Option<Operand>,
    },
    ExpectTx {
        scope: Scope,
        bytes: Operand,
    },
    CompleteTx {
        scope: Scope,
        bytes: Operand,
    },
    /// `test_wait`, or `try_wait` (`blocking`, with an optional time limit in ns): `dst` whether
    /// the phase is complete.
    Wait {
        blocking: bool,
        sem: Sem,
        scope: Scope,
        dst: RegId,
        phase: MbarrierPhase,
        timeout_ns: Option<Operand>,
    },
}

/// Which phase `mbarrier` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MbarrierPhase {
    /// A state that `arrive` gave.
    State(Operand),
    /// `.parity`: 0 or 1.
    Parity(Operand),
}

/// `mma.sync`, `mma.sp`, `wmma.mma`.
#[derive(Clone, Debug, PartialEq)]
pub struct Mma {
    pub shape: Shape,
    pub a_layout: Layout,
    pub b_layout: Layout,
    pub d_ty: ScalarType,
    pub a_ty: ScalarType,
    pub b_ty: ScalarType,
    pub c_ty: ScalarType,
    pub op: MmaOp,
    /// `.satfinite`.
    pub sat: bool,
    /// f64 only; `Rn` otherwise.
    pub round: Rounding,
    pub d: Vec<RegId>,
    pub a: Vec<Operand>,
    pub b: Vec<Operand>,
    pub c: Vec<Operand>,
    pub sparse: Option<MmaSparse>,
}

/// The sparse part of `mma.sp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmaSparse {
    pub ordered: bool,
    pub metadata: Operand,
    /// Which threads' metadata is used, 0 to 3.
    pub selector: u8,
}

/// `wgmma.mma_async`: `d = a · b + d`, or `a · b` where `scale_d` is false.
#[derive(Clone, Debug, PartialEq)]
pub struct Wgmma {
    pub shape: Shape,
    pub d_ty: ScalarType,
    pub a_ty: ScalarType,
    pub b_ty: ScalarType,
    pub op: MmaOp,
    /// `.satfinite`.
    pub sat: bool,
    pub d: Vec<RegId>,
    pub a: WgmmaFactor,
    /// The matrix descriptor of `b`.
    pub b: Operand,
    pub scale_d: PredSrc,
    pub a_negated: bool,
    pub b_negated: bool,
    /// Columns of `a` lie one after the other, instead of rows.
    pub a_transposed: bool,
    /// Rows of `b` lie one after the other, instead of columns.
    pub b_transposed: bool,
}

/// Where `a` of a [`Wgmma`] is.
#[derive(Clone, Debug, PartialEq)]
pub enum WgmmaFactor {
    Registers(Vec<Operand>),
    /// In shared memory, by a matrix descriptor.
    Descriptor(Operand),
}

/// `wmma.load`.
#[derive(Clone, Debug, PartialEq)]
pub struct WmmaLoad {
    pub matrix: WmmaMatrix,
    pub shape: Shape,
    pub layout: Layout,
    pub space: Space,
    pub ty: ScalarType,
    pub dst: Vec<RegId>,
    pub addr: Address,
    /// In elements; the default is the row or column length.
    pub stride: Option<Operand>,
}

/// `wmma.store.d`.
#[derive(Clone, Debug, PartialEq)]
pub struct WmmaStore {
    pub shape: Shape,
    pub layout: Layout,
    pub space: Space,
    pub ty: ScalarType,
    pub addr: Address,
    pub src: Vec<Operand>,
    pub stride: Option<Operand>,
}

/// How `tex` chooses a mipmap level.
#[derive(Clone, Debug, PartialEq)]
pub enum TexLevel {
    /// No level given, or `.base`.
    Base,
    Level(Operand),
    /// Derivatives, as many in each as the texture has coordinates.
    Grad {
        dx: Vec<Operand>,
        dy: Vec<Operand>,
    },
}

/// `tex`.
#[derive(Clone, Debug, PartialEq)]
pub struct Tex {
    pub geom: Geometry,
    /// f32, s32, u32, f16x2 and so on.
    pub dst_ty: ScalarType,
    /// s32 or f32.
    pub coord_ty: ScalarType,
    /// Four texel components (two registers for packed f16x2; one for depth compare).
    pub dst: Vec<Option<RegId>>,
    /// `d|p`: whether the texel was resident.
    pub resident: Option<RegId>,
    /// A variable (texture reference) or a 64-bit handle.
    pub texture: Operand,
    /// Only in independent mode.
    pub sampler: Option<Operand>,
    /// The array index first for arrays (u32); coordinates; the sample for `2dms`. Without the
    /// padding that PTX writes.
    pub layer: Option<Operand>,
    pub coords: Vec<Operand>,
    pub sample: Option<Operand>,
    pub level: TexLevel,
    /// Texel offsets.
    pub offsets: Vec<Operand>,
    /// Depth compare reference.
    pub compare: Option<Operand>,
}

/// `tld4`: one component of the four texels bilinear filtering would use.
#[derive(Clone, Debug, PartialEq)]
pub struct Tld4 {
    pub geom: Geometry,
    /// 0 to 3 for r, g, b, a.
    pub component: u8,
    pub dst_ty: ScalarType,
    pub dst: Vec<Option<RegId>>,
    pub resident: Option<RegId>,
    pub texture: Operand,
    pub sampler: Option<Operand>,
    pub layer: Option<Operand>,
    pub coords: Vec<Operand>,
    pub offsets: Vec<Operand>,
    pub compare: Option<Operand>,
}

/// `suld.b`. `x` is in bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Suld {
    pub geom: Geometry,
    pub ty: ScalarType,
    pub clamp: Clamp,
    /// 1, 2 or 4.
    pub dst: Vec<Option<RegId>>,
    pub surface: Operand,
    pub layer: Option<Operand>,
    pub coords: Vec<Operand>,
    pub cache: CacheHints,
}

/// `sust.b` and `sust.p`. `x` is in bytes for `.b`, in elements for `.p`.
#[derive(Clone, Debug, PartialEq)]
pub struct Sust {
    /// `.p`: converts to the surface's format.
    pub formatted: bool,
    pub geom: Geometry,
    pub ty: ScalarType,
    pub clamp: Clamp,
    pub surface: Operand,
    pub layer: Option<Operand>,
    pub coords: Vec<Operand>,
    pub src: Vec<Operand>,
    pub cache: CacheHints,
}

/// `sured`.
#[derive(Clone, Debug, PartialEq)]
pub struct Sured {
    /// `.p`: `x` in elements.
    pub formatted: bool,
    /// Add, Min, Max, And or Or.
    pub op: AtomOp,
    pub geom: Geometry,
    pub ty: ScalarType,
    pub clamp: Clamp,
    pub surface: Operand,
    pub layer: Option<Operand>,
    pub coords: Vec<Operand>,
    pub src: Operand,
}

/// A source of a video instruction: a part of a register, extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VideoSrc {
    pub src: Operand,
    pub signed: bool,
    /// `None` for the whole 32 bits.
    pub select: Option<SubWord>,
    pub negated: bool,
}

/// `vadd vsub vabsdiff vmin vmax vshl vshr vset`.
#[derive(Clone, Debug, PartialEq)]
pub struct Video {
    pub op: VideoOp,
    pub dst_signed: bool,
    pub sat: bool,
    pub dst: RegId,
    /// Where the result goes: the rest of the register comes from `c`.
    pub dst_select: Option<SubWord>,
    pub a: VideoSrc,
    pub b: VideoSrc,
    pub second: Option<VideoSecond>,
    /// Needed by `second` or `dst_select`.
    pub c: Option<Operand>,
}

/// `vmad`: `±a·b ± c`, plus one with `.po`.
#[derive(Clone, Debug, PartialEq)]
pub struct VideoMad {
    pub dst_signed: bool,
    pub sat: bool,
    pub po: bool,
    /// Right shift of the result: 0, 7 or 15.
    pub shift: u8,
    pub dst: RegId,
    pub a: VideoSrc,
    pub b: VideoSrc,
    pub c: Operand,
    pub c_negated: bool,
}

/// `vadd2 … vset4 vavrg4`.
#[derive(Clone, Debug, PartialEq)]
pub struct VideoSimd {
    pub op: VideoOp,
    /// 2 or 4.
    pub lanes: u8,
    pub dst_signed: bool,
    pub a_signed: bool,
    pub b_signed: bool,
    pub sat: bool,
    /// `.add`: the result is `c` plus the sum of the lanes.
    pub accumulate: bool,
    /// Which lanes of the result are written (bit per lane); others come from `c`.
    pub mask: u8,
    /// Per lane of `a` the element it takes: 0 to `2 * lanes - 1` over `b:a`. Empty for identity.
    pub a_select: Vec<u8>,
    /// The same for `b` (identity is `lanes ..`).
    pub b_select: Vec<u8>,
    pub dst: RegId,
    pub a: Operand,
    pub b: Operand,
    pub c: Operand,
}
