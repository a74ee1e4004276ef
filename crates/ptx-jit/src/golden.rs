//! Golden files: what each pass makes of a few small kernels.
//!
//! A file of `tests/golden` holds a kernel, then what every pass made of it. `BLESS=1 cargo test` writes
//! the files anew; the difference is for people to read.

use cranelift_codegen::ir::{Function as ClFunction, UserFuncName};
use cranelift_codegen::isa::CallConv;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use mica_ptx::ast::Module;
use mica_ptx_ops::layout::ModuleLayout;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::emit::{Emit, Source, signature};
use crate::plan::Plan;
use crate::uniformity::Uniformity;
use crate::unit::{Place, Step};

/// Between the kernel and what became of it.
const RULE: &str = "// ---- what the passes make of it ----\n";
const LANES: usize = 4;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

#[test]
fn passes_make_what_the_golden_files_say() {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder())
        .expect("tests/golden")
        .map(|e| e.expect("an entry").path())
        .filter(|p| p.extension().is_some_and(|e| e == "ptx"))
        .collect();
    files.sort();
    assert!(files.len() >= 3, "golden files are missing");
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a golden file");
        let kernel = text.split(RULE).next().unwrap_or_default();
        let made = format!("{kernel}{RULE}{}", passes(kernel));
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&file, made).expect("written");
            continue;
        }
        let differs = made.lines().zip(text.lines()).find(|(a, b)| a != b);
        assert!(
            made == text,
            "{}: BLESS=1 accepts it; the first difference is\n  made {:?}",
            file.display(),
            differs
        );
    }
}

fn passes(text: &str) -> String {
    let module = mica_ptx::parse(text.as_bytes()).expect("parses");
    let layout = ModuleLayout::new(&module).expect("a layout");
    let plan = Plan::build(&module, &layout, layout.kernel_functions[0]).expect("a plan");
    let mut out = String::new();
    unit(&mut out, &module, &plan, text);
    uniformities(&mut out, &module, &plan);
    entries(&mut out, &plan);
    code(&mut out, &module, &layout, &plan);
    // As comments, so that the file stays PTX.
    out.lines().fold(String::new(), |mut all, l| {
        let _ = writeln!(all, "{}", format!("// {l}").trim_end());
        all
    })
}

/// Blocks: lines of the text, and where control goes.
fn unit(out: &mut String, module: &Module, plan: &Plan, text: &str) {
    let lines: Vec<&str> = text.lines().collect();
    let _ = writeln!(out, "unit");
    for &b in &plan.graph.rpo {
        let block = &plan.unit.blocks[b as usize];
        let _ = writeln!(out, "  block {b}");
        for step in &block.steps {
            match step {
                Step::Inst(inst) => {
                    let place = Place {
                        instance: block.instance,
                        inst: *inst,
                    };
                    let line = plan.unit.inst(module, place).line as usize;
                    let words: Vec<&str> = lines[line - 1].split_whitespace().collect();
                    let _ = writeln!(out, "    {}", words.join(" "));
                }
                other => {
                    let _ = writeln!(out, "    {other:?}");
                }
            }
        }
        let _ = writeln!(out, "    -> {:?}", block.term);
    }
}

/// Registers that are not plainly varying.
fn uniformities(out: &mut String, module: &Module, plan: &Plan) {
    let _ = writeln!(out, "shape");
    let func = plan.unit.func(module, 0);
    let base = plan.unit.instances[0].reg_base;
    for (i, reg) in func.regs.iter().enumerate() {
        let uniformity = plan.uniformity(base + i as u32);
        if uniformity != Uniformity::Varying {
            let _ = writeln!(out, "  {} {uniformity:?}", reg.name);
        }
    }
    let mut guards: Vec<_> = plan.guards.iter().collect();
    guards.sort_by_key(|g| *g.0);
    for (block, list) in guards {
        for g in list {
            let name = &func.regs[(g.reg - base) as usize].name;
            let kind = if g.signed { "signed" } else { "unsigned" };
            let _ = writeln!(
                out,
                "  block {block} tests that {name} ({kind}) does not wrap"
            );
        }
    }
}

/// Entries, sites and slots.
fn entries(out: &mut String, plan: &Plan) {
    let _ = writeln!(out, "plan");
    for (e, block) in plan.entries.iter().enumerate() {
        let _ = writeln!(out, "  entry {e} at block {block}");
    }
    for s in &plan.syncs {
        let _ = writeln!(out, "  waits, then goes on at entry {}", s.next);
    }
    for d in &plan.diverges {
        let (then, els, join) = (d.then, d.els, d.join);
        let _ = writeln!(
            out,
            "  diverges to entries {then} and {els}, meets at {join:?}"
        );
    }
    for b in &plan.grid_stride {
        let _ = writeln!(out, "  groups take turns at block {b}");
    }
    let mut slots: Vec<_> = plan.slots.iter().collect();
    slots.sort_by_key(|s| s.1.offset);
    for (reg, slot) in slots {
        let _ = writeln!(
            out,
            "  slot {} {:?} of register {reg}",
            slot.offset, slot.class
        );
    }
    let _ = writeln!(out, "  frame of {} bytes a warp", plan.frame_bytes);
}

/// Cranelift's IR, the same for every machine.
fn code(out: &mut String, module: &Module, layout: &ModuleLayout, plan: &Plan) {
    let src = Source {
        has_fma: true,
        ..Source::plain(module, layout, plan)
    };
    let mut func =
        ClFunction::with_name_signature(UserFuncName::default(), signature(CallConv::SystemV));
    let mut shared = FunctionBuilderContext::new();
    let builder = FunctionBuilder::new(&mut func, &mut shared);
    let (builder, _) = Emit::function(builder, &src, LANES).expect("emitted");
    let isa = crate::code::target(false, false).expect("a target");
    builder.finalize(isa.frontend_config());
    let _ = writeln!(out, "emit, {LANES} lanes");
    let _ = write!(out, "{}", func.display());
}
