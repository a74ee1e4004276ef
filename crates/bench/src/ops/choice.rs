//! Whether the kernel that is chosen for a shape by what was measured of another one is nearly the best for it.

use std::time::Instant;

use anyhow::Result;
use mica_ops::{DType, Gemm, Ops, Tensor};

use crate::report::Line;

/// The name of the line.
pub(super) const NAME: &str = "choice for 50 shapes it has not seen";

/// The name of the line about a choice that was made before.
pub(super) const KNOWN: &str = "a choice that was made before";

/// Choices of a round, rounds, and what a choice may take.
const CHOICES: u32 = 20_000;
const KNOWN_ROUNDS: usize = 5;
const KNOWN_SECONDS: f64 = 1e-6;

/// Shapes that are tried.
const SHAPES: usize = 50;
/// How often each kernel is measured for a shape.
const ROUNDS: usize = 3;
/// The choice may take so much longer than the best.
const ALLOWED: f64 = 1.03;

/// Numbers that look random and are always the same.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = (self.0)
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// A multiple of 8 between 16 and 4096, each power of two being as likely as another.
    fn size(&mut self) -> usize {
        let power = 4 + self.next() % 8;
        let size = (1 << power) + self.next() % (1 << power);
        (size as usize).next_multiple_of(8).min(4096)
    }
}

/// The largest size that shares a choice with a size: two steps between powers of two.
fn rounded(size: usize) -> usize {
    let power = size.next_power_of_two();
    if size <= power / 4 * 3 {
        return power / 4 * 3;
    }
    power
}

fn factors(ops: &Ops, [m, n, k]: [usize; 3], dtype: DType) -> Result<(Tensor, Tensor)> {
    let a = ops.uniform(&[m, k], dtype, (1, 1), (-1.0, 1.0))?;
    let b = ops.uniform(&[k, n], dtype, (1, 2), (-1.0, 1.0))?;
    Ok((a, b))
}

/// Seconds of each kernel: the fastest of a few rounds, in which they take turns.
fn fastest_of_rounds(ops: &Ops, a: &Tensor, b: &Tensor, spec: &Gemm) -> Result<Vec<(String, f64)>> {
    let mut times = ops.gemm_seconds(a, b, spec)?;
    for _ in 1..ROUNDS {
        for (name, seconds) in ops.gemm_seconds(a, b, spec)? {
            if let Some(known) = times.iter_mut().find(|(other, _)| *other == name) {
                known.1 = known.1.min(seconds);
            }
        }
    }
    Ok(times)
}

/// What it takes to find the kernel of a product that was chosen before, with the check of its shapes and the kernel's name.
pub(super) fn known(ops: &Ops) -> Result<Line> {
    let (a, b) = factors(ops, [64, 64, 64], DType::F32)?;
    let spec = Gemm::default();
    ops.gemm_choice(&a, &b, &spec)?;
    let mut rounds = Vec::new();
    for _ in 0..KNOWN_ROUNDS {
        let began = Instant::now();
        for _ in 0..CHOICES {
            std::hint::black_box(ops.gemm_choice(&a, &b, &spec)?);
        }
        rounds.push(began.elapsed().as_secs_f64() / f64::from(CHOICES));
    }
    let seconds = crate::software::median(rounds);
    Ok(Line {
        what: KNOWN.into(),
        native: "-".into(),
        mica: format!("{:.2} µs", seconds * 1e6),
        goal: "≤ 1 µs".into(),
        reached: Some(seconds <= KNOWN_SECONDS),
    })
}

/// How many choices are nearly the best, and the worst of them.
pub(super) fn measure(ops: &Ops) -> Result<Line> {
    let (mut numbers, mut ratios) = (Numbers(42), Vec::new());
    let spec = Gemm::default();
    for number in 0..SHAPES {
        let dtype = [DType::BF16, DType::F16, DType::F32][number % 3];
        let shape = [numbers.size(), numbers.size(), numbers.size()];
        // All kernels are compared for the largest shape of the group; for this one, those that were nearly the best there.
        let (a, b) = factors(ops, shape.map(rounded), dtype)?;
        ops.gemm_choice(&a, &b, &spec)?;
        let (a, b) = factors(ops, shape, dtype)?;
        let chosen = ops.gemm_choice(&a, &b, &spec)?;
        let times = fastest_of_rounds(ops, &a, &b, &spec)?;
        let best = times.iter().min_by(|a, b| a.1.total_cmp(&b.1));
        let mine = times.iter().find(|(name, _)| *name == chosen);
        let (Some((name, best)), Some((_, mine))) = (best, mine) else {
            continue;
        };
        let ratio = mine / best;
        if ratio > ALLOWED {
            errln!("{dtype} {shape:?}: {chosen} takes {ratio:.2} of {name}");
        }
        ratios.push(ratio);
        ops.trim();
    }
    ratios.sort_by(f64::total_cmp);
    let near = ratios.iter().filter(|ratio| **ratio <= ALLOWED).count();
    let at = |part: f64| ratios.get((ratios.len() as f64 * part) as usize);
    let median = at(0.5).copied().unwrap_or(f64::NAN);
    let worst = ratios.last().copied().unwrap_or(f64::NAN);
    Ok(Line {
        what: NAME.into(),
        native: "-".into(),
        mica: format!(
            "{near} of {} within 3 % of the best, median {median:.3}, worst {worst:.2}",
            ratios.len()
        ),
        goal: format!("all {SHAPES}"),
        reached: Some(near == SHAPES),
    })
}
