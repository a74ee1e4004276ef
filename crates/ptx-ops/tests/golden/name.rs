//! The file of recorded results, and an instruction's text taken apart.

use mica_ptx::ast::ScalarType;
use mica_ptx_ops::float::{MinMax, Modes, Rounding};

/// The recorded results.
pub(crate) fn golden() -> Option<String> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/h200_math.txt"
    );
    std::fs::read_to_string(path).ok()
}

pub(crate) fn hex(text: &str) -> u64 {
    u64::from_str_radix(text, 16).expect("hexadecimal")
}

fn scalar_type(text: &str) -> Option<ScalarType> {
    use ScalarType::*;
    Some(match text {
        "f16" => F16,
        "bf16" => Bf16,
        "f32" => F32,
        "f64" => F64,
        "tf32" => Tf32,
        "f16x2" => F16x2,
        "bf16x2" => Bf16x2,
        "e4m3" => E4m3,
        "e5m2" => E5m2,
        "e4m3x2" => E4m3x2,
        "e5m2x2" => E5m2x2,
        "s4" => S4,
        "u4" => U4,
        "b1" => B1,
        "s8" => S8,
        "u8" => U8,
        "s16" => S16,
        "u16" => U16,
        "s32" => S32,
        "u32" => U32,
        "s64" => S64,
        "u64" => U64,
        "b32" => B32,
        "b64" => B64,
        _ => return None,
    })
}

/// An instruction's text taken apart.
pub(crate) struct Name<'a> {
    pub(crate) base: &'a str,
    pub(crate) words: Vec<&'a str>,
    pub(crate) types: Vec<ScalarType>,
}

impl<'a> Name<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        let mut parts = text.split('.');
        let base = parts.next().unwrap_or_default();
        let words: Vec<&str> = parts.collect();
        let types = words.iter().filter_map(|w| scalar_type(w)).collect();
        Name { base, words, types }
    }
    pub(crate) fn has(&self, word: &str) -> bool {
        self.words.contains(&word)
    }
    pub(crate) fn rounding(&self) -> Rounding {
        for word in &self.words {
            match *word {
                "rn" | "rni" => return Rounding::Nearest,
                "rz" | "rzi" => return Rounding::Zero,
                "rm" | "rmi" => return Rounding::Down,
                "rp" | "rpi" => return Rounding::Up,
                "rna" => return Rounding::NearestAway,
                _ => {}
            }
        }
        Rounding::Nearest
    }
    pub(crate) fn modes(&self) -> Modes {
        Modes {
            rounding: self.rounding(),
            ftz: self.has("ftz"),
            sat: self.has("sat"),
            relu: self.has("relu"),
        }
    }
    pub(crate) fn min_max(&self) -> MinMax {
        MinMax {
            ftz: self.has("ftz"),
            nan: self.has("NaN"),
            xorsign_abs: self.has("xorsign"),
        }
    }
    pub(crate) fn signed(&self, index: usize) -> bool {
        self.types[index].is_signed()
    }
}
