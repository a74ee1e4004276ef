//! Instructions: one variant per family, with every modifier decoded.
//!
//! Conventions: `ty` is the instruction's type, `dst` what it writes, `a b c` its sources in PTX
//! order. `Option<RegId>` destinations are `None` for `_`.
#![allow(
    missing_docs,
    reason = "fields follow the conventions above; the rest is documented"
)]

use super::*;

/// One instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Inst {
    /// `@%p` or `@!%p`.
    pub guard: Option<Guard>,
    /// What it does.
    pub op: Op,
    /// Line of the PTX text, from 1.
    pub line: u32,
    /// The `.loc` in force, when the module has lines.
    pub loc: Option<SourceLoc>,
}

/// The predicate an instruction is guarded by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guard {
    pub reg: RegId,
    pub negated: bool,
}

/// A place in the CUDA source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceLoc {
    /// A `.file` index.
    pub file: u32,
    pub line: u32,
    pub column: u32,
}

/// Which function a call calls.
#[derive(Clone, Debug, PartialEq)]
pub enum Callee {
    Direct(FuncId),
    /// Through a pointer. `targets` are the possible callees where `.calltargets` lists them;
    /// `proto` is the shape where a `.callprototype` gives it. One of them is there.
    Indirect {
        pointer: Operand,
        proto: Option<ProtoId>,
        targets: Option<Vec<FuncId>>,
    },
}

/// An argument or a return value of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallArg {
    /// A `.param` variable of the caller (its body, or its own parameter).
    Var(VarId),
    Reg(RegId),
    /// Bits of the parameter's type.
    Imm(u64),
    /// `_`: ignored.
    None,
}

/// A decoded operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    // ---- data movement -------------------------------------------------------------------
    /// `mov`. A `Var` operand yields an address in the variable's space, `Func` a code address.
    Mov {
        ty: ScalarType,
        dst: RegId,
        src: Operand,
    },
    /// `mov.b32 d, {a, b}`: concatenates, first element lowest. Elements have
    /// `ty.bits() / srcs.len()` bits.
    Pack {
        ty: ScalarType,
        dst: RegId,
        srcs: Vec<Operand>,
    },
    /// `mov.b32 {a, b}, s`: splits, first element lowest.
    Unpack {
        ty: ScalarType,
        dsts: Vec<Option<RegId>>,
        src: Operand,
    },
    /// `ld`, `ldu`, `ld.global.nc`. `dst.len()` is 1, 2, 4 or 8. A register wider than `ty` is
    /// zero- or sign-extended by the class of `ty`.
    Ld {
        space: Space,
        ty: ScalarType,
        order: Order,
        /// `.nc` or `ldu`: read-only for the kernel's lifetime.
        nc: bool,
        cache: CacheHints,
        dst: Vec<Option<RegId>>,
        addr: Address,
    },
    /// `st`. `src.len()` is 1, 2, 4 or 8; wider registers are truncated.
    St {
        space: Space,
        ty: ScalarType,
        order: Order,
        cache: CacheHints,
        addr: Address,
        src: Vec<Operand>,
    },
    /// `st.async`: stores and completes bytes on an mbarrier (shared::cluster).
    StAsync {
        ty: ScalarType,
        addr: Address,
        src: Vec<Operand>,
        mbar: Address,
    },
    /// `cvta` (`to_generic`) and `cvta.to.space`.
    Cvta {
        to_generic: bool,
        space: Space,
        bits: u32,
        dst: RegId,
        src: Operand,
    },
    /// `isspacep`.
    IsSpacep {
        space: Space,
        dst: RegId,
        src: Operand,
    },
    /// `istypep`: whether a handle is a texture, sampler or surface.
    IsTypep {
        ty: ScalarType,
        dst: RegId,
        src: Operand,
    },
    /// `cvt`. `src2` is the low half of packed results (`cvt.rn.f16x2.f32 d, a, b` puts `a` high
    /// and `b` low); `rbits` the random bits of `.rs`.
    Cvt {
        dst_ty: ScalarType,
        src_ty: ScalarType,
        /// Rounding of a float result; `None` where exact or unspecified.
        round: Option<Rounding>,
        /// Rounding to an integral value (integer result, or float to the same float type).
        int_round: Option<IntRounding>,
        ftz: bool,
        sat: bool,
        satfinite: bool,
        relu: bool,
        dst: RegId,
        src: Operand,
        src2: Option<Operand>,
        rbits: Option<Operand>,
    },
    /// `cvt.pack.sat`: `dst` holds the saturated `b` lowest, `a` above it, and above both the low
    /// bits of `c` when given (all of `dst` is filled).
    CvtPack {
        dst_ty: ScalarType,
        src_ty: ScalarType,
        dst: RegId,
        a: Operand,
        b: Operand,
        c: Option<Operand>,
    },
    /// `prmt.b32`.
    Prmt {
        mode: PrmtMode,
        dst: RegId,
        a: Operand,
        b: Operand,
        c: Operand,
    },
    /// `prefetch`, `prefetchu`, `discard`, `applypriority`: no effect on results, except that
    /// `discard` (with `bytes`) makes memory undefined.
    CacheControl {
        kind: CacheControl,
        space: Space,
        addr: Address,
        bytes: Option<u32>,
    },
    /// `createpolicy`: `dst` becomes an opaque 64-bit policy.
    CreatePolicy {
        dst: RegId,
        srcs: Vec<Operand>,
    },
    /// `mapa`: the address of `a` in block `rank` of the cluster.
    Mapa {
        space: Space,
        bits: u32,
        dst: RegId,
        a: Operand,
        rank: Operand,
    },
    /// `getctarank`.
    GetCtaRank {
        space: Space,
        dst: RegId,
        a: Operand,
    },
    /// `alloca`: bytes of the local stack; the result is a local address.
    Alloca {
        bits: u32,
        dst: RegId,
        size: Operand,
        align: u32,
    },
    StackSave {
        bits: u32,
        dst: RegId,
    },
    StackRestore {
        bits: u32,
        src: Operand,
    },

    // ---- integer and bits ----------------------------------------------------------------
    /// `add sub div rem min max and or xor shl shr` on integers, bits and predicates.
    IntBin {
        op: IntBinOp,
        ty: ScalarType,
        /// `.sat` (add and sub of s32).
        sat: bool,
        /// `.relu` (min and max of s32 and s16x2).
        relu: bool,
        dst: RegId,
        a: Operand,
        b: Operand,
    },
    /// `abs neg not cnot popc clz brev`.
    IntUn {
        op: IntUnOp,
        ty: ScalarType,
        dst: RegId,
        a: Operand,
    },
    /// `add.cc addc sub.cc subc`. For subtraction the flag is a borrow.
    AddCarry {
        sub: bool,
        ty: ScalarType,
        carry: Carry,
        dst: RegId,
        a: Operand,
        b: Operand,
    },
    /// `mul`.
    Mul {
        mode: MulMode,
        ty: ScalarType,
        dst: RegId,
        a: Operand,
        b: Operand,
    },
    /// `mad`, `mad.cc`, `madc`. `sat` is `mad.hi.sat.s32`.
    Mad {
        mode: MulMode,
        ty: ScalarType,
        sat: bool,
        carry: Carry,
        dst: RegId,
        a: Operand,
        b: Operand,
        c: Operand,
    },
    /// `mul24`; `hi` takes bits 16 to 47 of the product.
    Mul24 {
        hi: bool,
        ty: ScalarType,
        dst: RegId,
        a: Operand,
        b: Operand,
    },
    /// `mad24`.
    Mad24 {
        hi: bool,
        sat: bool,
        ty: ScalarType,
        dst: RegId,
        a: Operand,
        b: Operand,
        c: Operand,
    },
    /// `sad`: `c + |a - b|`.
    Sad {
        ty: ScalarType,
        dst: RegId,
        a: Operand,
        b: Operand,
        c: Operand,
    },
    /// `bfind`: a `u32`, all ones when not found.
    Bfind {
        shiftamt: bool,
        ty: ScalarType,
        dst: RegId,
        a: Operand,
    },
    Fns {
        dst: RegId,
        mask: Operand,
        base: Operand,
        offset: Operand,
    },
    Bfe {
        ty: ScalarType,
        dst: RegId,
        a: Operand,
        pos: Operand,
        len: Operand,
    },
    /// Inserts `a` into `b`.
    Bfi {
        ty: ScalarType,
        dst: RegId,
        a: Operand,
        b: Operand,
        pos: Operand,
        len: Operand,
    },
    /// `bmsk`; `clamp` false means wrap.
    Bmsk {
        clamp: bool,
        dst: RegId,
        pos: Operand,
        width: Operand,
    },
    /// `szext`; `clamp` false means wrap.
    Szext {
        clamp: bool,
        ty: ScalarType,
        dst: RegId,
        a: Operand,
        pos: Operand,
    },
    /// `shf`: funnel shift of `b:a`; `clamp` false means wrap.
    Shf {
        left: bool,
        clamp: bool,
        dst: RegId,
        a: Operand,
        b: Operand,
        amount: Operand,
    },
    /// `lop3.b32`, and with a predicate output `lop3.op.b32 d|p, a, b, c, lut, q`:
    /// `p = (d != 0) op q`.
    Lop3 {
        dst: Option<RegId>,
        a: Operand,
        b: Operand,
        c: Operand,
        lut: u8,
        pred: Option<Lop3Pred>,
    },
    /// `dp4a`; signedness of each operand apart.
    Dp4a {
        a_signed: bool,
        b_signed: bool,
        dst: RegId,
        a: Operand,
        b: Operand,
        c: Operand,
    },
    /// `dp2a`; `hi` takes the upper bytes of `b`.
    Dp2a {
        hi: bool,
        a_signed: bool,
        b_signed: bool,
        dst: RegId,
        a: Operand,
        b: Operand,
        c: Operand,
    },

    // ---- floating point ------------------------------------------------------------------
    /// `add sub mul min max` of f16, f16x2, bf16, bf16x2, f32, f64.
    FloatBin {
        op: FloatBinOp,
        ty: ScalarType,
        /// `Rn` where the text gives none.
        round: Rounding,
        ftz: bool,
        sat: bool,
        /// `min`, `max`: NaN operands give NaN.
        nan: bool,
        /// `min`, `max`: magnitude with the sign of `a ^ b`.
        xorsign_abs: bool,
        dst: RegId,
        a: Operand,
        b: Operand,
    },
    /// `fma`, and `mad` of floats (the same operation since sm_20).
    Fma {
        ty: ScalarType,
        round: Rounding,
        ftz: bool,
        sat: bool,
        relu: bool,
        /// `.oob`: 0 when an operand is the out-of-bounds NaN.
        oob: bool,
        dst: RegId,
        a: Operand,
        b: Operand,
        c: Operand,
    },
    /// `div` of f32 and f64.
    FloatDiv {
        ty: ScalarType,
        prec: Precision,
        ftz: bool,
        dst: RegId,
        a: Operand,
        b: Operand,
    },
    /// `abs neg sqrt rcp rsqrt sin cos lg2 ex2 tanh`. `prec` is `Approx` for those that are, and
    /// `Ieee(Rn)` for `abs` and `neg`.
    FloatUn {
        op: FloatUnOp,
        ty: ScalarType,
        prec: Precision,
        ftz: bool,
        dst: RegId,
        a: Operand,
    },
    Testp {
        op: TestpOp,
        ty: ScalarType,
        dst: RegId,
        a: Operand,
    },
    /// `copysign`: the sign of `a` on the magnitude of `b`.
    Copysign {
        ty: ScalarType,
        dst: RegId,
        a: Operand,
        b: Operand,
    },

    // ---- comparison and selection --------------------------------------------------------
    /// `setp`: `dst = (a cmp b) op c`, `dst_not = !(a cmp b) op c`. For f16x2 and bf16x2 `dst` is
    /// the low and `dst_not` the high element's result instead.
    Setp {
        cmp: Cmp,
        ty: ScalarType,
        ftz: bool,
        combine: Option<(BoolOp, PredSrc)>,
        dst: Option<RegId>,
        dst_not: Option<RegId>,
        a: Operand,
        b: Operand,
    },
    /// `set`: all ones or 1.0 for true, by `dst_ty`.
    Set {
        cmp: Cmp,
        dst_ty: ScalarType,
        ty: ScalarType,
        ftz: bool,
        combine: Option<(BoolOp, PredSrc)>,
        dst: RegId,
        a: Operand,
        b: Operand,
    },
    /// `selp`: `a` when the predicate is true, else `b`.
    Selp {
        ty: ScalarType,
        dst: RegId,
        a: Operand,
        b: Operand,
        pred: PredSrc,
    },
    /// `slct`: `a` when `c >= 0`, else `b`; `cond_ty` is s32 or f32.
    Slct {
        ty: ScalarType,
        cond_ty: ScalarType,
        ftz: bool,
        dst: RegId,
        a: Operand,
        b: Operand,
        c: Operand,
    },

    // ---- control -------------------------------------------------------------------------
    Bra {
        target: InstIndex,
        uni: bool,
    },
    /// `brx.idx`.
    BrxIdx {
        index: Operand,
        targets: Vec<InstIndex>,
        uni: bool,
    },
    Call {
        callee: Callee,
        rets: Vec<CallArg>,
        args: Vec<CallArg>,
        uni: bool,
    },
    /// Returns from a device function; in a kernel the same as `Exit`.
    Ret {
        uni: bool,
    },
    Exit,
    Trap,
    Brkpt,
    Nanosleep {
        duration: Operand,
    },
    Pmevent,
    /// `griddepcontrol.launch_dependents` or `.wait`.
    GridDepControl {
        wait: bool,
    },
    /// `setmaxnreg`: only a hint here.
    SetMaxNReg {
        increase: bool,
        count: u32,
    },
    /// An instruction that does nothing.
    Nop,

    // ---- synchronization -----------------------------------------------------------------
    /// `bar.sync`, `barrier.sync`, `bar.arrive`. `count` is in threads, a multiple of 32.
    Bar {
        arrive: bool,
        aligned: bool,
        id: Operand,
        count: Option<Operand>,
    },
    /// `bar.red`, `barrier.red`.
    BarRed {
        op: BarRedOp,
        aligned: bool,
        dst: RegId,
        id: Operand,
        count: Option<Operand>,
        pred: PredSrc,
    },
    /// `bar.warp.sync`.
    BarWarp {
        mask: Operand,
    },
    /// `barrier.cluster.arrive` or `.wait`.
    BarCluster {
        wait: bool,
        sem: Option<Sem>,
        aligned: bool,
    },
    /// `membar` and `fence` of a scope.
    Fence {
        sem: Sem,
        scope: Scope,
    },
    /// `fence.proxy` and relatives.
    FenceProxy {
        kind: ProxyKind,
    },
    Vote {
        mode: VoteMode,
        dst: RegId,
        pred: PredSrc,
        mask: Option<Operand>,
    },
    /// `match.any` (`all` false) and `match.all`, the latter with an optional predicate.
    Match {
        all: bool,
        ty: ScalarType,
        dst: Option<RegId>,
        pred: Option<RegId>,
        a: Operand,
        mask: Operand,
    },
    Activemask {
        dst: RegId,
    },
    Redux {
        op: ReduxOp,
        ty: ScalarType,
        /// f32 only.
        abs: bool,
        /// f32 only.
        nan: bool,
        dst: RegId,
        src: Operand,
        mask: Operand,
    },
    /// `elect.sync`: `dst` the leader's lane, `pred` true in the leader.
    Elect {
        dst: Option<RegId>,
        pred: RegId,
        mask: Operand,
    },
    /// `shfl`, with (`mask`) or without `.sync`.
    Shfl {
        mode: ShflMode,
        dst: Option<RegId>,
        pred: Option<RegId>,
        src: Operand,
        lane: Operand,
        clamp: Operand,
        mask: Option<Operand>,
    },
    /// `atom` (`dst` not empty) and `red` (`dst` empty). `src` has one element per vector element.
    /// For `Cas`, `src` is what to compare with and `src2` the new value.
    Atom(Box<Atom>),

    // ---- asynchronous copies -------------------------------------------------------------
    /// `cp.async`: `size` is 4, 8 or 16; bytes past `src_size` are zero; when `ignore_src` is
    /// true all are zero.
    CpAsync {
        /// `.cg` (16 bytes only) rather than `.ca`.
        cg: bool,
        dst: Address,
        src: Address,
        size: u32,
        src_size: Option<Operand>,
        ignore_src: Option<PredSrc>,
        cache: CacheHints,
    },
    CpAsyncCommitGroup,
    /// `cp.async.wait_group n`; `None` is `wait_all`.
    CpAsyncWaitGroup {
        pending: Option<u32>,
    },
    CpAsyncMbarrierArrive {
        noinc: bool,
        space: Space,
        mbar: Address,
    },
    /// `cp.async.bulk` between global, shared::cta and shared::cluster.
    CpAsyncBulk(Box<CpAsyncBulk>),
    /// `cp.reduce.async.bulk`.
    CpReduceAsyncBulk(Box<CpReduceAsyncBulk>),
    /// `cp.async.bulk.prefetch.L2` and `cp.async.bulk.prefetch.tensor`: no effect on results.
    CpAsyncBulkPrefetch {
        addr: Address,
    },
    /// `cp.async.bulk.tensor`, `cp.reduce.async.bulk.tensor`.
    CpAsyncBulkTensor(Box<CpAsyncBulkTensor>),
    CpAsyncBulkCommitGroup,
    /// `read`: only the sources must have been read.
    CpAsyncBulkWaitGroup {
        pending: u32,
        read: bool,
    },
    Mbarrier {
        space: Space,
        addr: Address,
        op: MbarrierOp,
    },
    /// `mbarrier.pending_count`.
    MbarrierPendingCount {
        dst: RegId,
        state: Operand,
    },

    // ---- matrices ------------------------------------------------------------------------
    /// `ldmatrix`: `dst.len()` is 1, 2 or 4.
    LdMatrix {
        tile: MatrixTile,
        trans: bool,
        ty: ScalarType,
        space: Space,
        dst: Vec<Option<RegId>>,
        addr: Address,
    },
    StMatrix {
        tile: MatrixTile,
        trans: bool,
        ty: ScalarType,
        space: Space,
        addr: Address,
        src: Vec<Operand>,
    },
    /// `movmatrix.sync.aligned.m8n8.trans.b16`.
    MovMatrix {
        dst: RegId,
        src: Operand,
    },
    Mma(Box<Mma>),
    WmmaLoad(Box<WmmaLoad>),
    WmmaStore(Box<WmmaStore>),
    /// `wmma.mma`: the same fields as `mma`, with fragments in wmma's layout.
    WmmaMma(Box<Mma>),

    // ---- textures and surfaces -----------------------------------------------------------
    Tex(Box<Tex>),
    Tld4(Box<Tld4>),
    /// `txq` (and `suq`): asks about a texture, sampler or surface.
    Txq {
        query: TexQuery,
        /// `suq`.
        surface: bool,
        dst: RegId,
        handle: Operand,
        /// `txq.level`.
        level: Option<Operand>,
    },
    Suld(Box<Suld>),
    Sust(Box<Sust>),
    Sured(Box<Sured>),

    // ---- video ---------------------------------------------------------------------------
    Video(Box<Video>),
    /// `vmad`.
    VideoMad(Box<VideoMad>),
    /// `vadd2`, `vset4` and other SIMD video instructions.
    VideoSimd(Box<VideoSimd>),

    /// Parsed, kept for listings, and refused when the module is loaded (`wgmma`, `tcgen05`, …).
    Unsupported {
        opcode: String,
    },
}

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
