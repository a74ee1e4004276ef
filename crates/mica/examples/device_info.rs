//! What a device is, and what a virtual GPU on it shows.
//!
//! `cargo run --release --example device_info`, or in a virtual GPU of a daemon: `mica run -- target/release/examples/device_info`.

use mica::{Device, DeviceAttribute, DeviceInfo, Error, Vgpu};

fn show(info: &DeviceInfo) {
    let (major, minor) = info.compute_capability;
    println!("  compute capability    {major}.{minor}");
    println!("  memory                {} MiB", info.total_memory >> 20);
    println!("  multiprocessors       {}", info.multiprocessors);
    println!("  threads in a block    {}", info.max_threads_per_block);
    println!(
        "  shared memory         {} KiB in a block",
        info.max_shared_per_block >> 10
    );
    let (least, most) = info.stream_priorities;
    println!("  stream priorities     {least} (least urgent) to {most}");
}

fn main() -> Result<(), Error> {
    let vgpu = match Vgpu::connect() {
        Err(Error::NotConnected) => {
            for device in Device::all()? {
                println!("{}", device.info().name);
                show(device.info());
            }
            println!("\na virtual GPU with 64 MiB on it");
            Vgpu::builder()
                .memory(64 << 20)
                .build(&Device::software()?)?
        }
        connected => connected?,
    };
    show(&vgpu.info());
    println!("\nand what else the driver API tells:");
    for attribute in [
        DeviceAttribute::WarpSize,
        DeviceAttribute::MaxThreadsPerMultiprocessor,
        DeviceAttribute::MaxRegistersPerBlock,
        DeviceAttribute::L2CacheSize,
        DeviceAttribute::ConcurrentKernels,
        DeviceAttribute::CooperativeLaunch,
        DeviceAttribute::UnifiedAddressing,
    ] {
        match vgpu.attribute(attribute)? {
            Some(value) => println!("  {:30} {value}", format!("{attribute:?}")),
            None => println!("  {:30} not known", format!("{attribute:?}")),
        }
    }
    Ok(())
}
