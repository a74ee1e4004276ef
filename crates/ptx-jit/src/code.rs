//! Machine code: made by Cranelift or read from a file, mapped ([`crate::map`]), freed on drop.
//!
//! Code calls the runtime through a table whose address is in scratch memory, so it needs no
//! relocation and could as well come from a file.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::{Function, UserFuncName};
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_codegen::{CompiledCode, Context};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use mica_kernel::BlockContext;

use crate::CompileError;
use crate::emit::{Emit, Source, signature};
use crate::executable::Executable;
use crate::interrupt;
use crate::patch;

/// Largest frame of compiled code on the stack of the thread that runs it, of which two are active at once.
/// Threads that run kernels have 2 MiB at least. CUB's onesweep radix sort takes 605 KiB as code for whole warps.
const MOST_FRAME: u32 = 704 << 10;

type Entry = unsafe extern "C" fn(*mut BlockContext, u64, u64, u64) -> u64;

/// One version of a kernel.
pub(crate) struct Code {
    pages: Executable,
    /// `(start, end, slow site)` of code that came from an instruction, ascending.
    locations: Vec<(u32, u32, u32)>,
}

/// Cranelift's settings for this machine.
pub(crate) fn target(optimize: bool, quick: bool) -> Result<OwnedTargetIsa, CompileError> {
    cranelift_native::builder()
        .map_err(|e| CompileError::Backend(e.into()))?
        .finish(flags(optimize, quick)?)
        .map_err(|e| CompileError::Backend(e.to_string()))
}

fn flags(optimize: bool, quick: bool) -> Result<settings::Flags, CompileError> {
    let mut flags = settings::builder();
    let set = |flags: &mut settings::Builder, k: &str, v: &str| {
        flags
            .set(k, v)
            .map_err(|e| CompileError::Backend(e.to_string()))
    };
    set(
        &mut flags,
        "opt_level",
        if optimize { "speed" } else { "none" },
    )?;
    set(
        &mut flags,
        "enable_verifier",
        if cfg!(debug_assertions) {
            "true"
        } else {
            "false"
        },
    )?;
    // Allocates registers in one pass instead of by backtracking, which takes the square of what is live.
    let algorithm = if quick { "single_pass" } else { "backtracking" };
    set(&mut flags, "regalloc_algorithm", algorithm)?;
    // A frame touches every page of itself when it is entered, so that it cannot reach over the guard
    // page below the stack.
    set(&mut flags, "enable_probestack", "true")?;
    set(&mut flags, "probestack_strategy", "inline")?;
    set(&mut flags, "probestack_size_log2", "12")?;
    set(&mut flags, "enable_alias_analysis", "true")?;
    // Where blocks start: control may come from elsewhere there, and `patch` must know.
    set(&mut flags, "machine_code_cfg_info", "true")?;
    Ok(settings::Flags::new(flags))
}

/// Refuses code that could not run: with a frame that is too large, or with references to anything outside.
fn check_compiled(code: &CompiledCode) -> Result<(), CompileError> {
    // Without a frame's description none is known, and so none is accepted.
    let frame = code.buffer.frame_layout().map(|f| f.frame_to_fp_offset);
    if frame.is_none_or(|bytes| bytes > MOST_FRAME) {
        return Err(CompileError::TooLarge {
            what: "bytes of stack of the processor's own",
            count: frame.unwrap_or(u32::MAX) as usize,
            limit: MOST_FRAME as usize,
        });
    }
    let outside = code.buffer.relocs().iter();
    let names: Vec<String> = outside.map(|r| format!("{:?}", r.target)).collect();
    match names.is_empty() {
        true => Ok(()),
        false => Err(CompileError::Backend(format!(
            "the code needs {}",
            names.join(", ")
        ))),
    }
}

#[cfg(test)]
thread_local! {
    /// Instructions that the code generator was last given, and how long it took.
    static LAST_CALL: std::cell::Cell<(usize, std::time::Duration)> = Default::default();
}

impl Code {
    /// Compiles one version. Also gives what [`Code::from_bytes`] takes.
    pub(crate) fn compile(
        isa: &OwnedTargetIsa,
        src: &Source<'_>,
        lanes: usize,
    ) -> Result<(Code, Vec<u8>), CompileError> {
        let quick = match src.quick {
            true => Some(target(false, true)?),
            false => None,
        };
        let isa = quick.as_ref().unwrap_or(isa);
        // With less and less of what has to be put in afterwards.
        for (broadcasts, wide) in [(true, true), (true, false), (false, false)] {
            if (broadcasts && !src.broadcasts) || (wide && !src.wide) {
                continue;
            }
            let src = Source {
                broadcasts,
                wide,
                ..*src
            };
            // The generator panics where it is given what it does not expect. That would be our mistake, and must not be
            // the end of others' work: the kernel is interpreted then.
            let attempt = || Code::attempt(isa, &src, lanes);
            let made = catch_unwind(AssertUnwindSafe(attempt));
            let made = made.unwrap_or_else(|payload| {
                interrupt::pass_on(payload);
                Err(CompileError::Backend("it panicked".into()))
            })?;
            if let Some(made) = made {
                return Ok(made);
            }
        }
        Err(CompileError::Backend("the code is not as expected".into()))
    }

    /// `None` when instructions could not be replaced as [`patch`] wants.
    fn attempt(
        isa: &OwnedTargetIsa,
        src: &Source<'_>,
        lanes: usize,
    ) -> Result<Option<(Code, Vec<u8>)>, CompileError> {
        let sig = signature(isa.default_call_conv());
        let mut func = Function::with_name_signature(UserFuncName::default(), sig);
        let mut shared = FunctionBuilderContext::new();
        let builder = FunctionBuilder::new(&mut func, &mut shared);
        let (builder, patches) = Emit::function(builder, src, lanes)?;
        let Some(patches) = patches else {
            return Ok(None);
        };
        interrupt::poll();
        builder.finalize(isa.frontend_config());
        interrupt::poll();
        if std::env::var_os("MICA_JIT_CLIF").is_some() {
            eprintln!("{}", func.display());
        }
        let mut ctx = Context::for_function(func);
        ctx.set_disasm(std::env::var_os("MICA_JIT_ASM").is_some());
        #[cfg(test)]
        let (insts, began) = (ctx.func.dfg.num_insts(), std::time::Instant::now());
        let code = ctx
            .compile(&**isa, &mut ControlPlane::default())
            .map_err(|e| CompileError::Backend(format!("{:?}", e.inner)))?;
        #[cfg(test)]
        LAST_CALL.set((insts, began.elapsed()));
        if let Some(text) = &code.vcode {
            eprintln!("{text}");
        }
        interrupt::poll();
        check_compiled(code)?;
        let mut locations: Vec<_> = code
            .buffer
            .get_srclocs_sorted()
            .iter()
            .filter(|l| l.loc.bits() != 0 && l.loc.bits() != u32::MAX)
            .map(|l| (l.start, l.end, l.loc.bits()))
            .collect();
        let mut machine = code.buffer.data().to_vec();
        if !patch::replace(&mut machine, &locations, &code.bb_starts, patches) {
            return Ok(None);
        }
        for l in &mut locations {
            l.2 = patch::plain(l.2) - 1;
        }
        let bytes = crate::code_cache::encode(&machine, &locations);
        Ok(Some((Code::map(&machine, locations)?, bytes)))
    }

    /// Compiles a function of the runtime's own.
    pub(crate) fn of_function(isa: &OwnedTargetIsa, func: Function) -> Result<Code, CompileError> {
        let mut ctx = Context::for_function(func);
        let code = ctx
            .compile(&**isa, &mut ControlPlane::default())
            .map_err(|e| CompileError::Backend(format!("{:?}", e.inner)))?;
        Code::map(code.buffer.data(), Vec::new())
    }

    /// Where it starts.
    pub(crate) fn address(&self) -> usize {
        self.pages.base() as usize
    }

    /// Maps code that was compiled before; `None` when the bytes are not such.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Result<Code, CompileError>> {
        let (code, locations) = crate::code_cache::decode(bytes)?;
        Some(Code::map(code, locations))
    }

    fn map(bytes: &[u8], locations: Vec<(u32, u32, u32)>) -> Result<Code, CompileError> {
        let pages = Executable::new(bytes).map_err(CompileError::Memory)?;
        Ok(Code { pages, locations })
    }

    /// Runs the code.
    ///
    /// # Safety
    /// `ctx` must be filled as the contract says, with scratch memory prepared by the dispatcher.
    pub(crate) unsafe fn call(&self, ctx: *mut BlockContext, a: u64, b: u64, entry: u64) -> u64 {
        // SAFETY: the mapping holds a function of this signature.
        let f: Entry = unsafe { std::mem::transmute::<*mut u8, Entry>(self.pages.base()) };
        // SAFETY: by contract.
        unsafe { f(ctx, a, b, entry) }
    }

    /// The slow site of an address inside the code.
    pub(crate) fn locate(&self, pc: usize) -> Option<Option<u32>> {
        let off = pc.checked_sub(self.address())?;
        if off >= self.pages.len() {
            return None;
        }
        let off = off as u32;
        let i = self.locations.partition_point(|l| l.0 <= off);
        let found = i.checked_sub(1).map(|i| self.locations[i]);
        Some(found.filter(|l| off < l.1).map(|l| l.2))
    }

    /// Whether any of it computes with 256 bits: such blocks, and nothing else, end with `vzeroupper`.
    pub(crate) fn is_wide(&self) -> bool {
        self.pages
            .bytes()
            .windows(3)
            .any(|b| b == patch::wide::CLEAR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use mica_ptx_ops::layout::ModuleLayout;

    fn source<'m>(
        module: &'m mica_ptx::ast::Module,
        layout: &'m ModuleLayout,
        plan: &'m Plan,
        has_fma: bool,
        patched: bool,
    ) -> Source<'m> {
        Source {
            has_fma,
            broadcasts: patched,
            wide: patched,
            ..Source::plain(module, layout, plan)
        }
    }

    #[test]
    fn what_is_put_in_is_found_in_real_kernels() {
        let isa = target(false, false).expect("a target");
        if !patch::supported(&*isa) {
            return;
        }
        let text = include_str!("../kernels/bench.ptx");
        let module = mica_ptx::parse(text.as_bytes()).expect("parses");
        let layout = ModuleLayout::new(&module).expect("a layout");
        for (kernel, lanes) in [("nbody", 4), ("nbody", 8), ("matmul", 16), ("stencil", 16)] {
            let (func, _) = module.function(kernel).expect("a kernel");
            let plan = Plan::build(&module, &layout, func).expect("a plan");
            let src = source(&module, &layout, &plan, true, true);
            // `None` would mean that code was not as expected, and is compiled without them.
            let made = Code::attempt(&isa, &src, lanes).expect("compiles");
            let (code, _) = made.unwrap_or_else(|| panic!("{kernel}, {lanes} lanes"));
            assert_eq!(
                code.is_wide(),
                (kernel, lanes) == ("nbody", 8),
                "{kernel}, {lanes}"
            );
        }
    }

    /// The text of a kernel whose body is a pattern so many times; `#` is the number of each time.
    fn repeated(count: u32, pattern: &str) -> String {
        let mut text = String::from(
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p) {\n\
             .reg .b64 %a<4>; .reg .b32 %v<65536>; .reg .f32 %f<8>; .reg .pred %q<4>;\n\
             ld.param.u64 %a0, [p]; mov.u32 %v0, %tid.x; mul.wide.u32 %a1, %v0, 4; add.s64 %a1, %a1, %a0;\n\
             ld.global.u32 %v1, [%a1]; ld.global.f32 %f0, [%a1+4]; ld.global.f32 %f1, [%a1+8];\n",
        );
        (0..count).for_each(|i| text += &pattern.replace('#', &i.to_string()));
        text + "st.global.u32 [%a1], %v1; st.global.f32 [%a1+4], %f0; ret;\n}\n"
    }

    /// What C6 of SPECIFICATION.md is measured with.
    #[test]
    #[ignore = "a measurement of the longest calls of the code generator, without a verdict, run by hand: cargo test --release -p mica-ptx-jit --lib -- --ignored --nocapture longest"]
    fn longest_calls_of_the_generator() {
        let isa = target(false, false).expect("a target");
        let quick = target(false, true).expect("a target");
        let shapes = [
            ("stores", "st.global.u32 [%a0+4], %v1;\n"),
            (
                "sums",
                "mad.lo.s32 %v1, %v1, %v0, %v1; xor.b32 %v1, %v1, %v0;\n",
            ),
            (
                "floats",
                "fma.rn.f32 %f0, %f0, %f1, %f0; add.f32 %f1, %f1, %f0;\n",
            ),
            (
                "divisions",
                "div.rn.f32 %f0, %f0, %f1; div.s32 %v1, %v1, %v0;\n",
            ),
            (
                "gathers",
                "and.b32 %v2, %v1, 255; mul.wide.u32 %a2, %v2, 4; add.s64 %a2, %a2, %a0; ld.global.u32 %v1, [%a2];\n",
            ),
            (
                "branches",
                "setp.lt.u32 %q0, %v1, #; @%q0 bra L#; add.s32 %v1, %v1, %v0; L#:\n",
            ),
            (
                "shuffles",
                "shfl.sync.bfly.b32 %v1, %v1, 3, 31, 0xffffffff;\n",
            ),
            ("registers", "mov.u32 %v#, %tid.x;\n"),
        ];
        for (name, pattern) in shapes {
            for lanes in [1, 32] {
                // The largest count that is compiled, of powers of two.
                let mut longest = None;
                for count in (7..17).map(|shift| 1 << shift) {
                    let text = repeated(count, pattern);
                    let module = mica_ptx::parse(text.as_bytes()).expect("parses");
                    let layout = ModuleLayout::new(&module).expect("a layout");
                    let (func, _) = module.function("k").expect("a kernel");
                    let Ok(plan) = Plan::build(&module, &layout, func) else {
                        break;
                    };
                    let Ok(is_quick) = crate::limit::pressure(&plan, &module) else {
                        break;
                    };
                    if lanes > 1 && (is_quick || count > 8192) {
                        break;
                    }
                    let mut src = source(&module, &layout, &plan, true, false);
                    src.quick = is_quick;
                    let isa = if is_quick { &quick } else { &isa };
                    let began = std::time::Instant::now();
                    let made = Code::attempt(isa, &src, lanes);
                    let whole = began.elapsed();
                    match made {
                        Ok(Some(_)) => {
                            let (insts, took) = LAST_CALL.get();
                            longest = Some((count, insts, took, whole));
                        }
                        _ => break,
                    }
                    if whole > std::time::Duration::from_secs(8) {
                        break;
                    }
                }
                println!("{name}, {lanes} lanes: {longest:?}");
            }
        }
    }

    /// Processors that lack some of what wide code needs.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn wide_code_is_made_only_where_all_it_needs_is_there() {
        let text = include_str!("../kernels/bench.ptx");
        let module = mica_ptx::parse(text.as_bytes()).expect("parses");
        let layout = ModuleLayout::new(&module).expect("a layout");
        let (func, _) = module.function("nbody").expect("a kernel");
        let plan = Plan::build(&module, &layout, func).expect("a plan");
        const OLD: &str = "has_sse3 has_ssse3 has_sse41 has_sse42 has_popcnt";
        for (features, wide) in [
            (String::new(), false),
            (OLD.into(), false),
            (format!("{OLD} has_avx"), false),
            (format!("{OLD} has_avx has_fma"), false),
            (format!("{OLD} has_avx has_avx2"), false),
            (format!("{OLD} has_avx has_avx2 has_fma"), true),
            (
                format!("{OLD} has_avx has_avx2 has_fma has_avx512f has_avx512vl has_avx512dq"),
                true,
            ),
        ] {
            let mut isa = cranelift_codegen::isa::lookup_by_name("x86_64-unknown-linux-gnu")
                .expect("a target");
            for f in features.split_whitespace() {
                isa.enable(f).expect("a feature");
            }
            let isa = isa
                .finish(flags(false, false).expect("flags"))
                .expect("a target");
            let supported = patch::supported(&*isa);
            let src = source(&module, &layout, &plan, features.contains("fma"), supported);
            let (code, _) =
                Code::compile(&isa, &src, 8).unwrap_or_else(|e| panic!("with `{features}`: {e}"));
            assert_eq!(code.is_wide(), wide, "with `{features}`");
        }
    }
}
