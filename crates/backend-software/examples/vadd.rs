//! Adds two vectors with a kernel written in PTX.
//!
//! `cargo run --release -p mica-backend-software --example vadd`

use mica_backend_software::{Config, SoftwareGpu};
use mica_gpu::{Copy3d, DevicePtr, Gpu, HostSpan, Launch, ModuleOptions, Place};

const KERNEL: &[u8] = b"
.version 7.0
.target sm_75
.address_size 64
.visible .entry vadd(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
    .reg .pred %p;
    .reg .b32 %r<6>;
    .reg .f32 %f<4>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [a];
    ld.param.u64 %d2, [b];
    ld.param.u64 %d3, [c];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.s32 %p, %r5, %r1;
    @%p bra DONE;
    mul.wide.s32 %d4, %r5, 4;
    add.s64 %d5, %d1, %d4;
    add.s64 %d6, %d2, %d4;
    add.s64 %d7, %d3, %d4;
    ld.global.f32 %f1, [%d5];
    ld.global.f32 %f2, [%d6];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%d7], %f3;
DONE:
    ret;
}
";

fn main() -> Result<(), mica_gpu::GpuError> {
    let n = 1_u32 << 24;
    let bytes = u64::from(n) * 4;
    let gpu = SoftwareGpu::new(Config::default())?;
    let context = gpu.context_create()?;
    let stream = gpu.default_stream(context)?;
    let module = gpu.module_load(context, KERNEL, &ModuleOptions::default())?;

    let mut a: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let mut b: Vec<f32> = (0..n).map(|i| 2.0 * i as f32).collect();
    let mut c = vec![0.0_f32; n as usize];
    // SAFETY: the vectors live until after the synchronization.
    let host = |v: &mut Vec<f32>| unsafe { HostSpan::new(v.as_mut_ptr().cast(), bytes) };
    let device: Vec<DevicePtr> = (0..3)
        .map(|_| gpu.memory_alloc(context, bytes))
        .collect::<Result<_, _>>()?;
    for (at, vector) in device.iter().zip([&mut a, &mut b]) {
        let copy = Copy3d::linear(Place::Device(*at), Place::Host(host(vector)), bytes);
        gpu.copy(stream, &copy)?;
    }

    let mut params = Vec::new();
    for at in &device {
        params.extend_from_slice(&at.0.to_le_bytes());
    }
    params.extend_from_slice(&n.to_le_bytes());
    let launch = Launch {
        module,
        kernel: 0,
        grid: [n.div_ceil(256), 1, 1],
        block: [256, 1, 1],
        dynamic_shared: 0,
        cooperative: false,
        params: &params,
    };
    for round in 0..5 {
        let (start, end) = (
            gpu.event_create(context, Default::default())?,
            gpu.event_create(context, Default::default())?,
        );
        gpu.event_record(start, stream)?;
        gpu.launch(stream, &launch)?;
        gpu.event_record(end, stream)?;
        gpu.event_synchronize(end)?;
        let ms = gpu.event_elapsed_ms(start, end)?;
        println!("round {round}: {n} additions in {ms:.2} ms");
    }
    let copy = Copy3d::linear(Place::Host(host(&mut c)), Place::Device(device[2]), bytes);
    gpu.copy(stream, &copy)?;
    gpu.stream_synchronize(stream)?;
    let wrong = (0..n as usize).filter(|i| c[*i] != a[*i] + b[*i]).count();
    println!("{wrong} wrong of {n}");
    assert_eq!(wrong, 0);
    Ok(())
}
