//! Trains a small transformer on a few sentences in mixed precision: 16-bit products, parameters in f32,
//! a loss scale that follows the gradients. Prints the loss and draws it.
//!
//! `cargo run --release -p mica-ops --example transformer -- [STEPS] [PICTURE.svg]`, or on a card:
//! `mica run --mode isolated -- target/release/examples/transformer`.

mod model;

use std::fmt::Write as _;

use mica_ops::{AdamW, DType, Error, LossScale, Ops, Result};
use model::Model;

const TEXT: &str = include_str!("text.txt");
const BATCH: usize = 4;
const ROWS: usize = 32;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let steps = steps(arguments.next())?;
    let picture = arguments.next();
    let vgpu = match mica::Vgpu::connect() {
        Err(mica::Error::NotConnected) => {
            let device = mica::Device::software()?;
            mica::Vgpu::builder().memory(512 << 20).build(&device)?
        }
        other => other?,
    };
    let ops = Ops::new(&vgpu)?;
    let mut letters: Vec<char> = TEXT.chars().collect();
    letters.sort_unstable();
    letters.dedup();
    let number = |letter| letters.iter().position(|l| *l == letter).unwrap_or(0) as f32;
    let text: Vec<f32> = TEXT.chars().map(number).collect();

    let model = Model::new(&ops, letters.len(), DType::F16, BATCH, ROWS)?;
    let settings = AdamW {
        rate: 3e-3,
        ..AdamW::default()
    };
    let mut scale = LossScale::new(4096.0);
    let mut losses = Vec::new();
    for step in 1..=steps {
        // Places in the text that move on from step to step.
        let first = |row: usize| (step as usize * 37 + row * 131) % (text.len() - ROWS - 1);
        let rows = |shift: usize| -> Vec<f32> {
            (0..BATCH)
                .flat_map(|row| text[first(row) + shift..][..ROWS].to_vec())
                .collect()
        };
        let ids = ops.tensor(&[BATCH, ROWS], DType::I32, &rows(0))?;
        let targets = ops.tensor(&[BATCH, ROWS], DType::I32, &rows(1))?;
        let (loss, gradients) = model.gradients(&ops, &ids, &targets, scale.factor)?;
        let factor = scale.factor;
        if scale.update(ops.all_finite(&gradients.iter().collect::<Vec<_>>())?) {
            for (parameter, gradient) in model.parameters.iter().zip(&gradients) {
                ops.adamw(parameter, gradient, &settings, step, factor)?;
            }
        }
        let loss = ops.values(&loss)?[0];
        losses.push(loss);
        if step == 1 || step % 10 == 0 {
            println!("step {step:4}  loss {loss:.3}  loss scale {}", scale.factor);
        }
    }
    let memory = vgpu.memory()?;
    println!(
        "{} MiB of {} MiB in use",
        memory.used_bytes >> 20,
        memory.limit_bytes >> 20
    );
    if let Some(path) = picture {
        match std::fs::write(&path, draw(&losses)) {
            Ok(()) => println!("the loss is drawn in {path}"),
            Err(error) => println!("{path} cannot be written: {error}"),
        }
    }
    let end = losses.iter().rev().take(10).sum::<f32>() / losses.len().clamp(1, 10) as f32;
    assert!(
        end < losses[0],
        "the loss did not fall: {} to {end}",
        losses[0]
    );
    Ok(())
}

/// The number of steps that was typed, 150 where none was.
fn steps(word: Option<String>) -> Result<u32> {
    let Some(word) = word else { return Ok(150) };
    let steps = word.parse().ok().filter(|steps| *steps > 0);
    steps.ok_or_else(|| Error::Argument {
        operation: "transformer",
        message: format!("{word:?} is not a number of steps: write 150"),
    })
}

/// The loss over the steps as an SVG picture: a thin line for each step, a thick one for the mean of ten.
fn draw(losses: &[f32]) -> String {
    let most = losses.iter().fold(0.1_f32, |a, b| a.max(*b));
    let (width, height, left, top) = (640.0_f32, 260.0_f32, 44.0_f32, 24.0_f32);
    let (right, bottom) = (width - 12.0, height - 34.0);
    let x = |step: usize| left + (right - left) * step as f32 / losses.len().max(2) as f32;
    let y = |loss: f32| bottom - (bottom - top) * loss / most;
    let line = |values: &[f32]| {
        values
            .iter()
            .enumerate()
            .fold(String::new(), |mut points, (step, loss)| {
                let _ = write!(points, "{:.1},{:.1} ", x(step), y(*loss));
                points
            })
    };
    let means = (0..losses.len()).map(|step| {
        let last = &losses[step.saturating_sub(9)..=step];
        last.iter().sum::<f32>() / last.len() as f32
    });
    let means: Vec<f32> = means.collect();
    let mut marks = String::new();
    for part in 0..=4 {
        let (loss, step) = (most * part as f32 / 4.0, losses.len() * part / 4);
        let (at, below) = (y(loss), x(step));
        let _ = write!(
            marks,
            "<path d='M{left} {at:.1}H{right}' stroke='#ddd'/>\
             <text x='{:.1}' y='{:.1}' text-anchor='end'>{loss:.1}</text>\
             <text x='{below:.1}' y='{:.1}' text-anchor='middle'>{step}</text>",
            left - 6.0,
            at + 4.0,
            bottom + 16.0
        );
    }
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' font-family='sans-serif' font-size='12'>\
         <rect width='100%' height='100%' fill='white'/>{marks}\
         <polyline points='{}' fill='none' stroke='#9bc' stroke-width='1'/>\
         <polyline points='{}' fill='none' stroke='#246' stroke-width='2'/>\
         <text x='{left}' y='14'>loss by step, from {:.2} to {:.2}</text></svg>\n",
        line(losses),
        line(&means),
        losses.first().unwrap_or(&0.0),
        means.last().unwrap_or(&0.0),
    )
}
