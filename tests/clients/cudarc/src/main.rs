//! cudarc in a virtual GPU: kernels compiled at run time by NVRTC, copies, launches, streams, events,
//! a captured graph, unified and pinned memory. Every result is checked; prints `ok` last.

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUmemAttach_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaModule, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::compile_ptx;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const SOURCE: &str = r#"
extern "C" __constant__ float coefficients[4];

extern "C" __global__ void saxpy(float *y, const float *x, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

extern "C" __global__ void multiply(float *c, const float *a, const float *b, int n) {
    __shared__ float left[16][16], right[16][16];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int tile = 0; tile < n; tile += 16) {
        left[threadIdx.y][threadIdx.x] = a[row * n + tile + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(tile + threadIdx.y) * n + column];
        __syncthreads();
        for (int k = 0; k < 16; k++) sum += left[threadIdx.y][k] * right[k][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

extern "C" __global__ void polynomial(float *out, const float *in, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float x = in[i], sum = 0;
    if (i >= n) return;
    for (int k = 3; k >= 0; k--) sum = sum * x + coefficients[k];
    out[i] = sum;
}

extern "C" __global__ void count(unsigned long long *total, const int *in, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned ballot = __ballot_sync(0xffffffffu, i < n && in[i] % 3 == 0);
    if (threadIdx.x % 32 == 0) atomicAdd(total, (unsigned long long)__popc(ballot));
}
"#;

fn check(condition: bool, what: &str) -> Outcome {
    match condition {
        true => Ok(()),
        false => Err(format!("wrong: {what}").into()),
    }
}

fn main() -> Outcome {
    let context = CudaContext::new(0)?;
    let (major, minor) = context.compute_capability()?;
    println!("cudarc on {}, compute {major}.{minor}", context.name()?);
    let (free, total) = context.mem_get_info()?;
    check(free <= total && total == context.total_mem()?, "memory")?;
    let module = context.load_module(compile_ptx(SOURCE)?)?;
    saxpy_over_two_streams(&context, &module)?;
    multiply(&context, &module)?;
    constant_memory(&context, &module)?;
    counting(&context, &module)?;
    graph(&context, &module)?;
    unified(&context, &module)?;
    many_threads(&context, &module)?;
    refusals(&context)?;
    println!("ok");
    Ok(())
}

fn saxpy_over_two_streams(context: &Arc<CudaContext>, module: &Arc<CudaModule>) -> Outcome {
    let function = module.load_function("saxpy")?;
    let n = 100_003;
    let x: Vec<f32> = (0..n).map(|i| i as f32 * 0.5).collect();
    let y: Vec<f32> = (0..n).map(|i| 7.0 - i as f32).collect();
    let first = context.new_stream()?;
    let second = first.fork()?;
    let begin = first.record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT))?;
    let on_device_x = first.clone_htod(&x)?;
    let mut on_device_y = first.clone_htod(&y)?;
    second.join(&first)?;
    let shape = LaunchConfig::for_num_elems(n as u32);
    // SAFETY: the arguments are the kernel's, and both arrays have `n` elements.
    unsafe {
        second
            .launch_builder(&function)
            .arg(&mut on_device_y)
            .arg(&on_device_x)
            .arg(&2.0_f32)
            .arg(&(n as i32))
            .launch(shape)?;
    }
    let end = second.record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT))?;
    let result = second.clone_dtoh(&on_device_y)?;
    end.synchronize()?;
    check(begin.elapsed_ms(&end)? >= 0.0, "time runs forward")?;
    let wanted = x.iter().zip(&y).map(|(x, y)| 2.0 * x + y);
    check(result.into_iter().eq(wanted), "saxpy")
}

fn multiply(context: &Arc<CudaContext>, module: &Arc<CudaModule>) -> Outcome {
    let function = module.load_function("multiply")?;
    let stream = context.default_stream();
    let n = 64;
    let a: Vec<f32> = (0..n * n).map(|i| (i % 13) as f32).collect();
    let b: Vec<f32> = (0..n * n).map(|i| (i % 7) as f32 - 3.0).collect();
    let (on_device_a, on_device_b) = (stream.clone_htod(&a)?, stream.clone_htod(&b)?);
    let mut c = stream.alloc_zeros::<f32>(n * n)?;
    let shape = LaunchConfig {
        grid_dim: (n as u32 / 16, n as u32 / 16, 1),
        block_dim: (16, 16, 1),
        shared_mem_bytes: 0,
    };
    check(function.shared_size_bytes()? == 2048, "shared memory")?;
    check(function.max_threads_per_block()? >= 256, "threads")?;
    // SAFETY: the arguments are the kernel's, all matrices are n × n and n is a multiple of 16.
    unsafe {
        stream
            .launch_builder(&function)
            .arg(&mut c)
            .arg(&on_device_a)
            .arg(&on_device_b)
            .arg(&(n as i32))
            .launch(shape)?;
    }
    let c = stream.clone_dtoh(&c)?;
    for row in 0..n {
        for column in 0..n {
            // Small whole numbers: exact in any order.
            let sum: f32 = (0..n).map(|k| a[row * n + k] * b[k * n + column]).sum();
            check(c[row * n + column] == sum, "matrix product")?;
        }
    }
    Ok(())
}

fn constant_memory(context: &Arc<CudaContext>, module: &Arc<CudaModule>) -> Outcome {
    let stream = context.default_stream();
    let mut symbol = module.get_global("coefficients", &stream)?;
    check(symbol.len() == 16, "size of a symbol")?;
    // SAFETY: the symbol is four floats.
    let mut floats = unsafe { symbol.transmute_mut::<f32>(4) }.ok_or("four floats")?;
    stream.memcpy_htod(&[1.0_f32, 2.0, 3.0, 4.0], &mut floats)?;
    let input: Vec<f32> = (0..50).map(|i| i as f32).collect();
    let on_device = stream.clone_htod(&input)?;
    let mut out = stream.alloc_zeros::<f32>(50)?;
    let function = module.load_function("polynomial")?;
    // SAFETY: the arguments are the kernel's; one block of 50 threads.
    unsafe {
        stream
            .launch_builder(&function)
            .arg(&mut out)
            .arg(&on_device)
            .arg(&50_i32)
            .launch(LaunchConfig {
                grid_dim: (1, 1, 1),
                block_dim: (50, 1, 1),
                shared_mem_bytes: 0,
            })?;
    }
    let wanted = input.iter().map(|x| ((4.0 * x + 3.0) * x + 2.0) * x + 1.0);
    check(stream.clone_dtoh(&out)?.into_iter().eq(wanted), "polynomial")
}

fn counting(context: &Arc<CudaContext>, module: &Arc<CudaModule>) -> Outcome {
    let stream = context.default_stream();
    let function = module.load_function("count")?;
    let n = 12_345;
    let input: Vec<i32> = (0..n).collect();
    let on_device = stream.clone_htod(&input)?;
    let mut total = stream.alloc_zeros::<u64>(1)?;
    let (_, block) =
        function.occupancy_max_potential_block_size(no_shared_memory, 0, 256, None)?;
    check(block > 0 && block <= 256, "occupancy")?;
    // SAFETY: the arguments are the kernel's.
    unsafe {
        stream
            .launch_builder(&function)
            .arg(&mut total)
            .arg(&on_device)
            .arg(&n)
            .launch(LaunchConfig::for_num_elems(n as u32))?;
    }
    check(stream.clone_dtoh(&total)? == [4115], "count")
}

extern "C" fn no_shared_memory(_block: std::ffi::c_int) -> usize {
    0
}

fn graph(context: &Arc<CudaContext>, module: &Arc<CudaModule>) -> Outcome {
    let function = module.load_function("saxpy")?;
    let stream = context.new_stream()?;
    let x = stream.clone_htod(&[1.0_f32; 256])?;
    let mut y = stream.clone_htod(&[0.0_f32; 256])?;
    stream.synchronize()?;
    // SAFETY: everything below is ordered by one stream.
    unsafe { context.disable_event_tracking() };
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    for _ in 0..3 {
        // SAFETY: the arguments are the kernel's and have 256 elements.
        unsafe {
            stream
                .launch_builder(&function)
                .arg(&mut y)
                .arg(&x)
                .arg(&2.0_f32)
                .arg(&256_i32)
                .launch(LaunchConfig::for_num_elems(256))?;
        }
    }
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags)?.ok_or("a graph")?;
    for _ in 0..10 {
        graph.launch()?;
    }
    let result = stream.clone_dtoh(&y)?;
    stream.synchronize()?;
    // SAFETY: as before the capture.
    unsafe { context.enable_event_tracking() };
    check(result == [60.0; 256], "graph launched ten times")
}

fn unified(context: &Arc<CudaContext>, module: &Arc<CudaModule>) -> Outcome {
    let function = module.load_function("saxpy")?;
    let stream = context.default_stream();
    let n = 5000;
    // SAFETY: every element is written before it is read.
    let mut shared = unsafe { context.alloc_unified::<f32>(n, true)? };
    check(shared.attach_mode() == CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL, "attachment")?;
    shared.as_mut_slice()?.fill(3.0);
    let x = stream.clone_htod(&vec![10.0_f32; n])?;
    // SAFETY: the arguments are the kernel's and have `n` elements.
    unsafe {
        stream
            .launch_builder(&function)
            .arg(&mut shared)
            .arg(&x)
            .arg(&0.5_f32)
            .arg(&(n as i32))
            .launch(LaunchConfig::for_num_elems(n as u32))?;
    }
    stream.synchronize()?;
    check(shared.as_slice()?.iter().all(|v| *v == 8.0), "unified memory")?;
    // SAFETY: every element is written before it is read.
    let mut pinned = unsafe { context.alloc_pinned::<f32>(n)? };
    pinned.as_mut_slice()?.fill(1.5);
    let copy = stream.clone_htod(&pinned)?;
    check(stream.clone_dtoh(&copy)? == vec![1.5; n], "pinned memory")
}

fn many_threads(context: &Arc<CudaContext>, module: &Arc<CudaModule>) -> Outcome {
    let function = module.load_function("saxpy")?;
    std::thread::scope(|scope| {
        let one = |number: usize| -> Result<bool, cudarc::driver::DriverError> {
            context.bind_to_thread()?;
            let stream = context.new_stream()?;
            let x = stream.clone_htod(&vec![number as f32; 1000])?;
            let mut y = stream.alloc_zeros::<f32>(1000)?;
            for _ in 0..20 {
                // SAFETY: the arguments are the kernel's and have 1000 elements.
                unsafe {
                    stream
                        .launch_builder(&function)
                        .arg(&mut y)
                        .arg(&x)
                        .arg(&1.0_f32)
                        .arg(&1000_i32)
                        .launch(LaunchConfig::for_num_elems(1000))?;
                }
            }
            Ok(stream.clone_dtoh(&y)? == vec![20.0 * number as f32; 1000])
        };
        let threads: Vec<_> = (1..=4).map(|k| scope.spawn(move || one(k))).collect();
        for thread in threads {
            let right = thread.join().map_err(|_| "a thread panicked")??;
            check(right, "a thread's sums")?;
        }
        Ok(())
    })
}

fn refusals(context: &Arc<CudaContext>) -> Outcome {
    let broken = context.load_module(cudarc::nvrtc::Ptx::from_src("not PTX at all"));
    check(broken.is_err(), "broken PTX is refused")?;
    let module = context.load_module(compile_ptx("extern \"C\" __global__ void f() {}")?)?;
    check(module.load_function("g").is_err(), "an unknown kernel")?;
    check(compile_ptx("this is not C++").is_err(), "a program with errors")
}
