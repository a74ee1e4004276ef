//! One row per opcode: its name and who parses the rest. Sorted, for binary search.

use crate::ast::Op;
use crate::error::Result;

use super::Parser;
use super::ops::{
    address, bits, control, convert, copy, float, integer, matrix, mbarrier, memory, sync, texture,
    video, wgmma, wmma,
};

/// Parses modifiers and operands of the current opcode.
pub(crate) type Handler = fn(&mut Parser<'_>) -> Result<Op>;

fn unsupported(p: &mut Parser<'_>) -> Result<Op> {
    p.unsupported()
}

#[rustfmt::skip]
static TABLE: &[(&str, Handler)] = &[
    ("abs", integer::sign),
    ("activemask", sync::activemask),
    ("add", integer::add_sub),
    ("addc", integer::add_sub),
    ("alloca", address::alloca),
    ("and", bits::logic),
    ("applypriority", address::cache_control),
    ("atom", memory::atom),
    ("bar", sync::bar),
    ("barrier", sync::bar),
    ("bfe", bits::bfe),
    ("bfi", bits::bfi),
    ("bfind", bits::bfind),
    ("bmsk", bits::bmsk),
    ("bra", control::bra),
    ("brev", bits::unary),
    ("brkpt", control::simple),
    ("brx", control::brx),
    ("call", control::call),
    ("clusterlaunchcontrol", unsupported),
    ("clz", bits::unary),
    ("cnot", bits::unary),
    ("copysign", float::copysign),
    ("cos", float::unary),
    ("cp", copy::cp),
    ("createpolicy", address::createpolicy),
    ("cvt", convert::cvt),
    ("cvta", address::cvta),
    ("discard", address::cache_control),
    ("div", integer::div),
    ("dp2a", bits::dp2a),
    ("dp4a", bits::dp4a),
    ("elect", sync::elect),
    ("ex2", float::unary),
    ("exit", control::simple),
    ("fence", sync::fence),
    ("fma", float::fma),
    ("fns", bits::fns),
    ("getctarank", address::getctarank),
    ("griddepcontrol", control::griddepcontrol),
    ("isspacep", address::isspacep),
    ("istypep", texture::istypep),
    ("ld", memory::ld),
    ("ldmatrix", matrix::ldmatrix),
    ("ldu", memory::ld),
    ("lg2", float::unary),
    ("lop3", bits::lop3),
    ("mad", integer::mad),
    ("mad24", integer::mad24),
    ("madc", integer::mad),
    ("mapa", address::mapa),
    ("match", sync::match_),
    ("max", integer::min_max),
    ("mbarrier", mbarrier::mbarrier),
    ("membar", sync::membar),
    ("min", integer::min_max),
    ("mma", matrix::mma),
    ("mov", memory::mov),
    ("movmatrix", matrix::movmatrix),
    ("mul", integer::mul),
    ("mul24", integer::mul24),
    ("multimem", unsupported),
    ("nanosleep", control::nanosleep),
    ("neg", integer::sign),
    ("not", bits::unary),
    ("or", bits::logic),
    ("pmevent", control::pmevent),
    ("popc", bits::unary),
    ("prefetch", address::cache_control),
    ("prefetchu", address::cache_control),
    ("prmt", bits::prmt),
    ("rcp", float::unary),
    ("red", memory::atom),
    ("redux", sync::redux),
    ("rem", integer::rem),
    ("ret", control::simple),
    ("rsqrt", float::unary),
    ("sad", integer::sad),
    ("selp", convert::selp),
    ("set", convert::set),
    ("setmaxnreg", control::setmaxnreg),
    ("setp", convert::setp),
    ("shf", bits::shf),
    ("shfl", sync::shfl),
    ("shl", bits::shift),
    ("shr", bits::shift),
    ("sin", float::unary),
    ("slct", convert::slct),
    ("sqrt", float::unary),
    ("st", memory::st),
    ("stackrestore", address::stackrestore),
    ("stacksave", address::stacksave),
    ("stmatrix", matrix::stmatrix),
    ("sub", integer::add_sub),
    ("subc", integer::add_sub),
    ("suld", texture::suld),
    ("suq", texture::query),
    ("sured", texture::sured),
    ("sust", texture::sust),
    ("szext", bits::szext),
    ("tanh", float::unary),
    ("tcgen05", unsupported),
    ("tensormap", unsupported),
    ("testp", float::testp),
    ("tex", texture::tex),
    ("tld4", texture::tld4),
    ("trap", control::simple),
    ("txq", texture::query),
    ("vabsdiff", video::scalar),
    ("vabsdiff2", video::simd),
    ("vabsdiff4", video::simd),
    ("vadd", video::scalar),
    ("vadd2", video::simd),
    ("vadd4", video::simd),
    ("vavrg2", video::simd),
    ("vavrg4", video::simd),
    ("vmad", video::vmad),
    ("vmax", video::scalar),
    ("vmax2", video::simd),
    ("vmax4", video::simd),
    ("vmin", video::scalar),
    ("vmin2", video::simd),
    ("vmin4", video::simd),
    ("vote", sync::vote),
    ("vset", video::scalar),
    ("vset2", video::simd),
    ("vset4", video::simd),
    ("vshl", video::scalar),
    ("vshr", video::scalar),
    ("vsub", video::scalar),
    ("vsub2", video::simd),
    ("vsub4", video::simd),
    ("wgmma", wgmma::wgmma),
    ("wmma", wmma::wmma),
    ("xor", bits::logic),
];

/// The row of an opcode.
pub(crate) fn find(opcode: &str) -> Option<Handler> {
    let i = TABLE
        .binary_search_by(|(name, _)| (*name).cmp(opcode))
        .ok()?;
    Some(TABLE[i].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_sorted_without_repeats() {
        assert!(TABLE.windows(2).all(|w| w[0].0 < w[1].0));
    }
}
