use super::*;
use crate::layout::ModuleLayout;
use std::fmt::Write;

fn layout(text: &str) -> ModuleLayout {
    let text = format!(".version 8.4\n.target sm_80\n.address_size 64\n{text}");
    let module = mica_ptx::parse(text.as_bytes()).expect("parses");
    ModuleLayout::new(&module).expect("a layout")
}

#[test]
fn chains_add_up_and_cycles_are_found() {
    // 0 -> 1 -> 3, 0 -> 2 -> 3, 4 <-> 5 -> 3, 6 -> 6.
    let graph = [
        vec![1, 2],
        vec![3],
        vec![3],
        vec![],
        vec![5],
        vec![3, 4],
        vec![6],
    ];
    let found = chains(&graph, |f| 10 + f as u64);
    assert_eq!(found.weight, [10 + 12 + 13, 24, 25, 13, 42, 42, 16]);
    assert_eq!(found.cyclic, [false, false, false, false, true, true, true]);
    let place = |f| found.order.iter().position(|&x| x == f).expect("listed");
    assert!(place(3) < place(1) && place(1) < place(0) && place(3) < place(5));
}

#[test]
fn weights_never_wrap() {
    let found = chains(&[vec![1], vec![]], |_| u64::MAX);
    assert_eq!(found.weight, [u64::MAX; 2]);
}

/// 2^40 paths, with the deepest frame at the end of each. A walk over paths with a budget found none.
#[test]
fn shared_callees_are_counted_once() {
    let big = "{ .local .align 16 .b8 big[4096]; ret; }";
    let mut text = format!(".func t40() {big}\n.func u40() {big}\n");
    for i in (0..40).rev() {
        let next = i + 1;
        for name in ["t", "u"] {
            writeln!(
                text,
                ".func {name}{i}() {{ call t{next}; call u{next}; ret; }}"
            )
            .expect("writes");
        }
    }
    text += ".func last() { .local .align 16 .b8 big[8192]; ret; }\n";
    text += ".visible .entry k() { call t0; call last; ret; }";
    let found = layout(&text);
    assert_eq!(found.kernels[0].local_bytes, 8192);
    assert!(!found.kernels[0].recursive);
}

#[test]
fn dead_text_calls_nobody() {
    let found = layout(
        ".func again(); .func again() { .local .b8 l[64]; call again; ret; }
         .visible .entry k() { ret; call again; ret; }
         .visible .entry jumps() { bra over; call again; over: ret; }
         .visible .entry guarded() { .reg .pred %p; @%p ret; call again; ret; }",
    );
    let of = |name: &str| {
        let k = &found.kernels[found.kernel(name).expect("a kernel")];
        (k.local_bytes, k.recursive)
    };
    assert_eq!(of("k"), (0, false));
    assert_eq!(of("jumps"), (0, false));
    assert_eq!(of("guarded"), (64, true));
}

#[test]
fn a_long_chain_of_calls_is_no_deep_recursion_here() {
    let mut text = String::from(".func f50000() { .local .b8 l[16]; ret; }\n");
    for i in (0..50_000).rev() {
        writeln!(
            text,
            ".func f{i}() {{ .local .b8 l[16]; call f{}; ret; }}",
            i + 1
        )
        .expect("writes");
    }
    text += ".visible .entry k() { call f0; ret; }";
    assert_eq!(layout(&text).kernels[0].local_bytes, 16 * 50_001);
}

#[test]
fn frames_larger_than_any_memory_are_not_taken_for_small_ones() {
    let mut text = String::new();
    for i in 0..3 {
        writeln!(
            text,
            ".func f{i}() {{ .local .b8 l[0xfffffff0]; {} ret; }}",
            if i == 0 {
                String::new()
            } else {
                format!("call f{};", i - 1)
            }
        )
        .expect("writes");
    }
    text += ".visible .entry k() { call f2; ret; }";
    assert_eq!(layout(&text).kernels[0].local_bytes, u32::MAX);
}
