//! Memory: a limit at the byte, copies of all kinds, and buffers that free themselves.

use mica::{Device, Error, Vgpu};

fn main() -> Result<(), Error> {
    let vgpu = Vgpu::builder()
        .memory(8 << 20)
        .build(&Device::software()?)?;
    let show = |what: &str| -> Result<(), Error> {
        let memory = vgpu.memory()?;
        println!(
            "{what:34} {:>9} used, {:>9} free",
            memory.used_bytes, memory.free_bytes
        );
        Ok(())
    };
    show("at first")?;
    let mut a = vgpu.alloc::<u8>(6 << 20)?;
    show("with 6 MiB")?;
    match vgpu.alloc::<u8>((2 << 20) + 1) {
        Err(error) if error.is_out_of_memory() => println!("2 MiB and a byte: {error}"),
        Err(error) => return Err(error),
        Ok(_) => println!("the limit did not hold"),
    }
    let rest = vgpu.alloc::<u8>(2 << 20)?;
    show("with exactly the rest")?;
    drop(rest);

    let stream = vgpu.stream()?;
    let pattern: Vec<u8> = (0..6 << 20).map(|i| (i % 253) as u8).collect();
    a.copy_from_in(&stream, &pattern)?;
    let later = a.download(&stream)?;
    println!("copied there and back: {}", later.wait()? == pattern);
    drop(a);

    let source = vgpu.upload(&[1_u32, 2, 3, 4])?;
    let mut copy = vgpu.alloc::<u32>(4)?;
    copy.copy_from_buffer(&stream, &source)?;
    stream.synchronize()?;
    println!("device to device: {:?}", copy.to_vec()?);
    stream.fill(&mut copy, 0xFFFF_FFFF)?;
    stream.synchronize()?;
    println!("filled: {:?}", copy.to_vec()?);
    drop((source, copy));
    show("at the end")
}
