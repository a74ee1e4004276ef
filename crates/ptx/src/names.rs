//! Names of functions as their authors wrote them.

use std::borrow::Cow;
use std::fmt::Write;

use cpp_demangle::{DemangleOptions, DemangleWrite, ParseOptions, Symbol};

/// Bytes of a readable name. A mangled name can name its own parts again and again, so a short one can stand for a text
/// without end.
const MOST_BYTES: usize = 4096;
/// How deep a name is read: far deeper than compilers nest, and within a small stack.
const MOST_DEPTH: u32 = 64;

/// A function's name as its author wrote it: `_Z4wildPi` is `wild(int*)`. A name that is not a C++ compiler's, or that
/// cannot be read, stays as it is.
///
/// ```
/// assert_eq!(mica_ptx::names::readable("_Z4wildPi"), "wild(int*)");
/// assert_eq!(mica_ptx::names::readable("saxpy"), "saxpy");
/// ```
pub fn readable(name: &str) -> Cow<'_, str> {
    match demangled(name) {
        Some(readable) => Cow::Owned(readable),
        None => Cow::Borrowed(name),
    }
}

fn demangled(name: &str) -> Option<String> {
    if !name.starts_with("_Z") {
        return None;
    }
    let reading = ParseOptions::default().recursion_limit(MOST_DEPTH);
    let symbol = Symbol::new_with_options(name.as_bytes(), &reading).ok()?;
    let writing = DemangleOptions::new()
        .no_return_type()
        .recursion_limit(MOST_DEPTH);
    let mut text = Bounded(String::new());
    symbol.structured_demangle(&mut text, &writing).ok()?;
    Some(text.0)
}

/// Text that refuses to grow beyond [`MOST_BYTES`].
struct Bounded(String);

impl DemangleWrite for Bounded {
    fn write_string(&mut self, piece: &str) -> std::fmt::Result {
        if self.0.len() + piece.len() > MOST_BYTES {
            return Err(std::fmt::Error);
        }
        self.0.write_str(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_compilers_become_names_of_people() {
        for (name, readable_name) in [
            ("_Z4wildPi", "wild(int*)"),
            ("_Z6skewedPKcPi", "skewed(char const*, int*)"),
            ("_ZN4team4workIfEEvPT_i", "team::work<float>(float*, int)"),
            (
                "_Z6matmulILi16EEvPKfS1_Pfi",
                "matmul<16>(float const*, float const*, float*, int)",
            ),
        ] {
            assert_eq!(readable(name), readable_name);
        }
    }

    #[test]
    fn other_names_stay() {
        for name in ["", "saxpy", "_Z", "_Zwhat", "_Z4wild$", "_Z99short"] {
            assert_eq!(readable(name), name);
        }
    }

    #[test]
    fn a_name_that_stands_for_endless_text_stays() {
        // Each type of the list is the pair of the one before with itself; every second number is a type's.
        let mut name = "_Z1fI1pIiiE".to_owned();
        for index in (1..36).step_by(2) {
            let number = std::char::from_digit(index, 36)
                .unwrap()
                .to_ascii_uppercase();
            name += &format!("1pIS{number}_S{number}_E");
        }
        name += "EvT_";
        assert_eq!(readable(&name), name);
        let deep = format!("_Z1f{}i", "P".repeat(10_000));
        assert_eq!(readable(&deep), deep);
    }
}
