//! What grows with the text of a module is bounded: depth of calls, operands, frames of the processor's
//! stack, time to compile.

use super::{HEAD, call, filler, kernel};
use crate::common::{Params, compiled};
use mica_kernel::{BlockOutcome, Executable, Interrupt, LaunchFacts};
use mica_ptx_jit::{JitModule, Options};
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn module(text: &str) -> Result<JitModule, String> {
    let module = mica_ptx::parse(text.as_bytes()).map_err(|e| e.to_string())?;
    JitModule::compile(Arc::new(module), Options::default()).map_err(|e| e.to_string())
}

/// Compiles kernel 0 for a block of 32 threads.
fn prepare(text: &str) -> Result<bool, String> {
    let facts = LaunchFacts {
        arena_base: 1 << 20,
        arena_len: 1 << 20,
        params: &[0; 8],
        grid: crate::common::dim(1),
        block: crate::common::dim(32),
        interrupt: Interrupt::default(),
    };
    let prepared = module(text)?.prepare(0, &facts);
    prepared.map_err(|error| error.to_string())
}

/// Runs with the stack of an ordinary thread.
fn on_a_thread<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(f);
    thread.expect("a thread").join().expect("no panic")
}

/// Calls nested in `n` functions.
fn chain(n: usize) -> String {
    let mut before = filler("f0", 64);
    for i in 1..n {
        writeln!(
            before,
            ".func (.param .b32 sum) f{i} (.param .b32 with) {{ .reg .b32 %r<3>;
ld.param.u32 %r1, [with]; {} st.param.u32 [sum], %r2; ret; }}",
            call(&format!("f{}", i - 1))
        )
        .expect("writes");
    }
    kernel(&before, &call(&format!("f{}", n - 1)))
}

#[test]
fn deeply_nested_calls_end_no_thread() {
    on_a_thread(|| prepare(&chain(5_000))).expect("compiles");
    for n in [14_000, 60_000] {
        let refused = on_a_thread(move || prepare(&chain(n))).expect_err("refused");
        assert!(refused.contains("at most"), "{refused}");
    }
}

#[test]
fn nested_calls_beyond_what_is_inlined_give_the_same() {
    for n in [3, 63, 64, 65, 66, 200] {
        let sums = on_a_thread(move || {
            let mut d = compiled(&chain(n), 16);
            d.local_stride = 64 << 10;
            let out = d.upload(&[9; 64]);
            d.run("k", 1, 64, Params::default().u64(out));
            crate::reserve(&mut d);
            let out = d.upload(&[9; 64]);
            d.run("k", 1, 64, Params::default().u64(out));
            d.read(out, 64)
        });
        assert_eq!(
            sums,
            (0..64).map(|t| 2 * t).collect::<Vec<u32>>(),
            "{n} calls"
        );
    }
}

#[test]
fn provided_functions_are_called_as_they_are() {
    let registers: Vec<String> = (0..3000).map(|i| format!(".reg .b64 p{i}")).collect();
    let args = vec!["%d1"; 3000].join(", ");
    let text = format!(
        "{HEAD}.extern .func (.param .b32 r) vprintf ({});
.visible .entry k() {{ .reg .b64 %d<2>; mov.u64 %d1, 0;
{{ .param .b32 r; call (r), vprintf, ({args}); }}
ret; }}",
        registers.join(", ")
    );
    let refused = module(&text).err().expect("refused");
    assert!(refused.contains("`vprintf`"), "{refused}");
}

/// Values that are all needed at the end, so that none can be dropped before.
pub(super) fn live(n: usize) -> String {
    let mut body = String::from("ld.param.u64 %d1, [out];\n");
    for i in 0..n {
        writeln!(body, "ld.global.u32 %x{i}, [%d1+{}];", 4 * (i % 1000)).expect("writes");
    }
    body += "mov.u32 %r2, 0;\n";
    for i in (0..n).rev() {
        writeln!(body, "mad.lo.u32 %r2, %r2, 3, %x{i};").expect("writes");
    }
    kernel("", &format!(".reg .b32 %x<{n}>;\n{body}"))
}

#[test]
fn frames_of_the_processor_s_stack_are_bounded() {
    let result = on_a_thread(|| prepare(&live(150_000)));
    let refused = result.expect_err("refused");
    assert!(refused.contains("at most"), "{refused}");
}

#[test]
fn twenty_thousand_live_registers_take_no_minute() {
    let start = Instant::now();
    let result = prepare(&live(20_000));
    let took = start.elapsed();
    // Half a second in a debug build, and half a minute where registers are allocated by backtracking.
    assert!(took < Duration::from_secs(10), "{took:?} for {result:?}");
}

#[test]
fn registers_that_are_allocated_in_one_pass_hold_what_they_should() {
    let text = live(3_000);
    let run = |mut d: crate::common::Device| {
        let words: Vec<u32> = (0..1000u32).map(|i| i.wrapping_mul(0x9e37_79b9)).collect();
        let out = d.upload(&words);
        // One thread: what it stores is read by others.
        d.run("k", 1, 1, Params::default().u64(out));
        d.read(out, 1000)
    };
    let want = run(crate::common::Device::interpreter(&text));
    assert_eq!(run(compiled(&text, 16)), want);
}

/// Every way around is one on which threads may part, with all registers live: entries times registers.
#[test]
fn entries_that_load_too_much_are_not_emitted() {
    let n = 2_000;
    let mut body = format!(".reg .pred %p<3>; .reg .b32 %x<{n}>; mov.u32 %r2, %r1;\n");
    for i in 0..n {
        // Two branches: vector code switches lanes off for what has one.
        writeln!(body, "setp.lt.u32 %p1, %r2, {i}; @%p1 bra over{i};").expect("writes");
        writeln!(body, "add.u32 %x{i}, %r2, 7; setp.lt.u32 %p2, %x{i}, 9;").expect("writes");
        writeln!(body, "@%p2 bra over{i}; add.u32 %x{i}, %x{i}, 1; over{i}:").expect("writes");
    }
    for i in 0..n {
        writeln!(body, "add.u32 %r2, %r2, %x{i};").expect("writes");
    }
    let refused = prepare(&kernel("", &body)).expect_err("refused");
    assert!(refused.contains("at most"), "{refused}");
    // Far from all that it would be.
    let count: usize = (refused.split_whitespace().find_map(|w| w.parse().ok())).expect("a number");
    assert!(count < 1_100_000, "{refused}");
}

/// Each line doubles what would be computed for the branch, were it computed for each mention.
#[test]
fn predicates_that_mention_others_twice_are_computed_once() {
    let doubling = "and.pred %p1, %p1, %p1;\n".repeat(22);
    let text = kernel(
        "",
        &format!(
            ".reg .pred %p<3>;\nld.param.u32 %r3, [out];\nsetp.lt.u32 %p1, %r1, %r3;\n{doubling}
mov.u32 %r2, 1;\n@%p1 bra yes;\nmov.u32 %r2, 2;\nyes:\n"
        ),
    );
    let start = Instant::now();
    prepare(&text).expect("compiles");
    let took = start.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    let mut d = compiled(&text, 16);
    let out = d.upload(&[9; 40]);
    let (outcome, _) = d.launch(
        "k",
        crate::common::dim(1),
        crate::common::dim(40),
        0,
        Params::default().u64(out),
    );
    assert_eq!(outcome, BlockOutcome::Done);
}
