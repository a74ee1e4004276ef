//! A seed chooses the order of blocks: the same bits every time, other bits with another seed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use mica_backend_software::{Config, OutputKind, OutputSink, SoftwareGpu};
use mica_gpu::{Copy3d, Gpu, HostSpan, Launch, ModuleOptions, Place};

/// Each thread adds 1 / (1 + its number) to one float, in single precision: the sum depends on the order.
const SUM: &str = "\
.version 7.0
.target sm_75
.address_size 64
.visible .entry sum(.param .u64 out)
{
.reg .b32 %r<6>; .reg .f32 %f<6>; .reg .b64 %d<2>;
ld.param.u64 %d1, [out];
mov.u32 %r1, %ctaid.x;
mov.u32 %r2, %ntid.x;
mov.u32 %r3, %tid.x;
mad.lo.u32 %r4, %r1, %r2, %r3;
add.u32 %r4, %r4, 1;
cvt.rn.f32.u32 %f1, %r4;
rcp.rn.f32 %f2, %f1;
red.global.add.f32 [%d1], %f2;
ret;
}
";

/// The bits of the sum, after several launches.
fn sum(seed: Option<u64>, workers: Option<usize>) -> u32 {
    let config = Config {
        memory_bytes: Some(64 << 20),
        seed,
        workers,
        ..Config::default()
    };
    let gpu = SoftwareGpu::new(config).unwrap();
    let context = gpu.context_create().unwrap();
    let module = gpu
        .module_load(context, SUM.as_bytes(), &ModuleOptions::default())
        .unwrap();
    let out = gpu.memory_alloc(context, 4).unwrap();
    let stream = gpu.default_stream(context).unwrap();
    let params = out.0.to_le_bytes();
    for _ in 0..3 {
        let launch = Launch {
            module,
            kernel: 0,
            grid: [200, 1, 1],
            block: [50, 1, 1],
            dynamic_shared: 0,
            cooperative: false,
            params: &params,
        };
        gpu.launch(stream, &launch).unwrap();
    }
    let mut bits = 0u32;
    // SAFETY: the word outlives the synchronization below.
    let host = Place::Host(unsafe { HostSpan::new((&raw mut bits).cast(), 4) });
    let copy = Copy3d::linear(host, Place::Device(out), 4);
    gpu.copy(stream, &copy).unwrap();
    gpu.stream_synchronize(stream).unwrap();
    bits
}

#[test]
fn a_sum_of_floats_is_the_same_under_one_seed_and_differs_between_seeds() {
    let sums: Vec<u32> = (0..12).map(|seed| sum(Some(seed), None)).collect();
    for (seed, first) in (0..).zip(&sums) {
        for _ in 0..3 {
            assert_eq!(sum(Some(seed), None), *first, "seed {seed}");
        }
    }
    let different: BTreeSet<u32> = sums.iter().copied().collect();
    assert!(different.len() > 3, "{sums:x?}");
    // All are the same sum but for rounding.
    for bits in sums {
        let value = f32::from_bits(bits);
        assert!((value - 29.36).abs() < 0.1, "{value}");
    }
}

#[test]
fn the_usual_order_is_that_of_seed_0_on_one_worker() {
    assert_eq!(sum(Some(0), None), sum(Some(0), Some(1)));
}

/// Prints its block.
const PRINT: &str = "\
.version 7.0
.target sm_75
.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
.global .align 1 .b8 text[4] = {37, 100, 32, 0};
.visible .entry say()
{
.local .align 8 .b8 args[8];
.reg .b32 %r<3>; .reg .b64 %d<4>;
mov.u32 %r1, %ctaid.x;
mov.u64 %d1, args;
cvta.local.u64 %d2, %d1;
st.u32 [%d2], %r1;
mov.u64 %d1, text;
cvta.global.u64 %d3, %d1;
{
.param .b64 p0; .param .b64 p1; .param .b32 q;
st.param.b64 [p0], %d3;
st.param.b64 [p1], %d2;
call.uni (q), vprintf, (p0, p1);
}
ret;
}
";

fn printed(seed: u64) -> String {
    let told = Arc::new(Mutex::new(String::new()));
    let sink = Arc::clone(&told);
    let output: OutputSink = Arc::new(move |kind, text: &[u8]| {
        if kind == OutputKind::Print {
            let text = String::from_utf8_lossy(text);
            sink.lock().unwrap().push_str(&text);
        }
    });
    let config = Config {
        memory_bytes: Some(64 << 20),
        output: Some(output),
        seed: Some(seed),
        ..Config::default()
    };
    let gpu = SoftwareGpu::new(config).unwrap();
    let context = gpu.context_create().unwrap();
    let module = gpu
        .module_load(context, PRINT.as_bytes(), &ModuleOptions::default())
        .unwrap();
    let stream = gpu.default_stream(context).unwrap();
    let launch = Launch {
        module,
        kernel: 0,
        grid: [7, 1, 1],
        block: [1, 1, 1],
        dynamic_shared: 0,
        cooperative: false,
        params: &[],
    };
    gpu.launch(stream, &launch).unwrap();
    gpu.stream_synchronize(stream).unwrap();
    std::mem::take(&mut *told.lock().unwrap())
}

#[test]
fn blocks_print_in_the_order_that_the_seed_chooses() {
    assert_eq!(printed(0), "0 1 2 3 4 5 6 ");
    let one = printed(7);
    assert_eq!(printed(7), one);
    assert_ne!(one, printed(0));
    let mut blocks: Vec<&str> = one.split_whitespace().collect();
    blocks.sort_unstable();
    assert_eq!(blocks, ["0", "1", "2", "3", "4", "5", "6"]);
}
