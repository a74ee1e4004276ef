//! What the patches leave of real kernels' code.

use cranelift_codegen::Context;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::{Function, UserFuncName};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use mica_ptx_ops::layout::ModuleLayout;

use super::{replace, supported, vex};
use crate::emit::{Emit, Source, signature};
use crate::plan::Plan;

/// Machine code with the starts of its blocks, before and after the patches.
struct Patched {
    starts: Vec<u32>,
    before: Vec<u8>,
    after: Vec<u8>,
}

/// Compiles a kernel for eight lanes with 256 bits; `None` when this processor has none.
fn patched(text: &str, kernel: &str, proven: bool) -> Option<Patched> {
    let isa = crate::code::target(false, false).expect("a target");
    if !supported(&*isa) {
        return None;
    }
    let module = mica_ptx::parse(text.as_bytes()).expect("parses");
    let layout = ModuleLayout::new(&module).expect("a layout");
    let (func, _) = module.function(kernel).expect("a kernel");
    let plan = Plan::build(&module, &layout, func).expect("a plan");
    let src = Source {
        has_fma: true,
        proven,
        broadcasts: true,
        wide: true,
        ..Source::plain(&module, &layout, &plan)
    };
    let sig = signature(isa.default_call_conv());
    let mut func = Function::with_name_signature(UserFuncName::default(), sig);
    let mut shared = FunctionBuilderContext::new();
    let builder = FunctionBuilder::new(&mut func, &mut shared);
    let (builder, patches) = Emit::function(builder, &src, 8).expect("emitted");
    builder.finalize(isa.frontend_config());
    let mut ctx = Context::for_function(func);
    let code = ctx
        .compile(&*isa, &mut ControlPlane::default())
        .unwrap_or_else(|e| panic!("{:?}", e.inner));
    let locations: Vec<_> = code
        .buffer
        .get_srclocs_sorted()
        .iter()
        .filter(|l| l.loc.bits() != 0 && l.loc.bits() != u32::MAX)
        .map(|l| (l.start, l.end, l.loc.bits()))
        .collect();
    let starts = code.bb_starts.clone();
    let before = code.buffer.data().to_vec();
    let mut after = before.clone();
    let marked = patches.expect("wide code without branches");
    assert!(replace(&mut after, &locations, &starts, marked), "{kernel}");
    Some(Patched {
        starts,
        before,
        after,
    })
}

#[test]
fn no_legacy_instruction_stands_beside_wide_ones() {
    let bench = include_str!("../../kernels/bench.ptx");
    let trial = include_str!("../width/width.ptx");
    for (text, kernel, proven) in [
        (bench, "nbody", false),
        (bench, "nbody", true),
        (trial, "trial", true),
    ] {
        let Some(p) = patched(text, kernel, proven) else {
            return;
        };
        let before = vex::legacy_count(&p.before, &p.starts).expect("known instructions");
        assert!(
            before > 0,
            "Cranelift makes none in {kernel}: nothing is tested"
        );
        assert_eq!(vex::legacy_count(&p.after, &p.starts), Some(0), "{kernel}");
        assert!(vex::is_clean(&p.after, &p.starts), "{kernel}");
        assert!(p.after.windows(3).any(|b| b == super::wide::CLEAR));
        assert_eq!(p.after.len(), p.before.len());
    }
}
