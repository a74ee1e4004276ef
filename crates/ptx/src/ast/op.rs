//! Instructions: one variant per family, with every modifier decoded.
//!
//! Conventions: `ty` is the instruction's type, `dst` what it writes, `a b c` its sources in PTX
//! order. `Option<RegId>` destinations are `None` for `_`.
#![allow(
    missing_docs,
    reason = "fields follow the conventions above; the rest is documented"
)]

use super::*;

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
    /// `add.cc addc sub.cc subc`. After a subtraction the flag is set where nothing was borrowed.
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
    /// `wgmma.mma_async`: `d` is read and written.
    Wgmma(Box<Wgmma>),
    /// `wgmma.wait_group`: all warps of the warpgroup have done what they began before.
    WgmmaWait,

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

    /// Parsed, kept for listings, and refused when the module is loaded (`tcgen05`, `multimem`, …).
    Unsupported {
        opcode: String,
    },
}
