//! A graph: the same twenty launches described once and submitted with one call, beside twenty calls.
//!
//! `cargo run --release --example graph`

use std::time::Instant;

use mica::{Device, Error, Grid, Vgpu};

const STEPS: usize = 20;
const ROUNDS: usize = 200;

fn main() -> Result<(), Error> {
    let vgpu = Vgpu::builder()
        .memory(16 << 20)
        .build(&Device::software()?)?;
    let vadd = vgpu
        .load_ptx(include_str!("../tests/kernels.ptx"))?
        .kernel("vadd")?;
    let (one, sum) = (vgpu.upload(&[1.0_f32; 256])?, vgpu.alloc::<f32>(256)?);
    let stream = vgpu.stream()?;
    let steps = || {
        (0..STEPS)
            .try_for_each(|_| stream.launch(&vadd, Grid::new(1, 256), (&one, &sum, &sum, 256_u32)))
    };

    // Recorded, not run: the sums are still zero.
    let graph = stream.capture(steps)?;
    println!(
        "recorded {} nodes; the first sum is {}",
        graph.len(),
        sum.to_vec()?[0]
    );
    let ready = graph.instantiate()?;
    ready.launch(&stream)?;
    stream.synchronize()?;
    println!("launched once;     the first sum is {}", sum.to_vec()?[0]);

    let began = Instant::now();
    for _ in 0..ROUNDS {
        steps()?;
        stream.synchronize()?;
    }
    let by_launches = began.elapsed();
    let began = Instant::now();
    for _ in 0..ROUNDS {
        ready.launch(&stream)?;
        stream.synchronize()?;
    }
    let by_graph = began.elapsed();
    let each = |time: std::time::Duration| time.as_secs_f64() * 1e6 / ROUNDS as f64;
    println!(
        "{STEPS} launches: {:8.1} µs by themselves, {:8.1} µs as a graph",
        each(by_launches),
        each(by_graph)
    );
    let sums = sum.to_vec()?;
    assert_eq!(sums, [(STEPS * (2 * ROUNDS + 1)) as f32; 256]);
    println!("all {} sums are {}", sums.len(), sums[0]);
    Ok(())
}
