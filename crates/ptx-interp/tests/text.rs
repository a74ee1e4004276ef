//! Small kernels written by hand, for what nvcc seldom emits, and for what must be refused.

mod common;
#[path = "text/kernel.rs"]
mod text;

use common::{Device, Params, dim};
use mica_kernel::{BlockOutcome, Executable};
use mica_ptx_interp::{InterpModule, UnsupportedError};
use std::sync::Arc;
use text::{HEAD, kernel};

mod run {
    fn device(text: &str) -> Device {
        Device::interpreter(text)
    }

    include!("text/body.rs");
}

// The compiler refuses `alloca`, so that this is not among what both engines run.
#[test]
fn stack_allocation_is_private_and_bounded() {
    let text = kernel(
        "",
        "stacksave.u64 %d1; alloca.u64 %d2, 64, 16; st.local.u32 [%d2+60], %i;
         ld.local.u32 %r1, [%d2+60]; stackrestore.u64 %d1; st.global.u32 [%out], %r1;",
    );
    let mut device = Device::interpreter(&text);
    let out = device.alloc(16 * 40);
    device.run("k", 1, 40, Params::default().u64(out));
    let first: Vec<u32> = device.read(out, 4 * 40).into_iter().step_by(4).collect();
    assert_eq!(first, (0..40).collect::<Vec<u32>>());
    let text = kernel("", "mov.u64 %d1, 1000000; alloca.u64 %d2, %d1, 16;");
    let mut device = Device::interpreter(&text);
    let at = device.alloc(16);
    let (outcome, fault) = device.launch("k", dim(1), dim(1), 0, Params::default().u64(at));
    assert_eq!((outcome, fault.kind), (BlockOutcome::Faulted, 719));
}

#[test]
fn blocks_on_other_host_threads_share_memory_atomically() {
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 p) {{
           .reg .b64 %d<2>; .reg .b32 %r<4>; .reg .pred %p;
           ld.param.u64 %d0, [p]; mov.u32 %r0, 0;
LOOP:      atom.global.add.u32 %r1, [%d0], 1; red.global.add.f32 [%d0+4], 0f3F800000;
           add.u32 %r0, %r0, 1; setp.lt.u32 %p, %r0, 50; @%p bra LOOP;
           ret; }}"
    );
    let module = Arc::new(
        InterpModule::new(Arc::new(mica_ptx::parse(text.as_bytes()).expect("parses")))
            .expect("runs"),
    );
    let arena = vec![0u64; 1 << 16].into_boxed_slice();
    let base = arena.as_ptr() as u64;
    let at = base + 4096;
    std::thread::scope(|scope| {
        for worker in 0..4u64 {
            let module = Arc::clone(&module);
            scope.spawn(move || {
                let params = at.to_le_bytes();
                let mut context = mica_kernel::BlockContext {
                    arena_base: base,
                    arena_len: 8 << 16,
                    shared_base: base + 8192,
                    local_base: base + 16384 + worker * 65536,
                    local_stride: 512,
                    params: params.as_ptr(),
                    params_len: 8,
                    block: dim(64),
                    grid: dim(4),
                    ..mica_kernel::BlockContext::empty()
                };
                // SAFETY: the arena outlives the scope; kernel accesses to it are atomic.
                let outcome = unsafe { module.run_block(0, &mut context) };
                assert_eq!(outcome, BlockOutcome::Done);
            });
        }
    });
    // SAFETY: inside the arena, and nothing runs any more.
    let (count, sum) = unsafe { (*(at as *const u32), *((at + 4) as *const f32)) };
    assert_eq!((count, sum), (12_800, 12_800.0));
}

fn refusal(text: &str) -> UnsupportedError {
    let parsed = mica_ptx::parse(text.as_bytes()).expect("parses");
    InterpModule::new(Arc::new(parsed)).expect_err("is refused")
}

#[test]
fn what_cannot_run_is_refused_by_name_and_line() {
    let undefined = kernel(
        ".extern .func (.param .b32 r) cudaLaunchDeviceV2(.param .b64 a);",
        "{ .param .b64 a; .param .b32 r; st.param.b64 [a], %d0;
           call (r), cudaLaunchDeviceV2, (a); }",
    );
    let message = refusal(&undefined).to_string();
    assert!(
        message.contains("cudaLaunchDeviceV2") && message.contains("line"),
        "{message}"
    );
    let cluster = format!(
        "{HEAD}.visible .entry k() .explicitcluster .reqnctapercluster 17, 1, 1 {{ ret; }}"
    );
    assert!(refusal(&cluster).to_string().contains("cluster"));
    let external = format!("{HEAD}.extern .global .u32 elsewhere;\n.visible .entry k() {{ ret; }}");
    assert!(matches!(refusal(&external), UnsupportedError::Layout(_)));
}

/// Calls without memory cost none of the stack, and all blocks of a cluster are kept at a time.
#[test]
fn all_blocks_of_a_cluster_have_the_frames_and_registers_of_one() {
    let text = format!(
        "{HEAD}
.global .u32 count;
.func deeper()
{{
.reg .u32 %r<41>;
atom.global.add.u32 %r1, [count], 1;
call deeper;
add.u32 %r40, %r1, 1;
ret;
}}
.visible .entry k() {{ call deeper; ret; }}
"
    );
    let depth = |cluster: u32| {
        let mut device = Device::interpreter(&text);
        device.cluster = cluster;
        let (outcome, fault) = device.launch("k", dim(cluster), dim(1), 0, Params::default());
        assert_eq!((outcome, fault.kind), (BlockOutcome::Faulted, 719));
        device.read(device.global("count"), 1)[0]
    };
    // The blocks take turns, and the first one that has no more room ends the cluster.
    let alone = depth(1);
    for cluster in [2, 16] {
        let all = depth(cluster);
        assert!(
            all <= alone,
            "{all} frames in {cluster} blocks, {alone} in one"
        );
    }
}
