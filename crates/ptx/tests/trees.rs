//! Syntax trees, whole: each file in `tests/trees` is a text, and the tree and the control flow that
//! must come of it.
//!
//! `BLESS=1 cargo test -p mica-ptx --test trees` rewrites the expectations; read the difference
//! before it is committed.

mod golden;

use mica_ptx::ast::{Function, Module};
use mica_ptx::cfg::Cfg;
use std::fmt::Write;

#[test]
fn trees_are_as_written() {
    golden::check("trees", 8, |text| match mica_ptx::parse(text.as_bytes()) {
        Ok(module) => {
            mica_ptx::verify(&module).unwrap_or_else(|e| panic!("{e}"));
            tree(&module)
        }
        Err(e) => e.to_string(),
    });
}

fn tree(module: &Module) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "version {:?} target {:?} address {} common shared {}",
        module.version, module.target, module.address_bits, module.common_shared_bytes
    );
    for file in &module.files {
        let _ = writeln!(out, "{file:?}");
    }
    for (i, var) in module.vars.iter().enumerate() {
        let _ = writeln!(out, "var {i} {var:?}");
    }
    for proto in &module.prototypes {
        let _ = writeln!(out, "{proto:?}");
    }
    for (i, f) in module.functions.iter().enumerate() {
        function(&mut out, i, f);
    }
    for unsupported in &module.unsupported {
        let _ = writeln!(out, "{unsupported:?}");
    }
    out
}

fn function(out: &mut String, i: usize, f: &Function) {
    let kind = if f.is_kernel { "kernel" } else { "function" };
    let _ = writeln!(out, "{kind} {i} {} line {} {:?}", f.name, f.line, f.linkage);
    for (what, params) in [("param", &f.params), ("return", &f.returns)] {
        for p in params {
            let _ = writeln!(out, "  {what} {p:?}");
        }
    }
    let _ = writeln!(
        out,
        "  bytes: params {} returns {} calls {} shared {} local {} align {}",
        f.param_bytes,
        f.return_bytes,
        f.call_param_bytes,
        f.shared_bytes,
        f.local_bytes,
        f.local_align
    );
    let _ = writeln!(out, "  {:?}", f.directives);
    for (r, reg) in f.regs.iter().enumerate() {
        let _ = writeln!(out, "  reg {r} {reg:?}");
    }
    if !f.defined {
        return;
    }
    let cfg = Cfg::build(f);
    for (pc, inst) in f.body.iter().enumerate() {
        let guard = inst.guard.map(|g| format!("{g:?} ")).unwrap_or_default();
        let loc = inst.loc.map(|l| format!(" {l:?}")).unwrap_or_default();
        let _ = writeln!(
            out,
            "  {pc} (block {}) {guard}{:?}{loc}",
            cfg.block_of[pc], inst.op
        );
    }
    let _ = writeln!(out, "  order {:?}", cfg.rpo);
}
