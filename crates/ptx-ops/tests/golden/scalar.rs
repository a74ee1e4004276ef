//! Instructions of one thread.

use mica_ptx::ast::ScalarType;
use mica_ptx_ops::float::{F64, to_f64};
use std::collections::BTreeMap;

use crate::evaluate::{Outcome, evaluate};
use crate::name::{Name, golden, hex};

fn agrees(outcome: &Outcome, name: &Name, args: &[u64], expected: u64) -> bool {
    match *outcome {
        Outcome::Exact(bits) => {
            let to = name.types[0];
            // 16-bit results were printed from 32-bit registers, whose upper half is not theirs.
            let expected = if to == ScalarType::S16 && !name.has("pack") {
                expected & 0xffff
            } else {
                expected
            };
            // The GPU hands the payload of an f64 operand on; where it makes a NaN itself, ours is that.
            let handed_on = to == ScalarType::F64
                && F64.is_nan(expected)
                && args.iter().any(|a| a | 1 << 51 == expected);
            bits == expected || (handed_on && bits == F64.nan())
        }
        Outcome::Near(format, bits, relative, absolute) => {
            let (ours, theirs) = (to_f64(format, bits), to_f64(format, expected));
            if ours.is_nan() || theirs.is_nan() {
                return ours.is_nan() == theirs.is_nan();
            }
            // One unit of rounding is added, because ours is rounded too.
            let unit = 2f64.powi(-(format.mantissa as i32) - 1);
            let smallest = to_f64(format, 1);
            ours == theirs
                || (ours - theirs).abs()
                    <= theirs.abs().max(ours.abs()) * (relative + unit) + absolute + smallest
        }
    }
}

#[test]
fn scalar_instructions_match_the_gpu() {
    let Some(text) = golden() else { return };
    let mut wrong: BTreeMap<&str, (usize, String)> = BTreeMap::new();
    let mut checked = 0;
    for line in text
        .lines()
        .filter(|l| !l.starts_with('#') && !l.starts_with("mma"))
    {
        let mut words = line.split(' ');
        let instruction = words.next().expect("a name");
        let (args, result): (Vec<&str>, &str) = {
            let rest: Vec<&str> = words.collect();
            (rest[..rest.len() - 2].to_vec(), rest[rest.len() - 1])
        };
        let name = Name::new(instruction);
        let args: Vec<u64> = args.into_iter().map(hex).collect();
        let Some(outcome) = evaluate(&name, &args) else {
            panic!("nothing evaluates `{instruction}`");
        };
        checked += 1;
        if !agrees(&outcome, &name, &args, hex(result)) {
            let ours = match outcome {
                Outcome::Exact(bits) | Outcome::Near(_, bits, ..) => bits,
            };
            let entry = wrong
                .entry(instruction)
                .or_insert_with(|| (0, String::new()));
            entry.0 += 1;
            if entry.0 <= 4 {
                entry.1.push_str(&format!("\n    {line}, ours {ours:x}"));
            }
        }
    }
    assert!(checked > 10_000, "the golden file is nearly empty");
    let report: String = wrong
        .iter()
        .map(|(k, (n, lines))| format!("\n{k}: {n} wrong{lines}"))
        .collect();
    assert!(wrong.is_empty(), "{report}");
}
