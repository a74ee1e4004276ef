//! What each PTX operation computes, as plain functions on bits.
//!
//! Owns the arithmetic of the instruction set and nothing else: no registers, no memory, no
//! threads. The interpreter calls these functions directly; compiled code calls them for what the
//! processor has no instruction for. Values travel as the bits of their type, zero-extended.
//!
//! ```text
//!   float    add mul fma div sqrt min max, every format and rounding
//!   approx   rcp rsqrt sqrt sin cos lg2 ex2 tanh div, approximate
//!   int      add … lop3, prmt, bit fields, dot products
//!   video    vadd … vset4
//!   convert  cvt, cvt.pack
//!   compare  setp, set, testp, slct, copysign
//!   warp     shfl, vote, match, redux
//!   atomic   atom, red
//!   matrix   mma, wmma, ldmatrix layouts and products
//!   nan      which instructions give the one NaN of PTX
//!   mbarrier the states of asynchronous barriers
//!   texture  tex, tld4
//!   surface  where suld, sust and sured land
//!   layout   the device's facts about a module
//!   calls    who calls whom, and how deep
//!   eval     from an instruction of the syntax tree to all of these
//!   support  what of a module can be run
//!   provided functions that the device provides, and what they take
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used)]

pub mod approx;
pub mod atomic;
pub mod calls;
pub mod compare;
pub mod convert;
pub mod device_runtime;
pub mod eval;
pub mod float;
pub mod int;
pub mod layout;
pub mod matrix;
pub mod mbarrier;
pub mod nan;
pub mod provided;
pub mod support;
pub mod surface;
pub mod tensor_map;
pub mod texture;
pub mod typed;
pub mod video;
pub mod warp;
