//! What nvcc makes of the CUDA sources in `tests/ptx/cuda`, for compute_75, 80 and 90.

use std::collections::BTreeMap;
use std::path::PathBuf;

use mica_ptx::ast::*;
use mica_ptx::cfg::Cfg;
use mica_ptx::{describe, parse, verify};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/ptx")
}

fn fixture(name: &str) -> Module {
    let bytes = std::fs::read(folder().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    parse(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn all() -> BTreeMap<String, Module> {
    let mut modules = BTreeMap::new();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".ptx") {
            modules.insert(name.clone(), fixture(&name));
        }
    }
    modules
}

#[test]
fn every_fixture_parses_and_keeps_the_promises() {
    let modules = all();
    assert!(modules.len() >= 90, "{} fixtures", modules.len());
    for (name, module) in &modules {
        verify(module).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(
            module.unsupported.is_empty(),
            "{name}: {:?}",
            module.unsupported
        );
        assert!(module.kernels().count() > 0, "{name} has no kernels");
        let sm: u32 = name.split('.').nth(1).unwrap().parse().unwrap();
        assert_eq!(module.target.sm, sm, "{name}");
        for (_, f) in module.kernels() {
            let cfg = Cfg::build(f);
            assert_eq!(cfg.block_of.len(), f.body.len());
            assert_eq!(cfg.rpo.first(), Some(&0), "{name} {}", f.name);
        }
        let text = describe(module).to_string();
        assert!(text.contains("\nkernel "), "{text}");
    }
}

#[test]
fn no_instruction_is_lost() {
    for (name, module) in all() {
        let text = std::fs::read_to_string(folder().join(&name)).unwrap();
        let mut expected = 0;
        for line in text.lines() {
            let line = line.trim_start();
            let code = line.split("//").next().unwrap_or("").trim();
            // One instruction starts on a line of nvcc's own output; inline assembly may hold more.
            // A line without a blank continues a call.
            let starts = code.starts_with(|c: char| c.is_ascii_lowercase() || c == '@');
            if starts && code.contains([' ', '\t']) {
                expected += 1;
            }
        }
        let have: usize = module.functions.iter().map(|f| f.body.len()).sum();
        assert!(
            have >= expected,
            "{name}: {have} instructions, {expected} lines of code"
        );
    }
}

#[test]
fn parameters_are_laid_out_as_in_c() {
    let module = fixture("recursion.80.ptx");
    let (_, f) = module.function("structs").unwrap();
    let places: Vec<(u32, u32, u32)> = f
        .params
        .iter()
        .map(|p| (p.offset, p.size, p.align))
        .collect();
    assert_eq!(places, [(0, 136, 8), (136, 8, 4), (144, 8, 8)]);
    assert_eq!(f.param_bytes, 152);
    let ParamPlace::Var(first) = f.params[1].place else {
        panic!("{:?}", f.params[1])
    };
    assert_eq!(module.var(first).offset, 136);
}

#[test]
fn shared_memory_is_placed_without_overlap() {
    for (name, module) in all() {
        for (id, f) in module.kernels() {
            let mut spans: Vec<(u64, u64)> = module
                .vars
                .iter()
                .filter(|v| v.space == Space::Shared && !v.is_dynamic_shared())
                .filter(|v| v.owner == Some(id) || v.owner.is_none())
                .filter(|v| v.offset + v.size <= u64::from(f.shared_bytes))
                .map(|v| (v.offset, v.offset + v.size))
                .collect();
            spans.sort_unstable();
            for own in module.vars.iter().filter(|v| v.owner == Some(id)) {
                if own.space == Space::Shared {
                    assert_eq!(own.offset % u64::from(own.align), 0, "{name} {}", own.name);
                    assert!(own.offset + own.size <= u64::from(f.shared_bytes), "{name}");
                }
            }
            assert!(
                f.dynamic_shared_offset >= f.shared_bytes,
                "{name} {}",
                f.name
            );
        }
    }
    let module = fixture("matmul.80.ptx");
    let (_, f) = module.function("matmul_f32").unwrap();
    assert_eq!(f.shared_bytes, 16 * 16 * 4 + 16 * 17 * 4);
    let module = fixture("memory.80.ptx");
    assert!(module.function("dynamic").unwrap().1.uses_dynamic_shared);
    assert!(!module.function("heap").unwrap().1.uses_dynamic_shared);
}

#[test]
fn initializers_keep_bytes_and_addresses() {
    let module = fixture("memory.80.ptx");
    let bytes = |name: &str| module.global(name).unwrap().1.init.clone().unwrap();
    assert_eq!(bytes("counter").bytes, 42u32.to_le_bytes());
    assert_eq!(bytes("primes").bytes[..8], [2, 0, 0, 0, 3, 0, 0, 0]);
    let matrix = bytes("matrix").bytes;
    assert_eq!(matrix[..8], [0, 0, 0x80, 0x3f, 0, 0, 0, 0x40]);
    assert_eq!(matrix[16..20], 3f32.to_le_bytes());

    let (counter, _) = module.global("counter").unwrap();
    let pointer = bytes("pointer_to_counter");
    assert_eq!(pointer.relocs.len(), 1);
    assert_eq!(pointer.relocs[0].target, RelocTarget::Var(counter));
    assert!(pointer.relocs[0].generic);
    assert_eq!(bytes("names").relocs.len(), 3);
    assert!(module.global("shared_with_host").unwrap().1.managed);

    let module = fixture("recursion.80.ptx");
    let table = module.global("table").unwrap().1.init.clone().unwrap();
    let targets: Vec<&str> = table
        .relocs
        .iter()
        .map(|r| match r.target {
            RelocTarget::Func(f) => module.func(f).name.as_str(),
            RelocTarget::Var(_) => "variable",
        })
        .collect();
    assert_eq!(targets, ["_Z3addff", "_Z3subff", "_Z3mulff"]);
}

#[test]
fn source_lines_are_kept() {
    let module = fixture("debug_lines.80.ptx");
    assert_eq!(module.file_name(1), Some("debug_lines.cu"));
    let (_, f) = module.function("with_lines").unwrap();
    let store = f
        .body
        .iter()
        .find(|i| {
            matches!(
                &i.op,
                Op::St {
                    space: Space::Global,
                    ..
                }
            )
        })
        .expect("a store");
    assert_eq!(store.loc.map(|l| (l.file, l.line)), Some((1, 6)));
    let load = f.body.iter().find(|i| {
        matches!(
            &i.op,
            Op::Ld {
                space: Space::Global,
                ..
            }
        )
    });
    // The load is of the inlined function on line 2.
    assert_eq!(load.and_then(|i| i.loc).map(|l| l.line), Some(2));
}

#[test]
fn externs_and_calls_are_resolved() {
    let module = fixture("printf_assert.80.ptx");
    for name in ["vprintf", "__assertfail"] {
        let (_, f) = module.function(name).unwrap();
        assert!(!f.defined, "{name}");
        assert_eq!(f.linkage, Linkage::Extern);
    }
    let (printf, _) = module.function("vprintf").unwrap();
    let (_, say) = module.function("say").unwrap();
    let calls = say.body.iter().filter(
        |i| matches!(&i.op, Op::Call { callee: Callee::Direct(f), args, .. } if *f == printf && args.len() == 2),
    );
    assert_eq!(calls.count(), 2);

    let module = fixture("recursion.80.ptx");
    let (_, f) = module.function("pointers").unwrap();
    let indirect = f.body.iter().any(|i| {
        matches!(
            &i.op,
            Op::Call {
                callee: Callee::Indirect { proto: Some(_), .. },
                ..
            }
        )
    });
    assert!(indirect);
}

#[test]
fn labels_of_repeated_scopes_are_told_apart() {
    // Three inlined loops all use the labels LAB_WAIT and DONE.
    let module = fixture("mbarrier.90.ptx");
    let (_, f) = module.function("mbar").unwrap();
    let waits: Vec<usize> = f
        .body
        .iter()
        .enumerate()
        .filter(|(_, i)| {
            matches!(
                &i.op,
                Op::Mbarrier {
                    op: MbarrierOp::Wait { blocking: true, .. },
                    ..
                }
            )
        })
        .map(|(i, _)| i)
        .collect();
    assert_eq!(waits.len(), 3);
    for at in waits {
        let targets: Vec<u32> = f.body[at + 1..at + 3]
            .iter()
            .map(|i| match i.op {
                Op::Bra { target, .. } => target,
                ref other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(targets, [at as u32 + 3, at as u32]);
    }
}

#[test]
fn launch_bounds_and_clusters_are_read() {
    let module = fixture("nbody.80.ptx");
    let (_, f) = module.function("nbody").unwrap();
    assert_eq!(f.directives.maxntid, Some([256, 1, 1]));
    let module = fixture("coop.90.ptx");
    let (_, f) = module.function("cluster").unwrap();
    assert_eq!(f.directives.reqnctapercluster, Some([2, 1, 1]));
    assert!(f.directives.explicit_cluster);
}

#[test]
fn fixtures_cover_the_instruction_set() {
    // A family that no fixture has is a family that nothing tests end to end.
    let mut seen = std::collections::BTreeSet::new();
    for module in all().values() {
        for inst in module.functions.iter().flat_map(|f| &f.body) {
            let debug = format!("{:?}", inst.op);
            let end = debug.find([' ', '(', '{']).unwrap_or(debug.len());
            seen.insert(debug[..end].to_string());
        }
    }
    for family in [
        "Mov",
        "Pack",
        "Unpack",
        "Ld",
        "St",
        "Cvta",
        "IsSpacep",
        "Cvt",
        "CvtPack",
        "Prmt",
        "CacheControl",
        "CreatePolicy",
        "Mapa",
        "IntBin",
        "IntUn",
        "AddCarry",
        "Mul",
        "Mad",
        "Mul24",
        "Sad",
        "Bfind",
        "Bfe",
        "Bfi",
        "Bmsk",
        "Szext",
        "Shf",
        "Lop3",
        "Dp4a",
        "Dp2a",
        "FloatBin",
        "Fma",
        "FloatDiv",
        "FloatUn",
        "Testp",
        "Copysign",
        "Setp",
        "Set",
        "Selp",
        "Slct",
        "Bra",
        "Call",
        "Ret",
        "Exit",
        "Trap",
        "Brkpt",
        "Nanosleep",
        "Pmevent",
        "Bar",
        "BarRed",
        "BarWarp",
        "BarCluster",
        "Fence",
        "FenceProxy",
        "Vote",
        "Match",
        "Activemask",
        "Redux",
        "Elect",
        "Shfl",
        "Atom",
        "CpAsync",
        "CpAsyncCommitGroup",
        "CpAsyncWaitGroup",
        "CpAsyncBulk",
        "CpReduceAsyncBulk",
        "CpAsyncBulkCommitGroup",
        "CpAsyncBulkWaitGroup",
        "Mbarrier",
        "MbarrierPendingCount",
        "LdMatrix",
        "StMatrix",
        "MovMatrix",
        "Mma",
        "WmmaLoad",
        "WmmaStore",
        "WmmaMma",
        "Tex",
        "Tld4",
        "Txq",
        "Suld",
        "Sust",
        "Sured",
        "Video",
        "VideoMad",
        "VideoSimd",
        "Fns",
    ] {
        assert!(
            seen.contains(family),
            "no fixture has {family}; seen: {seen:?}"
        );
    }
}
