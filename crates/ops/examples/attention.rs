//! Attention of growing length: time, rate, and the memory that each way needs.
//!
//! `cargo run --release -p mica-ops --example attention`, or on a card:
//! `mica run --mode isolated -- target/release/examples/attention`.

use std::time::Instant;

use mica_ops::{Attention, DType, Ops};

fn main() -> Result<(), mica_ops::Error> {
    let vgpu = match mica::Vgpu::connect() {
        Err(mica::Error::NotConnected) => {
            let device = mica::Device::software()?;
            mica::Vgpu::builder().memory(1 << 30).build(&device)?
        }
        other => other?,
    };
    let info = vgpu.info();
    let ops = Ops::new(&vgpu)?;
    let (dtype, lengths) = match info.is_software() {
        true => (DType::F32, [256, 512, 1024]),
        false => (DType::F16, [1024, 4096, 16384]),
    };
    println!("{}, {dtype}, 8 heads of 64, causal", info.name);
    println!("  rows        time       rate   flash needs   plain needs");
    for rows in lengths {
        let random = |stream| ops.uniform(&[1, 8, rows, 64], dtype, (1, stream), (-1.0, 1.0));
        let (q, k, v) = (random(1)?, random(2)?, random(3)?);
        let spec = Attention {
            causal: true,
            ..Attention::default()
        };
        let memory = ops.attention_memory(&q, &k, &v, &spec)?;
        // The first run loads the kernel.
        ops.attention(&q, &k, &v, &spec)?;
        ops.synchronize()?;
        let began = Instant::now();
        ops.attention(&q, &k, &v, &spec)?;
        ops.synchronize()?;
        let seconds = began.elapsed().as_secs_f64();
        let flops = 2.0 * (8 * rows * rows * 64) as f64;
        println!(
            "{rows:6} {:8.2} ms {:6.1} GFLOP/s {:9} KiB {:9} KiB",
            seconds * 1e3,
            flops / seconds / 1e9,
            (memory.result + memory.flash) >> 10,
            (memory.result + memory.plain) >> 10,
        );
    }
    Ok(())
}
