use super::*;

fn layout(text: &str) -> Result<ModuleLayout, LayoutError> {
    let text = format!(".version 8.4\n.target sm_80\n.address_size 64\n{text}");
    ModuleLayout::new(&mica_ptx::parse(text.as_bytes()).expect("parses"))
}

#[test]
fn kernels_are_described() {
    let found = layout(
        ".func deep(.param .b64 p) { .local .align 8 .b8 l[100]; ret; }
         .visible .entry k(.param .u64 a, .param .u8 b, .param .align 8 .b8 c[12])
           .maxntid 64, 2, 1 {
           .shared .align 16 .b8 s[48]; .local .align 16 .b8 own[32]; .reg .b64 %d<2>;
           mov.u64 %d0, s; st.shared.u8 [s], 0;
           { .param .b64 x; st.param.b64 [x], %d0; call deep, (x); }
           ret; }
         .visible .entry r() .reqntid 32 { .reg .b64 %d; mov.u64 %d, r; ret; }
         .visible .entry addressed(.param .u64 a) {
           .reg .b64 %d<2>; mov.b64 %d0, a; cvta.param.u64 %d1, %d0; ret; }",
    )
    .expect("a layout");
    let k = &found.kernels[found.kernel("k").expect("k")];
    let places: Vec<_> = k.params.iter().map(|p| (p.offset, p.size)).collect();
    assert_eq!(places, [(0, 8), (8, 1), (16, 12)]);
    assert_eq!(
        (k.params_len, k.static_shared, k.max_threads),
        (28, 48, 128)
    );
    // 32 bytes of its own, 16 for the argument, 112 + 16 for the callee.
    assert_eq!(
        (k.local_bytes, k.recursive, k.params_addressed),
        (176, false, false)
    );
    let r = &found.kernels[found.kernel("r").expect("r")];
    assert_eq!(
        (r.required_block.x, r.required_block.y, r.max_threads),
        (32, 1, 32)
    );
    assert!(found.kernels[found.kernel("addressed").expect("it")].params_addressed);
}

#[test]
fn recursion_is_open_ended() {
    let found = layout(
        ".func again() ; .func again() { call again; ret; }
         .visible .entry k() { call again; ret; }",
    )
    .expect("a layout");
    assert!(found.kernels[0].recursive);
}

#[test]
fn globals_keep_contents_and_addresses() {
    let found = layout(
        ".visible .global .align 4 .u32 numbers[4] = {1, 2};
         .const .align 8 .f64 one = 0d3FF0000000000000;
         .func f() { ret; }
         .global .align 8 .u64 pointers[3] = {numbers+8, f, generic(numbers)};",
    )
    .expect("a layout");
    let [numbers, one, pointers] = &found.globals[..] else {
        panic!("three globals")
    };
    assert_eq!(
        (numbers.size, numbers.align, numbers.visible),
        (16, 4, true)
    );
    assert_eq!(numbers.init[..8], [1, 0, 0, 0, 2, 0, 0, 0]);
    assert!(one.constant && one.init == 1f64.to_le_bytes());
    assert_eq!(pointers.relocations, [(0, 0, 8), (16, 0, 0)]);
    assert_eq!(pointers.function_relocations, [(8, "f".to_owned())]);
    assert!(pointers.init.len() >= 24);
}

#[test]
fn what_has_no_place_is_refused() {
    let error = layout(".extern .global .u32 missing;").expect_err("refused");
    assert!(matches!(&error, LayoutError::UnresolvedVariable { name, .. } if name == "missing"));
    assert!(error.to_string().contains("missing"));
}

#[test]
fn addresses_may_be_given_byte_by_byte() {
    let bytes = |symbol: &str| {
        let one = |byte: u32| format!("{:#x}({symbol})", 0xff_u64 << (8 * byte));
        (0..8).map(one).collect::<Vec<_>>().join(", ")
    };
    let found = layout(&format!(
        ".global .u32 a;\n.func f() {{ ret; }}
         .global .u8 packed[20] = {{1, {}, 7, {}, 9}};",
        bytes("generic(a)"),
        bytes("f"),
    ))
    .expect("a layout");
    let packed = &found.globals[1];
    assert_eq!(packed.relocations, [(1, 0, 0)]);
    assert_eq!(packed.function_relocations, [(10, "f".to_owned())]);
    assert_eq!((packed.init[0], packed.init[9], packed.init[18]), (1, 7, 9));
    let refused = layout(".global .u32 a;\n.global .u8 odd[2] = {0xff(a), 0xff00(a)};");
    let refused = refused.expect_err("part of an address").to_string();
    assert!(refused.contains("a single byte of an address"), "{refused}");
}
