use super::*;

const ALL: NumberFormats = NumberFormats {
    f64: true,
    half: true,
    tf32: true,
    f8: true,
};
const NO_TENSOR_CORES: CodePolicy = CodePolicy {
    tensor_cores: false,
    precision: ALL,
};
const NO_F64: CodePolicy = CodePolicy {
    tensor_cores: true,
    precision: NumberFormats { f64: false, ..ALL },
};
const NO_HALF: CodePolicy = CodePolicy {
    tensor_cores: true,
    precision: NumberFormats { half: false, ..ALL },
};

/// A kernel with this body.
fn kernel(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .f64 p) {{\n\
         .reg .f64 %d<4>; .reg .f32 %f<4>; .reg .b32 %r<4>; .reg .pred %p; .reg .b16 %h<4>;\n\
         {body}\nret; }}\n"
    )
}

fn judge(policy: CodePolicy, image: &[u8]) -> Result<String, String> {
    let budget = Arc::new(SessionBudget::new(64 << 20));
    let judged = policy
        .judge_image(image, 80, &budget)
        .expect("the budget suffices");
    judged.map(|allowed| allowed.text)
}

const MMA: &str = "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f0,%f1,%f2,%f3}, {%r0,%r1}, {%r2}, {%f0,%f1,%f2,%f3};";

#[test]
fn tensor_cores_and_formats_are_refused_with_the_line() {
    let text = kernel(MMA);
    let why = judge(NO_TENSOR_CORES, text.as_bytes()).unwrap_err();
    assert_eq!(why, "line 6 of k uses tensor cores");
    let why = judge(NO_HALF, text.as_bytes()).unwrap_err();
    assert_eq!(why, "line 6 of k computes in f16");
    judge(NO_F64, text.as_bytes()).unwrap();
}

#[test]
fn moving_bits_is_not_computing() {
    let text = kernel(
        "ld.param.f64 %d0, [p]; mov.f64 %d1, %d0; // add.f64 in a comment\n/* mma.sync */ .pragma \"add.f64\";",
    );
    judge(NO_F64, text.as_bytes()).unwrap();
}

#[test]
fn no_spelling_hides_an_instruction() {
    let adds = [
        "add.f64 %d0, %d1, %d2;",
        "add .f64 %d0, %d1, %d2;",
        "add\n.f64\n%d0, %d1, %d2;",
        "add/**/.f64 %d0, %d1, %d2;",
        "add.rn // x\n.f64 %d0, %d1, %d2;",
        "@%p add.f64 %d0, %d1, %d2;",
        "@ %p add.f64 %d0, %d1, %d2;",
        "@ ! %p add .f64 %d0, %d1, %d2;",
        "@/*x*/%p\tadd.f64 %d0, %d1, %d2;",
        "L: add.f64 %d0, %d1, %d2;",
        "L:add.f64 %d0,%d1,%d2;",
        "{ add.f64 %d0, %d1, %d2; }",
        "{{add.f64 %d0, %d1, %d2;}}",
        "mov.f64 %d0, %d1; add.f64 %d0, %d1, %d2;",
        "/* /* */ add.f64 %d0, %d1, %d2;",
        "// x \\\n add.f64 %d0, %d1, %d2;",
        ".loc 1 2 3 add.f64 %d0, %d1, %d2;",
        ".pragma \"/*\"; add.f64 %d0, %d1, %d2;",
        "cvt.f64.f32 %d0, %f0;",
    ];
    for add in adds {
        let why = judge(NO_F64, kernel(add).as_bytes()).expect_err(add);
        assert!(why.contains("computes in f64"), "{add}: {why}");
    }
    for guard in ["@%p ", "@ %p ", "@!%p\n", "L: @/**/ %p "] {
        let why = judge(NO_TENSOR_CORES, kernel(&format!("{guard}{MMA}")).as_bytes());
        assert!(why.unwrap_err().contains("tensor cores"), "{guard}");
    }
}

#[test]
fn what_the_parser_skips_does_not_reach_the_device() {
    let hidden = [
        "// x\r add.f64 %d0, %d1, %d2;",
        "@@DWARF add.f64 %d0, %d1, %d2;",
        "\n#define ret add.f64 %d0, %d1, %d2;",
    ];
    for hidden in hidden {
        let text = judge(NO_F64, kernel(hidden).as_bytes()).unwrap();
        assert!(!text.contains("add.f64"), "{hidden}");
    }
    let after = kernel("") + "\0.visible .entry l() { add.f64 %d0, %d1, %d2; }";
    assert!(!judge(NO_F64, after.as_bytes()).unwrap().contains("add.f64"));
    let section = ".section .debug_str { } .entry l() { add.f64 %d0, %d1, %d2; }";
    for sly in [
        section.replace("{ }", ""),
        section.replace("{ }", "{ .b8 1 ; { }"),
    ] {
        judge(NO_F64, (kernel("") + &sly).as_bytes()).expect_err(&sly);
    }
}

#[test]
fn text_that_the_parser_does_not_know_is_refused_with_the_reason() {
    for (body, reason) in [
        ("future.op.f17 %r0;", "unknown instruction"),
        ("add.f64.future %d0, %d1, %d2;", "no modifier"),
        ("add.f64 %d0, %d1, %d2", "expected"),
    ] {
        let why = judge(NO_TENSOR_CORES, kernel(body).as_bytes()).unwrap_err();
        assert!(
            why.contains("cannot be checked") && why.contains(reason),
            "{why}"
        );
    }
    for version in [
        "",
        "version 8.0\n",
        "/* .version 8.0 */\n",
        ".version x\n",
        ".version 8\n",
    ] {
        let text = kernel("").replace(".version 8.0\n", version);
        judge(NO_TENSOR_CORES, text.as_bytes()).expect_err(version);
    }
    // A second header is no end of the first text.
    let twice = kernel("") + ".version 1.0\n.target sm_10\n" + &kernel(MMA).replace(" k(", " l(");
    judge(NO_TENSOR_CORES, twice.as_bytes()).unwrap_err();
    judge(NO_TENSOR_CORES, b"\x7fELF\0\0\xff").unwrap_err();
    judge(NO_TENSOR_CORES, b"").unwrap_err();
}

#[test]
fn instructions_that_only_real_cards_run_are_judged_by_their_modifiers() {
    let wgmma = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f0, %f0, %f0}, %d0, %d1, 1, 1, 1, 0, 0;";
    let text = kernel(wgmma).replace("sm_80", "sm_90a");
    judge(NO_TENSOR_CORES, text.as_bytes()).unwrap_err();
    judge(NO_HALF, text.as_bytes()).unwrap_err();
    judge(NO_F64, text.as_bytes()).unwrap();
}

#[test]
fn texts_that_were_joined_are_judged_as_one() {
    let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
    let user = format!("{head}.extern .func f();\n.visible .entry k() {{ call f; ret; }}");
    let library =
        format!("{head}.visible .func f() {{ .reg .f64 %d; add /*x*/ .f64 %d, %d, %d; ret; }}");
    judge(NO_F64, user.as_bytes()).unwrap();
    let joined = mica_ptx::join(&[user, library], &|_| false).unwrap();
    let why = judge(NO_F64, joined.as_bytes()).unwrap_err();
    assert!(why.contains("of f computes in f64"), "{why}");
}

/// A fatbin with these entries: kind (1 PTX, 2 machine code), architecture, bytes.
fn fatbin(entries: &[(u16, u32, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (kind, sm, bytes) in entries {
        let mut header = [0; 64];
        header[..2].copy_from_slice(&kind.to_le_bytes());
        header[4..8].copy_from_slice(&64_u32.to_le_bytes());
        header[8..12].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        header[28..32].copy_from_slice(&sm.to_le_bytes());
        body.extend(header);
        body.extend(*bytes);
    }
    let mut image = 0xba55_ed50_u32.to_le_bytes().to_vec();
    image.extend([1, 0, 16, 0]);
    image.extend((body.len() as u64).to_le_bytes());
    image.extend(body);
    image
}

#[test]
fn of_an_image_only_the_judged_text_is_loaded() {
    let (fine, bad) = (kernel(""), kernel(MMA));
    let code = (2, 80, &b"\x7fELF machine code"[..]);
    let both = fatbin(&[code, (1, 80, fine.as_bytes()), (1, 70, bad.as_bytes())]);
    let text = judge(NO_TENSOR_CORES, &both).unwrap();
    assert_eq!(text, mica_ptx::plain_text(fine.as_bytes()).unwrap());
    let best_is_bad = fatbin(&[(1, 80, bad.as_bytes()), (1, 70, fine.as_bytes())]);
    judge(NO_TENSOR_CORES, &best_is_bad).unwrap_err();
    // Nothing is old enough for the device, which will say so itself.
    judge(NO_TENSOR_CORES, &fatbin(&[(1, 90, fine.as_bytes())])).unwrap();
    let why = judge(NO_TENSOR_CORES, &fatbin(&[code])).unwrap_err();
    assert!(why.contains("no PTX"), "{why}");
}

#[test]
fn reading_a_text_counts_against_the_budget() {
    let budget = Arc::new(SessionBudget::new(1 << 20));
    let text = kernel(&"ret;".repeat(10_000));
    let judged = NO_F64.judge_image(text.as_bytes(), 80, &budget);
    assert_eq!(
        judged.unwrap_err().code,
        mica_cuda_abi::CuResult::OutOfMemory
    );
}
