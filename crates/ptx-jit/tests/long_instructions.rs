//! Instructions that take long look now and then whether their block should stop: no loop of the program does it for them.

mod common;

use std::sync::atomic::Ordering::SeqCst;

use common::{Device, Params, compiled, dim};
use mica_kernel::{BlockOutcome, stop};
use mica_ptx_ops::tensor_map::{Shape, TensorMap};

/// Kernels of straight code. `a` and `b` are memory, `map` is a tensor map of rows of 16 bytes in `a`, 256 of them a box.
const TEXT: &str = "
.version 8.4
.target sm_90a
.address_size 64
.extern .func __mica_multiply_f32 (.param .b64 q0, .param .b64 q1, .param .b64 q2, .param .b64 q3, .param .b64 q4,
    .param .b64 q5, .param .b64 q6, .param .b64 q7);
.visible .entry product(.param .u64 a, .param .u64 b, .param .u64 map)
{
.reg .b64 %a, %b; .param .b64 x0; .param .b64 x1; .param .b64 x2; .param .b64 x3; .param .b64 x4; .param .b64 x5;
.param .b64 x6; .param .b64 x7;
ld.param.u64 %a, [a]; ld.param.u64 %b, [b];
st.param.b64 [x0], %a; st.param.b64 [x1], %a; st.param.b64 [x2], %b;
st.param.b64 [x3], 0x4000400040; st.param.b64 [x4], 64; st.param.b64 [x5], 1; st.param.b64 [x6], 64; st.param.b64 [x7], 64;
call.uni __mica_multiply_f32, (x0, x1, x2, x3, x4, x5, x6, x7);
exit;
}
.visible .entry load(.param .u64 a, .param .u64 b, .param .u64 map)
{
.reg .b32 %r, %m; .reg .b64 %map; .shared .align 128 .b8 room[4096]; .shared .align 8 .b8 bar[8];
ld.param.u64 %map, [map]; mov.u32 %r, room; mov.u32 %m, bar;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r], [%map, {0, 0}], [%m];
exit;
}
.visible .entry store(.param .u64 a, .param .u64 b, .param .u64 map)
{
.reg .b32 %r; .reg .b64 %map; .shared .align 128 .b8 room[4096];
ld.param.u64 %map, [map]; mov.u32 %r, room;
cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%map, {0, 0}], [%r];
exit;
}
.visible .entry outside(.param .u64 a, .param .u64 b, .param .u64 map)
{
.reg .b32 %r; .reg .b64 %map; .shared .align 128 .b8 room[4096];
ld.param.u64 %map, [map]; mov.u32 %r, room;
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%map, {-100, 0}], [%r];
exit;
}
.visible .entry reduce(.param .u64 a, .param .u64 b, .param .u64 map)
{
.reg .b32 %r; .reg .b64 %b; .shared .align 128 .b8 room[32768];
ld.param.u64 %b, [b]; mov.u32 %r, room;
cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%b], [%r], 32768;
exit;
}
";

/// The sums of all warps of the largest block.
const WARPGROUPS: &str = "
.version 8.4
.target sm_90a
.address_size 64
.visible .entry warpgroups()
{
.reg .b64 %d; .reg .f32 %f<4>; .shared .align 128 .b8 room[4096];
mov.b64 %d, 0x0000001000080000;
wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %d, %d, 0, 1, 1, 0, 0;
exit;
}
";

/// How a kernel ends that is asked to hold still from the beginning, and how often it looks. It may go on so often.
fn ended(mut d: Device, kernel: &str, threads: u32, patience: u32) -> (BlockOutcome, u32) {
    let words = vec![0x3f80_0000; 8192];
    let (a, b) = (d.upload(&words), d.upload(&words));
    let map = TensorMap {
        shape: Shape::Tiled([4, 256, 1, 1, 1]),
        data_type: 2,
        rank: 2,
        swizzle: 0,
        fills_nan: false,
        address: a,
        dims: [4, 1024, 1, 1, 1],
        strides: [16, 0, 0, 0],
        element_strides: [1; 5],
    };
    let at = d.alloc(128);
    d.write_bytes(at, &map.encode());
    d.local_stride = d.module.local_bytes(d.kernel(kernel)).next_multiple_of(16);
    d.stop.store(stop::PAUSE, SeqCst);
    d.host.patience.store(patience, SeqCst);
    let params = match kernel {
        "warpgroups" => Params::default(),
        _ => Params::default().u64(a).u64(b).u64(at),
    };
    let (outcome, fault) = d.launch(kernel, dim(1), dim(threads), 0, params);
    assert_eq!(fault.kind, 0, "{kernel}: {fault:?}");
    (outcome, d.host.pauses.load(SeqCst))
}

fn engines(text: &str) -> impl Iterator<Item = (u32, Device)> + '_ {
    [0, 1, 16, 32].into_iter().map(move |lanes| match lanes {
        0 => (lanes, Device::interpreter(text)),
        lanes => (lanes, compiled(text, lanes)),
    })
}

#[test]
fn a_long_instruction_holds_still_and_is_cancelled() {
    // At least so many looks: one for each of some rows, tiles, pieces or warps.
    for (text, kernel, threads, looks) in [
        (TEXT, "product", 1, 8),
        (TEXT, "load", 1, 256),
        (TEXT, "store", 1, 256),
        (TEXT, "outside", 1, 256),
        (TEXT, "reduce", 1, 8),
        (WARPGROUPS, "warpgroups", 1024, 32),
    ] {
        for (lanes, d) in engines(text) {
            let (outcome, looked) = ended(d, kernel, threads, u32::MAX);
            assert_eq!(outcome, BlockOutcome::Done, "{kernel}, {lanes} lanes");
            assert!(looked >= looks, "{kernel}, {lanes} lanes: {looked} looks");
        }
        for (lanes, d) in engines(text) {
            let (outcome, looked) = ended(d, kernel, threads, 5);
            assert_eq!(outcome, BlockOutcome::Cancelled, "{kernel}, {lanes} lanes");
            assert_eq!(looked, 7, "{kernel}, {lanes} lanes: it asked once more");
        }
    }
}

#[test]
fn straight_code_of_the_interpreter_is_cancelled() {
    let sums = "add.u32 %r, %r, 3;\n".repeat(4000);
    let text = format!(
        ".version 8.4\n.target sm_80\n.address_size 64\n.visible .entry k() {{ .reg .b32 %r; mov.u32 %r, 0;\n{sums} exit; }}"
    );
    let mut d = Device::interpreter(&text);
    d.stop.store(stop::PAUSE, SeqCst);
    d.host.patience.store(3, SeqCst);
    let (outcome, _) = d.launch("k", dim(1), dim(32), 0, Params::default());
    assert_eq!(outcome, BlockOutcome::Cancelled);
}
