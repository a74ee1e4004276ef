//! Goes once through the device interface on a real GPU and says what it found.
//!
//!     cargo run --release -p mica-backend-cuda --example probe [ordinal]

use std::time::{Duration, Instant};

use mica_backend_cuda::nvml::Nvml;
use mica_backend_cuda::{CudaDriver, CudaGpu};
use mica_gpu::{
    Access, ArrayDescriptor, ContextId, Copy3d, DevicePtr, EventFlags, Fill2d, Gpu, HostSpan,
    Launch, ModuleOptions, Place, StreamFlags, StreamId, TextureDescriptor, TextureResource,
};

const PTX: &str = include_str!("probe.ptx");
const COUNT: usize = 1 << 20;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn read(gpu: &CudaGpu, stream: StreamId, from: DevicePtr, into: &mut [u32]) -> Outcome<()> {
    let bytes = size_of_val(into) as u64;
    // SAFETY: the slice outlives the copy, which is waited for.
    let span = unsafe { HostSpan::new(into.as_mut_ptr().cast(), bytes) };
    gpu.copy(
        stream,
        &Copy3d::linear(Place::Host(span), Place::Device(from), bytes),
    )?;
    Ok(gpu.stream_synchronize(stream)?)
}

fn write(gpu: &CudaGpu, stream: StreamId, to: Place, from: &mut [u32]) -> Outcome<()> {
    let bytes = size_of_val(from) as u64;
    // SAFETY: the slice outlives the copy, which is waited for.
    let span = unsafe { HostSpan::new(from.as_mut_ptr().cast(), bytes) };
    gpu.copy(stream, &Copy3d::linear(to, Place::Host(span), bytes))?;
    Ok(gpu.stream_synchronize(stream)?)
}

fn readings() -> Outcome<()> {
    let nvml = Nvml::load()?;
    println!(
        "NVML {} driver {}",
        nvml.path().display(),
        nvml.driver_version()?
    );
    for device in nvml.devices() {
        println!("  {device:?}");
        println!("  {:?}", nvml.facts(device.index)?);
        println!("  {:?}", nvml.activity(device.index)?);
        println!("  processes {:?}", nvml.process_memory(device.index));
        println!(
            "  utilization {:?}",
            nvml.process_utilization(device.index, 0)
        );
    }
    Ok(())
}

fn kernels(gpu: &CudaGpu, context: ContextId) -> Outcome<()> {
    let flags = StreamFlags { non_blocking: true };
    let stream = gpu.stream_create(context, flags, 0)?;
    let module = gpu.module_load(context, PTX.as_bytes(), &ModuleOptions::default())?;
    let info = gpu.module_info(module)?;
    println!("module {info:#?}");
    let kernel = |name: &str| info.kernels.iter().position(|k| k.name == name);
    let add = kernel("add_one").ok_or("no add_one")? as u32;
    let spin = kernel("spin").ok_or("no spin")? as u32;
    let memory = gpu.memory_alloc(context, (COUNT * 4) as u64)?;
    gpu.fill(
        stream,
        &Fill2d {
            dst: memory,
            pitch: 0,
            value: 41,
            element_bytes: 4,
            width: COUNT as u64,
            height: 1,
        },
    )?;
    let mut params = memory.0.to_ne_bytes().to_vec();
    params.extend((COUNT as u32).to_ne_bytes());
    let launch = Launch {
        module,
        kernel: add,
        grid: [(COUNT / 256) as u32, 1, 1],
        block: [256, 1, 1],
        dynamic_shared: 0,
        cooperative: false,
        params: &params,
    };
    gpu.launch(stream, &launch)?;
    gpu.launch(
        stream,
        &Launch {
            cooperative: false,
            dynamic_shared: 100 * 1024,
            ..launch
        },
    )?;
    let mut values = vec![0; COUNT];
    read(gpu, stream, memory, &mut values)?;
    assert!(
        values.iter().all(|value| *value == 43),
        "every element was raised twice"
    );
    println!(
        "kernels ran; occupancy {}",
        gpu.occupancy(module, add, 256, 0)?
    );

    // 200 ms of spinning, stopped for 300 ms in the middle.
    let timed = EventFlags::default();
    let (start, end) = (
        gpu.event_create(context, timed)?,
        gpu.event_create(context, timed)?,
    );
    let ns = 200_000_000_u64.to_ne_bytes();
    for stop in [false, true] {
        gpu.event_record(start, stream)?;
        let params = &ns[..];
        gpu.launch(
            stream,
            &Launch {
                kernel: spin,
                grid: [1, 1, 1],
                block: [1, 1, 1],
                dynamic_shared: 0,
                params,
                ..launch
            },
        )?;
        gpu.event_record(end, stream)?;
        if stop {
            std::thread::sleep(Duration::from_millis(50));
            let begun = Instant::now();
            println!(
                "suspend {:?} in {:?}",
                gpu.context_suspend(context),
                begun.elapsed()
            );
            std::thread::sleep(Duration::from_millis(300));
            println!("done while stopped: {}", gpu.stream_query(stream)?);
            let begun = Instant::now();
            println!(
                "resume {:?} in {:?}",
                gpu.context_resume(context),
                begun.elapsed()
            );
        }
        gpu.event_synchronize(end)?;
        println!(
            "spin of 200 ms, stopped {stop}: {} ms",
            gpu.event_elapsed_ms(start, end)?
        );
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    gpu.stream_callback(stream, Box::new(move || sender.send(7).unwrap_or_default()))?;
    println!(
        "callback {:?}",
        receiver.recv_timeout(Duration::from_secs(5))
    );
    println!(
        "range {:x?}",
        gpu.memory_range(context, memory.offset(100))?
    );
    gpu.memory_free(context, memory)?;
    println!("free again: {:?}", gpu.memory_free(context, memory));
    gpu.module_unload(module)?;
    Ok(gpu.stream_destroy(stream)?)
}

fn mappings(gpu: &CudaGpu, context: ContextId) -> Outcome<()> {
    let stream = gpu.default_stream(context)?;
    let frame_bytes = gpu.properties().frame_bytes;
    let address = gpu.address_reserve(4 * frame_bytes, 0)?;
    let frame = gpu.frame_create(frame_bytes)?;
    gpu.frame_map(address.offset(frame_bytes), frame)?;
    gpu.frame_access(address.offset(frame_bytes), frame_bytes, Access::ReadWrite)?;
    let mut data: Vec<u32> = (0..1024).collect();
    write(
        gpu,
        stream,
        Place::Device(address.offset(frame_bytes)),
        &mut data,
    )?;
    gpu.frame_unmap(address.offset(frame_bytes), frame_bytes)?;
    gpu.frame_map(address, frame)?;
    gpu.frame_access(address, frame_bytes, Access::Read)?;
    let mut back = vec![0; 1024];
    read(gpu, stream, address, &mut back)?;
    assert_eq!(data, back, "a frame keeps its bytes when it moves");
    gpu.frame_unmap(address, frame_bytes)?;
    gpu.frame_release(frame)?;
    gpu.address_free(address, 4 * frame_bytes)?;
    println!("frames moved");

    let shape = ArrayDescriptor {
        width: 64,
        height: 16,
        depth: 0,
        format: 0x03,
        channels: 1,
        flags: 2,
    };
    let array = gpu.array_create(context, &shape)?;
    // SAFETY: the data outlives the copy, which is waited for.
    let span = unsafe { HostSpan::new(data.as_mut_ptr().cast(), 4096) };
    let mut rows = Copy3d::linear(Place::Array(array), Place::Host(span), 256);
    (rows.height, rows.src_pitch) = (16, (256, 4096));
    gpu.copy(stream, &rows)?;
    let texture = gpu.texture_create(
        context,
        &TextureDescriptor {
            resource: TextureResource::Array(array),
            format: 0,
            channels: 0,
            address_mode: [1; 3],
            filter: 0,
            normalized_coords: false,
            read_as_integer: true,
            border: [0.0; 4],
        },
    )?;
    let surface = gpu.surface_create(context, array)?;
    gpu.stream_synchronize(stream)?;
    gpu.texture_destroy(context, texture)?;
    gpu.texture_destroy(context, surface)?;
    gpu.array_destroy(array)?;
    println!("arrays and textures made");
    Ok(())
}

fn main() -> Outcome<()> {
    let ordinal = std::env::args().nth(1).map_or(Ok(0), |text| text.parse())?;
    if let Err(error) = readings() {
        println!("no readings: {error}");
    }
    let driver = CudaDriver::load()?;
    println!("{driver:?}");
    let gpu = CudaGpu::open(driver, ordinal)?;
    println!("{:#?}", gpu.properties());
    println!("memory without a context {:?}", gpu.memory_info());
    let begun = Instant::now();
    let context = gpu.context_create()?;
    println!(
        "context in {:?}; memory {:?}",
        begun.elapsed(),
        gpu.memory_info()
    );
    let second = gpu.context_create()?;
    kernels(&gpu, context)?;
    mappings(&gpu, context)?;
    println!("{:#x?}", mica_rm::status());
    gpu.context_destroy(second)?;
    gpu.context_destroy(context)?;
    println!("stale handle: {:?}", gpu.context_synchronize(context));
    println!("memory after {:?}", gpu.memory_info());
    Ok(())
}
