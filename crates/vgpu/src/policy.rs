//! Whether code may be loaded: matrix instructions and number formats.
//!
//! Looks at PTX, opcode by opcode. Code without PTX (machine code only) cannot be judged, so it is
//! refused where a policy restricts anything.

use std::sync::Arc;

use mica_gpu::{GpuError, SessionBudget};

/// Number formats that kernels may compute in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrecisionPolicy {
    /// 64-bit floats.
    pub f64: bool,
    /// 16-bit floats, `f16` and `bf16`.
    pub half: bool,
    /// `tf32`.
    pub tf32: bool,
    /// 8-bit and smaller floats.
    pub f8: bool,
}

impl Default for PrecisionPolicy {
    fn default() -> Self {
        Self {
            f64: true,
            half: true,
            tf32: true,
            f8: true,
        }
    }
}

impl PrecisionPolicy {
    /// Whether anything is forbidden.
    pub fn restricts(&self) -> bool {
        *self != Self::default()
    }
}

const MATRIX: [&str; 7] = [
    "mma",
    "wmma",
    "wgmma",
    "tcgen05",
    "ldmatrix",
    "stmatrix",
    "movmatrix",
];
const HALF: [&str; 4] = ["f16", "f16x2", "bf16", "bf16x2"];
const F8: [&str; 8] = [
    "e4m3", "e5m2", "e4m3x2", "e5m2x2", "e2m1", "e2m3", "e3m2", "e2m1x2",
];

/// Says why an image may not be loaded, if it may not. `ptx` holds its PTX texts; `None` where the
/// image has none.
pub fn check_image(
    ptx: Option<&[&str]>,
    tensor_cores: bool,
    precision: &PrecisionPolicy,
) -> Result<(), String> {
    if tensor_cores && !precision.restricts() {
        return Ok(());
    }
    let Some(texts) = ptx else {
        return Err("it has no PTX, so what it computes cannot be checked".into());
    };
    for text in texts {
        for (line, opcode) in opcodes(text) {
            check_opcode(opcode, tensor_cores, precision)
                .map_err(|what| format!("{opcode} in line {line} {what}"))?;
        }
    }
    Ok(())
}

fn check_opcode(opcode: &str, tensor: bool, precision: &PrecisionPolicy) -> Result<(), String> {
    let mut parts = opcode.split('.');
    let name = parts.next().unwrap_or_default();
    if !tensor && MATRIX.contains(&name) {
        return Err("uses tensor cores".into());
    }
    // Moving bits is not computing: a load or a store of a format is no use of it.
    if matches!(
        name,
        "ld" | "st" | "mov" | "ldu" | "cp" | "shfl" | "prefetch"
    ) {
        return Ok(());
    }
    for part in parts {
        let forbidden = match part {
            "f64" => !precision.f64,
            "tf32" => !precision.tf32,
            half if HALF.contains(&half) => !precision.half,
            small if F8.contains(&small) => !precision.f8,
            _ => false,
        };
        if forbidden {
            return Err(format!("computes in {part}"));
        }
    }
    Ok(())
}

/// Most bytes of PTX that one entry of an image is looked at.
const MOST_TEXT: u64 = 256 << 20;

/// Says why an image may not be loaded, if it may not. Its texts are looked at one after the other, and count
/// against the budget meanwhile: a small image can hold the same large text thousands of times.
pub(crate) fn check_untrusted(
    image: &[u8],
    tensor_cores: bool,
    precision: &PrecisionPolicy,
    budget: &Arc<SessionBudget>,
) -> Result<Result<(), String>, GpuError> {
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        std::str::from_utf8(&bytes[..end]).ok().map(str::to_owned)
    };
    let check = |text: Option<String>| {
        let one = text.as_deref().map(|text| [text]);
        check_image(one.as_ref().map(|one| &one[..]), tensor_cores, precision)
    };
    let Ok(parsed) = mica_fatbin::Image::parse(image) else {
        // What is no container is PTX, or nothing that the device will load.
        return Ok(check(text(image)));
    };
    let mut entries = (parsed.entries.iter())
        .filter(|entry| entry.kind == mica_fatbin::EntryKind::Ptx)
        .peekable();
    if entries.peek().is_none() {
        return Ok(check(None));
    }
    let mut looked_at = 0_u64;
    for entry in entries {
        let bytes = entry.payload_bytes();
        looked_at = looked_at.saturating_add(bytes);
        if looked_at > MOST_TEXT {
            return Ok(Err(format!("it holds more than {MOST_TEXT} bytes of PTX")));
        }
        // The bytes and the text made of them.
        let _share = budget.take(bytes.saturating_mul(3), "decompressed PTX")?;
        let text = (entry.payload(MOST_TEXT).ok()).and_then(|payload| text(&payload));
        if let Err(reason) = check(text) {
            return Ok(Err(reason));
        }
    }
    Ok(Ok(()))
}

/// Opcodes with their lines: the first word of each statement that is no directive, label or guard.
fn opcodes(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_comment = false;
    let mut start_of_statement = true;
    text.lines().enumerate().flat_map(move |(index, line)| {
        let mut found = Vec::new();
        let mut rest = line;
        loop {
            if in_comment {
                match rest.find("*/") {
                    Some(end) => {
                        in_comment = false;
                        rest = &rest[end + 2..];
                    }
                    None => break,
                }
            }
            rest = rest.trim_start();
            if rest.is_empty() || rest.starts_with("//") {
                break;
            }
            if let Some(after) = rest.strip_prefix("/*") {
                in_comment = true;
                rest = after;
                continue;
            }
            let word_end = rest
                .find(|c: char| c.is_whitespace() || ";{}:/\"".contains(c))
                .unwrap_or(rest.len());
            let (word, after) = rest.split_at(word_end);
            if word.is_empty() {
                let mut characters = rest.chars();
                start_of_statement |= matches!(characters.next(), Some(';' | '{' | '}' | ':'));
                rest = characters.as_str();
            } else {
                // A guard (@p) leaves the next word as the opcode.
                if start_of_statement && !word.starts_with('@') {
                    let label = after.trim_start().starts_with(':');
                    // Vector operands in braces also start like statements, with a register.
                    if word.starts_with(|c: char| c.is_ascii_lowercase()) && !label {
                        found.push((index + 1, word));
                    }
                    start_of_statement = false;
                }
                rest = after;
            }
        }
        found
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = "
.version 7.0
.visible .entry k(.param .f64 p) {
  .reg .f64 %d<2>; // add.f64 in a comment
  /* wmma.load
     mma.sync */
  $L: ld.param.f64 %d0, [p]; @%p1 bra $L;
  @!%p2 fma.rn.f32 %f1, %f1, %f1, %f1;
  mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0}, {%r0};
}";

    #[test]
    fn opcodes_are_found_and_comments_are_not() {
        let found: Vec<_> = opcodes(PTX).map(|(_, opcode)| opcode).collect();
        assert_eq!(
            found,
            [
                "ld.param.f64",
                "bra",
                "fma.rn.f32",
                "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
            ]
        );
    }

    #[test]
    fn tensor_cores_and_formats_are_refused_with_the_line() {
        let all = PrecisionPolicy::default();
        assert!(check_image(Some(&[PTX]), true, &all).is_ok());
        let why = check_image(Some(&[PTX]), false, &all).unwrap_err();
        assert!(why.contains("line 9") && why.contains("tensor"), "{why}");
        let no_half = PrecisionPolicy { half: false, ..all };
        assert!(check_image(Some(&[PTX]), true, &no_half).is_err());
        // Only loads of f64, which is moving bits.
        let no_double = PrecisionPolicy { f64: false, ..all };
        assert!(check_image(Some(&[PTX]), true, &no_double).is_ok());
        assert!(check_image(Some(&["add.f64 %a, %b, %c;"]), true, &no_double).is_err());
    }

    #[test]
    fn code_that_cannot_be_judged_is_refused_only_under_a_policy() {
        let all = PrecisionPolicy::default();
        assert!(check_image(None, true, &all).is_ok());
        assert!(check_image(None, false, &all).is_err());
    }
}
