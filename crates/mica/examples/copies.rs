//! How fast bytes move: within a virtual GPU, to it and from it, and what is refused.
//!
//! `cargo run --release --example copies`

use std::time::Duration;

use mica::{Device, Error, Vgpu};

fn rate(what: &str, bytes: u64, time: Duration) {
    let seconds = time.as_secs_f64().max(1e-9);
    println!(
        "{what:34} {:8.3} ms  {:7.1} GB/s",
        seconds * 1e3,
        bytes as f64 / seconds / 1e9
    );
}

fn main() -> Result<(), Error> {
    let device = Device::software()?;
    let vgpu = Vgpu::builder().memory(256 << 20).build(&device)?;
    let stream = vgpu.stream()?;
    for bytes in [64 << 10, 1 << 20, 64 << 20] {
        println!("{} KiB", bytes >> 10);
        let pattern: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
        let (mut from, mut to) = (vgpu.alloc::<u8>(bytes)?, vgpu.alloc::<u8>(bytes)?);
        let size = bytes as u64;
        // The first copies give memory its pages.
        from.copy_from_in(&stream, &pattern)?;
        to.copy_from_buffer(&stream, &from)?;
        let ((), time) = stream.timed(|| from.copy_from_in(&stream, &pattern))?;
        rate("  host to device", size, time);
        let ((), time) = stream.timed(|| to.copy_from_buffer(&stream, &from))?;
        rate("  device to device", size, time);
        let (later, time) = stream.timed(|| to.download(&stream))?;
        rate("  device to host, in the background", size, time);
        assert!(later.wait()? == pattern, "the bytes are the same");
    }

    println!("\nwhat is refused:");
    let (mut a, b) = (vgpu.alloc::<u8>(10)?, vgpu.alloc::<u8>(20)?);
    let refused = |result: Result<(), Error>| match result {
        Ok(()) => println!("  nothing: that should not be"),
        Err(error) => println!("  {error}"),
    };
    refused(a.copy_from_buffer(&stream, &b));
    a.copy_from_buffer(&stream, b.slice(5..15)?)?;
    let other = Vgpu::builder().memory(1 << 20).build(&device)?;
    refused(a.copy_from_buffer(&stream, &other.alloc::<u8>(10)?));
    Ok(())
}
