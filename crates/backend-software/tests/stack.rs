//! Local memory of launches: frames of calls that are inlined, and of those that are too large for it.

#[path = "../../ptx-jit/tests/frames/kernel.rs"]
mod kernel;

use kernel::{call, kernel};
use mica_backend_software::{Config, Engine, SoftwareGpu};
use mica_cuda_abi::CuResult;
use mica_gpu::{Copy3d, Gpu, HostSpan, Launch, ModuleOptions, Place, Result};
use std::fmt::Write;

/// Launches one block of kernel `k`, and gives what each thread stored.
fn results(text: &str, engine: Engine, threads: u32) -> Result<Vec<u32>> {
    let config = Config {
        memory_bytes: Some(256 << 20),
        workers: Some(1),
        engine,
        ..Config::default()
    };
    let gpu = SoftwareGpu::new(config)?;
    let context = gpu.context_create()?;
    let stream = gpu.default_stream(context)?;
    let module = gpu.module_load(context, text.as_bytes(), &ModuleOptions::default())?;
    let bytes = 4 * u64::from(threads);
    let out = gpu.memory_alloc(context, bytes)?;
    let launch = Launch {
        module,
        kernel: 0,
        grid: [1; 3],
        block: [threads, 1, 1],
        dynamic_shared: 0,
        cooperative: false,
        params: &out.0.to_le_bytes(),
    };
    gpu.launch(stream, &launch)?;
    gpu.stream_synchronize(stream)?;
    let mut words = vec![0u32; threads as usize];
    // SAFETY: the words outlive the synchronization below.
    let host = Place::Host(unsafe { HostSpan::new(words.as_mut_ptr().cast(), bytes) });
    gpu.copy(stream, &Copy3d::linear(host, Place::Device(out), bytes))?;
    gpu.stream_synchronize(stream)?;
    Ok(words)
}

#[test]
fn a_callee_s_array_is_each_thread_s_own() {
    let before = ".global .u32 sums[1024];
.func f () { .local .align 16 .b8 own[1024]; .reg .b32 %r<3>; .reg .b64 %d<3>;
mov.u32 %r1, %tid.x; st.local.u32 [own], %r1; st.local.u32 [own+1020], %r1; bar.sync 0;
ld.local.u32 %r1, [own]; ld.local.u32 %r2, [own+1020]; add.u32 %r2, %r2, %r1;
mul.wide.u32 %d1, %r1, 4; mov.u64 %d2, sums; add.s64 %d1, %d1, %d2; st.global.u32 [%d1], %r2; ret; }";
    let body = "call f; mul.wide.u32 %d1, %r1, 4; mov.u64 %d2, sums; add.s64 %d1, %d1, %d2;
	ld.global.u32 %r2, [%d1];";
    let text = kernel(before, body);
    let want: Vec<u32> = (0..1024).map(|t| 2 * t).collect();
    for engine in [Engine::Interpreter, Engine::Jit] {
        assert_eq!(results(&text, engine, 1024).unwrap(), want);
    }
}

#[test]
fn what_is_not_inlined_has_its_stack() {
    let adds = "add.u32 %r1, %r1, 1;\n".repeat(2000);
    let before = format!(
        ".func (.param .b32 s) f (.param .b32 a) {{ .local .align 16 .b8 own[4096]; .reg .b32 %r<3>;
ld.param.u32 %r1, [a]; {adds} st.local.u32 [own+4092], %r1; ld.local.u32 %r2, [own+4092];
st.param.u32 [s], %r2; ret; }}"
    );
    let mut body = String::new();
    for _ in 0..40 {
        writeln!(body, "{}", call("f")).unwrap();
    }
    let found = results(&kernel(&before, &body), Engine::Jit, 64).unwrap();
    assert_eq!(found, (2000..2064).collect::<Vec<u32>>());
}

#[test]
fn frames_that_no_device_has_are_refused() {
    let before = ".func (.param .b32 s) f (.param .b32 a) { .local .align 16 .b8 own[4000000000];
.reg .b32 %r<3>; ld.param.u32 %r1, [a]; st.local.u32 [own+3999999996], %r1; ret; }";
    let refused = results(&kernel(before, &call("f")), Engine::Jit, 1).unwrap_err();
    assert_eq!(refused.code, CuResult::LaunchOutOfResources, "{refused}");
}
