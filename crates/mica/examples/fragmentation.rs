//! Memory with holes: how much is free, and how much of it one allocation can have.
//!
//! `cargo run --release --example fragmentation`

use mica::{Device, DeviceBuffer, Error, Vgpu};

const BLOCK: usize = 256 << 10;

/// The most bytes that one allocation can have, in steps of 4 KiB.
fn largest(vgpu: &Vgpu) -> Result<usize, Error> {
    let (mut fits, mut too_large) = (0, (vgpu.memory()?.limit_bytes as usize >> 12) + 1);
    while fits + 1 < too_large {
        let middle = fits.midpoint(too_large);
        match vgpu.alloc_unset::<u8>(middle << 12) {
            Ok(_) => fits = middle,
            Err(error) if error.is_out_of_memory() => too_large = middle,
            Err(error) => return Err(error),
        }
    }
    Ok(fits << 12)
}

fn show(vgpu: &Vgpu, what: &str) -> Result<(), Error> {
    let memory = vgpu.memory()?;
    let (used, free) = (memory.used_bytes >> 10, memory.free_bytes >> 10);
    let largest = largest(vgpu)? >> 10;
    println!("{what:36} {used:6} KiB used {free:6} KiB free, {largest:6} KiB in one piece");
    Ok(())
}

fn main() -> Result<(), Error> {
    let vgpu = Vgpu::builder()
        .memory(16 << 20)
        .build(&Device::software()?)?;
    show(&vgpu, "at first")?;
    let mut blocks = Vec::new();
    loop {
        match vgpu.upload(&vec![blocks.len() as u8; BLOCK]) {
            Ok(block) => blocks.push(block),
            Err(error) if error.is_out_of_memory() => break,
            Err(error) => return Err(error),
        }
    }
    show(&vgpu, &format!("{} blocks of 256 KiB", blocks.len()))?;
    let mut number = 0;
    blocks.retain(|_| {
        number += 1;
        number % 2 == 0
    });
    show(&vgpu, "every second one freed")?;

    // All that is free as one buffer: device addresses are virtual, so the holes need not be next to each other.
    let free = vgpu.memory()?.free_bytes as usize;
    let mut whole: DeviceBuffer<u8> = vgpu.alloc(free)?;
    vgpu.default_stream().fill(&mut whole, 0xAB)?;
    show(&vgpu, "one buffer in all the holes")?;
    assert!(whole.to_vec()?.iter().all(|byte| *byte == 0xAB));
    for (index, block) in blocks.iter().enumerate() {
        let number = 2 * index as u8 + 1;
        assert!(
            block.to_vec()?.iter().all(|byte| *byte == number),
            "no block has moved"
        );
    }
    drop((whole, blocks));
    show(&vgpu, "all freed")?;
    let statistics = vgpu.statistics()?;
    println!(
        "at most {} KiB were in use; {} requests were refused",
        statistics.peak_bytes >> 10,
        statistics.denials
    );
    Ok(())
}
