//! Prints what a session costs on the software GPU.

use std::sync::Arc;

use mica_backend_software::{Config, SoftwareGpu};
use mica_worker::bench;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpu: Arc<dyn mica_gpu::Gpu> = Arc::new(SoftwareGpu::new(Config::default())?);
    println!("{:#?}", bench::session_numbers(&gpu, 1)?);
    println!(
        "direct copy {:.2} GiB/s",
        bench::direct_copy_gib_per_second(&gpu)?
    );
    Ok(())
}
