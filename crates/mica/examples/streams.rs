//! Streams, events and host functions: a pipeline of three stages.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mica::{Device, Error, Grid, Vgpu};

fn main() -> Result<(), Error> {
    let vgpu = Vgpu::builder()
        .memory(256 << 20)
        .build(&Device::software()?)?;
    let kernel = vgpu
        .load_ptx(include_str!("../tests/kernels.ptx"))?
        .kernel("vadd")?;
    let (upload, compute, download) = (vgpu.stream()?, vgpu.stream()?, vgpu.stream()?);
    let count = 1 << 20;
    let finished = Arc::new(AtomicUsize::new(0));
    let (start, end) = (vgpu.event()?, vgpu.event()?);
    start.record(&upload)?;
    let mut results = Vec::new();
    for batch in 0..4 {
        let mut x = vgpu.alloc::<f32>(count)?;
        let mut z = vgpu.alloc::<f32>(count)?;
        x.copy_from_in(&upload, &vec![batch as f32; count])?;
        let uploaded = vgpu.event()?;
        uploaded.record(&upload)?;
        compute.wait_for(&uploaded)?;
        compute.launch(
            &kernel,
            Grid::covering(count, 256),
            (&x, &x, &mut z, count as u32),
        )?;
        let computed = vgpu.event()?;
        computed.record(&compute)?;
        download.wait_for(&computed)?;
        let result = z.download(&download)?;
        let counter = Arc::clone(&finished);
        download.call(move || {
            counter.fetch_add(1, Ordering::SeqCst);
        })?;
        // The buffers stay until the batch is over.
        results.push((batch, result, x, z));
    }
    end.record(&download)?;
    for (batch, result, _x, _z) in results {
        let values = result.wait()?;
        println!("batch {batch}: {} × {}", values.len(), values[0]);
        assert!(values.iter().all(|v| *v == 2.0 * batch as f32));
    }
    end.synchronize()?;
    vgpu.synchronize()?;
    println!(
        "{} batches in {:.2} ms",
        finished.load(Ordering::SeqCst),
        end.elapsed_since_ms(&start)?
    );
    Ok(())
}
