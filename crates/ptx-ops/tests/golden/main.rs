//! Compares this crate with what an H200 computed (`tests/golden/h200_math.txt`, printed by
//! `tests/gpu/golden_math.cu`): exact instructions bit for bit, approximate ones within the error
//! that PTX documents, matrix products of floats within their formats' precision.

mod evaluate;
mod matrix;
mod name;
mod scalar;
mod video;
