//! `mica bench ops`: the compute library against what people use today, from one run.
//!
//! In a virtual GPU that `mica run --mode isolated` made, on that; else on the software GPU. On a card the
//! rival is PyTorch, outside of Mica; on the software GPU NumPy (OpenBLAS) and a plain loop with OpenMP.
//! First every kernel that could be chosen is compared with a product in f64. Products by the user's cuBLASLt are compared with
//! calls of that library without Mica.

mod cases;
mod check;
mod choice;
mod gradients;
mod rival;

use std::time::Instant;

use anyhow::{Result, bail};
use mica::{Device, Vgpu};
use mica_ops::{Activation, Attention, Conv, DType, Gemm, Norm, Ops, Precision, Tensor};

use self::cases::{Case, Goal, Kind};
use super::report::{Line, Report};
use crate::args::BenchArgs;

/// Runs of which the median counts.
const ROUNDS: usize = 5;

pub(crate) fn run(args: &BenchArgs) -> Result<bool> {
    let vgpu = match Vgpu::through_driver() {
        Err(mica::Error::NotConnected) => Vgpu::builder()
            .memory(2 << 30)
            .build(&Device::software()?)?,
        other => other?,
    };
    let info = vgpu.info();
    errln!("{}, {} multiprocessors", info.name, info.multiprocessors);
    let ops = Ops::new(&vgpu)?;
    for provider in ops.providers() {
        let used = if provider.is_used { "" } else { "not used: " };
        errln!("{}: {used}{}", provider.name, provider.state);
    }
    let mut report = Report::new(args.json);
    let only = args.only.clone().unwrap_or_default();
    if "kernels agree with f64".contains(&only) {
        report.add(check::kernels(&ops)?);
        report.add(check::attention(&ops)?);
        report.add(gradients::check(&ops)?);
        report.add(check::convolutions(&ops)?);
    }
    if choice::KNOWN.contains(&only) {
        report.add(choice::known(&ops)?);
    }
    if !info.is_software() && choice::NAME.contains(&only) {
        report.add(choice::measure(&ops)?);
    }
    let cases = match info.is_software() {
        true => cases::on_processor(),
        false => cases::on_card(),
    };
    let cases: Vec<Case> = cases
        .into_iter()
        .filter(|case| case.name.contains(&only))
        .collect();
    if info.is_software() {
        in_turns(&ops, &cases, args.seconds.unwrap_or(1.0), &mut report)?;
        return report.finish();
    }
    let rivals = rival::measure(&cases)?;
    let mut known: Option<(String, f64)> = None;
    for case in &cases {
        // The same work beside another rival is not measured again.
        let work = case.name.split(',').next().unwrap_or_default().to_owned();
        let seconds = match &known {
            Some((name, seconds)) if *name == work => *seconds,
            _ => match measure(&ops, case, args.seconds.unwrap_or(0.5), &mut || ()) {
                Err(why) if case.kind == Kind::Library => {
                    errln!("{} is not measured: {why:#}", case.name);
                    continue;
                }
                measured => measured?,
            },
        };
        known = Some((work, seconds));
        report.add(line(case, seconds, rivals.get(&case.name).copied()));
        ops.trim();
    }
    report.finish()
}

/// Both sides take turns, so that whatever else runs on the processor hinders both.
fn in_turns(ops: &Ops, cases: &[Case], seconds: f64, report: &mut Report) -> Result<()> {
    let mut rivals = rival::Rivals::new()?;
    for case in cases {
        let mut theirs = Vec::new();
        let mut turn = || theirs.extend(rivals.turn(case));
        let ours = measure(ops, case, seconds, &mut turn)?;
        let theirs = (!theirs.is_empty()).then(|| super::software::median(theirs));
        report.add(line(case, ours, theirs));
        ops.trim();
    }
    Ok(())
}

fn line(case: &Case, seconds: f64, rival: Option<f64>) -> Line {
    let (unit, factor) = case.unit();
    let rate = |seconds: f64| case.work() / seconds / factor;
    let part = rival.map(|rival| rival / seconds);
    let beside = part.map_or(String::new(), |part| format!(" ({:.0} %)", 100.0 * part));
    let (goal, reached) = match case.goal {
        Goal::None => ("-".into(), None),
        Goal::Rate(least) => (format!("≥ {least:.0} {unit}"), Some(rate(seconds) >= least)),
        Goal::Part(least) => {
            let goal = format!("≥ {:.0} % of it", 100.0 * least);
            (goal, part.map(|part| part >= least))
        }
    };
    Line {
        what: case.name.clone(),
        native: rival.map_or("-".into(), |rival| format!("{:.1} {unit}", rate(rival))),
        mica: format!("{:.1} {unit}{beside}", rate(seconds)),
        goal,
        reached,
    }
}

/// Seconds that a case takes; `turn` is the rival's before each round.
fn measure(ops: &Ops, case: &Case, seconds: f64, turn: &mut dyn FnMut()) -> Result<f64> {
    let mut timed = |work: &dyn Fn() -> mica_ops::Result<()>| timed(ops, seconds, work, turn);
    let random = |shape: &[usize], stream: u64| random(ops, case, shape, stream);
    let shape = &case.shape;
    match case.kind {
        Kind::Gemm | Kind::Library => measure_product(ops, case, &mut timed),
        Kind::Attention => {
            let (q, k, v) = (random(shape, 1)?, random(shape, 2)?, random(shape, 3)?);
            let spec = Attention {
                causal: case.causal,
                ..Attention::default()
            };
            timed(&|| ops.attention(&q, &k, &v, &spec).map(drop))
        }
        Kind::Gradients => {
            let (q, k, v) = (random(shape, 1)?, random(shape, 2)?, random(shape, 3)?);
            let dy = random(shape, 4)?;
            let spec = Attention {
                causal: case.causal,
                ..Attention::default()
            };
            let attended = ops.attention(&q, &k, &v, &spec)?;
            timed(&|| {
                ops.attention_backward_of(&q, &k, &v, &spec, &attended, &dy)
                    .map(drop)
            })
        }
        Kind::Conv => {
            let [images, channels, size, outputs] = [0, 1, 2, 3].map(|axis| shape[axis]);
            let x = random(&[images, size, size, channels], 1)?;
            // In memory order NHWC, as the rival has them.
            let x = x.swap(2, 3)?.swap(1, 2)?;
            let weights = random(&[outputs, channels, 3, 3], 2)?;
            let spec = Conv {
                padding: [1, 1],
                ..Conv::default()
            };
            timed(&|| ops.conv(&x, &weights, &spec).map(drop))
        }
        Kind::Gelu => {
            let x = random(shape, 1)?;
            timed(&|| ops.activate(&x, Activation::Gelu).map(drop))
        }
        Kind::Softmax => {
            let x = random(shape, 1)?;
            timed(&|| ops.softmax(&x, 1.0).map(drop))
        }
        Kind::Norm => {
            let (x, w) = (random(shape, 1)?, random(&shape[1..], 2)?);
            let norm = || ops.norm(&x, Norm::Layer, Some(&w), Some(&w), 1e-5);
            timed(&|| norm().map(drop))
        }
    }
}

fn dtype(case: &Case) -> DType {
    match case.dtype {
        "f16" => DType::F16,
        "bf16" => DType::BF16,
        "i8" => DType::I8,
        "i4" => DType::I4,
        _ => DType::F32,
    }
}

/// Random values of a case's type.
fn random(ops: &Ops, case: &Case, shape: &[usize], stream: u64) -> Result<Tensor> {
    match dtype(case) {
        dtype @ (DType::I8 | DType::I4) => {
            let most = if dtype == DType::I8 { 100.0 } else { 7.0 };
            let values = ops.uniform(shape, DType::F32, (1, stream), (-most, most))?;
            Ok(ops.cast(&values, dtype)?)
        }
        dtype => {
            let values = ops.uniform(shape, dtype, (1, stream), (-1.0, 1.0))?;
            Ok(values)
        }
    }
}

/// Measures some work.
type Timed<'a> = dyn FnMut(&dyn Fn() -> mica_ops::Result<()>) -> Result<f64> + 'a;

/// Seconds of a product, by the compute library's own choice or by the user's library.
fn measure_product(ops: &Ops, case: &Case, timed: &mut Timed<'_>) -> Result<f64> {
    let [batch, m, n, k] = case.shape[..] else {
        bail!("{} has no four sizes", case.name)
    };
    let random = |shape: &[usize], stream: u64| random(ops, case, shape, stream);
    // A product of integers in PyTorch takes the second factor by columns.
    let (a, b) = match dtype(case) {
        DType::I8 | DType::I4 => (random(&[batch, m, k], 1)?, random(&[batch, n, k], 2)?.t()?),
        _ => (random(&[batch, m, k], 1)?, random(&[batch, k, n], 2)?),
    };
    let precision = if case.dtype == "tf32" {
        Precision::Tf32
    } else {
        Precision::Full
    };
    let spec = Gemm {
        precision,
        ..Gemm::default()
    };
    if case.kind == Kind::Library {
        // What the library expects to be fastest, as a direct call takes it.
        let by_library = || ops.gemm_by("cublaslt_1", &a, &b, &spec).map(drop);
        return timed(&by_library);
    }
    let d = ops.gemm(&a, &b, &spec)?;
    timed(&|| ops.gemm_into(&a, &b, &spec, &d))
}

/// Seconds of one run of some work: the median of rounds that take `seconds` together.
fn timed(
    ops: &Ops,
    seconds: f64,
    work: &dyn Fn() -> mica_ops::Result<()>,
    turn: &mut dyn FnMut(),
) -> Result<f64> {
    for _ in 0..3 {
        work()?;
    }
    ops.synchronize()?;
    let began = Instant::now();
    work()?;
    ops.synchronize()?;
    let once = began.elapsed().as_secs_f64().max(1e-6);
    let count = ((seconds / ROUNDS as f64 / once) as usize).max(1);
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        turn();
        let began = Instant::now();
        for _ in 0..count {
            work()?;
        }
        ops.synchronize()?;
        times.push(began.elapsed().as_secs_f64() / count as f64);
    }
    Ok(super::software::median(times))
}
