//! Virtual GPUs for tests: embedded, and behind a worker's session.
#![allow(dead_code, reason = "each test file uses a part")]

use std::sync::Arc;

use mica::{Device, SoftwareOptions, Vgpu};

pub(crate) const PTX: &str = include_str!("../kernels.ptx");

pub(crate) fn device() -> Device {
    Device::software_with(SoftwareOptions {
        memory_bytes: Some(256 << 20),
        workers: Some(2),
        ordinal: 0,
        ..SoftwareOptions::default()
    })
    .unwrap()
}

pub(crate) fn embedded(bytes: u64) -> Vgpu {
    Vgpu::builder().memory(bytes).build(&device()).unwrap()
}

/// A virtual GPU behind a worker that runs on a thread of this process.
pub(crate) fn connected(bytes: u64) -> Vgpu {
    use mica_backend_software::{Config, SoftwareGpu};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    std::thread::spawn(move || {
        let config = Config {
            memory_bytes: Some(256 << 20),
            workers: Some(2),
            ..Config::default()
        };
        let gpu: Arc<dyn mica_gpu::Gpu> = Arc::new(SoftwareGpu::new(config).unwrap());
        let quota = Arc::new(mica_limits::LocalQuota::new(bytes));
        let spec = mica_vgpu::VgpuSpec::new("served", bytes);
        let vgpu = mica_vgpu::Vgpu::new(gpu.clone(), quota, spec);
        let output = Arc::new(mica_worker::OutputBuffer::default());
        mica_worker::serve_session(&vgpu, gpu, output, theirs, None).unwrap();
    });
    Vgpu::over_session(ours).unwrap()
}

pub(crate) fn on_both(bytes: u64, test: impl Fn(&Vgpu)) {
    test(&embedded(bytes));
    test(&connected(bytes));
}
