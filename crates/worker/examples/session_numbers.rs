//! Prints what a session costs on the software GPU.

use std::sync::Arc;

use mica_backend_software::{Config, SoftwareGpu};
use mica_worker::{SoftwareDevices, bench};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let devices = SoftwareDevices::new(0, Some(1 << 30), None);
    println!("{:#?}", bench::session_numbers(&devices, 1)?);
    let gpu: Arc<dyn mica_gpu::Gpu> = Arc::new(SoftwareGpu::new(Config::default())?);
    println!(
        "direct copy {:.2} GiB/s",
        bench::direct_copy_gib_per_second(&gpu)?
    );
    Ok(())
}
