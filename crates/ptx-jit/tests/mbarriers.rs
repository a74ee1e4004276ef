//! Arrivals and waits of groups at one `mbarrier`, against the interpreter.

mod common;

use common::{Device, Params, compiled};

/// Two phases: all threads arrive and wait for the state that they found; then half of them arrive twice and all wait by
/// parity. Each thread stores the states that it found and how many arrivals were pending then.
const KERNEL: &str = ".version 8.0\n.target sm_80\n.address_size 64\n\
    .visible .entry k(.param .u64 out)\n{\n\
    .reg .b64 %out, %s<4>;\n.reg .b32 %t, %n, %p<4>, %half;\n.reg .pred %done, %first, %low;\n\
    .shared .align 8 .b64 room;\n\
    ld.param.u64 %out, [out]; mov.u32 %t, %tid.x; mov.u32 %n, %ntid.x; shr.u32 %half, %n, 1;\n\
    mad.wide.u32 %out, %t, 40, %out;\n\
    setp.eq.u32 %first, %t, 0;\n\
    @%first mbarrier.init.shared.b64 [room], %n;\n\
    bar.sync 0;\n\
    mbarrier.arrive.shared.b64 %s0, [room];\n\
    mbarrier.pending_count.b64 %p0, %s0;\n\
    AGAIN:\n\
    mbarrier.test_wait.shared.b64 %done, [room], %s0;\n\
    @!%done bra AGAIN;\n\
    bar.sync 0;\n\
    setp.lt.u32 %low, %t, %half;\n\
    mov.u64 %s1, 0; mov.u64 %s2, 0;\n\
    @!%low bra BEHIND;\n\
    mbarrier.arrive.shared.b64 %s1, [room];\n\
    mbarrier.arrive.shared.b64 %s2, [room];\n\
    BEHIND:\n\
    mbarrier.test_wait.parity.shared.b64 %done, [room], 1;\n\
    @!%done bra BEHIND;\n\
    mbarrier.pending_count.b64 %p1, %s1; mbarrier.pending_count.b64 %p2, %s2;\n\
    st.global.u64 [%out], %s0; st.global.u64 [%out+8], %s1; st.global.u64 [%out+16], %s2;\n\
    st.global.u32 [%out+24], %p0; st.global.u32 [%out+28], %p1; st.global.u32 [%out+32], %p2;\n\
    ret;\n}\n";

/// Words that a thread stores.
const WORDS: usize = 10;

fn run(mut d: Device, threads: u32) -> Vec<u32> {
    let out = d.upload(&vec![7; threads as usize * WORDS]);
    d.run("k", 1, threads, Params::default().u64(out));
    d.read(out, threads as usize * WORDS)
}

#[test]
fn each_thread_finds_the_state_that_the_one_before_it_left() {
    for threads in [32, 64, 256] {
        let want = run(Device::interpreter(KERNEL), threads);
        for lanes in [1, 4, 8, 16, 32] {
            let got = run(compiled(KERNEL, lanes), threads);
            // Who arrives first differs; each count of arrivals is found by one thread.
            let counts = |words: &[u32]| {
                let mut found: Vec<_> = words.chunks(WORDS).map(|w| w[6]).collect();
                found.sort_unstable();
                found
            };
            assert_eq!(
                counts(&got),
                (1..=threads).collect::<Vec<_>>(),
                "{lanes} lanes"
            );
            assert_eq!(
                counts(&got),
                counts(&want),
                "{lanes} lanes, {threads} threads"
            );
            let mut second: Vec<u32> = got
                .chunks(WORDS)
                .take(threads as usize / 2)
                .flat_map(|w| [w[7], w[8]])
                .collect();
            second.sort_unstable();
            assert_eq!(
                second,
                (1..=threads).collect::<Vec<_>>(),
                "{lanes} lanes, second phase"
            );
        }
    }
}
