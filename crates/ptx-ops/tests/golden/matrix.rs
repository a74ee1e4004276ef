//! Matrix products.

use mica_ptx::ast::{Layout, Mma, MmaOp, Operand, RegId, Rounding, ScalarType, Shape};
use mica_ptx_ops::float::{F16, F32, F64, Format, to_f64};
use mica_ptx_ops::matrix::{LaneOperands, MmaPlan};

use crate::name::{Name, golden, hex};

fn matrix_instruction(text: &str, counts: [usize; 4]) -> Mma {
    let name = Name::new(text);
    let shape = name
        .words
        .iter()
        .find(|w| w.starts_with('m') && w.contains('k'))
        .expect("a shape");
    let numbers: Vec<u16> = shape[1..]
        .split(['n', 'k'])
        .map(|n| n.parse().expect("a number"))
        .collect();
    let layouts: Vec<Layout> = name
        .words
        .iter()
        .filter_map(|w| match *w {
            "row" => Some(Layout::Row),
            "col" => Some(Layout::Col),
            _ => None,
        })
        .collect();
    Mma {
        shape: Shape {
            m: numbers[0],
            n: numbers[1],
            k: numbers[2],
        },
        a_layout: layouts[0],
        b_layout: layouts[1],
        d_ty: name.types[0],
        a_ty: name.types[1],
        b_ty: name.types[2],
        c_ty: name.types[3],
        op: if name.has("xor") {
            MmaOp::XorPopc
        } else if name.has("and") {
            MmaOp::AndPopc
        } else {
            MmaOp::MulAdd
        },
        sat: name.has("satfinite"),
        round: Rounding::Rn,
        a: vec![Operand::Imm(0); counts[0]],
        b: vec![Operand::Imm(0); counts[1]],
        c: vec![Operand::Imm(0); counts[2]],
        d: vec![RegId(0); counts[3]],
        sparse: None,
    }
}

#[test]
fn matrix_products_match_the_gpu() {
    let Some(text) = golden() else { return };
    let lines: Vec<&str> = text.lines().filter(|l| l.starts_with("mma")).collect();
    assert!(!lines.is_empty() && lines.len().is_multiple_of(32));
    let mut report = String::new();
    for warp in lines.chunks(32) {
        let mut operands = [LaneOperands::default(); 32];
        let mut expected = [[0u64; 8]; 32];
        let mut counts = [0; 4];
        for (lane, line) in warp.iter().enumerate() {
            let (left, right) = line.split_once(" = ").expect("a result");
            let left = left.split_once(' ').expect("operands").1;
            let mut parts: Vec<Vec<u64>> = left
                .split('|')
                .map(|p| p.split_whitespace().map(hex).collect())
                .collect();
            parts.push(right.split_whitespace().map(hex).collect());
            for (i, part) in parts.iter().enumerate() {
                counts[i] = part.len();
            }
            operands[lane].a[..parts[0].len()].copy_from_slice(&parts[0]);
            operands[lane].b[..parts[1].len()].copy_from_slice(&parts[1]);
            operands[lane].c[..parts[2].len()].copy_from_slice(&parts[2]);
            expected[lane][..parts[3].len()].copy_from_slice(&parts[3]);
        }
        let text = warp[0].split(' ').next().expect("a name");
        let inst = matrix_instruction(text, counts);
        let got = MmaPlan::mma(&inst)
            .unwrap_or_else(|| panic!("no plan for {text}"))
            .run(&operands);
        let worst = (0..32)
            .flat_map(|lane| (0..counts[3]).map(move |r| (lane, r)))
            .map(|(lane, r)| distance(inst.d_ty, got[lane][r], expected[lane][r]))
            .fold(0.0, f64::max);
        if worst > bound(inst.d_ty, inst.a_ty) {
            report.push_str(&format!("\n{text}: off by {worst:e}"));
        }
    }
    assert!(report.is_empty(), "{report}");
}

/// Largest difference between the registers' elements, infinite for wrong integers.
fn distance(ty: ScalarType, ours: u64, theirs: u64) -> f64 {
    let pair = |format: Format| {
        (0..2)
            .map(|i| {
                let take = |x: u64| to_f64(format, x >> (16 * i) & 0xffff);
                (take(ours) - take(theirs)).abs()
            })
            .fold(0.0, f64::max)
    };
    match ty {
        ScalarType::F32 => (to_f64(F32, ours) - to_f64(F32, theirs)).abs(),
        ScalarType::F64 => (to_f64(F64, ours) - to_f64(F64, theirs)).abs(),
        ScalarType::F16 => pair(F16),
        _ if ours == theirs => 0.0,
        _ => f64::INFINITY,
    }
}

/// Inputs are at most 16 in magnitude, sums at most a few hundred (a few thousand for 8-bit
/// floats): tensor cores truncate at about 2^-22 of the largest term.
fn bound(d: ScalarType, a: ScalarType) -> f64 {
    match (d, a) {
        (ScalarType::F32, ScalarType::E4m3 | ScalarType::E5m2) => 2f64.powi(-1),
        (ScalarType::F32, _) => 2f64.powi(-13),
        (ScalarType::F16, _) => 2f64.powi(-3),
        _ => 0.0,
    }
}
