//! Offsets of addresses up to the ends of their range: sums wrap around, and what they reach is checked as any address.

mod common;

use common::{Device, Params, compiled};
use mica_kernel::BlockOutcome;
use mica_ptx_jit::{JitModule, Options};
use std::sync::Arc;

const THREADS: u32 = 32;
const OFFSETS: [i64; 8] = [
    i64::MAX,
    i64::MAX - 3,
    i64::MIN,
    i64::MIN + 4,
    1 << 62,
    -(1 << 62),
    (1 << 31) + 4,
    -(1 << 33),
];

/// Adds `offset` to a base from which it was taken away before: for one address, for consecutive ones, for scattered ones,
/// in global, shared and local memory.
fn kernel(offset: i64) -> String {
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n
.visible .entry k(.param .u64 out, .param .u64 base)
{{
    .shared .align 16 .b8 shared[1024];
    .local .align 16 .b8 local[64];
    .reg .b64 %out, %a, %b, %c, %s, %l, %x; .reg .b32 %t, %h, %v, %w, %z;
    ld.param.u64 %out, [out]; ld.param.u64 %a, [base];
    mov.u32 %t, %tid.x; mul.wide.u32 %x, %t, 4;
    ld.global.u32 %v, [%a+{offset}];
    add.u64 %b, %a, %x;
    ld.global.u32 %w, [%b+{offset}]; add.u32 %v, %v, %w;
    mul.lo.u32 %h, %t, 7; and.b32 %h, %h, 31; mul.wide.u32 %c, %h, 4; add.u64 %c, %c, %a;
    ld.global.u32 %w, [%c+{offset}]; add.u32 %v, %v, %w;
    mov.u64 %s, shared; add.u64 %s, %s, %x; sub.u64 %s, %s, {offset};
    st.shared.u32 [%s+{offset}], %v; ld.shared.u32 %v, [%s+{offset}];
    mov.u64 %l, local; sub.u64 %l, %l, {offset};
    st.local.u32 [%l+{offset}], %v; ld.local.u32 %z, [%l+{offset}];
    add.u64 %x, %x, %out; st.global.u32 [%x], %z;
    ret;
}}\n"
    )
}

/// All kinds of code: the interpreter, one lane and several, exact bounds.
fn devices(text: &str) -> Vec<(String, Device)> {
    let mut devices = vec![("interpreter".to_owned(), Device::interpreter(text))];
    for lanes in [1, 4, 16, 32] {
        devices.push((format!("{lanes} lanes"), compiled(text, lanes)));
        let parsed = Arc::new(mica_ptx::parse(text.as_bytes()).unwrap());
        let memcheck = true;
        let options = Options {
            lanes,
            memcheck,
            ..Options::default()
        };
        let module = JitModule::compile(parsed, options).unwrap();
        devices.push((
            format!("{lanes} lanes, exact"),
            Device::new(Box::new(module)),
        ));
    }
    devices
}

#[test]
fn an_offset_that_wraps_around_reaches_what_it_should() {
    let values: Vec<u32> = (0..THREADS).map(|i| i * i + 1).collect();
    let want: Vec<u32> = (0..THREADS as usize)
        .map(|t| values[0] + values[t] + values[t * 7 % 32])
        .collect();
    for offset in OFFSETS {
        // Exact alignment is part of an address: the base is moved by the whole offset.
        for (name, mut device) in devices(&kernel(offset)) {
            let base = device.upload(&values).wrapping_sub(offset as u64);
            let out = device.upload(&vec![0; THREADS as usize]);
            device.run("k", 1, THREADS, Params::default().u64(out).u64(base));
            let got = device.read(out, THREADS as usize);
            assert_eq!(got, want, "{name}, offset {offset}");
        }
    }
}

#[test]
fn an_offset_that_leads_outside_is_a_fault() {
    for offset in OFFSETS {
        for (name, mut device) in devices(&kernel(offset)) {
            let base = device.upload(&[0; 32]);
            let out = device.upload(&[0; 32]);
            let params = Params::default().u64(out).u64(base);
            let dim = common::dim;
            let (outcome, fault) = device.launch("k", dim(1), dim(THREADS), 0, params);
            assert!(
                matches!(outcome, BlockOutcome::Faulted),
                "{name}, {offset}: {fault:?}"
            );
        }
    }
}
