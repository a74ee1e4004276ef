//! Variables that are smaller than they are declared, and parameters that are smaller than their class.

use super::{HEAD, changes, reserve};
use crate::common::{Device, Params, compiled, dim};
use mica_kernel::{BlockOutcome, Fault, FaultKind};
use mica_ptx_jit::{JitModule, Options};
use std::sync::Arc;

fn compile(text: &str) -> Result<JitModule, String> {
    let module = mica_ptx::parse(text.as_bytes()).map_err(|e| e.to_string())?;
    JitModule::compile(Arc::new(module), Options::default()).map_err(|e| e.to_string())
}

#[test]
fn an_extern_variable_is_not_larger_than_its_definition() {
    let text = format!(
        "{HEAD}.extern .global .align 8 .b8 x[1099511627776];
.visible .entry k(.param .u64 out)
{{
	st.global.u32 [x+1099511627700], 1;
	ret;
}}
.visible .entry other() {{ .global .align 8 .b8 x[8]; st.global.u32 [x], 1; ret; }}
"
    );
    let refused = compile(&text).err().expect("refused");
    assert!(refused.contains("`x`"), "{refused}");
}

/// A call through a pointer can reach a function whose shared variables the kernel does not reserve.
#[test]
fn shared_memory_of_another_kernel_is_out_of_bounds() {
    let text = format!(
        "{HEAD}.shared .align 4 .b8 big[120000];
.func harmless() {{ ret; }}
.func evil() {{ st.shared.u32 [big+119996], 7; ret; }}
.global .align 8 .u64 pointers[1] = {{evil}};
.visible .entry k(.param .u64 out)
{{
	.reg .b64 %d<3>;
	ld.global.u64 %d1, [pointers];
list: .calltargets harmless;
	call %d1, list;
	ret;
}}
.visible .entry other() {{ call evil; ret; }}
"
    );
    let mut d = compiled(&text, 1);
    assert_eq!(d.module.kernels()[d.kernel("k")].static_shared, 0);
    let (result, changed) = changes(&mut d, 1, Params::default().u64(0));
    assert_eq!(result.0, BlockOutcome::Faulted);
    let locals = super::locals(&mut d, 1);
    for r in changed {
        let link = locals.start <= r.start && r.end <= locals.end;
        assert!(link, "{r:x?} changed, local memory is {locals:x?}");
    }
}

#[test]
fn an_argument_fills_its_parameter_and_no_more() {
    // The last byte of the parameters is the last byte of the frame.
    let text = format!(
        "{HEAD}.func f (.param .align 1 .b8 a[15], .param .b8 last) {{ ret; }}
.visible .entry k(.param .u64 out)
{{
	.reg .b32 %r<3>;
	.reg .b64 %d<3>;
	.local .align 16 .b8 own[16];
	.reg .b8 %b1;
	ld.param.u64 %d1, [out];
	ld.global.u8 %b1, [%d1];
	{{ .param .align 1 .b8 a[15]; call f, (a, %b1); }}
	ld.param.u64 %d1, [out];
	st.global.u32 [%d1], 5;
	ret;
}}
"
    );
    let mut d = compiled(&text, 1);
    reserve(&mut d);
    let out = d.upload(&[0]);
    let locals = super::locals(&mut d, 1);
    // A byte of 0 that is written too much shows.
    d.write_bytes(locals.start, &[0xaa; 256]);
    let (result, changed) = changes(&mut d, 1, Params::default().u64(out));
    assert_eq!(result.0, BlockOutcome::Done, "{:?}", result.1);
    for r in changed {
        let inside = locals.start <= r.start && r.end <= locals.end;
        assert!(
            inside || r.start == out,
            "{r:x?} changed, local memory is {locals:x?}"
        );
    }
}

/// Elements of eight bytes, and a size that is no multiple of that: the last one would end outside.
#[test]
fn a_bulk_reduction_ends_where_its_size_says() {
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 out)
{{
	.shared .align 16 .b8 from[24];
	.reg .b64 %d<3>;
	ld.param.u64 %d1, [out];
	cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u64 [%d1], [from], 20;
	ret;
}}
"
    )
    .replace(".target sm_80", ".target sm_90");
    for mut d in [Device::interpreter(&text), compiled(&text, 1)] {
        let (_, end) = d.arena();
        let params = Params::default().u64(end - 32);
        let (outcome, fault) = d.launch("k", dim(1), dim(1), 0, params);
        assert_eq!(outcome, BlockOutcome::Faulted);
        assert_eq!(fault.kind, FaultKind::MisalignedAddress as u32);
    }
}

/// Each activation has its registers, in the interpreter's own memory.
#[test]
fn recursion_with_many_registers_ends() {
    let many: Vec<String> = (0..2000).map(|i| format!("mov.u32 %x{i}, %r1;")).collect();
    let text = format!(
        "{HEAD}.func again(); .func again() {{ .reg .b32 %r<2>; .reg .b32 %x<2000>;
mov.u32 %r1, %tid.x; {} call again; ret; }}
.visible .entry k(.param .u64 out) {{ call again; ret; }}
",
        many.join("\n")
    );
    let mut d = Device::interpreter(&text);
    let (outcome, fault) = d.launch("k", dim(1), dim(64), 0, Params::default().u64(0));
    assert_eq!(outcome, BlockOutcome::Faulted);
    assert_eq!(fault.address, Fault::STACK_FULL);
    assert!(resident_bytes() < 2 << 30, "{} bytes", resident_bytes());
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages = text
        .split_whitespace()
        .nth(1)
        .and_then(|n| n.parse::<u64>().ok());
    4096 * pages.expect("a number")
}
